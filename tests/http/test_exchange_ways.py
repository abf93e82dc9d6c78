"""The exchange at its edges: what a request is compared by, what of an answer is kept, and limits to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from notwice.errors import InvalidKey, OwnershipLost
from notwice.fingerprint import BODY_SHA256, BytesRequest, HttpRequest, compute, fingerprint_http
from notwice.http import SHARED, HttpPolicy
from notwice.http.exchange import Answer, Ending, Exchange, RequestHeaders, RequestView
from notwice.http.exchange.capture import Capture
from notwice.http.exchange.codings import for_client
from notwice.http.exchange.headers import members
from notwice.http.exchange.keys import HEADER_CHARACTERS_MAX, read_key, read_query_key
from notwice.model import Released, State
from tests.http.test_exchange import REQUEST, TERMS, exchange, headers_of, view_of


@dataclass
class Body:
    """A body of two pieces."""

    data: bytes

    def __iter__(self) -> Iterator[bytes]:
        yield self.data[:1]
        yield self.data[1:]

    def read(self) -> bytes:
        return self.data


def detail_of(answer: Answer | None) -> object:
    assert answer is not None
    return json.loads(answer.body).get("detail")


# -- requests ---------------------------------------------------------------------------------------------------------


def test_two_lines_of_a_content_type_are_not_one() -> None:
    """P3: of two lines some applications take the first and some the last; one that holds a comma is another one."""
    lines = ('multipart/form-data; boundary=b; x="', '"; y=z')
    headers = RequestHeaders(("Content-Type", line) for line in lines)
    found = exchange().fingerprint(RequestView("POST", "/", "/", "", headers, {}), Body(b"5")).current
    assert found == fingerprint_http(HttpRequest("POST", b"/", b"", "\n".join(lines), Body(b"5")))
    assert found != fingerprint_http(HttpRequest("POST", b"/", b"", ", ".join(lines), Body(b"5")))


@pytest.mark.parametrize("kind", [None, "application/json", "text/plain"])
def test_a_request_is_compared_by_its_print_of_any_recipe(kind: str | None) -> None:
    """P3, P14: by that of this release, and by an older one for a record that was made with it.

    No kind is an empty one, and a recipe that is not known gives no print.
    """
    headers = RequestHeaders(() if kind is None else (("Content-Type", kind),))
    request = RequestView("POST", "/a", "/a%20", "q=1", headers, {})
    whole = HttpRequest("POST", b"/a%20", b"q=1", kind or "", Body(b'{"a": 1}'))
    found = exchange().fingerprint(request, Body(b'{"a": 1}'))
    assert found.current == found.by(found.current.recipe) == fingerprint_http(whole)
    assert found.by(BODY_SHA256) == compute(BODY_SHA256, whole)
    assert found.by("of-tomorrow") is None
    cache = Exchange(HttpPolicy.api_cache(principal=SHARED)).fingerprint(request, Body(b'{"a": 1}'))
    assert cache.current == found.by(BODY_SHA256)


def test_bytes_that_an_application_has_chosen_are_compared_alone() -> None:
    """P3: they are the request; by any recipe that is known they are themselves."""
    found = exchange(fingerprint=lambda request, body: request.path.encode() + body).fingerprint(REQUEST, Body(b"5"))
    assert found.current == compute(found.current.recipe, BytesRequest(b"/pay5"))
    assert found.by(found.current.recipe) == found.current
    assert found.by(BODY_SHA256) == compute(BODY_SHA256, BytesRequest(b"/pay5"))


def test_a_body_of_unknown_length_is_refused_with_what_to_do() -> None:
    """A client that is over the limit can send less; one that has not said its length can say it."""
    guard = exchange(request_bytes_max=5)
    assert guard.too_large(5) is None
    assert detail_of(guard.too_large(None)) == "Its length is not known. Send a Content-Length."
    assert detail_of(guard.too_large(6)) != detail_of(guard.too_large(None))


def test_who_is_not_known_is_challenged() -> None:
    """RFC 9110, section 11.6.1: by a header whose name is in lower case, as ASGI asks for."""
    told = exchange(challenge="Bearer").account(None, within="")
    assert isinstance(told, Answer)
    assert ("www-authenticate", "Bearer") in told.headers


@pytest.mark.parametrize("line", ["\xa0k", "k\x85", "\x0bk", "\x1ck"])
def test_a_blank_that_is_none_of_a_header_s_is_no_blank(line: str) -> None:
    """C28: only spaces and tabs stand around a value (RFC 9110, section 5.5); anything else is part of it."""
    with pytest.raises(InvalidKey):
        read_key([line])
    with pytest.raises(InvalidKey):
        read_query_key([line])
    assert members([f"a, {line}"]) == ["a", line]


def test_a_line_of_keys_is_read_up_to_a_length() -> None:
    """C28: one key many times is one key, as long as the line is not too long to be read at all."""
    line = ",".join(["k"] * ((HEADER_CHARACTERS_MAX + 1) // 2))
    line = line.replace(",", ", ", HEADER_CHARACTERS_MAX - len(line))
    assert len(line) == HEADER_CHARACTERS_MAX
    assert read_key([line]) == "k"
    with pytest.raises(InvalidKey, match="longer"):
        read_key([f"{line},k"])


def test_a_header_that_is_missing_is_named() -> None:
    """A function of a policy that asks for it gets a `KeyError` with its name."""
    with pytest.raises(KeyError, match="x-account"):
        REQUEST.headers["x-account"]


# -- answers ----------------------------------------------------------------------------------------------------------


def captured(body: bytes, **fields: Any) -> Capture:
    capture = Capture(HttpPolicy(principal=SHARED, **fields), "POST")
    capture.start(200, [("content-type", "text/plain")])
    for place in range(len(body)):
        capture.add(body[place : place + 1])
    return capture


def test_an_answer_is_kept_up_to_the_very_limit() -> None:
    """P2, C34: one byte more and no body is kept; then it may be cut short, for no replay could be whole."""
    kept = captured(b"12345", response_bytes_max=5)
    assert (kept.result.body, kept.breakable) == (b"12345", False)
    omitted = captured(b"123456", response_bytes_max=5)
    assert (omitted.result.body, omitted.breakable) == (None, True)
    assert (captured(b"", response_bytes_max=0).result.body, captured(b"1", response_bytes_max=0).result.body) == (
        b"",
        None,
    )


@pytest.mark.parametrize(
    ("said", "status", "ending"),
    [
        ("final", 200, Ending.COMPLETED),
        ("final", 500, Ending.FAILED),
        ("not-applied", 500, Ending.ABANDONED),
        ("unknown", 200, None),
        ("perhaps", 200, None),
        (None, 200, None),
    ],
)
def test_a_broken_answer_says_what_its_header_says(said: str | None, status: int, ending: Ending | None) -> None:
    """C34: its status alone proves nothing, and its body is not kept."""
    capture = Capture(HttpPolicy(principal=SHARED), "POST")
    capture.start(status, [] if said is None else [("idempotency-outcome", said)])
    capture.add(b"half")
    assert capture.break_off() is ending
    assert capture.result.body is None


def test_an_answer_that_has_not_begun_says_nothing() -> None:
    """C34: it is neither whole nor to be cut short, so the app is not told that its client has hung up."""
    capture = Capture(HttpPolicy(principal=SHARED), "POST")
    assert (capture.started, capture.breakable, capture.status, capture.kept) == (False, False, 0, ())
    assert not capture.whole
    assert capture.ending is Ending.UNKNOWN
    assert capture.break_off() is None


@pytest.mark.parametrize(
    ("said", "status", "left_out", "proves"),
    [
        (None, 404, [], True),
        (None, 404, ["cookie"], False),
        (None, 302, ["cookie"], False),
        (None, 201, ["cookie"], True),
        (None, 500, ["cookie"], True),
        (None, 429, ["cookie"], True),
        ("final", 404, ["cookie"], True),
        ("not-applied", 404, ["cookie"], True),
    ],
)
def test_what_an_answer_to_a_part_of_the_request_proves(
    said: str | None, status: int, left_out: list[str], proves: bool
) -> None:
    """P7: a refusal, or a way to where one signs in, may be about the headers that were left out, and ends nothing."""
    capture = Capture(HttpPolicy(principal=SHARED), "POST")
    capture.start(status, [] if said is None else [("idempotency-outcome", said)])
    assert capture.proves_without(left_out) is proves


def test_an_answer_that_is_not_encoded_is_replayed_as_it_is() -> None:
    """C33: `identity` is no coding, so there is nothing that a client would have to take."""
    kept = (("content-encoding", "identity"), ("vary", "Accept-Encoding"))
    assert for_client(kept, b"5", ["gzip, identity;q=0"]) == (kept, b"5")


def test_the_loser_of_what_was_freed_is_told_no_time() -> None:
    """P2: a key that is free again has no answer that would be kept."""
    freed = view_of(state=State.ACCEPTED, released=Released.AS_NEW, terms=TERMS._replace(retention_ms=9000))
    told = exchange(retention_header="X-Kept").error(OwnershipLost("idem_1", freed), REQUEST)
    assert "x-kept" not in headers_of(told)


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"retention_header": "a b"}, "retention_header must hold names"),
        ({"stored_headers": ["a b"]}, "stored_headers must hold names"),
        ({"stored_headers": "a"}, "stored_headers must be a collection"),
        ({"dialect": "strip"}, "dialect has no option 'strip'"),
    ],
)
def test_a_wrong_setting_is_named(fields: dict[str, Any], name: str) -> None:
    """The sentence begins with the option that it is about."""
    with pytest.raises((TypeError, ValueError), match=name):
        exchange(**fields)


def test_settings_at_their_limits() -> None:
    """Every final status may be given a meaning; a size of 0 is one; headers' names are compared in lower case."""
    policy = HttpPolicy(
        principal=SHARED,
        statuses={200: "unknown", 599: "failed"},
        request_bytes_max=0,
        response_bytes_max=0,
        header="X-Key",
        stored_headers=["X-Account"],
    )
    assert (policy.ending(200), policy.ending(599)) == (Ending.UNKNOWN, Ending.FAILED)
    assert policy.stored_headers == {"x-account", "x-key"}
    for status in (199, 600):
        with pytest.raises(ValueError, match="neither a status from 200 to 599"):
            HttpPolicy(principal=SHARED, statuses=cast("Any", {status: "failed"}))
