"""Purging from time to time: in small steps, apart from others, whatever the store does."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, Policy, Unreadable
from notwice.purging import SPREAD, STEP_PAUSE_SECONDS
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.unit.worlds import Notebook

KEPT = Policy(retention=60)


class Timetable:
    """A clock that lets a thread wait only when it is told to, and notes for how long it would have."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.rounds = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def monotonic(self) -> float:
        return 0.0

    def call_later(self, delay: float, function: Any) -> None:
        """No lease needs a heartbeat here."""

    def wait(self, event: threading.Event, timeout: float) -> bool:
        self.waits.append(timeout)
        if timeout == STEP_PAUSE_SECONDS:
            return event.is_set()
        self.waiting.release()
        while not self.rounds.acquire(timeout=0.005):
            if event.is_set():
                return True
        return event.is_set()

    def turn(self) -> None:
        """Let one round run, and wait until it is over."""
        self.rounds.release()
        assert self.waiting.acquire(timeout=30)


class Bin(MemoryStore):
    """A store with so many expired records; notes how many were asked to go at a time."""

    def __init__(self, expired: int = 0) -> None:
        super().__init__()
        self.expired = expired
        self.limits: list[int] = []
        self.down = False

    def purge(self, limit: int) -> int:
        self.limits.append(limit)
        if self.down:
            raise OSError
        gone = min(limit, self.expired)
        self.expired -= gone
        return gone


def opened(store: Any) -> tuple[Any, Timetable, Notebook]:
    timetable, notebook = Timetable(), Notebook()
    return Guard(store, clock=timetable, observer=notebook), timetable, notebook  # type: ignore[arg-type]  # the part of a clock that is used


def test_it_purges_in_bounded_steps() -> None:
    """C42: a round drops no more than `limit` at a time, with a pause between steps, until nothing expired is left."""
    store = Bin(expired=25)
    guard, timetable, notebook = opened(store)
    with guard.purge_every(3600, limit=10):
        assert timetable.waiting.acquire(timeout=30)
        timetable.turn()
        assert store.limits == [10, 10, 10]
        assert store.expired == 0
        timetable.turn()
        assert store.limits == [10, 10, 10, 10]
    pauses = [wait for wait in timetable.waits if wait != STEP_PAUSE_SECONDS]
    assert timetable.waits.count(STEP_PAUSE_SECONDS) == 2
    assert all(3600 * (1 - SPREAD) <= pause <= 3600 * (1 + SPREAD) for pause in pauses)
    assert len(set(pauses)) == len(pauses) == 3
    assert [(event.name, event.detail) for event in notebook.events] == [("purged", "25 records")]


def test_a_store_that_is_down_is_tried_again() -> None:
    """P8: a failure is told and ends the round, and nothing else: the next one purges."""
    store = Bin(expired=5)
    store.down = True
    guard, timetable, notebook = opened(store)
    purger = guard.purge_every(3600)
    assert timetable.waiting.acquire(timeout=30)
    timetable.turn()
    assert notebook.counts["purge_failed"] == 1
    store.down = False
    timetable.turn()
    assert store.expired == 0
    purger.stop()
    purger.stop()
    assert not purger._thread.is_alive()


def test_stopping_waits_for_no_more_than_a_step() -> None:
    """Whoever stops it in the middle of a long round has it stopped after the step that is under way."""
    store = Bin(expired=10**9)
    guard, timetable, _ = opened(store)
    purger = guard.purge_every(3600, limit=10)
    assert timetable.waiting.acquire(timeout=30)
    timetable.rounds.release()
    while not store.limits:
        timetable.waiting.acquire(timeout=0.001)
    purger.stop()
    assert store.expired > 0


async def test_the_async_face() -> None:
    """A task purges by the guard's clock, and is over once it is stopped."""
    clock = VirtualClock()
    memory = MemoryStore(clock)
    guard = AsyncGuard(AsyncMemoryStore(memory), policy=KEPT, clock=clock)
    for number in range(25):
        operation: Any = await guard.begin("s", f"k{number}")
        await operation.complete(number)
    kept: Any = await guard.begin("s", "open")
    await kept.suspend("lost")
    clock.advance(61)
    async with guard.purge_every(3600, limit=10) as purger:
        for _ in range(10_000):
            await asyncio.sleep(0)
            left = [view async for view in guard.operations()]
            if len(left) == 1:
                break
    assert clock.monotonic() > 3600 * (1 - SPREAD)
    assert purger._task.done()
    assert [view.operation for view in left if not isinstance(view, Unreadable)] == [kept.operation]


@pytest.mark.parametrize("every", [0, -1, "1h", None])
def test_bad_times(every: Any) -> None:
    """What is no duration is refused at once."""
    with pytest.raises((TypeError, ValueError), match="every must be"):
        Guard(MemoryStore()).purge_every(every)


def test_many_expired_records_block_nobody(tmp_path: Path) -> None:
    """C42: while 20,000 expired records leave a SQLite file in bounded steps, claims go on, and what is open stays.

    A key that is claimed anew meanwhile keeps its new record.
    """
    clock = VirtualClock()
    path = tmp_path / "records.db"
    store = SqliteStore(path, clock=clock)
    guard: Any = Guard(store, policy=KEPT, clock=clock)
    done: Any = guard.begin("s", "model")
    done.complete(1)
    view = guard.lookup("s", "model")
    count = 20_000
    for start in range(0, count, 1000):
        named = [view._replace(record=view.record._replace(id=f"idem_{start + at}")) for at in range(1000)]
        assert all(store.load(named))
    open_ = guard.begin("s", "open")
    open_.suspend("lost")
    clock.advance(61)
    anew = guard.begin("s", "model")
    assert anew.attempt == 1
    gone = claims = 0
    while dropped := guard.purge(1000):
        assert dropped <= 1000
        gone += dropped
        guard.begin("s", f"claim-{claims}").complete(1)
        claims += 1
    assert gone + 512 * (claims // 256 + 1) >= count
    assert guard.lookup("s", "model").record.etag == anew.view.record.etag
    assert guard.lookup("s", "open").unresolved
    assert len(list(guard.operations())) == claims + 2
    guard.close()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_step_that_would_drop_nothing_is_refused(limit: int) -> None:
    """With a limit of none a round would never end."""
    with pytest.raises(ValueError, match="limit must be a whole number from 1 on"):
        Guard(MemoryStore()).purge_every(60, limit=limit)
