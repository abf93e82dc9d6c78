"""How long a task's new step waits for the kept ones: as that of a thread, by an event of its loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from notwice import StepsChanged, rerun
from tests.unit.test_async_guard import AsyncWorld


async def part() -> str:
    return "done"


async def taken_over(world: AsyncWorld) -> Any:
    """An operation whose first owner has kept a step, and is gone."""
    first: Any = await world.begin()
    await first.step("kept", part)
    world.guard._runtime.heart.remove(first._hold)
    world.clock.advance(300)
    return await world.begin()


async def test_a_task_waits_for_kept_steps_for_one_lease() -> None:
    """P5: a branch beside it may be about to ask; when a whole lease has gone, the steps have changed."""
    world = AsyncWorld(recovery=rerun)
    second = await taken_over(world)
    before = world.clock.monotonic()
    branch = asyncio.create_task(second.step("branch", part))
    with pytest.raises(StepsChanged, match="new step 'branch'"):
        await asyncio.wait_for(branch, 10)
    assert world.clock.monotonic() - before == pytest.approx(300)


async def test_the_task_that_runs_the_handler_waits_for_nothing() -> None:
    """P5: nobody else can be about to ask for what it asked for itself, so it is refused at once."""
    world = AsyncWorld(recovery=rerun)
    second = await taken_over(world)
    before = world.clock.monotonic()
    with pytest.raises(StepsChanged, match="new step 'new'"):
        await second.step("new", part)
    assert world.clock.monotonic() == before
