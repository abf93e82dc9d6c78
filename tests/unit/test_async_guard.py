"""What only the guard for event loops can meet: cancellation, hung stores, blocked loops. The rest is its twin's."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from notwice import (
    Applied,
    AsyncGuard,
    AsyncOperation,
    InProgress,
    OperationInProgress,
    Policy,
    State,
    StoreUnavailable,
    Unresolved,
    reconcile,
    rerun,
)
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import AsyncFaultyStore, Pause, VirtualClock
from tests.unit.worlds import KEY, SCOPE


class AsyncWorld:
    """One guard for loops, its store and its clock."""

    def __init__(self, **policy: Any) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(self.clock)
        self.store = AsyncFaultyStore(AsyncMemoryStore(self.memory))
        self.guard = AsyncGuard(self.store, policy=Policy(**policy), clock=self.clock)

    async def begin(self, **options: Any) -> Any:
        return await self.guard.begin(SCOPE, KEY, **options)


async def test_fifty_callers_run_once() -> None:
    """C01: fifty tasks with one key: the handler runs once, the others are refused or wait."""
    for wait in (0, 5):
        world, runs = AsyncWorld(wait=wait), 0

        async def handler() -> str:
            nonlocal runs
            runs += 1
            await asyncio.sleep(0)
            return "done"

        calls = (world.guard.run(handler, scope=SCOPE, key=KEY) for _ in range(50))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert runs == 1
        refused = [outcome for outcome in outcomes if isinstance(outcome, OperationInProgress)]
        assert outcomes.count("done") == 50 - len(refused)
        assert bool(refused) is (wait == 0)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_cancelled_begin_leaves_no_owner(applied: bool) -> None:
    """P13, T07: a begin that is cancelled while the store is at work is freed behind its caller."""
    world, pause = AsyncWorld(), Pause(applied=applied)
    world.store.script(pause)
    task = asyncio.create_task(world.begin(request=1))
    await asyncio.to_thread(pause.reached.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pause.release()
    world.clock.advance(1)
    assert isinstance(await world.begin(request=2), AsyncOperation)


async def test_a_cancelled_handler_suspends() -> None:
    """C07, T07: a cancelled handler never frees its key and is not left in progress."""
    world, started = AsyncWorld(), asyncio.Event()

    async def handler() -> None:
        started.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(world.guard.run(handler, scope=SCOPE, key=KEY))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(await world.begin(), Unresolved)


async def test_a_cancelled_complete_is_repeated_behind() -> None:
    """P9: a complete that is cancelled under way lands all the same, and no other move may follow it."""
    world, pause = AsyncWorld(), Pause()
    operation = await world.begin()
    world.store.script(pause)
    task = asyncio.create_task(operation.complete("done"))
    await asyncio.to_thread(pause.reached.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StoreUnavailable, match="only the same"):
        await operation.abandon()
    world.clock.advance(1)
    assert (await world.begin()).result == "done"


async def test_a_hung_store_runs_nothing() -> None:
    """P8, C12: a store that never answers is given up after store_timeout; the handler does not run."""
    world, pause = AsyncWorld(store_timeout=0.05), Pause()
    world.store.script(pause)
    runs: list[int] = []

    async def handler() -> None:
        runs.append(1)

    with pytest.raises(StoreUnavailable):
        await world.guard.run(handler, scope=SCOPE, key=KEY)
    assert runs == []
    pause.release()


async def test_a_blocked_loop_loses_no_lease() -> None:
    """T03: heartbeats come from a thread of their own, so a handler that blocks the loop keeps its lease."""
    store = MemoryStore()
    guard = AsyncGuard(AsyncMemoryStore(store), policy=Policy(lease=0.3, recovery=rerun))
    operation = await guard.begin(SCOPE, KEY)
    assert isinstance(operation, AsyncOperation)
    threading.Event().wait(1.0)  # the loop is blocked for three leases
    assert isinstance(await guard.begin(SCOPE, KEY), InProgress)
    await operation.complete(1)


async def test_reconcile_may_wait() -> None:
    """P7: the function that is asked may be a coroutine function."""

    async def asked(operation: AsyncOperation) -> Applied:
        await asyncio.sleep(0)
        return Applied(operation.attempt)

    world = AsyncWorld(recovery=reconcile(asked))
    await (await world.begin()).suspend()
    assert (await world.begin()).result == 2


async def test_leaving_by_an_exception_suspends() -> None:
    """C10: as for the plain guard, an exception leaves the outcome unknown, and is raised."""
    world = AsyncWorld()

    async def handler() -> None:
        raise OSError("after the effect")

    with pytest.raises(OSError, match="after"):
        await world.guard.run(handler, scope=SCOPE, key=KEY)
    view = await world.guard.lookup(SCOPE, KEY)
    assert view is not None
    assert (view.state, view.unresolved) == (State.ACCEPTED, True)
    assert [item async for item in world.guard.operations(unresolved=True)] == [view]


async def test_a_waiter_is_woken_by_a_thread() -> None:
    """C03: a task waits for an operation that another thread finishes, and gets its answer at once."""
    guard = AsyncGuard(AsyncMemoryStore(MemoryStore()), policy=Policy(wait=30))
    operation = await guard.begin(SCOPE, KEY)
    assert isinstance(operation, AsyncOperation)
    waiter = asyncio.create_task(guard.begin(SCOPE, KEY))
    await asyncio.sleep(0)

    async def complete() -> None:
        await operation.complete("x")

    await asyncio.to_thread(lambda: asyncio.run(complete()))
    outcome: Any = await waiter
    assert outcome.result == "x"


async def test_a_plain_function_is_run_like_any_other() -> None:
    """C51: a handler that returns its value at once has run, and completes its operation."""
    world = AsyncWorld()
    plain: Any = lambda: 5  # noqa: E731 - what the annotations forbid
    assert await world.guard.run(plain, scope=SCOPE, key=KEY) == 5
    assert (await world.begin()).result == 5
