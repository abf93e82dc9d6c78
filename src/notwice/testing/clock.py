"""A clock that moves only when it is told to: for guards and for embedded stores at once."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable

_NANOSECONDS = 1_000_000_000
_FAR_S = 10**10
_UPTIME_NS = 3_600 * _NANOSECONDS
_TURNS = 12
"""How many turns of the event loop other tasks get before a waiting task moves the time."""
_GRACE_S = 0.001
"""How long other threads get, in real time, before a waiting thread moves the time."""


def _nanoseconds(seconds: float) -> int:
    return round(min(max(seconds, 0), _FAR_S) * _NANOSECONDS)


class VirtualClock:
    """A guard's clock and a store's clock in one, for tests that wait for nothing.

    Time stands still until `advance` is called, or until somebody waits: **a waiter moves the time itself**, to the
    next moment at which anything is due, after other tasks and threads had a chance to set its event. So a test with
    one thread never hangs, and tasks that wait wake up in the order of their deadlines.

    Callbacks run in the thread that moves the time, with the time set to the moment they were due. They must not
    wait for a lock which that thread holds.

    Arguments:
        wall_ms: the Unix time that the wall clock shows at first, in milliseconds.
    """

    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self._lock = threading.Lock()
        self._now_ns = 0
        self._wall_ns = wall_ms * 1_000_000
        self._boot_ns = _UPTIME_NS
        self._boots = 1
        self._order = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._now_ns / _NANOSECONDS

    def wall_ms(self) -> int:
        """Unix time in milliseconds."""
        return (self._wall_ns + self._now_ns) // 1_000_000

    def boot_ms(self) -> int:
        """Milliseconds since the host was started."""
        return (self._boot_ns + self._now_ns) // 1_000_000

    def boot_id(self) -> str:
        """The name of this run of the host; `reboot` changes it."""
        return f"virtual-boot-{self._boots}"

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Run `function` once the time has moved by `delay` seconds."""
        self._schedule(_nanoseconds(delay), function)

    def advance(self, seconds: float) -> None:
        """Move the time forward by `seconds` and run what falls due on the way, in the order of its due times."""
        target_ns = self._now_ns + _nanoseconds(seconds)
        while self._next_step(target_ns):
            pass

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative, by `seconds`. No other clock moves, nothing falls due."""
        with self._lock:
            self._wall_ns += round(seconds * _NANOSECONDS)

    def reboot(self) -> None:
        """Start the host anew: another boot id, and a boot time of zero. The wall clock goes on."""
        with self._lock:
            self._boots += 1
            self._boot_ns = -self._now_ns

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Wait up to `timeout` seconds of virtual time for `event`, moving the time. Says whether it is set."""
        deadline_ns = self._schedule(_nanoseconds(timeout), _nothing)
        while self._now_ns < deadline_ns and not _set_by_other_threads(event):
            self._next_step(deadline_ns)
        return event.is_set()

    async def wait_async(self, event: asyncio.Event, timeout: float) -> bool:  # noqa: ASYNC109 - virtual time
        """Wait up to `timeout` seconds of virtual time for `event`, moving the time. Says whether it is set."""
        deadline_ns = self._schedule(_nanoseconds(timeout), _nothing)
        while self._now_ns < deadline_ns and not await _set_by_other_tasks(event):
            self._next_step(deadline_ns)
        return event.is_set()

    def _schedule(self, delay_ns: int, function: Callable[[], None]) -> int:
        with self._lock:
            due_ns = self._now_ns + delay_ns
            heapq.heappush(self._due, (due_ns, next(self._order), function))
        return due_ns

    def _next_step(self, limit_ns: int) -> bool:
        """Move to the next moment at which something is due and run it, or to the limit. Says whether it ran."""
        with self._lock:
            if not self._due or self._due[0][0] > limit_ns:
                self._now_ns = max(self._now_ns, limit_ns)
                return False
            due_ns, _, function = heapq.heappop(self._due)
            self._now_ns = max(self._now_ns, due_ns)
        function()
        return True


def _nothing() -> None:
    """Stands in the queue for a deadline, so that no waiter jumps over another's."""


def _set_by_other_threads(event: threading.Event) -> bool:
    return event.is_set() or (threading.active_count() > 1 and event.wait(_GRACE_S))


async def _set_by_other_tasks(event: asyncio.Event) -> bool:
    for _ in range(_TURNS):
        if event.is_set():
            return True
        await asyncio.sleep(0)
    if threading.active_count() > 1:
        await asyncio.sleep(_GRACE_S)
    return event.is_set()
