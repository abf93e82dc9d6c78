"""What is told to whom: parts of a batch that fail, threads that can't be started, lanes that are closed."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from notwice import AsyncGuard, AsyncOperation, Guard, Operation, Policy
from notwice.errors import StoreUnavailable
from notwice.model import Insert, Op, Page, Query, RecordView, Reply
from notwice.privacy import Privacy, new_key
from notwice.stores.async_batching import SharedTrips
from notwice.stores.batching import Batching
from notwice.stores.dynamodb.threads import Threads
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.redis.lanes import AsyncLanes, Lanes
from notwice.stores.shared import KeyLocked, Name, PartlyDone, name_of, replies_or_raise
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import new_record

WAIT_S = 20


class Choosy:
    """A memory store that carries out what it can of a batch, and can be held up."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.refused: dict[str, StoreUnavailable] = {}
        self.locked: set[str] = set()
        self.asked: list[list[str]] = []
        self.entered = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.closed = False

    @property
    def plan(self) -> "Choosy":
        """What lanes ask: each record has a node of its own."""
        return self

    def owner_of(self, name: Name) -> tuple[str, int]:
        return name[1], 1

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.closed:
            raise StoreUnavailable("this store is closed")
        self.asked.append([name_of(op)[1] for op in ops])
        if self.locked.intersection(self.asked[-1]):
            raise KeyLocked("somebody holds a record; nothing was done")
        return replies_or_raise([self.refused.get(name_of(op)[1]) or self.inner.apply([op])[0] for op in ops])

    def scan(self, query: Query) -> Page:
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)

    def close(self) -> None:
        self.closed = True


class ChoosyForLoops:
    """The same for an event loop."""

    def __init__(self) -> None:
        self.blocking = Choosy()
        self.plan = self.blocking
        self.go = asyncio.Event()
        self.go.set()

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        await self.go.wait()
        return self.blocking.apply(ops)

    async def scan(self, query: Query) -> Page:
        return self.blocking.scan(query)

    async def purge(self, limit: int) -> int:
        return self.blocking.purge(limit)

    async def close(self) -> None:
        self.blocking.close()


@pytest.fixture
def choosy() -> Choosy:
    return Choosy()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A system that starts no thread until this is undone."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread.name}")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    yield monkeypatch
    monkeypatch.undo()


def until(condition: Any) -> None:
    pause = threading.Event()
    for _ in range(WAIT_S * 1_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came to that")


def put(store: Any, key: str) -> bool:
    return bool(store.apply([Insert(new_record(key))])[0].won)


async def put_async(store: Any, key: str) -> bool:
    return bool((await store.apply([Insert(new_record(key))]))[0].won)


# --- a batch of which a part fails ------------------------------------------------------------------------------------


def test_threads_are_told_of_their_own_operations(choosy: Choosy, pool: ThreadPoolExecutor) -> None:
    """P1, P13: who won is told so, whatever became of others in the batch."""
    batching = Batching(choosy, timeout=WAIT_S)
    choosy.refused["idem_b"] = StoreUnavailable("no memory left")
    choosy.go.clear()
    leader = pool.submit(put, batching, "leader")
    assert choosy.entered.wait(WAIT_S)
    callers = [pool.submit(put, batching, key) for key in "abc"]
    until(lambda: len(batching._pending) == 3)
    choosy.go.set()
    assert [leader.result(), callers[0].result(), callers[2].result()] == [True] * 3
    with pytest.raises(StoreUnavailable, match=r"^no memory left$"):
        callers[1].result()
    assert len(choosy.asked) == 2
    batching.close()


async def test_tasks_are_told_of_their_own_operations() -> None:
    """P1, P13: the same for tasks; who asked for several operations is told of the one that failed."""
    choosy = ChoosyForLoops()
    choosy.blocking.refused["idem_b"] = StoreUnavailable("no memory left")
    shared = SharedTrips(choosy, timeout=WAIT_S)
    several = shared.apply([Insert(new_record("d")), Insert(new_record("b"))])
    one, other, both = await asyncio.gather(
        put_async(shared, "a"), put_async(shared, "c"), several, return_exceptions=True
    )
    assert (one, other) == (True, True)
    assert isinstance(both, PartlyDone)
    assert [type(outcome) for outcome in both.outcomes] == [Reply, StoreUnavailable]


def test_nothing_but_locks_is_told_apart_too(choosy: Choosy) -> None:
    """T22: where each operation of a batch met a lock by itself, each has its own error, and none is sent again."""
    choosy.refused = {f"idem_{key}": KeyLocked(f"{key} is held") for key in "ab"}
    with pytest.raises(PartlyDone) as caught:
        choosy.apply([Insert(new_record("a")), Insert(new_record("b"))])
    assert list(map(str, caught.value.outcomes)) == ["a is held", "b is held"]
    with pytest.raises(KeyLocked, match="a is held"):
        choosy.apply([Insert(new_record("a"))])


async def test_who_has_gone_is_not_carried_out_alone() -> None:
    """P13: a call of a batch that is split is not carried out any more once its caller has gone."""
    choosy = ChoosyForLoops()
    choosy.go.clear()
    choosy.blocking.locked = {f"idem_{key}" for key in "abc"}
    shared = SharedTrips(choosy, timeout=WAIT_S)
    tasks = [asyncio.create_task(put_async(shared, key)) for key in "abc"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    choosy.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [KeyLocked, asyncio.CancelledError, KeyLocked]
    assert choosy.blocking.asked == [["idem_a", "idem_b", "idem_c"], ["idem_a"], ["idem_c"]]


async def test_a_trip_that_is_cancelled_while_it_is_split() -> None:
    """P8: who waits for a trip that somebody cancelled is told so, not left waiting."""
    choosy = ChoosyForLoops()
    choosy.blocking.locked = {"idem_a", "idem_b"}
    shared = SharedTrips(choosy, timeout=WAIT_S)
    callers = [asyncio.create_task(put_async(shared, key)) for key in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (trip,) = asyncio.all_tasks() - {*callers, asyncio.current_task()}
    real = choosy.apply

    async def held_up(ops: Sequence[Op]) -> Sequence[Reply]:
        if len(ops) == 1:
            trip.cancel()
            await asyncio.sleep(0)
        return await real(ops)

    choosy.apply = held_up  # type: ignore[method-assign]  # a trip that is cancelled at its second step
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 2


@pytest.mark.parametrize("refuse", ["lock", "refuse"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "alone"])
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "plain"])
def test_one_record_stops_no_other_heartbeat(choosy: Choosy, refuse: str, *, shared: bool, sealed: bool) -> None:
    """P1, T22: while somebody holds one operation's record, the leases of all others of its process are renewed."""
    clock = VirtualClock()
    choosy.inner = MemoryStore(clock=clock)
    store: Any = Batching(choosy, timeout=WAIT_S) if shared else choosy
    privacy = Privacy(keys=[new_key("k")]) if sealed else None
    with Guard(store, clock=clock, privacy=privacy, policy=Policy(lease=30)) as guard:
        operations = [guard.begin("pay", f"k{number}") for number in range(7)]
        first, held, *others = [operation.view.record for operation in operations if isinstance(operation, Operation)]
        if refuse == "lock":
            choosy.locked = {held.id}
        else:
            choosy.refused = {held.id: StoreUnavailable("no memory left")}
        clock.advance(25)
        clock.advance(25)
        choosy.locked, choosy.refused = set(), {}
        lapsed = {view.record.id for view in guard.operations() if isinstance(view, RecordView) and view.lapsed}
        assert lapsed == {held.id}
        assert first.id not in lapsed
        assert len(others) == 5


@pytest.mark.parametrize("held", [0, 1, 8])
@pytest.mark.parametrize("told", ["for all", "for each"])
def test_how_often_heartbeats_wait_for_locks(choosy: Choosy, held: int, told: str) -> None:
    """P1, T22: each record is asked for twice at most, so that locks on all of them hold up the others no longer."""
    clock = VirtualClock()
    choosy.inner = MemoryStore(clock=clock)
    with Guard(choosy, clock=clock, policy=Policy(lease=30)) as guard:
        operations = [guard.begin("pay", f"k{number}") for number in range(8)]
        ids = [operation.view.record.id for operation in operations if isinstance(operation, Operation)]
        if told == "for all":
            choosy.locked = set(ids[:held])
        else:
            choosy.refused = {each: KeyLocked("held") for each in ids[:held]}
        choosy.asked.clear()
        clock.advance(11)
        waits = [asked for asked in choosy.asked if not set(ids[:held]).isdisjoint(asked)]
        assert len(waits) == (0 if not held else held + 1 if told == "for all" else 1)
        assert len(choosy.asked) == (9 if held and told == "for all" else 1)
        assert max(sum(each in asked for asked in choosy.asked) for each in ids) <= 2


def test_what_is_not_known_is_not_taken_for_locked() -> None:
    """P13: a batch of which a part met a lock and a part was not answered is not sent again."""
    outcomes = [KeyLocked("held"), StoreUnavailable("no answer")]
    with pytest.raises(PartlyDone):
        replies_or_raise(outcomes)


# --- a system that has no thread left ---------------------------------------------------------------------------------


async def test_a_leader_that_can_call_nobody(choosy: Choosy, pool: ThreadPoolExecutor) -> None:
    """P8, P13: who led keeps its own answer, tasks that wait for a worker are refused, and later calls are served."""
    batching = Batching(choosy, timeout=WAIT_S)
    choosy.go.clear()
    leader = pool.submit(put, batching, "leader")
    assert await asyncio.to_thread(choosy.entered.wait, WAIT_S)
    follower = asyncio.create_task(put_async(batching.asynchronous, "follower"))
    await asyncio.sleep(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refused)
        choosy.go.set()
        with pytest.raises(StoreUnavailable, match="no thread"):
            await follower
    assert await asyncio.wrap_future(leader)
    assert await put_async(batching.asynchronous, "follower")
    await batching.asynchronous.close()


async def test_tasks_that_find_no_worker(no_threads: pytest.MonkeyPatch, choosy: Choosy) -> None:
    """P8: tasks are refused, scans too, while no thread can be started, and served as soon as one can."""
    store = Batching(choosy, timeout=WAIT_S).asynchronous
    for attempt in (put_async(store, "a"), store.purge(1)):
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            await attempt
    no_threads.undo()
    assert await put_async(store, "a")
    await store.close()


def test_jobs_that_find_no_thread(no_threads: pytest.MonkeyPatch) -> None:
    """P8: jobs are refused while no thread can be started; that many were leaves room for those that can."""
    threads = Threads(2, WAIT_S)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            threads.submit(int)
    no_threads.undo()
    assert threads.submit(lambda: "done").result(WAIT_S) == "done"
    no_threads.setattr(threading.Thread, "start", _refused)
    held = threading.Event()
    first, second = threads.submit(held.wait), threads.submit(lambda: "done, too")  # one thread does both
    held.set()
    assert first.result(WAIT_S)
    assert second.result(WAIT_S) == "done, too"
    threads.close()


def _refused(thread: threading.Thread) -> None:
    raise RuntimeError(f"can't start {thread.name}")


# --- lanes ------------------------------------------------------------------------------------------------------------


def test_lanes_are_closed_when_all_of_them_are_done(choosy: Choosy, pool: ThreadPoolExecutor) -> None:
    """P9: what waits in one lane is carried out, though another one was idle when the store was closed."""
    lanes = Lanes(choosy, WAIT_S)  # type: ignore[arg-type]  # it has all that lanes use
    assert put(lanes, "idle")
    choosy.entered.clear()
    choosy.go.clear()
    callers = [pool.submit(put, lanes, "busy") for _ in range(3)]
    assert choosy.entered.wait(WAIT_S)
    until(lambda: len(lanes._lanes["idem_busy", 1]._pending) == 2)
    closing = pool.submit(lanes.close)
    until(lambda: lanes._lanes["idem_busy", 1]._closed)
    choosy.go.set()
    closing.result(WAIT_S)
    assert sorted(caller.result(WAIT_S) for caller in callers) == [False, False, True]
    assert choosy.closed


async def test_lanes_of_tasks_are_closed_when_all_of_them_are_done() -> None:
    """P9: the same for tasks."""
    choosy = ChoosyForLoops()
    lanes = AsyncLanes(choosy, WAIT_S)  # type: ignore[arg-type]  # it has all that lanes use
    assert await put_async(lanes, "idle")
    choosy.go.clear()
    callers = [asyncio.create_task(put_async(lanes, "busy")) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(lanes.close())
    while not lanes._lanes["idem_busy", 1]._closed:  # noqa: ASYNC110 - another task sets it
        await asyncio.sleep(0)
    choosy.go.set()
    await closing
    assert sorted(await asyncio.gather(*callers)) == [False, False, True]
    assert choosy.blocking.closed


# --- claims that nobody could renew -----------------------------------------------------------------------------------


def test_a_claim_that_could_not_be_renewed(no_threads: pytest.MonkeyPatch) -> None:
    """P13: where no thread can be started to renew leases, begin is refused before it claims, and leaves no owner."""
    with Guard(MemoryStore()) as guard:
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            guard.begin("pay", "k")
        assert guard.lookup("pay", "k") is None
        no_threads.undo()
        assert isinstance(guard.begin("pay", "k"), Operation)


async def test_a_claim_of_a_task_that_could_not_be_renewed(no_threads: pytest.MonkeyPatch) -> None:
    """P13: the same for tasks."""
    async with AsyncGuard(AsyncMemoryStore(MemoryStore())) as guard:
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            await guard.begin("pay", "k")
        assert await guard.lookup("pay", "k") is None
        no_threads.undo()
        assert isinstance(await guard.begin("pay", "k"), AsyncOperation)
