"""The values that every layer speaks in: states, records, store operations and what a begin can end in.

All of them are frozen. The ones on the hot path are named tuples: five times cheaper to make than frozen dataclasses.
Times are whole milliseconds; ``*_ms`` without a further word is a duration or a Unix time of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from notwice.problems import ASKED_LATER, PAUSES, Problem, problem

AGE_UNKNOWN_MS = 2**53
"""The age of a record that was written under another boot of the host: its owner is gone, so any lease is over."""


_K = TypeVar("_K")
_V = TypeVar("_V", bound=tuple[Any, ...])


def maker(kind: type[_V]) -> Callable[[Iterable[Any]], _V]:
    """Give a function that makes a named tuple of all its fields, in their order, at half the price: for hot paths."""
    return partial(tuple.__new__, kind)


class State(StrEnum):
    """Where an operation stands. ``completed`` and ``failed`` are terminal."""

    IN_PROGRESS = "in_progress"
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    FAILED = "failed"


TERMINAL = frozenset({State.COMPLETED, State.FAILED})
IN_PROGRESS: Final = State.IN_PROGRESS  # for hot paths: finding a member on its class takes three times as long
ACCEPTED: Final = State.ACCEPTED
COMPLETED: Final = State.COMPLETED


class Released(StrEnum):
    """Who marked an accepted record as free to run again."""

    NO = ""
    AS_NEW = "as_new"  # its owner, who created it and did nothing: any request may follow
    OPERATOR = "operator"  # a person: the same request may run again


_AS_NEW: Final = Released.AS_NEW


class RecoveryKind(StrEnum):
    """What a later begin may do with an unresolved record. Listed from the strictest on."""

    HOLD = "hold"
    RECONCILE = "reconcile"
    RERUN = "rerun"


class ResultKind(StrEnum):
    """What the bytes of a result are."""

    VALUE = "value"  # a return value, encoded by `notwice.codec`
    ERROR = "error"  # an exception's type name and message, encoded by `notwice.codec`
    HTTP = "http"  # a response: status, kept headers and body


class Fingerprint(NamedTuple):
    """Digest of a request, with the version of the recipe that made it."""

    recipe: str
    digest: bytes


class Result(NamedTuple):
    """A stored answer. A body of ``None`` was too large or impossible to keep: the marker ``omitted``."""

    kind: ResultKind
    body: bytes | None
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """What a log may show of it: neither the body nor the headers."""
        size = "omitted" if self.body is None else f"{len(self.body)} bytes"
        return f"<Result {self.kind}{f' {self.status}' if self.status else ''}, {size}>"


make_result = maker(Result)


class Terms(NamedTuple):
    """The part of a policy that is stored in the record at its first claim. ``None`` is no limit."""

    lease_ms: int
    retention_ms: int | None
    recovery: RecoveryKind
    rerun_within_ms: int | None
    attempts_max: int | None
    settle_ms: int
    deduplicated: bool
    atomic: bool = False


class Note(NamedTuple):
    """One line of the audit trail: an operator's move."""

    who: str
    when_ms: int
    action: str
    why: str


class Record(NamedTuple):
    """One operation as it is stored under (namespace, id).

    ``created_ms`` of 0 asks the store to stamp the time of this write. ``rerun_from_ms`` of 0 means ``created_ms``:
    the time and the attempt from which the limits of ``rerun`` count. ``pause_ms`` is how long after its write an
    accepted record is left alone. ``silent_ms`` is ``None`` while the last writer's handler runs or ran; else it is
    the silence of such owners that had been counted when this record was written. ``sealed`` holds what is private in
    the record, compressed or encrypted by `notwice.codec.sealing`; the fields that it stands for are then empty.
    ``request`` is the request in bytes of `notwice.codec`, where the policy stores it, until the operation is finished.
    """

    namespace: str
    id: str
    scope: str
    key: str
    state: State
    etag: bytes
    fingerprint: Fingerprint | None
    terms: Terms
    attempt: int = 1
    generation: int = 0
    created_ms: int = 0
    rerun_from_ms: int = 0
    rerun_from_attempt: int = 1
    pause_ms: int = 0
    silent_ms: int | None = None
    released: Released = Released.NO
    recovery_point: str = ""
    progress: tuple[tuple[str, bytes], ...] = ()
    result: Result | None = None
    error: str = ""
    audit: tuple[Note, ...] = ()
    sealed: bytes = b""
    request: bytes | None = None

    def __repr__(self) -> str:
        """What a log may show of it: no key, no result, no step's data, no text of an error."""
        return f"<Record {self.id} in {self.namespace!r}: {self.state}, attempt {self.attempt}, etag {self.etag.hex()}>"

    @property
    def terminal(self) -> bool:
        """Whether the operation is finished."""
        return self.state in TERMINAL

    @property
    def expires_after_ms(self) -> int | None:
        """How long after its write this record may be purged or evicted; ``None``: never.

        Only terminal and released-as-new records ever may. A record released as new is kept for one lease.
        """
        if self.released is _AS_NEW:
            return self.terms.lease_ms
        return self.terms.retention_ms if self.state in TERMINAL else None


make_record = maker(Record)


class Unreadable(NamedTuple):
    """A stored record that this release can't decode: made by a newer one, or damaged. Never taken for "absent"."""

    namespace: str
    id: str
    reason: str


class Insert(NamedTuple):
    """Store the record if nothing is there, else give what is there."""

    record: Record


make_insert = maker(Insert)


class Swap(NamedTuple):
    """Replace the record that has exactly this etag, else give what is there."""

    record: Record
    expected_etag: bytes


make_swap = maker(Swap)


class Get(NamedTuple):
    """Give what is there."""

    namespace: str
    id: str


Op = Insert | Swap | Get


class Reply(NamedTuple):
    """What one store operation found: who won, what is stored now, when it was written and what the clock says.

    ``record`` is the stored one after the operation, ``None`` if nothing is there. ``written_ms`` and ``now_ms`` are
    wall times of the store; ``age_ms`` is the time since the write by the clock that judges leases, never negative,
    and `AGE_UNKNOWN_MS` after another boot.
    """

    won: bool
    record: Record | Unreadable | None
    written_ms: int = 0
    now_ms: int = 0
    age_ms: int = 0


class RecordView(NamedTuple):
    """A record as someone saw it, with the times that say what it means."""

    record: Record
    written_ms: int
    now_ms: int
    age_ms: int

    @property
    def operation(self) -> str:
        """The operation id."""
        return self.record.id

    @property
    def state(self) -> State:
        """Where the operation stands."""
        return self.record.state

    @property
    def lapsed(self) -> bool:
        """Whether the owner has been silent for a whole lease and is presumed gone."""
        return self.record.state is State.IN_PROGRESS and self.age_ms >= self.record.terms.lease_ms

    @property
    def unresolved(self) -> bool:
        """Whether the outcome is unknown, nobody is at work and nobody released it."""
        if self.record.released is not Released.NO:
            return False
        return self.record.state is State.ACCEPTED or self.lapsed

    @property
    def answered(self) -> bool:
        """Whether a duplicate can be given an answer from this record."""
        return self.record.terminal or (self.record.state is State.ACCEPTED and self.record.result is not None)

    @property
    def expired(self) -> bool:
        """Whether the record's time is over, so that a begin replaces it."""
        after_ms = self.record.expires_after_ms
        return after_ms is not None and self.now_ms - self.written_ms > after_ms

    @property
    def result(self) -> Result | None:
        """The stored answer as it is kept: a value's bytes are decoded by `notwice.codec.decode_value`."""
        return self.record.result


make_view = maker(RecordView)  # of what a reply with a record has after ``won``


class Query(NamedTuple):
    """What a scan asks for; ``None`` means any. Pages come ordered by (created, namespace, id)."""

    namespace: str | None = None
    states: frozenset[State] | None = None
    unresolved: bool | None = None
    scope_prefix: str | None = None
    older_than_ms: int | None = None  # written at least so long ago, by the store's wall clock
    operation: str | None = None  # an operation id
    limit: int = 100
    cursor: str | None = None


class Page(NamedTuple):
    """One page of a scan. ``cursor`` of ``None``: there is no more."""

    items: tuple[RecordView | Unreadable, ...]
    cursor: str | None


class Failure(NamedTuple):
    """An exception as it is stored: its type's name and its message."""

    kind: str
    message: str


def _enter(outcome: object, *_: object) -> NoReturn:
    """Tell who wrote ``with guard.begin(...)`` that there may be nothing to run."""
    message = (
        f"this is {type(outcome).__name__}(...) and no operation that is yours to run, so there is nothing to enter. "
        "Look at what begin gave first: `match guard.begin(...)`, with `with op:` in the case of an operation, and the "
        "first answer or a refusal in the others"
    )
    raise TypeError(message)


def _duplicate(kind: type[_K]) -> type[_K]:
    """Have `kind` say why it can't be entered. Type checkers don't see it, and go on refusing that."""
    for name in ("__enter__", "__exit__", "__aenter__", "__aexit__"):
        setattr(kind, name, _enter)
    return kind


@_duplicate
@dataclass(frozen=True, slots=True)
class Replay:
    """A duplicate of a finished operation, or of a held one whose answer was kept: here is the first answer."""

    view: RecordView
    decode: Callable[[Result], object] = field(repr=False, compare=False)

    @property
    def result(self) -> object:
        """The first answer as a value: what was completed or failed with, or a `Failure` for an exception.

        Raises `EncodingError` for a result that was too large or impossible to keep (the marker ``omitted``).
        """
        return self.decode(self.stored)

    @property
    def failed(self) -> bool:
        """Whether the first answer was a definite refusal."""
        return self.view.record.state is State.FAILED

    @property
    def stored(self) -> Result:
        """The first answer as it is kept."""
        result = self.view.record.result
        assert result is not None  # rules 5 and 8 replay only records that have one
        return result


@_duplicate
@dataclass(frozen=True, slots=True)
class InProgress:
    """A duplicate of an operation whose owner is at work: nothing ran. Ask again after ``retry_after`` seconds.

    Also of one that waits, ``accepted``, for its next re-run: it ``pauses``, and a begin after that runs it.
    """

    view: RecordView
    retry_after: int

    def problem(self) -> Problem:
        """The refusal as (status, headers, body) of RFC 9457."""
        view, detail = self.view, PAUSES if self.pauses else None
        return problem(
            "in_progress", operation=view.operation, state=view.state, retry_after=self.retry_after, detail=detail
        )

    @property
    def pauses(self) -> bool:
        """Whether nobody is at work, and the operation waits until it is tried again."""
        return self.view.state is State.ACCEPTED


@_duplicate
@dataclass(frozen=True, slots=True)
class Unresolved:
    """A duplicate of an operation whose outcome nobody knows and that its policy holds: nothing ran.

    ``retry_after`` is in how many seconds a begin asks again what became of it; ``None``: a person has to find out.
    """

    view: RecordView
    retry_after: int | None = None

    def problem(self) -> Problem:
        """The refusal as (status, headers, body) of RFC 9457."""
        view, detail = self.view, None if self.retry_after is None else ASKED_LATER
        return problem(
            "unresolved", operation=view.operation, state=view.state, retry_after=self.retry_after, detail=detail
        )


@_duplicate
@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used for another request: nothing ran, nothing changed."""

    view: RecordView

    def problem(self) -> Problem:
        """The refusal as (status, headers, body) of RFC 9457."""
        return problem("key_reused", operation=self.view.operation, state=self.view.state)
