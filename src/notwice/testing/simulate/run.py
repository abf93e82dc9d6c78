"""Runs seeds, judges their histories, and gives what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from notwice.stores.port import Store, StoreClock
from notwice.testing.history import Header, History
from notwice.testing.simulate.choices import Choices
from notwice.testing.simulate.payments import CALM_AT_S, CLEAR_AT_S, DURATION_S, SETTLED_AT_S, Payments
from notwice.testing.simulate.server import KeptStore
from notwice.testing.simulate.weather import Weather
from notwice.testing.simulate.world import World


class Mode(StrEnum):
    """What a run is to show."""

    SAFETY = "safety"
    LIVENESS = "liveness"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its history, and the choices that repeat it."""

    mode: Mode
    seed: int
    choices: tuple[int, ...]
    history: History
    failures: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A digest of all that happened: the same for the same seed, on any machine."""
        digest = sha256()
        for line in self.history.lines():
            digest.update(line.encode())
        return digest.hexdigest()


StoreMaker = Callable[[StoreClock], Store]


def run(
    seed: int, mode: Mode = Mode.SAFETY, *, listed: Sequence[int] | None = None, store: StoreMaker = KeptStore
) -> Run:
    """Run the built-in scenario once, by a seed, or by the choices of an earlier run."""
    choices = Choices(seed, listed)
    world = World(choices, store=store, weather=Weather.drawn(choices))
    try:
        payments = Payments(world)
        if mode is Mode.LIVENESS:
            world.run(CLEAR_AT_S)
            payments.clear()
            world.run(CALM_AT_S)
            payments.settle()
            world.run(SETTLED_AT_S)
        else:
            world.run(DURATION_S)
    finally:
        world.end()
    header = Header(seed=f"{mode}:{seed}", whole=True)
    failures = tuple(failure for process in world.processes for failure in process.failures)
    return Run(mode, seed, tuple(choices.made), History(header, tuple(world.events)), failures)
