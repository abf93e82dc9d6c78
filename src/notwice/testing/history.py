"""A history: what was seen of guarded operations from outside, event by event, as values and as lines of JSON.

It says what callers asked and were told, when handlers ran and what they produced, which effects happened at the
provider, what the store held, which faults were put in, and what an operator did. It says nothing of how the guard
works, so that whoever judges it (`notwice.testing.auditor`) needs to know only what was promised.

Who records what
================

========================  =============================================================================================
the harness, per call     `Asked` before ``begin``, ``run`` or a request is made, `Answered` when it comes back or
                          raises. A call whose process is killed has no answer. Calls have names of their own.
the handler, when it runs `Started` first, `Effect` at the provider, `Produced` last, also when it raises.
``reconcile`` functions   `Reconciled`, with the verdict.
an owner's explicit moves `MoveAsked` and `MoveAnswered`, on the call that owns the operation.
the store, or a look      `Held`: with ``write=True`` each write that took effect, else what a scan or look-up found.
the operator              `OperatorMoved`, if the move won, at the time when it was asked for.
who breaks things         `Disturbed`; `Calm` when the last fault is over and all must settle from then on.
========================  =============================================================================================

Times are whole nanoseconds of one clock that all recorders share and that never steps: a virtual one, or
``time.monotonic_ns`` of one host. The order of events in a history is the order in which they happened.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

from notwice.model import Record, RecordView, RecoveryKind, Released, Result, State, Terms, Unreadable

__all__ = [
    "Answer",
    "Answered",
    "Asked",
    "Calm",
    "Disturbance",
    "Disturbed",
    "Effect",
    "Event",
    "Header",
    "Held",
    "History",
    "Kept",
    "Move",
    "MoveAnswered",
    "MoveAsked",
    "Name",
    "OperatorMove",
    "OperatorMoved",
    "Outcome",
    "Produced",
    "Reconciled",
    "Started",
    "Verdict",
    "answer_of",
    "append",
    "kept_of",
    "line_of",
    "merged",
    "parse",
    "values_of",
]

NANOSECONDS_PER_MS: Final = 1_000_000
VERSION: Final = 1


class Name(NamedTuple):
    """Which operation it is about."""

    namespace: str
    scope: str
    key: str


class Outcome(StrEnum):
    """How a call came back."""

    OWNED = "owned"  # begin gave the operation; what becomes of it are moves
    DONE = "done"  # the call ran the handler and was given its answer
    REPLAY = "replay"
    IN_PROGRESS = "in_progress"
    UNRESOLVED = "unresolved"
    MISMATCH = "mismatch"
    LOST = "lost"  # the handler ran, and another has taken the operation over
    RAISED = "raised"  # the handler raised, and its caller was told so
    REFUSED = "refused"  # the guard refused for another reason, named by the code: nothing ran
    UNGUARDED = "unguarded"  # it ran without a guard, by ``store_failure="proceed"``, and was marked so
    CANCELLED = "cancelled"  # the caller went away


class Move(StrEnum):
    """An owner's moves."""

    COMPLETE = "complete"
    FAIL = "fail"
    CHECKPOINT = "checkpoint"
    HEARTBEAT = "heartbeat"
    CONFIRM = "confirm"
    ABANDON = "abandon"
    SUSPEND = "suspend"


class OperatorMove(StrEnum):
    """An operator's moves."""

    RESOLVE = "resolve"
    RELEASE = "release"


class Verdict(StrEnum):
    """What a ``reconcile`` function said."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


class Disturbance(StrEnum):
    """What was broken on purpose, as far as it excuses something. All else is `OTHER`, with its detail as text."""

    KILLED = "killed"  # the process is gone, its calls get no answer
    PAUSED = "paused"  # the process stands still
    RESUMED = "resumed"
    OUTAGE = "outage"  # the store can't be reached
    OUTAGE_OVER = "outage_over"
    CLOCK_STEP = "clock_step"  # the wall clock was set; ``by_ms`` says by how much
    REBOOT = "reboot"  # the host of the store was started anew
    STORE_RESTART = "store_restart"  # with what the store's engine had not yet made durable gone
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as bytes. A body of ``None`` was not kept: the marker ``omitted``. A return value has status 0."""

    body: bytes | None
    status: int = 0
    failed: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store held of an operation. ``request`` names the fingerprint; a state of ``None`` can't be read.

    ``lapsed``: it was in progress, and its lease was over when somebody looked.
    """

    state: State | None
    etag: bytes = b""
    attempt: int = 0
    generation: int = 0
    created_ms: int = 0
    written_ms: int = 0
    released: Released = Released.NO
    request: str | None = None
    terms: Terms | None = None
    answer: Answer | None = None
    recovery_point: str = ""
    lapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a history is, as its first line.

    seed: with which the run can be repeated; empty where it can't.
    clock: ``virtual`` or ``real``.
    whole: whether each write that took effect is in it, as `Held` with ``write=True``.
    effects: whether each handler that succeeds has caused an effect that is in it.
    """

    seed: str = ""
    clock: str = "virtual"
    whole: bool = False
    effects: bool = True
    note: str = ""
    version: int = VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A caller asks for an operation. Two requests with equal ``request`` are the same request; ``None``: not told.

    ``wait_ms``: how long the policy lets a duplicate wait. ``answer_within_ms``: by when an answer must be there that
    runs no handler, all waiting and all tries of the store included; ``None``: any time. ``proceed``: the policy lets
    it run without a guard while the store fails.
    """

    at_ns: int
    call: str
    caller: str
    process: str
    name: Name
    request: str | None
    terms: Terms
    wait_ms: int = 0
    answer_within_ms: int | None = None
    proceed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The handler of a call is entered: from now on its effect may happen. ``guarded``: a record stands behind it."""

    at_ns: int
    call: str
    attempt: int
    generation: int = 0
    guarded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The provider was asked for an effect. ``applied`` is false if it knew the downstream key and did nothing.

    ``effect`` is the provider's own name of what happened; ``step`` tells the effects of one handler apart.
    ``until_ns``: by when it had happened, where the moment itself is not known; 0: at ``at_ns``.
    """

    at_ns: int
    call: str
    effect: str
    downstream_key: str = ""
    step: str = ""
    applied: bool = True
    until_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The handler, or the reconcile function, of a call came to its end: with an answer, or with an error.

    ``final``: the answer ends the operation; else, as that of an HTTP status 500, the outcome is unknown, and the
    answer may be kept. ``proves``: by its exception or status it declared that nothing happened. The bytes are those
    that a replay gives: of a return value, what `notwice.codec` makes of it.
    """

    at_ns: int
    call: str
    answer: Answer | None = None
    error: str = ""
    final: bool = True
    proves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """The reconcile function of a call gave its verdict. An applied one is followed by `Produced`."""

    at_ns: int
    call: str
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAsked:
    """The owner makes a move. ``point`` is a checkpoint's name."""

    at_ns: int
    call: str
    move: Move
    point: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAnswered:
    """What the owner was told of its latest move: done, or not; ``code`` is that of the error, empty for done."""

    at_ns: int
    call: str
    move: Move
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a call came to. ``marked``: it says that it is a replay. ``code`` is the error's, of what was refused."""

    at_ns: int
    call: str
    outcome: Outcome
    answer: Answer | None = None
    marked: bool = False
    attempt: int | None = None
    retry_after: int | None = None
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The store held this, or nothing, of an operation.

    ``write``: it holds it from now on, by a write of ``call`` (empty: not known, or an operator's or a purge's) that
    named the etag ``replaced`` (``None``: an insert). Else somebody has looked, and this was there.
    """

    at_ns: int
    name: Name
    kept: Kept | None
    write: bool = False
    call: str = ""
    replaced: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMoved:
    """An operator's move, if it won; ``at_ns`` is when it was asked for, for its effect may be seen before its end."""

    at_ns: int
    name: Name
    move: OperatorMove
    who: str = ""
    forced: bool = False
    from_start: bool = False
    new_downstream_key: bool = False
    answer: Answer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """Something was broken on purpose. ``process`` is the one that it befell; empty: the store, or all."""

    at_ns: int
    kind: Disturbance
    process: str = ""
    detail: str = ""
    by_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calm:
    """The last fault is over, and nobody new asks for what is not settled yet, but to settle it."""

    at_ns: int


Event = (
    Asked
    | Started
    | Effect
    | Produced
    | Reconciled
    | MoveAsked
    | MoveAnswered
    | Answered
    | Held
    | OperatorMoved
    | Disturbed
    | Calm
)


@dataclass(frozen=True, slots=True)
class History:
    """Events in the order in which they happened."""

    header: Header
    events: tuple[Event, ...]

    def lines(self) -> Iterator[str]:
        """The history as lines of JSON, the header first. `parse` reads them."""
        yield line_of(self.header)
        yield from map(line_of, self.events)


def merged(header: Header, parts: Iterable[Iterable[Event]]) -> History:
    """One history of what several recorders saw of it, by the clock that they share."""
    return History(header, tuple(sorted((event for part in parts for event in part), key=lambda event: event.at_ns)))


def parse(lines: Iterable[str]) -> History:
    """Read a history. A last line that was cut off by a kill is left out.

    Raises `ValueError` for anything else that is not a history of this version.
    """
    values = values_of(lines)
    header = values[0] if values else None
    if not isinstance(header, Header) or header.version != VERSION:
        message = f"this is not a history of version {VERSION}: its first line is no header of one"
        raise ValueError(message)
    return History(header, tuple(cast("list[Event]", values[1:])))


def values_of(lines: Iterable[str]) -> list[Header | Event]:
    """Read lines of JSON as events, for parts of a history. A last line that was cut off by a kill is left out."""
    kept = [line for line in lines if line.strip()]
    try:
        return [cast("Header | Event", _value(json.loads(line))) for line in kept]
    except json.JSONDecodeError:
        if not kept or _is_whole(kept[-1]):
            raise
        return values_of(kept[:-1])


def _is_whole(line: str) -> bool:
    return line.rstrip().endswith("}")


def line_of(value: Header | Event) -> str:
    """One event as a line of JSON, without its line end."""
    return json.dumps(_plain(value), separators=(",", ":"))


def append(descriptor: int, event: Header | Event) -> None:
    """Write one event to a file that was opened with ``O_APPEND``: in one call, so that a kill leaves it whole."""
    os.write(descriptor, f"{line_of(event)}\n".encode())


def kept_of(found: RecordView | Record | Unreadable, request: str | None = None) -> Kept:
    """What a record of the model looks like from outside. ``request`` as it stands in `Asked`, if it is known."""
    if isinstance(found, Unreadable):
        return Kept(None)
    record, written_ms = (found.record, found.written_ms) if isinstance(found, RecordView) else (found, 0)
    digest = record.fingerprint.digest.hex() if record.fingerprint else None
    return Kept(
        record.state,
        etag=record.etag,
        attempt=record.attempt,
        generation=record.generation,
        created_ms=record.created_ms,
        written_ms=written_ms,
        released=record.released,
        request=digest if request is None else request,
        terms=record.terms,
        answer=answer_of(record.result, failed=record.state is State.FAILED) if record.result else None,
        recovery_point=record.recovery_point,
        lapsed=isinstance(found, RecordView) and found.lapsed,
    )


def answer_of(result: Result, *, failed: bool) -> Answer:
    """What a stored result looks like from outside."""
    return Answer(result.body, result.status, failed, result.headers)


_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Header, Name, Terms, Answer, Kept, *Event.__args__)}
_ENUMS: Final[dict[tuple[str, str], Any]] = {
    ("Terms", "recovery"): RecoveryKind,
    ("Kept", "state"): State,
    ("Kept", "released"): Released,
    ("Reconciled", "verdict"): Verdict,
    ("MoveAsked", "move"): Move,
    ("MoveAnswered", "move"): Move,
    ("Answered", "outcome"): Outcome,
    ("OperatorMoved", "move"): OperatorMove,
    ("Disturbed", "kind"): Disturbance,
}


def _plain(value: object) -> object:
    """A value as JSON has it: values of a class name it, bytes are hexadecimal, tuples are lists."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if not isinstance(value, tuple(_KINDS.values())):
        return [_plain(item) for item in cast("tuple[object, ...]", value)] if isinstance(value, tuple) else value
    return {"is": type(value).__name__, **{name: _plain(getattr(value, name)) for name in _fields_of(value)}}


def _fields_of(value: object) -> Iterable[str]:
    named: tuple[str, ...] | None = getattr(value, "_fields", None)
    return named or [field.name for field in dataclasses.fields(cast("Any", value))]


def _value(plain: object) -> object:
    if isinstance(plain, list):
        return tuple(map(_value, cast("list[object]", plain)))
    if not isinstance(plain, dict):
        return plain
    fields = cast("dict[str, object]", plain)
    if "hex" in fields:
        return bytes.fromhex(str(fields["hex"]))
    kind = str(fields.pop("is", None))
    if kind not in _KINDS:
        message = f"a history knows no {kind!r}; it was recorded by another release"
        raise ValueError(message)
    return _KINDS[kind](**{name: _field(kind, name, item) for name, item in fields.items()})


def _field(kind: str, name: str, plain: object) -> object:
    enum = _ENUMS.get((kind, name))
    return _value(plain) if enum is None or plain is None else enum(plain)
