"""Runs seeds, and has their histories judged."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Final

from notwice.stores.clocks import ClockDriftWarning
from notwice.stores.port import Store, StoreClock
from notwice.testing.auditor import audit
from notwice.testing.history import Effect, Header, History
from notwice.testing.simulate.choices import Choices
from notwice.testing.simulate.payments import CALM_AT_S, CLEAR_AT_S, DURATION_S, SETTLED_AT_S, Payments
from notwice.testing.simulate.server import KeptStore
from notwice.testing.simulate.weather import Weather
from notwice.testing.simulate.world import World

RUNS_PER_COLLECTION: Final = 200  # about 50 MB of garbage

Scenario = Callable[[World], None]
"""Sets up processes and calls in a world, lets it run, ``world.run(until=60)``, and asserts what must be so then."""

StoreMaker = Callable[[StoreClock], Store]


class Mode(StrEnum):
    """What the runs of the built-in scenario are to show."""

    SAFETY = "safety"  # nothing wrong happens, whatever breaks
    LIVENESS = "liveness"  # once nothing breaks any more, everything settles
    HTTP = "http"  # safety, through the ASGI face


@dataclass(frozen=True)
class Run:
    """One run: its history, and the choices that repeat it. `failures`: what raised where nobody was told."""

    seed: int
    choices: tuple[int, ...]
    history: History
    failures: tuple[str, ...]
    settled: bool

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong with it, each in words."""
        return (*map(str, audit(self.history, settled=self.settled)), *self.failures)

    @cached_property
    def kinds(self) -> frozenset[str]:
        """What kinds of promises it broke."""
        found = {str(violation.kind) for violation in audit(self.history, settled=self.settled)}
        return frozenset(found | {"failure"} if self.failures else found)

    @property
    def digest(self) -> str:
        """A digest of all that happened: the same for the same seed, on any machine."""
        digest = sha256()
        for line in self.history.lines():
            digest.update(line.encode())
        return digest.hexdigest()


@contextmanager
def in_silence() -> Generator[None, None, None]:
    """Keep the log, the warnings and the collector of garbage out of runs: they are many, and break things on purpose.

    When garbage is collected depends on what ran before, and what is collected can be seen: an operation that nobody
    holds any more renews no lease.
    """
    logger, collects = logging.getLogger("notwice"), gc.isenabled()
    disabled, logger.disabled = logger.disabled, True
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClockDriftWarning)
            yield
    finally:
        logger.disabled = disabled
        if collects:
            gc.enable()


def run(
    seed: int,
    scenario: Mode | Scenario = Mode.SAFETY,
    *,
    listed: Sequence[int] | None = None,
    store: StoreMaker = KeptStore,
) -> Run:
    """Run a scenario once: by a seed, or by the choices `listed` of an earlier run, each that is missing being 0.

    `store` makes the store that is put under test. One that has a method ``restart`` has it called where a real one
    would be started anew.
    """
    with in_silence():
        choices = Choices(seed, listed)
        world = World(choices, store=store, weather=Weather.drawn(choices))
        asserted: tuple[str, ...] = ()
        try:
            if isinstance(scenario, Mode):
                _run_payments(world, scenario)
            else:
                scenario(world)
        except AssertionError as error:
            asserted = (f"the scenario's own assertion failed: {error}",)
        finally:
            world.end()
    name = scenario if isinstance(scenario, Mode) else getattr(scenario, "__name__", "")
    effects = any(isinstance(event, Effect) for event in world.events)  # a scenario of one's own may record none
    whole = isinstance(world.server.store, KeptStore)
    header = Header(seed=f"{name}:{seed}", whole=whole, effects=effects or isinstance(scenario, Mode))
    failures = asserted + tuple(failure for process in world.processes for failure in process.failures)
    return Run(
        seed, tuple(choices.made), History(header, tuple(world.events)), failures, settled=scenario is Mode.LIVENESS
    )


def _run_payments(world: World, mode: Mode) -> None:
    payments = Payments(world, web=mode is Mode.HTTP)
    if mode is not Mode.LIVENESS:
        world.run(DURATION_S)
        return
    world.run(CLEAR_AT_S)
    payments.clear()
    world.run(CALM_AT_S)
    payments.settle()
    world.run(SETTLED_AT_S)


def explore(
    seeds: Iterable[int], scenario: Mode | Scenario = Mode.SAFETY, *, store: StoreMaker = KeptStore
) -> Iterator[Run]:
    """Run one seed after the other, and give each run that something is wrong with."""
    with in_silence():
        gc.collect()
        gc.freeze()  # what is there now needs not be looked at again
        try:
            for number, seed in enumerate(seeds):
                made = run(seed, scenario, store=store)
                if made.kinds:
                    yield made
                if number % RUNS_PER_COLLECTION == RUNS_PER_COLLECTION - 1:
                    gc.collect()
        finally:
            gc.unfreeze()
