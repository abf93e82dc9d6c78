"""Time limits of tasks, of which all in a loop share a timer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from notwice.limits import Limits

NEVER = 3600.0


async def waits(limits: Limits, seconds: float) -> bool:
    """Wait for ever under a limit. Gives whether the limit ended that; cancellations of others are raised."""
    limit = limits.begin(seconds)
    try:
        try:
            await asyncio.Event().wait()
        finally:
            over = limit.end()
    except asyncio.CancelledError:
        if not over:
            raise
    return limit.expired


def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times for which the running loop is asked to set a timer, from now on."""
    loop, asked = asyncio.get_running_loop(), []
    call_at = loop.call_at

    def counted(when: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        asked.append(when)
        return call_at(when, callback, *args)

    monkeypatch.setattr(loop, "call_at", counted)
    return asked


async def test_what_waits_too_long_is_ended() -> None:
    """P8: a task is cancelled when its time comes, and the cancellation is taken back: the task goes on."""
    task = asyncio.ensure_future(waits(Limits(), 0))
    assert await task
    assert task.cancelling() == 0


async def test_a_limit_that_is_ended_in_time_does_nothing() -> None:
    """An answer in time leaves no trace: the task is not cancelled later."""
    limits = Limits()
    limit = limits.begin(0)
    assert not limit.end()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not limit.expired
    assert limit.end() is False


async def test_a_cancellation_of_others_is_theirs() -> None:
    """Who cancels a task that waits for the store gets it cancelled, and not an answer of the limit's."""
    task = asyncio.ensure_future(waits(Limits(), NEVER))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_very_time_is_not_lost() -> None:
    """If the time comes and somebody cancels as well, the task is cancelled."""
    limits, begun = Limits(), asyncio.Event()

    async def both() -> bool:
        begun.set()
        return await waits(limits, 0)

    task = asyncio.ensure_future(both())
    await begun.wait()
    task.cancel()
    (watched,) = limits._loops.values()
    watched._ring()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limits_of_one_loop_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand limits one after another, and a hundred at once, set one timer; only a sooner one sets another."""
    limits, asked = Limits(), timers(monkeypatch)
    for _ in range(1000):
        limits.begin(NEVER).end()
    together = [limits.begin(NEVER) for _ in range(100)]
    assert len(asked) == 1
    sooner = limits.begin(NEVER / 2)
    assert len(asked) == 2
    for limit in (*together, sooner):
        limit.end()


async def test_each_limit_has_its_own_time() -> None:
    """What is due is ended, what is not goes on waiting, and is ended when its own time comes."""
    limits = Limits()
    late = asyncio.ensure_future(waits(limits, NEVER))
    soon = [asyncio.ensure_future(waits(limits, 0)) for _ in range(3)]
    assert await asyncio.gather(*soon) == [True] * 3
    assert not late.done()
    (watched,) = limits._loops.values()
    (limit,) = watched.waiting
    limit.until = 0
    watched._ring()
    assert await late


def test_loops_that_are_closed_are_forgotten() -> None:
    """A guard that is used in one loop after another keeps no loop."""
    limits = Limits()

    async def ended() -> None:
        limits.begin(NEVER).end()

    for _ in range(3):
        asyncio.run(ended())
    assert len(limits._loops) == 1
