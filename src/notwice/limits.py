"""Time limits for tasks, as `asyncio.timeout` sets them, but with one timer for all that wait in a loop.

A store answers within milliseconds and is given seconds, so nearly every timer would be set only to be taken back.
Here the timer that rings soonest is the only one, and most limits come and go without touching it.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Limit:
    """What one task waits for: until when, and whether that time came."""

    __slots__ = ("_before", "_loop_limits", "_task", "expired", "until")

    def __init__(self, task: asyncio.Task[Any], until: float, loop_limits: _LoopLimits) -> None:
        self.until = until
        self.expired = False
        """Whether the time came before the limit was ended: the task was cancelled for it."""
        self._task = task
        self._before = task.cancelling()
        self._loop_limits = loop_limits

    def expire(self) -> None:
        """Cancel the task."""
        self.expired = True
        self._task.cancel()

    def end(self) -> bool:
        """Wait no longer. Gives whether a cancellation is this limit's alone; if others asked for one, it is theirs."""
        self._loop_limits.waiting.pop(self, None)
        return self.expired and self._task.uncancel() <= self._before


class Limits:
    """The limits of any number of loops."""

    def __init__(self) -> None:
        self._loops: dict[asyncio.AbstractEventLoop, _LoopLimits] = {}

    def begin(self, seconds: float) -> Limit:
        """Have the running task cancelled after `seconds`, unless the limit is ended before."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # a coroutine runs in one
        loop_limits = self._loops.get(loop)
        if loop_limits is None:
            self._loops = {each: limits for each, limits in self._loops.items() if not each.is_closed()}
            loop_limits = self._loops[loop] = _LoopLimits(loop)
        limit = Limit(task, loop.time() + seconds, loop_limits)
        loop_limits.add(limit)
        return limit


class _LoopLimits:
    """The limits of one loop, and its timer."""

    __slots__ = ("_due", "_loop", "_timer", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.waiting: dict[Limit, None] = {}

    def add(self, limit: Limit) -> None:
        self.waiting[limit] = None
        if self._timer is None or limit.until < self._due:
            self._ring_by(limit.until)

    def _ring_by(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        """Expire whatever is due, and ring again for what is not."""
        self._timer = None
        now = max(self._loop.time(), self._due)  # a loop may ring a timer a little early
        for limit in [limit for limit in self.waiting if limit.until <= now]:
            del self.waiting[limit]
            limit.expire()
        if self.waiting:
            self._ring_by(min(limit.until for limit in self.waiting))
