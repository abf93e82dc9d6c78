"""The next system of a simulated world: where the effects happen, over a network of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from notwice.testing.history import Effect
from notwice.testing.simulate.choices import Choices, Table
from notwice.testing.simulate.weather import INSTANT, LEASE_S, Fate, Weather

if TYPE_CHECKING:
    from notwice.testing.simulate.world import World

_FATES: Final = (
    Table((Fate.FINE, 1)),
    Table(
        (Fate.FINE, 24),
        (Fate.REFUSED, 2),
        (Fate.LOST, 2),
        (Fate.SILENT, 1),
        (Fate.HUSHED, 1),
        (Fate.CRASH_BEFORE, 2),
        (Fate.CRASH_AFTER, 3),
        (Fate.STALL_BEFORE, 2),
        (Fate.STALL_AFTER, 2),
    ),
)
_DELAYS: Final = (
    Table((0.002, 8), (0.05, 2)),
    Table((0.002, 4), (0.4, 3), (1.5, 3), (4.0, 2), (LEASE_S * 0.7, 1)),
)
"""How long a message to the provider is under way: less than a lease, for `settle` has to outlast it."""


class Provider:
    """Causes effects, and knows them again by their downstream keys if it de-duplicates.

    It stands where a store's server stands for a `Link`: its weather is that of the way to it.
    """

    def __init__(self, world: World, *, deduplicates: bool, weather: Weather | None = None) -> None:
        self._world = world
        self._deduplicates = deduplicates
        self.weather: Final = weather or Weather(delays=INSTANT)
        self._known: dict[str, str] = {}
        self._count = 0

    @classmethod
    def drawn(cls, world: World, choices: Choices, *, deduplicates: bool) -> Provider:
        """A provider with a network drawn for this run. `deduplicates`: it must, for a policy says that it does."""
        weather = Weather(choices.one(_FATES), choices.one(_DELAYS))
        return cls(world, deduplicates=choices.below(2) == 0 or deduplicates, weather=weather)

    def charge(self, call: str, downstream_key: str, step: str = "") -> str:
        """Cause an effect, unless the key is known, and give the name of what happened under that key."""
        known = self._known.get(downstream_key) if self._deduplicates else None
        if known is None:
            self._count += 1
            known = f"charge_{self._count}"
            self._known.setdefault(downstream_key, known)
            applied = True
        else:
            applied = False
        self._world.events.append(
            Effect(
                at_ns=self._world.now_ns,
                call=call,
                effect=known,
                downstream_key=downstream_key,
                step=step,
                applied=applied,
            )
        )
        return known

    def find(self, downstream_key: str) -> str | None:
        """What happened under this key, if anything did."""
        return self._known.get(downstream_key)
