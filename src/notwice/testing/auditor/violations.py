"""What a history can be found guilty of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from notwice.testing.history import Event, Name, line_of


class Kind(StrEnum):
    """The ways in which a guard can break its promises, as they look from outside."""

    DOUBLE_EFFECT = "double effect"  # it happened more often than the policy allows
    LOST_EFFECT = "lost effect"  # it was told as done, and did not happen
    WRONG_REPLAY = "wrong replay"  # a duplicate was given something else than the first answer
    FOREIGN_REPLAY = "foreign replay"  # a caller was given the answer of another request or principal
    FOREIGN_RUN = "foreign run"  # another request ran under a key that is taken
    FREED_KEY = "freed key"  # a key began anew without a proof that nothing had happened
    UNLAWFUL_RUN = "unlawful run"  # it ran again where the stored policy, or its limits, forbid that
    UNGUARDED_RUN = "unguarded run"  # it ran without a record behind it, or though its caller was refused
    EARLY_TAKEOVER = "early take-over"  # a live owner's operation was taken over within its lease
    VANISHED_RECORD = "vanished record"  # a record was dropped, or a confirmed write undone, before its time
    BROKEN_FENCE = "broken fence"  # a write took effect that named another record, or an operation had two owners
    WRONG_REFUSAL = "wrong refusal"  # a caller was refused for what is not so
    UNBOUNDED_WAIT = "unbounded wait"  # a caller got no answer in time
    UNSETTLED = "unsettled"  # faults were over, and an operation did not come to its end


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: which, of which operation, what is wrong in words, and the events that prove it."""

    kind: Kind
    name: Name
    what: str
    proof: tuple[Event, ...]

    def __str__(self) -> str:
        """The violation with its proof, one event a line."""
        return "\n  ".join([f"{self.kind} of {tuple(self.name)}: {self.what}", *map(line_of, self.proof)])
