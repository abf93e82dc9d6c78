"""How bad things are in one run: which faults may happen, and how often. Each run draws its own mix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from notwice.testing.simulate.choices import Choices, Table


class Fate(Enum):
    """What becomes of one trip to the store."""

    FINE = "fine"
    REFUSED = "refused"  # it never arrives, and the caller is told of an error
    LOST = "lost"  # it is carried out, and the caller is told of an error
    SILENT = "silent"  # it never arrives, and nobody says so
    HUSHED = "hushed"  # it is carried out, and nobody says so
    LATE = "late"  # it is carried out long after the caller was told of an error
    TORN = "torn"  # a part of the batch is carried out, and the caller is told of an error
    CRASH_BEFORE = "crash_before"  # the process dies before it is sent
    CRASH_AFTER = "crash_after"  # the process dies after it was carried out
    STALL_BEFORE = "stall_before"  # the process stands still before it is sent
    STALL_AFTER = "stall_after"  # the process stands still while it is under way


LEASE_S: Final = 10.0  # of the policies of the built-in scenarios; all other durations are measured by it
TIMEOUT_S: Final = 2.0  # their store_timeout
GIVE_UP_S: Final = 5.0  # when a driver gives up by itself
QUICK: Final = Table((0.001, 40), (0.0005, 4), (0.0003, 4), (0.002, 6), (0.005, 6), (0.0201, 3), (0.3, 1))
SLOW: Final = Table((0.001, 20), (0.0005, 3), (0.002, 4), (0.01, 4), (0.15, 3), (0.9, 3), (1.9, 1), (2.6, 2), (6.0, 1))
STALLS_S: Final = Table((3.0, 2), (LEASE_S - 0.004, 1), (LEASE_S + 0.002, 2), (LEASE_S + 1.0, 3), (2.5 * LEASE_S, 2))
LATENESS_S: Final = Table((0.5, 3), (3.0, 3), (LEASE_S + 0.5, 1), (2 * LEASE_S + 3, 1))
CALM: Final = Table((Fate.FINE, 1))
INSTANT: Final = Table((0.001, 1))

_LOSSES: Final = ((Fate.REFUSED, 4), (Fate.LOST, 8), (Fate.SILENT, 2), (Fate.HUSHED, 4), (Fate.LATE, 4), (Fate.TORN, 3))
_CRASHES: Final = ((Fate.CRASH_BEFORE, 3), (Fate.CRASH_AFTER, 5))
_STALLS: Final = ((Fate.STALL_BEFORE, 4), (Fate.STALL_AFTER, 3))


def _table(fine: int, *kinds: tuple[tuple[Fate, int], ...]) -> Table[Fate]:
    return Table((Fate.FINE, fine), *(entry for kind in kinds for entry in kind))


MIXES: Final = (
    CALM,
    _table(240, _LOSSES),
    _table(60, _LOSSES),
    _table(90, _CRASHES),
    _table(60, _STALLS),
    _table(240, _LOSSES, _CRASHES),
    _table(240, _LOSSES, _STALLS),
    _table(120, _CRASHES, _STALLS),
    _table(360, _LOSSES, _CRASHES, _STALLS),
    _table(60, _LOSSES, _CRASHES, _STALLS),
)
"""The faults of trips that a run may draw."""


@dataclass(slots=True)
class Weather:
    """The mix of one run, until `clear`."""

    fates: Table[Fate] = CALM
    delays: Table[float] = INSTANT
    calm: bool = False

    @classmethod
    def drawn(cls, choices: Choices) -> Weather:
        """A mix drawn for this run."""
        return cls(choices.one(MIXES), choices.one((QUICK, QUICK, SLOW)))

    def clear(self) -> None:
        """No fault happens any more, and every trip is quick."""
        self.fates, self.delays, self.calm = CALM, INSTANT, True
