"""A thousand hostile requests for each endpoint of the gateway and of the two middlewares, in this process."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, currently_in_test_context, event, given, settings
from hypothesis import strategies as st

from notwice.problems import KINDS
from notwice.server import forwarding, refusals
from tests.fuzz.gateway import PATH, SETTINGS, Front, Got, Sent, Told
from tests.http.harness import AsgiFace, Face, Handler, WsgiFace, says

CASES = settings(
    max_examples=1_000,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
CODES = {*KINDS, *refusals.KINDS}
SECRET_KEY = "sk-only-the-caller-knows"
TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")

# --- what callers send: whatever a server lets through ----------------------------------------------------------------

_values = st.binary(max_size=40).map(lambda value: bytes(byte for byte in value if byte >= 0x20 or byte == 9).strip())
_NAMES = (
    b"accept-encoding connection content-encoding content-length content-type cookie expect forwarded host "
    b"idempotency-key keep-alive te trailer transfer-encoding upgrade via x-account x-forwarded-for "
    b"x-http-method-override idempotency-outcome idempotency-replayed range if-match authorization"
)
_names = st.sampled_from([*_NAMES.split(), b"x-a", b"~", b"0", b"!#$%&'*+.^_`|~"])
_known = st.sampled_from(
    [
        b"", b"k", b'"k"', b'"a\\"b"', b"k, k", b"k, l", b'"k";a=1', b"\xff", b"a" * 256, b"gzip", b"chunked", b"close",
        b"100-continue", b"websocket", b"5", b"-1", b"99999999999999999999999", b"\xc2\xb2", b"application/json",
        b"multipart/form-data; boundary=x", b"identity;q=0", b"x-account, content-length", b"not-applied",
        b"bytes=0-1", b"*", SECRET_KEY.encode(),
    ]
)  # fmt: skip
_lines = st.lists(st.tuples(_names, _known | _values), max_size=8)
_paths = st.sampled_from([PATH.encode(), b"/status", b"/-/notwice/health/live", b"/", b"//x", b"/%2e%2e/%00", b"*"]) | (
    st.binary(max_size=20).map(lambda path: b"/" + bytes(byte for byte in path if 0x20 < byte < 0x7F))
)
_queries = st.sampled_from([b"", b"idempotency_key=k", b"idempotency_key=%22k%22", b"a=1&idempotency_key=%ff"]) | (
    st.binary(max_size=20).map(lambda query: bytes(byte for byte in query if 0x20 < byte < 0x7F))
)
_bodies = st.lists(
    st.sampled_from([b'{"a": 1}', b"[", b"\xff", b"--x\r\n", b"--x--", b"0\r\n\r\n", b"a" * 5_000])
    | st.binary(max_size=30),
    max_size=4,
)
_METHODS = ("GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "post", "QUERY")
_methods = st.sampled_from(_METHODS)


def requests(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Sent]:
    parts = {"method": _methods, "path": _paths, "query": _queries, "headers": _lines, "body": _bodies}
    return st.builds(Sent, **{**parts, "hangs_up": st.just(value=False), **fixed})


def guarded(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Sent]:
    """A request with a key and an account, whatever else it has."""
    key = st.sampled_from([b"k", b'"k"', SECRET_KEY.encode()])
    lines = st.builds(
        lambda key, rest: [(b"idempotency-key", key), (b"x-account", b"a"), *rest],
        key,
        st.lists(st.tuples(_names, _known | _values), max_size=4),
    )
    guarded_methods = st.sampled_from(["POST", "PATCH"])
    return requests(**{"method": guarded_methods, "path": st.just(PATH.encode()), "headers": lines, **fixed})


# --- what the service answers -----------------------------------------------------------------------------------------

_answers = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nX-From: service\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 201 Created\r\nX-From: service\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: /x\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 422 No\r\nContent-Type: application/json\r\nX-From: service\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Down\r\nContent-Length: 4\r\n\r\ndown",
        b"HTTP/1.1 200 OK\r\nIdempotency-Outcome: not-applied\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\n\r\nto the end",
        b"HTTP/1.1 200 OK\r\nX-A: \x01\xff\r\nConnection: x-a, close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"nonsense",
        b"",
    ]
)  # fmt: skip
_told = st.builds(Told, st.one_of(_answers, _answers, _answers, st.binary(max_size=40)), st.booleans())


def note(what: str) -> None:
    """Count a case for the statistics, within a search."""
    if currently_in_test_context():
        event(what)


def check_answer(got: Got | None, sent: Sent) -> None:
    """What holds for every answer, whoever gives it."""
    assert got is not None
    assert 200 <= got.status <= 599
    for name, value in got.headers:
        assert TOKEN.fullmatch(name), name
        assert not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value), value
    lengths = got.values(b"content-length")
    assert len(set(lengths)) <= 1
    if lengths and got.whole and sent.method != "HEAD" and got.status not in (204, 304):
        assert int(lengths[0]) == len(got.body)
    if got.code is not None:
        document = json.loads(got.body)
        assert got.code in CODES
        assert document["status"] == got.status
        assert got.values(b"cache-control") == [b"no-store"]
        assert got.values(b"idempotency-outcome") in ([b"not-applied"], [b"unknown"])
        assert all(int(wait) >= 1 for wait in got.values(b"retry-after"))
        note(got.code)
    else:
        note(f"answer {got.status // 100}xx")


def check_log(front: Front) -> None:
    """P15: no key, no body and no account stands in the log."""
    texts = "\n".join(front.log.texts)
    assert SECRET_KEY not in texts
    front.log.texts.clear()


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    made = Front(monkeypatch)
    yield made
    made.close()


@CASES
@given(sent=requests(), told=_told)
def test_whatever_is_sent_to_the_gateway_is_answered(front: Front, sent: Sent, told: Told) -> None:
    """P15: any request to any path, any answer of the service: one answer, or a refusal of ours; no exception."""
    front.service.requests.clear()
    front.service.told = told
    got = front.ask(sent)
    if got is None or not got.whole:
        note("broken off, as the service broke off")
        assert front.service.requests
    else:
        check_answer(got, sent)
    check_log(front)


@CASES
@given(sent=guarded(), told=_told)
def test_whatever_a_guarded_request_is_it_reaches_the_service_once(front: Front, sent: Sent, told: Told) -> None:
    """P1, P2: a repetition reaches the service only after an answer that frees the key, and else gets the same."""
    check_once(front, sent, told)


def check_once(front: Front, sent: Sent, told: Told) -> None:
    front.service.requests.clear()
    front.service.told = told
    sent = sent._replace(headers=_with_key(sent, next(front.numbers)))
    first, second = front.ask(sent), front.ask(sent)
    reached = len(front.service.requests)
    check_log(front)
    for got in (first, second):
        if got is not None and got.whole:
            check_answer(got, sent)
    assert reached <= 2
    if reached == 2:
        note("freed")
        assert first is not None
        assert first.status in (401, 403, 425, 429) or b"not-applied" in told.answer
    elif reached == 1 and first is not None and first.whole and first.code is None:
        assert second is not None
        assert (second.status, second.values(b"idempotency-replayed")) == (first.status, [b"true"])
        if not first.values(b"content-encoding"):
            assert second.body == first.body


def _with_key(sent: Sent, number: int) -> list[tuple[bytes, bytes]]:
    """The first key of the request, made one that no other case has; a second one stays as it is."""
    (name, value), *rest = sent.headers
    made = b'"%b-%d"' % (value.strip(b'"'), number)
    return [(name, made), *rest]


@CASES
@given(sent=guarded())
def test_a_caller_that_hangs_up_before_its_request_is_whole_runs_nothing(front: Front, sent: Sent) -> None:
    """P10: nothing reaches the service, and nothing is answered but a refusal."""
    front.service.requests.clear()
    got = front.ask(sent._replace(hangs_up=True))
    assert not front.service.requests
    if got is not None:
        check_answer(got, sent)
        assert got.code is not None


_look_up = st.just(b"/status")


@CASES
@given(sent=requests(method=st.just("GET"), path=_look_up) | guarded(method=st.just("GET"), path=_look_up))
def test_whatever_a_look_up_asks_it_is_answered(front: Front, sent: Sent) -> None:
    """P11, P12: a look-up gives a state, or a refusal; it never reaches the service."""
    front.service.requests.clear()
    got = front.ask(sent)
    check_answer(got, sent)
    assert got is not None
    note("asked" if got.status == 200 else "refused")
    assert got.code is not None or json.loads(got.body)["state"] == "not_found" or got.status != 200
    assert not front.service.requests or any(name == b"via" for name, _ in sent.headers)
    check_log(front)


@CASES
@given(
    sent=requests(
        path=st.sampled_from([b"", b"/", b"/live", b"/ready", b"/x", b"/live/"]).map(
            SETTINGS.health_path.encode().__add__
        )
    )
)
def test_health_is_answered_whatever_is_sent_with_the_question(front: Front, sent: Sent) -> None:
    """Health is told to whoever asks with GET, and is never forwarded."""
    front.service.requests.clear()
    got = front.ask(sent)
    assert got is not None
    assert got.status in (200, 404, 405, 508)
    assert got.whole
    assert json.loads(got.body)
    assert not front.service.requests


_upper = st.sampled_from([method for method in _METHODS if method.isupper()])


@pytest.mark.parametrize("face", [AsgiFace, WsgiFace])
@CASES
@given(sent=requests(method=_upper) | guarded(path=_paths), status=st.sampled_from([200, 201, 302, 400, 429, 500]))
def test_whatever_is_sent_to_a_middleware_is_answered(face: type[Face], sent: Sent, status: int) -> None:
    """P1, P2: both faces answer any request, and the same request again, and run the handler once for a key."""
    handler = Handler([says(status)])
    served = face(handler, status_path="/status", request_bytes_max=8_000)
    lines = [(name.decode(), value.decode("latin-1")) for name, value in sent.headers if name != b"content-length"]
    path = f"{sent.path.decode()}?{sent.query.decode()}" if sent.query else sent.path.decode()
    try:
        answers = [served.request(path, lines, b"".join(sent.body), method=sent.method) for _ in range(2)]
        keyed = {str(answer.replayed) for answer in answers if answer.replayed}
        records = served.records()
        assert all(200 <= answer.status <= 599 for answer in answers)
        assert len(records) <= 1
        if keyed:
            assert handler.count == 1
            assert answers[0].body == answers[1].body
        note(f"{sent.method in ('POST', 'PATCH')} {len(records)} {sorted(keyed)}")
    finally:
        served.close()


@pytest.mark.parametrize("part", ["header", "answer"])
def test_a_gateway_that_does_not_guard_is_caught(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a gateway that looks for the key in another header, and one that passes control characters on."""
    front = Front(monkeypatch, dataclasses.replace(SETTINGS, header="X-Other") if part == "header" else SETTINGS)
    if part == "answer":
        monkeypatch.setattr(forwarding, "_BLANKED", bytes(range(256)))
    told = Told(b"HTTP/1.1 200 OK\r\nX-A: \x01\r\nContent-Length: 2\r\n\r\nok")
    sent = Sent("POST", PATH.encode(), b"", [(b"idempotency-key", b"k"), (b"x-account", b"a")])
    try:
        with pytest.raises(AssertionError):
            check_once(front, sent, told)
    finally:
        front.close()
