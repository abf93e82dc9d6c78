"""The operations of the built-in scenario, and the policies under which they are begun."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from notwice.policy import Policy, Recovery, hold, reconcile, rerun
from notwice.testing.history import Name
from notwice.testing.simulate.choices import Choices, Table
from notwice.testing.simulate.faces import at_once
from notwice.testing.simulate.weather import LEASE_S, TIMEOUT_S


class Declined(Exception):
    """An answer of a handler: a definite refusal."""


class Boom(Exception):
    """Says nothing of what happened."""


class Asks(Protocol):
    """A call that can ask the provider what became of an effect."""

    async def reconcile(self, operation: Any) -> object:  # noqa: ANN401 - of either face
        """Give what ``reconcile`` functions give."""
        ...


VISIT: Final[ContextVar[Asks]] = ContextVar("notwice_simulated_visit")
"""The call that the running task or thread makes."""


async def _ask(operation: object) -> object:
    return await VISIT.get().reconcile(operation)


def _ask_blocking(operation: object) -> object:
    return at_once(VISIT.get().reconcile(operation))


class Family(Enum):
    """What may happen to an unresolved operation."""

    HOLD = "hold"
    RERUN = "rerun"
    RECONCILE = "reconcile"
    DEDUPLICATED = "deduplicated"


def _policy(recovery: Recovery, **options: Any) -> Policy:  # noqa: ANN401 - the options of a Policy
    return Policy(
        recovery=recovery,
        lease=LEASE_S,
        store_timeout=TIMEOUT_S,
        rerun_within=90,
        final_errors=(Declined,),
        **options,
    )


_VARIANTS: Final[tuple[dict[str, int], ...]] = ({}, {"wait": 4}, {"retention": 3}, {"wait": 15, "retention": 20})
_LASTING: Final = 2
"""So many of them, from the first on, keep answers for long: who asks the provider must not forget before that does."""


def _variants(recovery: Recovery) -> tuple[Policy, ...]:
    """The policies of one family."""
    forgets = recovery.function is None
    return tuple(
        _policy(recovery, **{name: value for name, value in options.items() if forgets or name != "retention"})
        for options in _VARIANTS
    )


POLICIES: Final[dict[tuple[Family, bool], tuple[Policy, ...]]] = {
    (family, blocking): _variants(recovery)
    for blocking, function in ((False, _ask), (True, _ask_blocking))
    for family, recovery in (
        (Family.HOLD, hold),
        (Family.RERUN, rerun),
        (Family.RECONCILE, reconcile(function)),
        (Family.DEDUPLICATED, reconcile(function, deduplicated=True)),
    )
}
"""By family and face. They are made once: a run must be cheap."""

_NAMES: Final = (
    Name("", "charge", "k1"),
    Name("", "charge", "k2"),
    Name("tenant-2", "charge", "k1"),
    Name("", "refund", "k1"),
)
_FAMILIES: Final = Table((Family.HOLD, 3), (Family.RERUN, 3), (Family.RECONCILE, 2), (Family.DEDUPLICATED, 2))
_RARELY: Final = Table((False, 5), (True, 1))


@dataclass(frozen=True, slots=True)
class Order:
    """One operation: its name, and the policy of those who begin it."""

    name: Name
    family: Family
    variant: int
    mixed: bool
    in_steps: bool

    @classmethod
    def drawn(cls, choices: Choices, number: int) -> Order:
        """The order of that number, with a policy drawn for this run."""
        family, mixed = choices.of(_FAMILIES), choices.of(_RARELY)
        return cls(
            _NAMES[number], family, choices.below(_LASTING if mixed else len(_VARIANTS)), mixed, choices.of(_RARELY)
        )

    @property
    def needs_deduplication(self) -> bool:
        """Whether a policy may say of the provider that it knows downstream keys again."""
        return self.mixed or self.family is Family.DEDUPLICATED

    def policy(self, choices: Choices, *, blocking: bool) -> Policy:
        """The policy of one more call: as a rule the order's, or any where deployments are mixed."""
        if self.mixed and choices.below(2):
            return POLICIES[choices.of(_FAMILIES), blocking][choices.below(_LASTING)]
        return POLICIES[self.family, blocking][self.variant]
