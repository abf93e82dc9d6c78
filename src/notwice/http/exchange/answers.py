"""What the guard itself answers: refusals, replays and look-ups."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from notwice.codec import decode_value
from notwice.errors import EncodingError, NotwiceError
from notwice.http.exchange.capture import BODILESS
from notwice.http.exchange.codings import for_client
from notwice.http.exchange.dialect import STANDARD, Dialect
from notwice.http.exchange.headers import Headers, exposed, never_kept, values, without
from notwice.model import (
    InProgress,
    Mismatch,
    RecordView,
    RecoveryKind,
    Released,
    Result,
    ResultKind,
    State,
    Unresolved,
)
from notwice.problems import Problem, problem

_OK: Final = 200
_UNKNOWN: Final = "unknown"
_ERROR_MIN: Final = 400
_NO_STORE: Final = ("cache-control", "no-store")


class Answer(NamedTuple):
    """An answer, ready to send."""

    status: int
    headers: Headers
    body: bytes


class Client(NamedTuple):
    """What a replay must know of the request: its method and its ``Accept-Encoding`` lines."""

    method: str
    accept_encoding: Sequence[str] = ()


def refusal(look: Dialect, refused: Problem) -> Answer:
    """The refusal in the dialect's words, with what a script of another origin must see of it exposed."""
    status, headers, body = refused
    outcome = look.outcome_header.lower()
    if look is not STANDARD:
        document = json.loads(body)
        code = document["code"]
        status = look.statuses.get(code, status)
        document.update(code=look.codes.get(code, code), status=status)
        body = look.body(document)
        names = {"idempotency-outcome": outcome}
        headers = tuple((names.get(name, name), value) for name, value in headers)
        headers = (("content-type", look.media_type), *without(headers, "content-type"))
    shown = [look.outcome_header, *(["Retry-After"] if values(headers, "retry-after") else [])]
    return _sized(status, exposed(headers, shown), body)


def refused(look: Dialect, outcome: InProgress | Unresolved | Mismatch) -> Answer:
    """What a duplicate is told that gets no stored answer."""
    return refusal(look, outcome.problem())


def error_answer(look: Dialect, error: NotwiceError) -> Answer:
    """What a client is told of an error. The error's own words stay inside, but for what is wrong with a key."""
    detail = str(error) if error.code == "key_invalid" else None
    told = problem(error.code, operation=error.operation, retry_after=error.retry_after, detail=detail)
    return refusal(look, told)


def duplicate_answer(look: Dialect, view: RecordView, client: Client) -> Answer:
    """What a duplicate would get that takes nothing over: for an owner who has nothing better to tell."""
    if view.answered:
        return replay(look, view, client)
    if view.state is State.IN_PROGRESS and not view.lapsed:
        return refused(look, InProgress(view, retry_after=1))
    holds = view.record.terms.recovery is RecoveryKind.HOLD
    return refused(look, Unresolved(view, retry_after=None if holds else 1))


def replay(look: Dialect, view: RecordView, client: Client) -> Answer:
    """The first answer once more, marked as a replay.

    A held one says that its outcome is unknown, and no longer when to come again: a retry runs nothing.
    A result that is no response (an operator's, or a handler's own) is given as JSON, or as a refusal if it failed.
    """
    stored = view.record.result
    assert stored is not None  # a record without one is not replayed
    status, headers, body = _first(look, view, stored)
    mark = look.replayed_mark if body is not None else look.omitted_mark
    if body is None:
        headers, body = without(headers, "content-encoding"), b""
    else:
        headers, body = for_client(headers, body, client.accept_encoding)
    headers = (*headers, (look.replayed_header.lower(), mark))
    shown = [look.replayed_header]
    if not view.record.terminal:
        headers = (*without(headers, "retry-after"), (look.outcome_header.lower(), _UNKNOWN))
        shown.append(look.outcome_header)
    elif values(headers, "retry-after"):
        shown.append("Retry-After")
    headers = exposed(headers, shown)
    if status in BODILESS or client.method == "HEAD":
        return Answer(status, headers, b"")
    return _sized(status, headers, body)


def first(look: Dialect, view: RecordView) -> Answer | None:
    """The answer that is kept, as it was before anything of a replay was added; ``None`` if it has no body to give."""
    stored = view.record.result
    assert stored is not None  # what is finished has one
    status, headers, body = _first(look, view, stored)
    return None if body is None else Answer(status, headers, body)


def for_first(kept: Answer, client: Client) -> Answer:
    """A kept answer for the caller whose handler made it: it is no replay."""
    headers, body = for_client(kept.headers, kept.body, client.accept_encoding)
    if kept.status in BODILESS or client.method == "HEAD":
        return Answer(kept.status, headers, b"")
    return _sized(kept.status, headers, body)


def _first(look: Dialect, view: RecordView, stored: Result) -> tuple[int, Headers, bytes | None]:
    if stored.kind is ResultKind.HTTP:  # a handler, or an operator, may have made it by hand
        return stored.status, tuple(line for line in stored.headers if not never_kept(line[0])), stored.body
    if stored.kind is ResultKind.ERROR or view.state is State.FAILED:
        status, headers, body = failure(look, view.operation)
        return status, without(headers, "content-length"), body
    return _OK, (("content-type", "application/json"),), _json_value(stored)


def is_formless(view: RecordView) -> bool:
    """Whether a value is kept that JSON has no form for, so that a duplicate is told nothing of it."""
    stored = view.record.result
    if stored is None or stored.kind is not ResultKind.VALUE or stored.body is None or view.state is State.FAILED:
        return False
    return _json_value(stored) is None


def failure(look: Dialect, operation: str) -> Answer:
    """What is told of an operation that failed without a response, by an exception or by an operator's word."""
    return refusal(look, problem("recorded_failure", operation=operation))


def record_answer(look: Dialect, key: str, view: RecordView | None) -> Answer:
    """What is known of the operation with this key, for the status look-up.

    ``result`` and ``error`` hold the first answer's body: a JSON value, else text, else base64. What is ``unresolved``
    has them if its answer was kept; ``lapsed`` says that its owner is presumed gone.
    """
    if view is None or view.expired or view.record.released is Released.AS_NEW:
        return _document({"idempotency_key": key, "state": "not_found"})
    document: dict[str, object] = {
        "idempotency_key": key,
        "operation": view.operation,
        "state": str(view.state),
        "unresolved": view.unresolved,
        "lapsed": view.lapsed,
        "created_at": _time_text(view.record.created_ms),
        "updated_at": _time_text(view.written_ms),
    }
    stored = view.record.result
    if view.answered and stored is not None:
        status, headers, body = _first(look, view, stored)
        document["original_status"] = status
        document["error" if _is_error(view.state, status) else "result"] = _shown(headers, body)
    return _document(document)


def _is_error(state: State, status: int) -> bool:
    return state is State.FAILED or (state is State.ACCEPTED and status >= _ERROR_MIN)


def _sized(status: int, headers: Headers, body: bytes) -> Answer:
    return Answer(status, (*headers, ("content-length", str(len(body)))), body)


def _document(document: dict[str, object]) -> Answer:
    body = json.dumps(document, separators=(",", ":")).encode()
    return _sized(_OK, (("content-type", "application/json"), _NO_STORE), body)


def _time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json_value(stored: Result) -> bytes | None:
    """A value as JSON; ``None``, as if omitted, if JSON has no form for it."""
    if stored.body is None:
        return None
    try:
        return json.dumps(decode_value(stored.body), separators=(",", ":"), allow_nan=False).encode()
    except (EncodingError, TypeError, ValueError):
        return None


def _shown(kept: Headers, stored: bytes | None) -> Any:  # noqa: ANN401 - a JSON value
    if stored is None:
        return None
    headers, body = for_client(kept, stored, ())
    try:
        is_json = any("json" in value.lower() for value in values(headers, "content-type"))
        return json.loads(body) if is_json else body.decode()
    except (ValueError, RecursionError):
        return base64.b64encode(body).decode()
