"""How a guard waits: the clock seam, the gate between an owner's moves, and the waiters for a running operation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import heapq
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, Self

from notwice.errors import StoreUnavailable


class Clock(Protocol):
    """A guard's clock, in seconds. Tests hand in `notwice.testing.VirtualClock`."""

    def monotonic(self) -> float:
        """Seconds since some fixed time; never goes back."""
        ...

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Call `function` after `delay` seconds, in a thread of the clock's own."""
        ...

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Wait for `event`, at most `timeout` seconds; gives whether it is set."""
        ...

    async def wait_async(self, event: asyncio.Event, timeout: float) -> bool:  # noqa: ASYNC109 - part of the seam: virtual time can't use asyncio.timeout
        """Wait for `event`, at most `timeout` seconds; gives whether it is set."""
        ...


class SystemClock:
    """The real clock. Its thread starts with the first `call_later` in each process, and is anew in a forked child."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop every call that is due and the thread, as after a fork."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None

    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Call `function` after `delay` seconds in this clock's thread; what it raises is logged."""
        with self._lock:  # not the condition, in whose Python code a signal handler's exception could leave it locked
            self._start()
            heapq.heappush(self._due, (time.monotonic() + delay, next(self._count), function))
            self._changed.notify()

    def be_ready(self) -> None:
        """Have the thread run. Raises `StoreUnavailable` if the system gives none: no lease would be renewed."""
        if self._thread is None:
            with self._lock:
                self._start()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Wait for `event`, at most `timeout` seconds."""
        return event.wait(timeout)

    async def wait_async(self, event: asyncio.Event, timeout: float) -> bool:  # noqa: ASYNC109 - see Clock
        """Wait for `event`, at most `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()
        return event.is_set()

    def _start(self) -> None:
        if self._thread is None and not sys.is_finalizing():  # then no thread starts any more, nor renews a lease
            thread = threading.Thread(target=self._run, name="notwice-clock", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise StoreUnavailable(
                    f"no thread can be started to renew leases ({error}); nothing was done"
                ) from error
            self._thread = thread

    def _run(self) -> None:
        while True:
            function = self._next()
            try:
                function()
            except BaseException:  # whatever it is: without this thread no lease is renewed
                logging.getLogger("notwice").exception("a timed call of the guard failed")

    def _next(self) -> Callable[[], None]:
        with self._changed:
            while True:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(left)


class Alarm:
    """Calls a function once by the soonest of the times that it was asked for, however many they were."""

    def __init__(self, clock: Clock, function: Callable[[], None]) -> None:
        self._clock = clock
        self._function = function
        self._lock = threading.Lock()
        self.at: float | None = None
        """When it calls next, a time of the clock; ``None``: not at all."""

    def by(self, when: float) -> None:
        """Call the function by `when`, a time of the clock."""
        with self._lock:
            if self.at is not None and self.at <= when:
                return
            self._clock.call_later(max(0.0, when - self._clock.monotonic()), functools.partial(self._ring, when))
            self.at = when  # last: a call that could not be asked for must not be counted on

    def _ring(self, when: float) -> None:
        with self._lock:
            if self.at != when:  # a sooner time was asked for since, and came
                return
            self.at = None
        self._function()


class Gate:
    """Lets one owner's move at a time through, be it of a thread, of a task, or of the heartbeat.

    Threads pass by ``with gate.turn:``, a lock of the interpreter's own: no exception out of a signal handler comes
    between taking it and knowing that it is taken. Nobody waits as a task where others pass as threads.
    """

    __slots__ = ("_waiting", "turn")

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def acquire(self, *, blocking: bool = True) -> bool:
        """Pass, after waiting for whoever is inside if `blocking`."""
        return self.turn.acquire(blocking=blocking)

    def release(self) -> None:
        """Leave, and wake every task that waits: one of them passes, the others wait again."""
        self.turn.release()
        if self._waiting:
            self._wake_all()

    def _wake_all(self) -> None:
        for _ in range(len(self._waiting)):
            with contextlib.suppress(IndexError, RuntimeError):  # others empty it, too; or that loop has been closed
                loop, future = self._waiting.pop()
                loop.call_soon_threadsafe(_wake, future)

    @property
    def turn_async(self) -> Self:
        """The same as `turn` for tasks: ``async with gate.turn_async:``."""
        return self

    async def acquire_async(self) -> None:
        """Pass, without blocking the loop."""
        while not self.turn.acquire(blocking=False):
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiting.append((loop, future))
            if self.turn.acquire(blocking=False):  # it was left before it could know of us
                return
            await future

    async def __aenter__(self) -> None:
        await self.acquire_async()

    async def __aexit__(self, *_: object) -> None:
        self.release()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


Place = tuple[str, str]
"""Where a record is kept: (namespace, operation id)."""


class Waiters:
    """Wakes those who wait in this process for an operation that ends in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: dict[Place, list[Callable[[], None]]] = {}
        """Whom to wake, by place."""

    def add(self, place: Place, wake: Callable[[], None]) -> None:
        """Have `wake` called, from any thread, each time the operation at `place` may have ended."""
        with self._lock:
            self.waiting.setdefault(place, []).append(wake)

    def remove(self, place: Place, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        with self._lock:
            waiting = self.waiting[place]
            waiting.remove(wake)
            if not waiting:
                del self.waiting[place]

    def notify(self, place: Place) -> None:
        """Wake whoever waits for `place`."""
        with self._lock:
            waiting = tuple(self.waiting.get(place, ()))
        for wake in waiting:
            wake()


class Backoff:
    """The pauses of a waiter that nobody wakes: 50 ms, growing by half to one second, within the time that is left."""

    FIRST = 0.05
    LONGEST = 1.0

    def __init__(self, clock: Clock, total: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + total
        self._pause = self.FIRST

    def next(self) -> float | None:
        """The next pause in seconds, ``None`` once the time is over."""
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            return None
        pause, self._pause = self._pause, min(self._pause * 1.5, self.LONGEST)
        return min(pause, left)
