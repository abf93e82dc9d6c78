"""What the auditor has learned so far of each call and of each operation.

An operation lives more than once: when its answer has expired, or its first owner gave it back having done nothing, the
next claim begins a new life, with attempt 1. Promises such as "one effect" are made for one life.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from notwice.model import RecoveryKind, Released, State, Terms
from notwice.testing.history import (
    NANOSECONDS_PER_MS,
    Answer,
    Answered,
    Asked,
    Effect,
    Event,
    Held,
    MoveAsked,
    Name,
    OperatorMoved,
    Produced,
    Reconciled,
    Started,
)

LAXNESS: Final = {RecoveryKind.HOLD: 0, RecoveryKind.RECONCILE: 1, RecoveryKind.RERUN: 2}
FINISHED: Final = frozenset({State.COMPLETED, State.FAILED})


def ms_between(earlier_ns: int, later_ns: int) -> float:
    """How many milliseconds passed."""
    return (later_ns - earlier_ns) / NANOSECONDS_PER_MS


class Source(NamedTuple):
    """Where an answer comes from: a handler, a reconcile function or an operator."""

    answer: Answer
    request: str | None
    final: bool
    event: Produced | OperatorMoved

    def gives(self, answer: Answer) -> bool:
        """Whether `answer` is what a store keeps of this one: perhaps without its body, and with fewer headers."""
        kept = answer.body is None or answer.body == self.answer.body
        alike = (answer.status, answer.failed) == (self.answer.status, self.answer.failed)
        return kept and alike and set(answer.headers) <= set(self.answer.headers)


@dataclass(slots=True)
class Process:
    """A process of the history, and for how long it has been stopped."""

    stopped_ns: int = 0
    stopped_at_ns: int | None = None

    def stopped_until(self, at_ns: int) -> int:
        """For how long it has been stopped in all."""
        return self.stopped_ns + (0 if self.stopped_at_ns is None else max(0, at_ns - self.stopped_at_ns))


@dataclass(slots=True, eq=False)
class Call:
    """One call of a caller, and what it came to so far."""

    asked: Asked
    process: Process
    stopped_before_ns: int
    life_at_ask: int
    finished_at_ask: Event | None
    life: Life | None = None
    claim: Claim | None = None
    started: Started | None = None
    produced: Produced | None = None
    verdict: Reconciled | None = None
    move: MoveAsked | None = None
    answered: Answered | None = None
    sign_ns: int = 0
    killed: bool = False
    gave_up: bool = False
    undone: bool = False
    touched: bool = False
    only_writer: bool = True
    home: Life | None = None
    """In which life its claim was written, if that is known: it may hear of it long after others have claimed it."""

    @property
    def terms(self) -> Terms:
        """What it asked for."""
        return self.asked.terms

    @property
    def guarded(self) -> bool:
        """Whether a record stands behind its handler, as far as is known."""
        return self.started is None or self.started.guarded

    def waited_ms(self, at_ns: int) -> float:
        """How long it has been under way, without the time for which its process was stopped."""
        return ms_between(self.asked.at_ns, at_ns) - ms_between(
            self.stopped_before_ns, self.process.stopped_until(at_ns)
        )


@dataclass(slots=True, eq=False)
class Claim:
    """A call came to own the operation. ``sound`` is false if it should not have."""

    call: Call
    attempt: int
    event: Event
    release: OperatorMoved | None = None
    sound: bool = True


@dataclass(slots=True, eq=False)
class Life:
    """One life of an operation: from a first claim on, until it may begin anew."""

    claims: list[Claim] = field(default_factory=list[Claim])
    effects: list[tuple[Effect, Call]] = field(default_factory=list[tuple[Effect, Call]])
    sources: list[Source] = field(default_factory=list[Source])
    releases: list[OperatorMoved] = field(default_factory=list[OperatorMoved])
    forced: list[OperatorMoved] = field(default_factory=list[OperatorMoved])
    steps_done: dict[str, Event] = field(default_factory=dict[str, Event])
    ended_ns: int | None = None
    finished: Event | None = None
    replayed: tuple[Source, Event] | None = None
    mark: OperatorMoved | None = None
    marked_attempt: int = 0
    """Which attempt the mark was put on; 0 if that is not known."""
    base_attempt: int = 1
    late: int = 0
    moved_ns: int = -1
    """When an operator changed it last: who asked before may be told what was there before."""
    stored_end: Terms | None = None

    @property
    def applied(self) -> list[tuple[Effect, Call]]:
        """The effects that happened, with the calls that caused them."""
        return [(effect, call) for effect, call in self.effects if effect.applied]

    def end(self, at_ns: int) -> None:
        """Note that the record may have become terminal at this moment; the first such moment counts."""
        self.ended_ns = at_ns if self.ended_ns is None else self.ended_ns

    def free(self, event: OperatorMoved, attempt: int) -> None:
        """Note an operator's release of that attempt, 0 if it is not known which: the operation may run once more."""
        self.releases.append(event)
        self.mark, self.marked_attempt = event, attempt
        self.finished = self.ended_ns = self.replayed = None
        self.moved_ns = event.at_ns

    def is_free_for(self, attempt: int) -> bool:
        """Whether an operator's release may have let this attempt in. One of before that may be heard of after it."""
        return self.mark is not None and attempt > max(1, self.marked_attempt)


@dataclass(slots=True, eq=False)
class Line:
    """All that is known of one operation."""

    name: Name
    lives: list[Life] = field(default_factory=lambda: [Life()])
    asks: list[Call] = field(default_factory=list[Call])
    requests: set[str] = field(default_factory=set[str])
    held: Held | None = None
    etags: set[bytes] = field(default_factory=set[bytes])
    attempts_written: set[int] = field(default_factory=set[int])
    steps_ms: int = 0
    stepped: bool = False
    rebooted_ns: int = -1
    born_ns: int = -1

    @property
    def life(self) -> Life:
        """The current life."""
        return self.lives[-1]

    def lives_since(self, call: Call) -> Iterator[Life]:
        """The lives that the call can have met."""
        yield from self.lives[call.life_at_ask :]

    def stored(self, life: Life) -> Terms:
        """The terms that bind: those in the store, or of the first claim, or the laxest that anybody asked for."""
        kept = self.held.kept if self.held is not None and life is self.life else None
        if kept is not None and kept.terms is not None and kept.released is not Released.AS_NEW:
            return kept.terms
        first = next((claim for claim in life.claims if claim.attempt == 1), None)
        if first is not None:
            return first.call.terms
        return max((call.terms for call in self.asks), key=lambda terms: LAXNESS[terms.recovery])

    def kept_ms(self) -> float:
        """For how long a finished record must be kept at least."""
        if self.life.stored_end is not None:
            kept_ms = self.life.stored_end.retention_ms
            return float("inf") if kept_ms is None else kept_ms
        asked = [claim.call.terms.retention_ms for claim in self.life.claims] or [self.stored(self.life).retention_ms]
        return min(float("inf") if each is None else each for each in asked)

    def expired(self, since_ns: int, at_ns: int, kept_ms: float) -> bool:
        """Whether what was written then may be dropped now. The wall clock's steps forward count as time."""
        return ms_between(since_ns, at_ns) + self.steps_ms + 1 > kept_ms
