"""The event loop of one simulated process: asyncio's tasks and futures, first come first served, in virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar

_T = TypeVar("_T")

DRAINED_MAX: Final = 10_000  # turns that the tasks of a dead process get to unwind
UNWINDINGS_MAX: Final = 20  # how often a task that goes on after its cancellation is cancelled again


class Timers(Protocol):
    """What a loop asks of the world around it."""

    @property
    def now(self) -> float:
        """Seconds since the start of the simulation."""
        ...

    def at(self, when: float, function: Callable[[], object]) -> None:
        """Run `function` in this process at the time `when`."""
        ...


class ProcessLoop(asyncio.AbstractEventLoop):
    """Runs what is ready, in its order, whenever something has happened to its process."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._closed = False
        self.failures: list[str] = []
        """What went wrong in callbacks that nobody waits for."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._timers.now

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Run the callback in this turn, after what is ready."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run the callback after `delay` virtual seconds."""
        return self.call_at(self._timers.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run the callback at the virtual time `when`."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers.at(when, lambda: self._ready.append(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: a handle that was cancelled is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # no task here is made of a generator
        self, coro: Coroutine[Any, Any, _T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[_T]:
        """A task of this loop."""
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """Whether the process is alive."""
        return not self._closed

    def is_closed(self) -> bool:
        """Whether the process is dead."""
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what went wrong, for the simulation to judge."""
        if not self._closed:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run_ready(self) -> None:
        """Run until every task waits for something."""
        ready = self._ready
        if ready:
            asyncio._set_running_loop(self)
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()

    def die(self) -> None:
        """Let every task unwind in a world that it can no longer touch."""
        self._closed = True
        for _ in range(UNWINDINGS_MAX):
            left = [task for task in self._tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self._drain()
        self._tasks.clear()
        self._ready.clear()

    def _drain(self) -> None:
        asyncio._set_running_loop(self)
        for _ in range(DRAINED_MAX):
            if not self._ready:
                return
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()
