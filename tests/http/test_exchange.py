"""What the guard itself answers, without a server: each refusal, replay and look-up, byte for byte."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from typing import Any

import pytest

from notwice import NotApplied, Policy
from notwice.codec import encode_value
from notwice.errors import ContentionError, InvalidKey, OwnershipLost, StoreUnavailable
from notwice.http import SHARED, HttpPolicy
from notwice.http.exchange import Answer, Client, Dialect, Exchange, RequestHeaders, RequestView, answers, codings
from notwice.http.exchange.dialect import STANDARD, STRIPE
from notwice.http.exchange.keys import read_key, read_query_key
from notwice.model import (
    InProgress,
    Record,
    RecordView,
    RecoveryKind,
    Replay,
    Result,
    ResultKind,
    State,
    Terms,
    Unresolved,
)
from notwice.problems import problem

TERMS = Terms(60_000, None, RecoveryKind.HOLD, None, None, 60_000, deduplicated=False)
RECORD = Record("n", "idem_1", "http", "k", State.IN_PROGRESS, b"etag", None, TERMS, created_ms=1_700_000_000_123)
RESPONSE = Result(ResultKind.HTTP, b'{"a":1}', 201, (("content-type", "application/json"), ("location", "/x")))
REQUEST = RequestView("POST", "/pay", "/pay", "", RequestHeaders(()), {})


def view_of(age_ms: int = 0, **fields: Any) -> RecordView:
    return RecordView(RECORD._replace(**fields), 1_700_000_001_000, 1_700_000_002_000, age_ms)


def exchange(**fields: Any) -> Exchange:
    return Exchange(HttpPolicy(principal=SHARED, **fields))


def headers_of(answer: Answer | None) -> dict[str, str]:
    assert answer is not None
    found = dict(answer.headers)
    assert len(found) == len(answer.headers)
    return found


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_a_problem_document_whose_marks_scripts_may_read() -> None:
    """P4: RFC 9457: compact JSON; the outcome and the time to wait are exposed to scripts of other origins."""
    told = answers.refused(STANDARD, InProgress(view_of(), 7))
    document = json.loads(told.body)
    assert told.body == json.dumps(document, separators=(",", ":")).encode()
    assert (told.status, document["code"], document["operation"], document["state"]) == (
        *(409, "in_progress"),
        *("idem_1", "in_progress"),
    )
    assert headers_of(told) == {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        "idempotency-outcome": "unknown",
        "retry-after": "7",
        "access-control-expose-headers": "Idempotency-Outcome, Retry-After",
        "content-length": str(len(told.body)),
    }
    final = headers_of(answers.refused(STANDARD, Unresolved(view_of(state=State.ACCEPTED))))
    assert final["access-control-expose-headers"] == "Idempotency-Outcome"
    assert "retry-after" not in final


def test_a_dialect_has_its_own_codes_statuses_and_names() -> None:
    """P4: what it does not rename stays; its names of headers are lower case on the wire, and exposed as written."""
    look = Dialect(
        codes={"in_progress": "busy"}, statuses={"in_progress": 425}, media_type="text/x", outcome_header="X-Outcome"
    )
    told = answers.refused(look, InProgress(view_of(), 7))
    assert headers_of(told) == {
        "content-type": "text/x",
        "cache-control": "no-store",
        "x-outcome": "unknown",
        "retry-after": "7",
        "access-control-expose-headers": "X-Outcome, Retry-After",
        "content-length": str(len(told.body)),
    }
    assert told.headers[0][0] == "content-type"
    document = json.loads(told.body)
    assert told.body == json.dumps(document, separators=(",", ":")).encode()
    assert (told.status, document["status"], document["code"]) == (425, 425, "busy")
    other = answers.refusal(look, problem("key_missing"))
    assert (other.status, json.loads(other.body)["code"]) == (400, "key_missing")


@pytest.mark.parametrize(
    ("code", "status", "kind", "sent"),
    [
        ("key_reused", 400, "idempotency_error", "idempotency_error"),
        ("in_progress", 409, "invalid_request_error", "idempotency_key_in_use"),
        ("key_missing", 400, "invalid_request_error", "key_missing"),
        ("store_unavailable", 503, "api_error", "store_unavailable"),
    ],
)
def test_stripe_s_dialect_has_its_shape(code: str, status: int, kind: str, sent: str) -> None:
    """P4: one object named error; operation, state and whether a new key is safe stay in it."""
    told = problem(code, operation="idem_1", state=State.IN_PROGRESS)
    answer = answers.refusal(STRIPE, told)
    plain = json.loads(told.body)
    error = {
        "type": kind,
        "code": sent,
        "message": plain["detail"],
        "operation": "idem_1",
        "state": "in_progress",
        "safe_new_key": plain["safe_new_key"],
    }
    assert answer.status == status
    assert answer.body == json.dumps({"error": error}, separators=(",", ":")).encode()
    server = {"status": 500, "code": "x", "detail": "d"}
    assert json.loads(STRIPE.body(server))["error"] == {"type": "api_error", "code": "x", "message": "d"}
    assert json.loads(STRIPE.body({**server, "status": 499}))["error"]["type"] == "invalid_request_error"


def test_a_dialect_has_only_codes_that_exist_and_statuses_of_errors() -> None:
    """A typing error in an option is told with what was meant."""
    for status in (400, 599):
        assert Dialect(statuses={"in_progress": status}).statuses
    for status in (399, 600):
        with pytest.raises(ValueError, match="the status of in_progress must be one of 400 to 599"):
            Dialect(statuses={"in_progress": status})
    with pytest.raises(ValueError, match=r"^Dialect .*in_progress"):
        Dialect(codes={"in_progres": "busy"})


def test_an_error_tells_what_is_wrong_with_a_key_and_nothing_else_of_its_words() -> None:
    """P15: the words of other errors may name hosts; the operation's id and the time to wait are told."""
    wrong = json.loads(exchange().error(InvalidKey("It is bad."), REQUEST).body)
    assert (wrong["code"], wrong["detail"]) == ("key_invalid", "It is bad.")
    for error in (StoreUnavailable("db.example is down"), ContentionError("secret")):
        error.operation = "idem_1"
        told = exchange().error(error, REQUEST)
        document = json.loads(told.body)
        assert (document["operation"], headers_of(told)["retry-after"]) == ("idem_1", "1")
        assert str(error) not in told.body.decode()


@pytest.mark.parametrize(
    ("line", "strict", "words"),
    [
        ("a b", False, "bare, or in quotation marks if it holds a blank or a comma."),
        ("bare", True, "in quotation marks (RFC 9651)."),
    ],
)
def test_a_malformed_key_is_told_which_shape_it_should_have(line: str, strict: bool, words: str) -> None:
    """Whoever sends a bad key is told how a good one looks."""
    with pytest.raises(InvalidKey) as refused:
        read_key([line], strict=strict)
    assert str(refused.value) == f"The idempotency key is malformed. Send printable ASCII characters, {words}"


def test_a_key_in_a_query_that_begins_with_a_quotation_mark_is_a_string() -> None:
    """A quotation mark without its other one is refused, not taken for a part of the key."""
    assert read_query_key(['"a b"', "a b"]) == "a b"
    for text in ('"a', '"a" b', '"a", b', '"a",a'):
        with pytest.raises(InvalidKey):
            read_query_key([text])


# -- handlers that raised ---------------------------------------------------------------------------------------------


class Nothing(Exception):
    """Declared to prove that nothing happened."""


class Final(Exception):
    """Declared to be an answer."""


HELD = view_of(state=State.ACCEPTED)
DECLARED = Policy(not_applied_errors=(Nothing,), final_errors=(Final,))


@dataclass
class Owned:
    """An operation whose handler has raised."""

    operation: str = "idem_1"
    view: RecordView = HELD
    policy: Policy = DECLARED
    freed: bool = True
    finishing: bool = True
    guarded: bool = True


def test_a_handler_s_word_that_nothing_happened_is_passed_on_if_the_key_is_free() -> None:
    """P10: 503 and a second to wait; else what a duplicate would get."""
    for error in (NotApplied(), Nothing()):
        for owned in (Owned(), Owned(guarded=False, freed=False)):
            told = exchange().excuse(error, owned, REQUEST)
            assert told is not None
            assert (told.status, headers_of(told)["retry-after"]) == (503, "1")
            assert json.loads(told.body)["code"] == "not_applied"
        kept = exchange().excuse(error, Owned(freed=False), REQUEST)
        assert kept is not None
        assert json.loads(kept.body)["code"] == "unresolved"


def test_a_final_error_is_told_with_its_operation() -> None:
    """P2: the same to the first caller and to the next."""
    told = exchange().excuse(Final(), Owned(), REQUEST)
    assert told == answers.failure(STANDARD, "idem_1")
    assert told is not None
    document = json.loads(told.body)
    assert (document["code"], document["operation"]) == ("recorded_failure", "idem_1")


def test_a_final_error_that_finished_nothing_is_not_told_as_final() -> None:
    """P2: the first caller is told of an unknown outcome, as the next one will be; unguarded, there is no next one."""
    told = exchange().excuse(Final(), Owned(finishing=False), REQUEST)
    assert told is not None
    assert json.loads(told.body)["code"] == "unresolved"
    unguarded = exchange().excuse(Final(), Owned(finishing=False, guarded=False), REQUEST)
    assert unguarded == answers.failure(STANDARD, "idem_1")


def test_a_lost_operation_gets_what_a_duplicate_gets_and_others_are_the_server_s_to_tell() -> None:
    """P5: the taker's answer, if there is one; for an exception that nobody declared there is no answer of ours."""
    done = view_of(state=State.COMPLETED, result=RESPONSE)
    told = exchange().excuse(OwnershipLost("idem_1", done), Owned(), REQUEST)
    assert told == exchange().error(OwnershipLost("idem_1", done), REQUEST)
    assert told is not None
    assert (told.status, told.body, headers_of(told)["idempotency-replayed"]) == (201, b'{"a":1}', "true")
    blind = exchange().excuse(OwnershipLost("idem_1"), Owned(), REQUEST)
    assert blind is not None
    assert json.loads(blind.body)["code"] == "ownership_lost"
    assert exchange().excuse(RuntimeError(), Owned(), REQUEST) is None


@pytest.mark.parametrize(
    ("fields", "age_ms", "code", "retry_after"),
    [
        ({}, 0, "in_progress", "1"),
        ({}, 60_000, "unresolved", None),
        ({"terms": TERMS._replace(recovery=RecoveryKind.RERUN)}, 60_000, "unresolved", "1"),
        ({"state": State.ACCEPTED}, 0, "unresolved", None),
    ],
)
def test_an_owner_with_nothing_better_to_tell_gets_what_a_duplicate_gets(
    fields: dict[str, Any], age_ms: int, code: str, retry_after: str | None
) -> None:
    """P4: running or unresolved, with a second to wait where something will go on by itself."""
    told = answers.duplicate_answer(STANDARD, view_of(age_ms, **fields), Client("POST"))
    assert json.loads(told.body)["code"] == code
    assert headers_of(told).get("retry-after") == retry_after


def test_an_owner_that_lost_tells_how_long_the_taker_s_answer_is_kept() -> None:
    """P2: of what is finished, as a replay does; of what is held nothing is said."""
    terms = TERMS._replace(retention_ms=10_999)
    kept = exchange(retention_header="X-Kept")
    done = view_of(state=State.COMPLETED, result=RESPONSE, terms=terms)
    told = kept.error(OwnershipLost("idem_1", done), REQUEST)
    assert headers_of(told)["x-kept"] == "9"
    assert told == kept.answer(Replay(done, lambda _: None), REQUEST)
    held = kept.error(OwnershipLost("idem_1", view_of(state=State.ACCEPTED, result=RESPONSE, terms=terms)), REQUEST)
    assert "x-kept" not in headers_of(held)
    assert headers_of(held)["idempotency-outcome"] == "unknown"


def test_a_replay_to_a_question_for_the_head_has_no_body() -> None:
    """P2: nor has one of a status that never has any."""
    view = view_of(state=State.COMPLETED, result=RESPONSE)
    assert answers.replay(STANDARD, view, Client("HEAD")).body == b""
    assert answers.replay(STANDARD, view, Client("head")).body == b'{"a":1}'
    bodiless = view_of(state=State.COMPLETED, result=RESPONSE._replace(status=204))
    told = answers.replay(STANDARD, bodiless, Client("POST"))
    assert (told.body, "content-length" in headers_of(told)) == (b"", False)


# -- look-ups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "idempotency_key", "x=1"])
def test_a_look_up_without_a_key_is_told_how_to_give_one(query: str) -> None:
    """P12: also where the name has no value."""
    told = exchange().look_up_key(RequestView("GET", "/", "/", query, RequestHeaders(()), {}))
    assert isinstance(told, Answer)
    document = json.loads(told.body)
    if query == "idempotency_key":
        assert document["code"] == "key_invalid"
    else:
        assert (document["code"], document["detail"]) == (
            "key_missing",
            "Give ?idempotency_key=, the key to look up.",
        )


def test_a_look_up_is_a_get_of_its_path() -> None:
    """P12: another method, or another path, goes to the application."""
    asked = exchange(status_path="/status")
    assert asked.is_look_up("GET", "/status")
    assert not asked.is_look_up("POST", "/status")
    assert not asked.is_look_up("GET", "/other")
    assert not exchange().is_look_up("GET", "/status")


def looked_up(view: RecordView | None) -> dict[str, Any]:
    answer = exchange().look_up("k", view)
    document: dict[str, Any] = json.loads(answer.body)
    assert answer.status == 200
    assert answer.body == json.dumps(document, separators=(",", ":")).encode()
    assert answer.headers == (
        ("content-type", "application/json"),
        ("cache-control", "no-store"),
        ("content-length", str(len(answer.body))),
    )
    return document


def test_a_look_up_tells_all_that_is_known() -> None:
    """P12: the first status and body of what is finished, and when it was; nothing of an answer that is not there."""
    known = {
        "idempotency_key": "k",
        "operation": "idem_1",
        "state": "completed",
        "unresolved": False,
        "lapsed": False,
        "created_at": "2023-11-14T22:13:20.123Z",
        "updated_at": "2023-11-14T22:13:21.000Z",
    }
    assert looked_up(None) == {"idempotency_key": "k", "state": "not_found"}
    done = looked_up(view_of(state=State.COMPLETED, result=RESPONSE))
    assert done == {**known, "original_status": 201, "result": {"a": 1}}
    assert looked_up(view_of()) == {**known, "state": "in_progress"}
    assert looked_up(view_of(result=RESPONSE)) == {**known, "state": "in_progress"}
    binary = Result(ResultKind.HTTP, b"\xff", 200)
    assert looked_up(view_of(state=State.COMPLETED, result=binary))["result"] == "/w=="
    packed = RESPONSE._replace(body=gzip.compress(b"[1]"), headers=(*RESPONSE.headers, ("content-encoding", "gzip")))
    assert looked_up(view_of(state=State.COMPLETED, result=packed))["result"] == [1]
    broken = RESPONSE._replace(body=b"{\xff")
    assert looked_up(view_of(state=State.COMPLETED, result=broken))["result"] == "e/8="


@pytest.mark.parametrize(
    ("state", "status", "name"),
    [
        (State.COMPLETED, 500, "result"),
        (State.FAILED, 200, "error"),
        (State.ACCEPTED, 399, "result"),
        (State.ACCEPTED, 400, "error"),
    ],
)
def test_a_kept_answer_is_an_error_by_its_state_or_its_status(state: State, status: int, name: str) -> None:
    """P12: what is held is judged by its status, from 400 on."""
    assert name in looked_up(view_of(state=state, result=RESPONSE._replace(status=status)))


def test_a_value_that_json_has_no_form_for_is_left_out() -> None:
    """P2: a handler's own value is replayed as JSON, compact; NaN is no JSON, so its body is omitted."""
    for value, body, mark in (([1, {"a": 2}], b'[1,{"a":2}]', "true"), (float("nan"), b"", "omitted")):
        stored = Result(ResultKind.VALUE, encode_value(value))
        view = view_of(state=State.COMPLETED, result=stored)
        told = exchange().answer(Replay(view, lambda _: None), REQUEST)
        assert (told.status, told.body, headers_of(told)["idempotency-replayed"]) == (200, body, mark)


# -- content codings --------------------------------------------------------------------------------------------------


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)  # the same in every process, for it is part of a test's name


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("gzip, identity", zipped(b"plain")),
        ("identity, gzip", zipped(b"plain")),
        ("X-Gzip", zipped(b"plain")),
        ("deflate", zlib.compress(b"plain")),
        ("deflate", raw_deflate(b"plain")),
        ("gzip", zipped(b"pl") + zipped(b"ain")),
        ("deflate, gzip", zipped(zlib.compress(b"plain"))),
        ("deflate", zlib.compress(b"plain") + b"what follows"),
    ],
)
def test_a_replay_is_decoded_whatever_it_was_made_of(named: str, body: bytes) -> None:
    """P2: for a client that takes no coding: the last one named is taken off first; identity is none."""
    headers, plain = codings.for_client((("content-encoding", named),), body, ())
    assert (plain, headers) == (b"plain", (("vary", "Accept-Encoding"),))


def test_a_replay_is_decoded_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: as much as is allowed, and not a byte more, over all members of a body; else it is given as it is kept."""
    monkeypatch.setattr(codings, "DECODED_BYTES_MAX", 10)
    kept = (("content-encoding", "gzip"),)
    for parts in ([10], [4, 6]):
        body = b"".join(gzip.compress(b"a" * size) for size in parts)
        assert codings.for_client(kept, body, ())[1] == b"a" * 10
    for parts in ([11], [10, 1], [6, 6], [1_000_000]):
        body = b"".join(gzip.compress(b"a" * size) for size in parts)
        assert codings.for_client(kept, body, ()) == (kept, body)


def test_no_more_is_decoded_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a small body that stands for a huge one takes no memory: at most a byte over the limit is asked for."""
    asked: list[int] = []

    class Counting:
        def __init__(self, window: int) -> None:
            self._machine = decompressobj(window)
            self.eof, self.unused_data = False, b""

        def decompress(self, data: bytes, bytes_max: int = 2**30) -> bytes:
            asked.append(bytes_max)
            plain = self._machine.decompress(data, bytes_max)
            self.eof, self.unused_data = self._machine.eof, self._machine.unused_data
            return plain

    decompressobj = zlib.decompressobj
    monkeypatch.setattr(codings, "DECODED_BYTES_MAX", 10)
    monkeypatch.setattr(zlib, "decompressobj", Counting)
    body = b"".join(gzip.compress(b"a" * size) for size in (4, 3, 3))
    assert codings.for_client((("content-encoding", "gzip"),), body, ())[1] == b"a" * 10
    assert asked == [11, 7, 4]


def test_a_coding_has_an_older_name() -> None:
    """RFC 9110, section 8.4.1.3: who takes gzip takes x-gzip, and the other way round; it is no name of others."""
    for one, other in (("gzip", "x-gzip"), ("x-gzip", "gzip")):
        assert codings.accepts([one], other)
        assert not codings.accepts([f"{one};q=0"], other)
    assert not codings.accepts(["gzip"], "deflate")
    assert not codings.accepts(["br"], "x-gzip")


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=x", True),
        ("gzip;q=0=1", True),
        ("gzip;level=0", True),
        ("*;q=0.1", True),
        ("*;q=0, x-gzip", True),
        ("br", False),
        ("", False),
    ],
)
def test_a_client_takes_what_it_says(accepted: str, takes: bool) -> None:
    """RFC 9110, section 12.5.3: by name, by its older name, or by the star; a weight that is none counts as 1."""
    assert codings.accepts([accepted], "gzip") is takes


def test_a_replay_is_made_for_the_one_who_asks() -> None:
    """P2: by the method and the codings of this request; what is no response has a type and one length."""
    packed = RESPONSE._replace(body=gzip.compress(b"[1]"), headers=(*RESPONSE.headers, ("content-encoding", "gzip")))
    replay = Replay(view_of(state=State.COMPLETED, result=packed), lambda _: None)
    takes = RequestView("POST", "/", "/", "", RequestHeaders([("Accept-Encoding", "gzip")]), {})
    head = RequestView("HEAD", "/", "/", "", RequestHeaders(()), {})
    assert exchange().answer(replay, takes).body == packed.body
    assert exchange().answer(replay, REQUEST).body == b"[1]"
    assert exchange().answer(replay, head).body == b""
    value = Replay(view_of(state=State.COMPLETED, result=Result(ResultKind.VALUE, encode_value(1))), lambda _: None)
    assert headers_of(exchange().answer(value, REQUEST))["content-type"] == "application/json"
    failed = Replay(
        view_of(state=State.FAILED, result=Result(ResultKind.ERROR, encode_value(["E", "m"]))), lambda _: None
    )
    told = exchange().answer(failed, REQUEST)
    assert headers_of(told)["content-length"] == str(len(told.body))
    marked = dict(exchange().marked((), guarded=False, kept_back=False))
    assert marked == {"idempotency-guarded": "false", "access-control-expose-headers": "Idempotency-Guarded"}
