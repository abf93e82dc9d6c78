"""The clock's thread, the gate, the alarm, and what a fork leaves behind."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from notwice import Guard, InProgress, Operation, StoreUnavailable
from notwice.stores.memory import MemoryStore
from notwice.testing import VirtualClock
from notwice.waiting import Alarm, Gate, SystemClock
from tests.unit.worlds import KEY, SCOPE, World


def test_the_system_clock_calls_in_order_and_outlives_errors() -> None:
    """Timed calls come in the order of their times, and one that fails takes no other with it."""
    clock, called, done = SystemClock(), list[str](), threading.Event()

    def fails() -> None:
        called.append("fails")
        raise ZeroDivisionError

    clock.call_later(0.4, lambda: called.append("second"))
    clock.call_later(0.2, fails)
    clock.call_later(0.0, lambda: called.append("first"))
    clock.call_later(0.4, done.set)
    assert clock.wait(done, 10)
    assert called == ["first", "fails", "second"]


async def test_the_system_clock_waits_for_an_event_within_its_time() -> None:
    """A wait ends with its event or with its time, and says which."""
    clock, event = SystemClock(), asyncio.Event()
    assert not await clock.wait_async(event, 0.01)
    asyncio.get_running_loop().call_soon(event.set)
    assert await clock.wait_async(event, 10)


def test_an_alarm_rings_once_by_the_soonest_time() -> None:
    """However often a time is asked for, the function is called once by the soonest of them."""
    clock, rings = VirtualClock(), list[float]()
    alarm = Alarm(clock, lambda: rings.append(clock.monotonic()))
    for when in (5, 3, 4, 3):
        alarm.by(when)
    clock.advance(10)
    assert rings == [3]
    alarm.by(12)
    clock.advance(10)
    assert rings == [3, 12]


async def test_the_gate_lets_tasks_and_threads_through_one_at_a_time() -> None:
    """Threads and tasks of any loop pass one after the other, and a cancelled waiter blocks nobody."""
    gate, inside, most = Gate(), 0, 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        inside -= 1

    def thread() -> None:
        for _ in range(200):
            with gate.turn:
                enter()
                leave()

    async def task() -> None:
        for _ in range(200):
            async with gate.turn_async:
                enter()
                await asyncio.sleep(0)
                leave()

    gate.acquire()
    cancelled = asyncio.create_task(task())
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.release()
    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    await asyncio.gather(*(task() for _ in range(4)))
    for each in threads:
        await asyncio.to_thread(each.join)
    assert (inside, most) == (0, 1)
    assert gate.acquire(blocking=False)


def in_child(check: object) -> bool:
    """Whether `check` is true in a forked child."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 1  # type: ignore[operator]  # a function without arguments
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_starts_anew() -> None:
    """P1: operations and unanswered begins are the parent's: a child neither beats for them nor goes on with them."""
    world = World()
    world.own()
    world.faults("lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.guard.begin(SCOPE, "other")
    assert in_child(lambda: isinstance(world.guard.begin(SCOPE, "other"), InProgress))
    heart = world.guard._runtime.heart
    assert heart._young or heart._buckets
    assert in_child(lambda: not heart._young and not heart._buckets)
    assert isinstance(world.guard.begin(SCOPE, "other"), Operation)


def test_a_guard_may_be_made_before_a_fork() -> None:
    """A guard that was used before a fork works in the child: its threads start there anew."""
    guard = Guard(MemoryStore())
    assert isinstance(guard.begin(SCOPE, KEY), Operation)
    assert in_child(lambda: guard.run(lambda: 5, scope=SCOPE, key="child") == 5)
