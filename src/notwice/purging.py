"""Dropping expired records from time to time, in small steps, beside whatever else a process does."""

from __future__ import annotations

import asyncio
import random
import threading
from types import TracebackType
from typing import Final, Protocol, Self

from notwice.errors import NotwiceError
from notwice.observe import Event, tell
from notwice.runtime import Runtime

STEP_PAUSE_SECONDS: Final = 0.1  # between two steps of a round: claims come first
SPREAD: Final = 0.1  # by so much of its length each pause differs, so that many processes don't purge in step


class Purges(Protocol):
    """A guard, as far as it is asked to purge."""

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records, and say how many went."""
        ...


class PurgesInLoop(Protocol):
    """A guard for event loops, as far as it is asked to purge."""

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records, and say how many went."""
        ...


class PurgerBase:
    """What both faces share: when to purge, and what is told of it."""

    def __init__(self, runtime: Runtime, *, every_seconds: float, limit: int) -> None:
        if limit < 1:
            message = f"limit must be a whole number from 1 on, not {limit!r}: each step has to drop something"
            raise ValueError(message)
        self._runtime = runtime
        self._every_seconds = every_seconds
        self._limit = limit

    def _spread(self) -> float:
        return self._every_seconds * random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 - to be apart, not secret

    def _tell(self, name: str, detail: str) -> None:
        if self._runtime.observer is not None:
            tell(self._runtime.observer, Event(name, detail=detail))

    def _tell_round(self, gone: int) -> None:
        if gone:
            self._tell("purged", f"{gone} records")


class Purger(PurgerBase):
    """Purges in a daemon thread of its own until `stop`, or until the process ends. A forked child has none."""

    def __init__(self, guard: Purges, runtime: Runtime, *, every_seconds: float, limit: int) -> None:
        super().__init__(runtime, every_seconds=every_seconds, limit=limit)
        self._guard = guard
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notwice-purge", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, after the step that is under way. Stopping twice is harmless."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._runtime.clock.wait(self._stopped, self._spread()):
            try:
                self._tell_round(self._round())
            except NotwiceError as error:
                self._tell("purge_failed", str(error))

    def _round(self) -> int:
        """Purge until a step finds less than it may drop. Each step is bounded, and the store is free in between."""
        gone = 0
        while True:
            dropped = self._guard.purge(self._limit)
            gone += dropped
            if dropped < self._limit or self._runtime.clock.wait(self._stopped, STEP_PAUSE_SECONDS):
                return gone

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class AsyncPurger(PurgerBase):
    """Purges in a task of the running loop until `stop`, or until the loop ends."""

    def __init__(self, guard: PurgesInLoop, runtime: Runtime, *, every_seconds: float, limit: int) -> None:
        super().__init__(runtime, every_seconds=every_seconds, limit=limit)
        self._guard = guard
        self._stopped = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End it, after the step that is under way. Stopping twice is harmless."""
        self._stopped.set()
        await self._task

    async def _run(self) -> None:
        while not await self._runtime.clock.wait_async(self._stopped, self._spread()):
            try:
                self._tell_round(await self._round())
            except NotwiceError as error:
                self._tell("purge_failed", str(error))

    async def _round(self) -> int:
        """Purge until a step finds less than it may drop. Each step is bounded, and the store is free in between."""
        gone = 0
        while True:
            dropped = await self._guard.purge(self._limit)
            gone += dropped
            if dropped < self._limit or await self._runtime.clock.wait_async(self._stopped, STEP_PAUSE_SECONDS):
                return gone

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
