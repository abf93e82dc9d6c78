"""Histories made by hand, one sentence an event."""

from __future__ import annotations

from dataclasses import replace

from notwice.model import RecoveryKind, Released, State, Terms
from notwice.testing.history import (
    NANOSECONDS_PER_MS,
    Answer,
    Answered,
    Asked,
    Calm,
    Disturbance,
    Disturbed,
    Effect,
    Event,
    Header,
    Held,
    History,
    Kept,
    Move,
    MoveAnswered,
    MoveAsked,
    Name,
    OperatorMove,
    OperatorMoved,
    Outcome,
    Produced,
    Reconciled,
    Started,
    Verdict,
)

LEASE_MS = 1_000
ORDER = Name("shop", "refund:1", "k")
OK = Answer(b"refunded", 201)


def terms(recovery: RecoveryKind = RecoveryKind.HOLD, **others: int | bool | None) -> Terms:
    """Terms of a policy: a lease of a second, settled after one, kept for ever."""
    made = Terms(LEASE_MS, None, recovery, None, None, LEASE_MS, deduplicated=False)
    return made._replace(**others)  # type: ignore[arg-type]  # the fields' own types


HOLD, RERUN, RECONCILE = map(terms, (RecoveryKind.HOLD, RecoveryKind.RERUN, RecoveryKind.RECONCILE))


class Tale:
    """A history that is being told. Each event takes a millisecond; `later` lets more of them pass."""

    def __init__(self, policy: Terms = HOLD, *, whole: bool = False, effects: bool = True) -> None:
        self.header = Header(whole=whole, effects=effects)
        self.policy = policy
        self.events: list[Event] = []
        self.now_ms = 0
        self.etag = 0

    def told(self) -> History:
        return History(self.header, tuple(self.events))

    def later(self, by_ms: int) -> Tale:
        self.now_ms += by_ms - 1
        return self

    def add(self, event: Event) -> Tale:
        self.now_ms += 1
        self.events.append(replace(event, at_ns=self.now_ms * NANOSECONDS_PER_MS))
        return self

    # -- a caller

    def asks(
        self, call: str, *, request: str | None = "r", name: Name = ORDER, policy: Terms | None = None, **more: object
    ) -> Tale:
        asked = Asked(
            at_ns=0, call=call, caller=call, process=f"p{call}", name=name, request=request, terms=policy or self.policy
        )
        return self.add(replace(asked, **more))  # type: ignore[arg-type]  # the fields' own types

    def runs(self, call: str, attempt: int = 1, *, generation: int = 0, guarded: bool = True) -> Tale:
        return self.add(Started(at_ns=0, call=call, attempt=attempt, generation=generation, guarded=guarded))

    def charges(self, call: str, *, key: str = "", step: str = "", applied: bool = True, until_ms: int = 0) -> Tale:
        effect = Effect(at_ns=0, call=call, effect=f"charge-{call}-{len(self.events)}", downstream_key=key, step=step)
        return self.add(replace(effect, applied=applied, until_ns=until_ms * NANOSECONDS_PER_MS))

    def makes(self, call: str, answer: Answer | None = OK, **more: object) -> Tale:
        return self.add(replace(Produced(at_ns=0, call=call, answer=answer), **more))  # type: ignore[arg-type]  # the fields' own types

    def gets(self, call: str, outcome: Outcome, answer: Answer | None = None, **more: object) -> Tale:
        marked = outcome is Outcome.REPLAY
        return self.add(replace(Answered(at_ns=0, call=call, outcome=outcome, answer=answer, marked=marked), **more))  # type: ignore[arg-type]  # the fields' own types

    def verdict(self, call: str, verdict: Verdict) -> Tale:
        return self.add(Reconciled(at_ns=0, call=call, verdict=verdict))

    def moves(self, call: str, move: Move, code: str = "", point: str = "") -> Tale:
        self.add(MoveAsked(at_ns=0, call=call, move=move, point=point))
        return self.add(MoveAnswered(at_ns=0, call=call, move=move, code=code))

    def works(self, call: str, attempt: int = 1, answer: Answer = OK, *, key: str = "") -> Tale:
        """Asks, runs, has its effect and gives its answer."""
        return self.asks(call).runs(call, attempt).charges(call, key=key).makes(call, answer)

    def finishes(self, call: str, attempt: int = 1, answer: Answer = OK) -> Tale:
        """Does all that, and its caller gets the answer."""
        return self.works(call, attempt, answer).gets(call, Outcome.DONE, answer)

    def repeats(self, call: str, answer: Answer | None = OK, **more: object) -> Tale:
        """A duplicate that is given the answer."""
        return self.asks(call).gets(call, Outcome.REPLAY, answer, **more)

    # -- everything else

    def dies(self, call: str) -> Tale:
        return self.breaks(Disturbance.KILLED, call)

    def breaks(self, kind: Disturbance, call: str = "", by_ms: int = 0) -> Tale:
        return self.add(Disturbed(at_ns=0, kind=kind, process=f"p{call}" if call else "", by_ms=by_ms))

    def released(self, **more: bool) -> Tale:
        return self.add(replace(OperatorMoved(at_ns=0, name=ORDER, move=OperatorMove.RELEASE, who="ada"), **more))  # type: ignore[arg-type]  # the fields' own types

    def resolved(self, answer: Answer = OK) -> Tale:
        return self.add(OperatorMoved(at_ns=0, name=ORDER, move=OperatorMove.RESOLVE, who="ada", answer=answer))

    def calm(self) -> Tale:
        return self.add(Calm(at_ns=0))

    def shows(self, state: State | None, attempt: int = 1, **more: object) -> Tale:
        """Somebody looks. ``None``: there is nothing."""
        kept = Kept(state, b"seen", attempt, terms=self.policy)
        kept = replace(kept, **more)  # type: ignore[arg-type]  # the fields' own types
        return self.add(Held(at_ns=0, name=ORDER, kept=kept if state is not None else None))

    def writes(self, call: str, state: State | None, attempt: int = 1, **more: object) -> Tale:
        """A write of `call` takes effect on what was written last. ``None``: a purge."""
        named = f"etag-{self.etag}".encode() if self.etag else None
        self.etag += 1
        kept = Kept(state, f"etag-{self.etag}".encode(), attempt, terms=self.policy, released=Released.NO)
        fields = {name: more.pop(name) for name in ("replaced",) if name in more}
        kept = replace(kept, **more)  # type: ignore[arg-type]  # the fields' own types
        held = Held(at_ns=0, name=ORDER, kept=kept if state else None, write=True, call=call, replaced=named)
        return self.add(replace(held, **fields))  # type: ignore[arg-type]  # the fields' own types
