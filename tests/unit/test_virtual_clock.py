"""The virtual clock: time that moves when it is told to, in order, for threads and tasks alike."""

import asyncio
import threading

import pytest

from notwice.testing import VirtualClock


def test_what_is_due_runs_in_order_at_its_time() -> None:
    """Callbacks run in the order of their due times, with the clock at that time, those that they add included."""
    clock = VirtualClock()
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, clock.monotonic()))

    clock.call_later(5, lambda: note("last"))
    clock.call_later(3, lambda: note("first"))
    clock.call_later(3, lambda: clock.call_later(1, lambda: note("added")))
    clock.call_later(11, lambda: note("too late"))
    clock.advance(10)
    assert seen == [("first", 3), ("added", 4), ("last", 5)]
    assert clock.monotonic() == 10


def test_wall_and_boot_time() -> None:
    """Wall and boot clock move together, but for a step of the wall clock and for a boot."""
    clock = VirtualClock(wall_ms=1_000_000)
    boot_ms, boot_id = clock.boot_ms(), clock.boot_id()
    clock.advance(0.001)
    assert (clock.wall_ms(), clock.boot_ms() - boot_ms) == (1_000_001, 1)
    clock.step_wall(-60)
    assert (clock.wall_ms(), clock.boot_ms() - boot_ms, clock.boot_id()) == (940_001, 1, boot_id)
    clock.reboot()
    assert (clock.wall_ms(), clock.boot_ms()) == (940_001, 0)
    assert clock.boot_id() != boot_id


def test_a_thread_that_waits_moves_the_time() -> None:
    """A waiter moves the time to what is due next, and on to its deadline if nothing sets its event."""
    clock = VirtualClock()
    event = threading.Event()
    clock.call_later(4, event.set)
    assert clock.wait(event, 100)
    assert clock.monotonic() == 4
    assert not clock.wait(threading.Event(), 6)
    assert clock.monotonic() == 10


def test_threads_wait_for_each_other() -> None:
    """Several threads may wait at once, whichever of them moves the time; what falls due sets all of them free."""
    clock = VirtualClock()
    event = threading.Event()
    clock.call_later(50, event.set)
    found: list[bool] = []
    waiters = [threading.Thread(target=lambda: found.append(clock.wait(event, 100))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    assert found == [True] * 4


async def test_tasks_wake_in_the_order_of_their_deadlines() -> None:
    """No task sleeps past its deadline because another one, with a later deadline, moved the time."""
    clock = VirtualClock()

    async def wait(seconds: float) -> tuple[bool, float]:
        return await clock.wait_async(asyncio.Event(), seconds), clock.monotonic()

    found = await asyncio.gather(wait(3), wait(1), wait(2))
    assert list(found) == [(False, 3.0), (False, 1.0), (False, 2.0)]


async def test_other_tasks_run_before_the_time_moves() -> None:
    """A task that is ready gets its turns before a waiting one moves the time."""
    clock = VirtualClock()
    event = asyncio.Event()

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        event.set()

    found, _ = await asyncio.gather(clock.wait_async(event, 100), work())
    assert found
    assert clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_a_time(seconds: float) -> None:
    """Waiting for no time at all returns at once, and time never goes back."""
    clock = VirtualClock()
    clock.advance(seconds)
    assert not clock.wait(threading.Event(), seconds)
    assert clock.monotonic() == 0
