"""The simulated world: virtual time, what happens in it, and the processes that live and die there.

One thing happens at a time. Whatever waits, be it a task, a thread or a message under way, is an entry with its time;
the world takes the next one, and then lets its process run until everybody in it waits again. Entries of one time come
in the order in which they were made, and all that is random is drawn from the run's choices: one list of choices is
one history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from greenlet import getcurrent

from notwice.stores.port import Store, StoreClock
from notwice.testing.history import Event
from notwice.testing.simulate.choices import Choices
from notwice.testing.simulate.process import Process
from notwice.testing.simulate.server import KeptStore, Server
from notwice.testing.simulate.weather import Weather

MICROSECONDS: Final = 1_000_000
WALL_MS: Final = 1_800_000_000_000
UPTIME_MS: Final = 3_600_000
STEPS_MAX: Final = 200_000  # a run that is longer than this goes on for ever


class Endless(Exception):
    """A run did not come to its end."""


class WorldClock:
    """The clocks of the store's host: a wall clock that steps, and a boot clock that does not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._wall_ms = WALL_MS
        self._boot_ms = UPTIME_MS
        self._boots = 1

    def wall_ms(self) -> int:
        """Unix time in milliseconds."""
        return self._wall_ms + self._world.now_us // 1000

    def boot_ms(self) -> int:
        """Milliseconds since the host was started."""
        return self._boot_ms + self._world.now_us // 1000

    def boot_id(self) -> str:
        """The name of this run of the host."""
        return f"boot-{self._boots}"

    def step_wall(self, step_ms: int) -> None:
        """Move the wall clock, and no other."""
        self._wall_ms += step_ms

    def reboot(self) -> None:
        """Start the host anew."""
        self._boots += 1
        self._boot_ms = -(self._world.now_us // 1000)


class World:
    """One run.

    Arguments:
        choices: what everything random is drawn from.
        store: makes the store that all processes share, on this world's clock.
        weather: the faults of the trips to that store; none by default.
    """

    def __init__(
        self, choices: Choices, *, store: Callable[[StoreClock], Store] = KeptStore, weather: Weather | None = None
    ) -> None:
        self.choices: Final = choices
        self.now_us = 0
        self.events: list[Event] = []
        self.clock: Final = WorldClock(self)
        self.server: Final = Server(self, store(self.clock), weather or Weather())
        self.processes: list[Process] = []
        self.hub: Final = getcurrent()
        self._due: list[tuple[int, int, Process | None, Callable[[], object]]] = []
        self._made = 0

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.now_us / MICROSECONDS

    @property
    def now_ns(self) -> int:
        """The same in nanoseconds, as histories have it."""
        return self.now_us * 1000

    def at_us(self, when_us: int, process: Process | None, function: Callable[[], object]) -> None:
        """Have `function` run at `when_us`, in `process`: later while that is paused, never once it is dead."""
        self._made += 1
        heappush(self._due, (max(self.now_us, when_us), self._made, process, function))

    def after(self, seconds: float, process: Process | None, function: Callable[[], object]) -> None:
        """Have `function` run after `seconds`."""
        self.at_us(self.now_us + int(seconds * MICROSECONDS), process, function)

    def run(self, until: float) -> None:
        """Let everything happen until the time `until`, or until nothing is left to happen."""
        until_us, due = int(until * MICROSECONDS), self._due
        before = asyncio._get_running_loop()
        try:
            for _ in range(STEPS_MAX):
                if not due or due[0][0] > until_us:
                    self.now_us = max(self.now_us, until_us)
                    return
                self._step()
        finally:
            asyncio._set_running_loop(before)
        raise Endless(f"the run has not come to its end after {STEPS_MAX} steps, at {self.now:.3f} s")

    def end(self) -> None:
        """Let every process die, so that nothing of this run is left behind."""
        before = asyncio._get_running_loop()
        try:
            for process in self.processes:
                process.kill()
        finally:
            asyncio._set_running_loop(before)
        self._due.clear()

    def _step(self) -> None:
        when_us, _, process, function = heappop(self._due)
        self.now_us = when_us
        if process is None:
            function()
        elif not process.alive:
            return
        elif process.paused_until_us > when_us:
            self.at_us(process.paused_until_us, process, function)
        else:
            function()
            process.run_ready()
