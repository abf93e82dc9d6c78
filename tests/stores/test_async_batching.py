"""Shared trips of tasks: what a batch holds, what has to wait, and what happens when something goes wrong."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

import pytest

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, Reply
from notwice.stores.async_batching import SharedTrips
from notwice.stores.calls import BATCH_MAX, PENDING_MAX
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.port import Store
from notwice.stores.shared import KeyLocked
from notwice.testing.conformance.records import new_record


class Slow:
    """A memory store for loops whose calls can be held up, and that can fail; it notes the batches."""

    def __init__(self) -> None:
        self.inner = AsyncMemoryStore(MemoryStore())
        self.batches: list[list[str]] = []
        self.under_way = 0
        self.most = 0
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.locked: set[str] = set()
        self.closed = False

    @property
    def blocking(self) -> Store:
        return self.inner.blocking

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        names = [name(op) for op in ops]
        self.batches.append(names)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await (self.gate.wait() if self.gate else asyncio.sleep(0))
            if self.failure is not None:
                raise self.failure
            if self.locked.intersection(names):
                raise KeyLocked("held by an open transaction")
            return await self.inner.apply(ops)
        finally:
            self.under_way -= 1

    async def scan(self, query: Query) -> Page:
        return await self.inner.scan(query)

    async def purge(self, limit: int) -> int:
        return await self.inner.purge(limit)

    async def close(self) -> None:
        self.closed = True


def name(op: Op) -> str:
    return (op.id if isinstance(op, Get) else op.record.id).removeprefix("idem_")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def shared(slow: Slow) -> SharedTrips:
    return SharedTrips(slow, timeout=20)


def insert(store: SharedTrips, key: str) -> asyncio.Task[Sequence[Reply]]:
    return asyncio.ensure_future(store.apply([Insert(new_record(key))]))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_alone_nobody_waits(slow: Slow, shared: SharedTrips) -> None:
    """A call that is alone is carried out alone, within the turn in which it came."""
    slow.gate = asyncio.Event()
    first = insert(shared, "a")
    await turns(3)
    assert slow.batches == [["a"]]
    slow.gate.set()
    assert [reply.won for reply in await first] == [True]


async def test_company_shares_trips(slow: Slow, shared: SharedTrips) -> None:
    """Calls of one turn share trips; each caller gets its own replies."""
    calls = [insert(shared, str(number)) for number in range(64)]
    assert all(reply.won for (reply,) in await asyncio.gather(*calls))
    assert [len(batch) for batch in slow.batches] == [32, 32]
    assert slow.most == 2


async def test_no_third_trip(slow: Slow, shared: SharedTrips) -> None:
    """While two batches are under way everybody waits, and then goes together."""
    slow.gate = asyncio.Event()
    calls = [insert(shared, str(number)) for number in range(3)]
    await turns()
    calls.append(insert(shared, "alone"))
    await turns()
    calls += [insert(shared, f"later-{number}") for number in range(5)]
    await turns()
    assert [len(batch) for batch in slow.batches] == [3, 1]
    slow.gate.set()
    await asyncio.gather(*calls)
    assert [len(batch) for batch in slow.batches] == [3, 1, 5]


async def test_batches_are_bounded(slow: Slow, shared: SharedTrips) -> None:
    """No batch is larger than the limit."""
    await asyncio.gather(*(insert(shared, str(number)) for number in range(3 * BATCH_MAX)))
    assert max(len(batch) for batch in slow.batches) <= BATCH_MAX
    assert sum(len(batch) for batch in slow.batches) == 3 * BATCH_MAX


async def test_one_id_keeps_its_order(slow: Slow, shared: SharedTrips) -> None:
    """Calls on an id that is under way, or that an earlier one waits for, wait: the first one that came wins."""
    slow.gate = asyncio.Event()
    rivals = [insert(shared, "a") for _ in range(5)]
    other = insert(shared, "b")
    await turns()
    assert slow.batches == [["a", "b"]]
    slow.gate.set()
    assert [reply.won for (reply,) in await asyncio.gather(*rivals)] == [True, False, False, False, False]
    assert (await other)[0].won
    assert slow.batches == [["a", "b"], ["a"], ["a"], ["a"], ["a"]]


async def test_a_failure_is_told_to_each_of_its_batch(slow: Slow, shared: SharedTrips) -> None:
    """If a batch fails, each of its callers is told that nobody knows what was done; later ones are not concerned."""
    slow.failure = RuntimeError("lost")
    calls = await asyncio.gather(*(insert(shared, key) for key in "abc"), return_exceptions=True)
    assert all(isinstance(each, StoreUnavailable) and "not known" in str(each) for each in calls)
    slow.failure = None
    assert (await shared.apply([Insert(new_record("a"))]))[0].won


async def test_a_locked_key_concerns_only_its_callers(slow: Slow, shared: SharedTrips) -> None:
    """T22: a batch that meets a locked key is split: only who asked for that key is told."""
    slow.locked = {"3"}
    calls = await asyncio.gather(*(insert(shared, str(number)) for number in range(6)), return_exceptions=True)
    assert [isinstance(each, StoreUnavailable) for each in calls] == [number == 3 for number in range(6)]
    assert slow.batches == [list("012345"), *(list(each) for each in "012345")]


async def test_a_cancelled_call(slow: Slow, shared: SharedTrips) -> None:
    """Who is cancelled while pending is left out; who is cancelled under way does not disturb the others."""
    slow.gate = asyncio.Event()
    first, second = insert(shared, "a"), insert(shared, "b")
    await turns()
    waiting = [insert(shared, key) for key in "aab"]
    await turns()
    first.cancel()
    waiting[0].cancel()
    await turns()
    slow.gate.set()
    assert (await second)[0].won
    assert not (await waiting[1])[0].won, "the cancelled call was carried out all the same"
    assert not (await waiting[2])[0].won
    assert slow.batches == [["a", "b"], ["a", "b"]]


async def test_a_call_that_waits_too_long(slow: Slow) -> None:
    """A caller waits for its turn and its trip up to the time-out, and is told whether anything was done."""
    shared = SharedTrips(slow, timeout=0.05)
    slow.gate = asyncio.Event()
    under_way = insert(shared, "a")
    await turns()
    pending = insert(shared, "a")
    with pytest.raises(StoreUnavailable, match="not known"):
        await under_way
    with pytest.raises(StoreUnavailable, match="nothing was done"):
        await pending
    slow.gate.set()
    assert not (await shared.apply([Insert(new_record("a"))]))[0].won
    assert len(slow.batches) == 2, "who gave up while pending is left out"


async def test_too_many_calls(slow: Slow, shared: SharedTrips) -> None:
    """More calls than may be pending are refused at once."""
    slow.gate = asyncio.Event()
    calls = [insert(shared, str(number)) for number in range(PENDING_MAX + 1)]
    refused = [each for each in (await asyncio.wait(calls, timeout=0.2))[0] if each.exception()]
    assert len(refused) == 1
    slow.gate.set()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_double_names(shared: SharedTrips) -> None:
    """A call that names an id twice is refused before anything is done, and an empty one is answered."""
    with pytest.raises(ValueError, match="only once"):
        await shared.apply([Insert(new_record("a")), Insert(new_record("a"))])
    assert list(await shared.apply([])) == []


async def test_close(slow: Slow, shared: SharedTrips) -> None:
    """What is pending when the store is closed is carried out first; later calls are refused."""
    calls = [insert(shared, key) for key in "aab"]
    await turns(1)
    await shared.close()
    assert slow.closed
    assert [reply.won for (reply,) in await asyncio.gather(*calls)] == [True, False, True]
    with pytest.raises(StoreUnavailable, match="closed"):
        await shared.apply([Get("n", "a")])


def test_loops_come_and_go(slow: Slow, shared: SharedTrips) -> None:
    """Each loop has trips of its own, one after the other, and none is kept when it is gone."""
    loops = []
    for number in range(3):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(shared.apply([Insert(new_record(str(number)))]))[0].won
        loops.append(weakref.ref(loop))
        loop.close()
        del loop
    gc.collect()
    assert not [ref for ref in loops if ref() is not None]
