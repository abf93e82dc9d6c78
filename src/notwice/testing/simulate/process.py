"""One simulated process: an event loop, threads, a clock and a way to the store, all of which die with it.

Threads are greenlets: each runs until it waits for the store, for an event or for time. So the library's own code for
threads, its heartbeat among it, runs as it is, and in an order that the simulation decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from notwice.errors import not_installed

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(not_installed("the simulator needs greenlet", "simulate"), name=error.name) from error

from notwice.async_guard import AsyncGuard
from notwice.guard import Guard
from notwice.heart import Heart, Hold
from notwice.stores.port import AsyncStore
from notwice.testing.history import Event
from notwice.testing.simulate.link import CALL, AsyncLink, ProcessDied
from notwice.testing.simulate.loop import ProcessLoop

if TYPE_CHECKING:
    from notwice.testing.simulate.world import World


def _nothing() -> None:
    """Nobody waits for the end of this process."""


class ProcessClock:
    """A guard's clock in one process. Timed calls run one after the other in a thread of their own."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._timed: deque[Callable[[], None]] = deque()
        self._busy = False

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self._process.world.now

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Run `function` after `delay` seconds in the clock's thread."""
        process = self._process
        if process.alive:
            process.at(process.world.now + delay, lambda: self._ring(function))

    def _ring(self, function: Callable[[], None]) -> None:
        self._timed.append(function)
        if not self._busy:
            self._busy = True
            self._process.thread(self._run)

    def _run(self) -> None:
        try:
            while self._timed:
                self._timed.popleft()()
        finally:
            self._busy = False

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Wait for `event` in virtual time."""
        self._process.wait(event, timeout)
        return event.is_set()

    async def wait_async(self, event: asyncio.Event, timeout: float) -> bool:  # noqa: ASYNC109 - part of the seam
        """Wait for `event` in virtual time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await event.wait()
        return event.is_set()


class OutsideOfThreadError(BaseException):
    """A simulated process was made to wait from outside: a mistake of the scenario, which no retry may hide."""


class _Wait(NamedTuple):
    """A thread that waits for an event, for the `number`-th time."""

    event: threading.Event
    thread: greenlet
    number: int


class ThreadLock:
    """A lock between the threads of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held = False
        self._waiting: deque[Callable[[object], None]] = deque()

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock, after waiting for it if `blocking`."""
        while self._held:
            if not blocking:
                return False
            self._waiting.append(self._process.waker())
            self._process.block()
        self._held = True
        return True

    def release(self) -> None:
        """Leave it to who has waited longest."""
        self._held = False
        if self._waiting:
            self._process.at(self._process.now, partial(self._waiting.popleft(), None))

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Process:
    """One process of a simulated service.

    Arguments:
        world: where it lives.
        name: what histories call it; each start of the same program has a name of its own.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world: Final = world
        self.name: Final = name
        self.alive = True
        self.paused_until_us = 0
        self.stalled = False  # it has been paused, and nothing has run in it since
        self.loop: Final = ProcessLoop(self)  # type: ignore[abstract]  # asyncio asks a simulated process for none of the rest
        self.clock: Final = ProcessClock(self)
        self.store: Final = AsyncLink(self, world.server)
        self.on_death: Callable[[], None] = _nothing
        self.failures: list[str] = []
        self._threads: dict[greenlet, None] = {}
        self._waits = 0
        self._waiting: list[_Wait] = []
        world.processes.append(self)

    # -- what a scenario asks of it

    def guard(self, store: AsyncStore | None = None, **options: Any) -> AsyncGuard:  # noqa: ANN401 - those of an AsyncGuard
        """A guard for this process's event loop, on the simulated store, or on `store` in front of it."""
        made = AsyncGuard(store or self.store, clock=self.clock, **options)
        made._runtime.new_etag = self.new_etag
        return made

    def blocking_guard(self, **options: Any) -> Guard:  # noqa: ANN401 - the options of a Guard
        """A guard for this process's threads, on the simulated store."""
        made = Guard(self.store.blocking, clock=self.clock, **options)
        made._runtime.new_etag = self.new_etag
        made._runtime.heart.add = partial(self._add_to, made._runtime.heart)  # type: ignore[method-assign]  # see there
        return made

    def _add_to(self, heart: Heart, hold: Hold, due: float) -> None:
        """Let the moves of an operation wait for each other in virtual time, before its first heartbeat."""
        if not isinstance(cast("object", hold.gate.turn), ThreadLock):
            hold.gate.turn = cast("threading.Lock", ThreadLock(self))
        Heart.add(heart, hold, due)

    def new_etag(self) -> bytes:
        """The next etag of the run; the store remembers which call drew it."""
        etag = self.world.choices.etag()
        self.world.server.callers[etag] = CALL.get()
        return etag

    def task(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run a coroutine in this process's event loop."""
        self.at(self.now, _nothing)  # so that the process runs
        return self.loop.create_task(coroutine)

    def thread(self, function: Callable[[], object]) -> None:
        """Run `function` in a thread of this process, from now on until it waits."""
        thread = greenlet(self._body)
        self._threads[thread] = None
        self._enter(thread, function)

    def sleep(self, seconds: float) -> None:
        """Let a thread of this process wait."""
        thread = getcurrent()
        self.at(self.world.now + seconds, lambda: self._enter(thread))
        self.block()

    def note(self, event: Event) -> None:
        """Put an event into the history, unless the process is dead."""
        if self.alive:
            self.world.events.append(event)

    # -- what happens to it

    def pause(self, seconds: float) -> None:
        """Stop the whole process, as a debugger, a busy host or a suspended machine does."""
        self.paused_until_us = max(self.paused_until_us, self.world.now_us + int(seconds * 1_000_000))

    def kill(self) -> None:
        """End the process: its tasks and threads vanish, and nothing that they still do reaches the world."""
        if not self.alive:
            return
        self.alive = False
        self.failures += self.loop.failures
        self.loop.die()
        for thread in list(self._threads):
            thread.throw(ProcessDied)
        self._threads.clear()
        self._waiting.clear()
        self.on_death()

    # -- what its loop, its clock and its way to the store are made of

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.world.now

    def at(self, when: float, function: Callable[[], object]) -> None:
        """Run `function` in this process at the time `when`."""
        if self.alive:
            self.world.at_us(-int(-when * 1_000_000), self, function)

    def run_ready(self) -> None:
        """Go on until everybody waits."""
        self.loop.run_ready()
        while self._waiting and self._wake_one():
            self.loop.run_ready()

    def block(self) -> object:
        """Let the running thread wait until it is woken, and give what it is woken with."""
        self.check_thread()
        if not self.alive:
            raise ProcessDied
        return self.world.hub.switch()

    def check_thread(self) -> None:
        """Raise where nothing can be made to wait."""
        if getcurrent() is self.world.hub:
            message = "a blocking call of a simulation runs in a thread: start it by process.thread(...)"
            raise OutsideOfThreadError(message)

    def waker(self) -> Callable[[object], None]:
        """What wakes the running thread, with a value."""
        thread = getcurrent()
        return lambda value: self._enter(thread, value)

    def wait(self, event: threading.Event, timeout: float) -> None:
        """Let the running thread wait for an event."""
        if event.is_set():
            return
        thread = getcurrent()
        self._waits += 1
        entry = _Wait(event, thread, self._waits)
        self._waiting.append(entry)
        self.at(self.world.now + timeout, partial(self._give_up, entry))
        self.block()

    def _wake_one(self) -> bool:
        for entry in self._waiting:
            if entry.event.is_set():
                self._wake(entry)
                return True
        return False

    def _give_up(self, entry: _Wait) -> None:
        if entry in self._waiting:
            self._wake(entry)

    def _wake(self, entry: _Wait) -> None:
        self._waiting.remove(entry)
        self._enter(entry.thread)

    def _enter(self, thread: greenlet, value: object = None) -> None:
        """Run `thread` until it waits. Threads are entered from the world alone, so that they return there."""
        if self.alive:
            asyncio._set_running_loop(None)
            thread.switch(value)

    def _body(self, function: Any) -> None:  # noqa: ANN401 - whatever the thread runs
        try:
            function()
        except ProcessDied:
            pass
        except Exception as error:  # noqa: BLE001 - as in a real thread, nobody else is told
            if self.alive:
                self.failures.append(f"a thread failed: {error!r}")
        finally:
            self._threads.pop(getcurrent(), None)
