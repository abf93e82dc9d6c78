"""Shared commits: who leads, what a batch holds, who waits how long, and what happens when something goes wrong."""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from notwice.errors import RecordTooLarge, StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, Record, Reply
from notwice.stores.batching import Batching, _ThreadCall
from notwice.stores.calls import Call, take
from notwice.stores.memory import MemoryStore
from notwice.stores.shared import KeyLocked
from notwice.testing.conformance.records import new_record
from tests.stores.children import in_child

WAIT_S = 20


class Slow:
    """A memory store whose calls can be held up, counted and made to fail."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.batches: list[list[str]] = []
        self.threads: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.held = False
        self.failure: BaseException | None = None
        self.closed = 0

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self.batches.append([(op.id if isinstance(op, Get) else op.record.id) for op in ops])
        self.threads.append(threading.get_ident())
        if self.held:
            self.entered.release()
            assert self.go.acquire(timeout=WAIT_S)
        if self.failure is not None:
            raise self.failure
        return self.inner.apply(ops)

    def scan(self, query: Query) -> Page:
        self.threads.append(threading.get_ident())
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        self.threads.append(threading.get_ident())
        return self.inner.purge(limit)

    def close(self) -> None:
        self.closed += 1

    def let_go(self) -> None:
        """Let the call that is held up go on, and hold up no further one."""
        self.held = False
        self.go.release()


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def batching(slow: Slow) -> Iterator[Batching]:
    batching = Batching(slow, timeout=WAIT_S)
    yield batching
    batching.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def put(batching: Batching, name: str) -> bool:
    return batching.apply([Insert(new_record(name))])[0].won


async def put_async(batching: Batching, name: str) -> bool:
    return (await batching.asynchronous.apply([Insert(new_record(name))]))[0].won


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for other threads to get somewhere."""
    pause = threading.Event()
    for _ in range(WAIT_S * 1_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came to that")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads and tasks to get somewhere."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in other threads
            await asyncio.sleep(0.001)


def lead(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> Any:
    """Have a thread lead with a call that is held up."""
    slow.held = True
    leader = pool.submit(put, batching, "leader")
    assert slow.entered.acquire(timeout=WAIT_S)
    return leader


def pending(batching: Batching, count: int) -> None:
    wait_until(lambda: len(batching._pending) == count)


# --- who leads, and what a batch holds --------------------------------------------------------------------------------


def test_a_lone_caller_waits_for_nobody(batching: Batching, slow: Slow) -> None:
    """A call that is alone is carried out at once in its own thread, as it is."""
    assert put(batching, "a")
    assert not put(batching, "a")
    assert slow.threads == [threading.get_ident()] * 2
    assert batching._worker is None


def test_those_who_come_meanwhile_share_the_next_commit(
    batching: Batching, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    """All calls that come while one is under way are one batch, and each gets its own reply."""
    leader = lead(batching, slow, pool)
    calls = {name: pool.submit(put, batching, name) for name in ("b", "c", "leader", "d")}
    pending(batching, 4)
    assert not any(call.done() for call in calls.values()), "nothing is reported before the commit"
    slow.let_go()
    assert leader.result(WAIT_S)
    assert {name: call.result(WAIT_S) for name, call in calls.items()} == {
        "b": True,
        "c": True,
        "leader": False,
        "d": True,
    }
    assert [len(batch) for batch in slow.batches] == [1, 4]
    assert slow.threads[1] not in {slow.threads[0], threading.get_ident()}
    assert not batching._leader.held


def test_a_batch_names_an_id_once(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """Operations on one id go to one batch after the other, in the order in which they came."""
    leader = lead(batching, slow, pool)
    calls = []
    for names in (["a"], ["b"], ["a", "c"], ["c"], ["d"], ["a"]):
        ops = [Insert(new_record(name)) for name in names]
        calls.append(pool.submit(batching.apply, ops))
        pending(batching, len(calls))
    slow.let_go()
    won = [[reply.won for reply in call.result(WAIT_S)] for call in calls]
    assert leader.result(WAIT_S)
    assert won == [[True], [True], [False, True], [False], [True], [False]]
    assert slow.batches[1:] == [
        ["idem_a", "idem_b", "idem_d"],
        ["idem_a", "idem_c"],
        ["idem_c", "idem_a"],
    ]


def test_a_batch_has_an_end(slow: Slow, pool: ThreadPoolExecutor) -> None:
    """No batch holds more operations than it may, but for one call that is longer."""
    batching = Batching(slow, timeout=WAIT_S, batch_max=5)
    leader = lead(batching, slow, pool)
    long = pool.submit(batching.apply, [Insert(new_record(f"long-{number}")) for number in range(8)])
    pending(batching, 1)
    calls = [pool.submit(put, batching, str(number)) for number in range(12)]
    pending(batching, 13)
    slow.let_go()
    assert all(call.result(WAIT_S) for call in [leader, *calls])
    assert len(long.result(WAIT_S)) == 8
    assert [len(batch) for batch in slow.batches] == [1, 8, 5, 5, 2]


def test_a_call_that_names_an_id_twice_is_refused_alone(batching: Batching) -> None:
    """Such a call is refused before it can spoil a batch of others."""
    with pytest.raises(ValueError, match="only once"):
        batching.apply([Insert(new_record()), Insert(new_record())])
    assert put(batching, "a")


async def test_tasks_share_commits_and_wake_ups(batching: Batching, slow: Slow) -> None:
    """Tasks of a loop are served by one thread, and woken together: one call into the loop for each batch."""
    loop = asyncio.get_running_loop()
    calls: list[object] = []
    threadsafe = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        calls.append(callback)
        return threadsafe(callback, *args, context=context)

    loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]  # it counts, and does the same
    slow.held = True
    first = asyncio.create_task(put_async(batching, "first"))
    await until(partial(slow.entered.acquire, blocking=False))
    others = [asyncio.create_task(put_async(batching, str(number))) for number in range(100)]
    await until(lambda: len(batching._pending) == 100)
    slow.let_go()
    assert all(await asyncio.gather(first, *others))
    assert [len(batch) for batch in slow.batches] == [1, 100]
    assert len(calls) == 2
    assert len(set(slow.threads)) == 1
    assert slow.threads[0] != threading.get_ident()


async def test_threads_and_tasks_of_several_loops_share_commits(
    batching: Batching, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    """One batch holds what threads and tasks of any loop want."""
    leader = lead(batching, slow, pool)
    thread = pool.submit(put, batching, "thread")
    other_loop = pool.submit(asyncio.run, put_async(batching, "other loop"))
    task = asyncio.create_task(put_async(batching, "task"))
    await until(lambda: len(batching._pending) == 3)
    slow.let_go()
    assert await task
    assert all([leader.result(WAIT_S), thread.result(WAIT_S), other_loop.result(WAIT_S)])
    assert sorted(map(len, slow.batches)) == [1, 3]


async def test_where_only_tasks_wait_the_worker_takes_the_lead(
    batching: Batching, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    """A thread that is done does not stay to serve tasks: it goes back to its caller."""
    leader = lead(batching, slow, pool)
    tasks = [asyncio.create_task(put_async(batching, str(number))) for number in range(3)]
    await until(lambda: len(batching._pending) == 3)
    slow.held = True
    slow.go.release()
    assert await asyncio.wrap_future(leader)
    slow.let_go()
    assert all(await asyncio.gather(*tasks))
    assert len(set(slow.threads)) == 2


async def test_scans_and_purges_of_tasks_run_in_the_worker(batching: Batching, slow: Slow) -> None:
    """A page or a purge that takes long does not hold up the loop."""
    store = batching.asynchronous
    assert await put_async(batching, "a")
    assert len((await store.scan(Query())).items) == 1
    assert await store.purge(5) == 0
    assert len(set(slow.threads)) == 1
    assert slow.threads[0] != threading.get_ident()
    assert len(store.blocking.scan(Query()).items) == 1
    with pytest.raises(ValueError, match="cursor"):
        await store.scan(Query(cursor="none"))


def test_many_callers_see_one_winner_each(batching: Batching, pool: ThreadPoolExecutor) -> None:
    """P1: threads and tasks that claim the same ids through shared commits have one winner for each."""

    def threads(worker: int) -> int:
        return sum(put(batching, str(number)) for number in range(60))

    async def tasks() -> int:
        won = await asyncio.gather(*(put_async(batching, str(number)) for _ in range(8) for number in range(60)))
        return sum(won)

    loop = pool.submit(asyncio.run, tasks())
    winners = sum(pool.map(threads, range(8)))
    assert winners + loop.result(WAIT_S) == 60


# --- when something goes wrong ----------------------------------------------------------------------------------------


def test_the_error_of_a_batch_is_each_callers(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """P8: when the store fails, each caller of that batch, and no other, gets an error of its own."""
    leader = lead(batching, slow, pool)
    calls = [pool.submit(put, batching, str(number)) for number in range(3)]
    pending(batching, 3)
    slow.failure = StoreUnavailable("the disk is gone")
    slow.let_go()
    errors = [call.exception(WAIT_S) for call in [leader, *calls]]
    assert all(isinstance(error, StoreUnavailable) and "the disk is gone" in str(error) for error in errors)
    assert len(set(map(id, errors))) == 4
    slow.failure = None
    assert put(batching, "after")


def test_a_foreign_error_is_told_as_unknown(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """Whatever a store raises, a caller that shared its commit is told that the outcome is not known."""
    leader = lead(batching, slow, pool)
    call = pool.submit(put, batching, "a")
    pending(batching, 1)
    slow.failure = ZeroDivisionError("odd")
    slow.let_go()
    assert isinstance(leader.exception(WAIT_S), ZeroDivisionError)
    error = call.exception(WAIT_S)
    assert isinstance(error, StoreUnavailable)
    assert "not known" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


async def test_tasks_get_the_error_of_their_batch(batching: Batching, slow: Slow) -> None:
    """P8: a task whose batch failed gets an error, and the next one is served."""
    slow.failure = StoreUnavailable("the disk is gone")
    results = await asyncio.gather(*(put_async(batching, str(n)) for n in range(5)), return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    slow.failure = None
    assert await put_async(batching, "after")


def test_nobody_waits_longer_than_told(slow: Slow, pool: ThreadPoolExecutor) -> None:
    """P8: behind a disk that hangs, callers are refused in time; what was never sent is not sent afterwards."""
    batching = Batching(slow, timeout=0.05)
    leader = lead(batching, slow, pool)
    with pytest.raises(StoreUnavailable, match="nothing was done"):
        put(batching, "late")
    with pytest.raises(StoreUnavailable, match="nothing was done"):
        asyncio.run(put_async(batching, "late too"))
    slow.let_go()
    assert leader.result(WAIT_S)
    assert put(batching, "late")
    assert slow.batches == [["idem_leader"], ["idem_late"]]


async def test_a_task_that_waits_in_vain_does_not_know(slow: Slow) -> None:
    """P8: a call that is in a batch when the time is over may or may not be carried out, and its caller is told so."""
    batching = Batching(slow, timeout=0.05)
    slow.held = True
    with pytest.raises(StoreUnavailable, match="not known"):
        await put_async(batching, "a")
    slow.let_go()
    wait_until(lambda: not batching._leader.held)
    assert not await put_async(batching, "a")


def test_what_waits_is_bounded(slow: Slow, pool: ThreadPoolExecutor) -> None:
    """Behind a disk that hangs, callers beyond a number are refused at once instead of piling up."""
    batching = Batching(slow, timeout=WAIT_S, pending_max=2)
    leader = lead(batching, slow, pool)
    calls = [pool.submit(put, batching, str(number)) for number in range(2)]
    pending(batching, 2)
    with pytest.raises(StoreUnavailable, match="waiting for the store already"):
        put(batching, "more")
    with pytest.raises(StoreUnavailable, match="waiting for the store already"):
        asyncio.run(put_async(batching, "more"))
    slow.let_go()
    assert all(call.result(WAIT_S) for call in [leader, *calls])


def test_an_interrupted_leader_strands_nobody(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """An interrupt amid a shared commit ends the leader's call; the others are told, and the store goes on."""
    leader = lead(batching, slow, pool)
    calls = []
    for name in ("heir", "other"):
        calls.append(pool.submit(put, batching, name))
        pending(batching, len(calls))
    slow.failure = KeyboardInterrupt()
    slow.let_go()
    assert isinstance(leader.exception(WAIT_S), KeyboardInterrupt)
    assert isinstance(calls[0].exception(WAIT_S), KeyboardInterrupt)
    assert isinstance(calls[1].exception(WAIT_S), StoreUnavailable)
    slow.failure = None
    assert put(batching, "after")


@pytest.mark.parametrize("leads", [False, True])
def test_an_interrupted_follower_strands_nobody(
    batching: Batching, slow: Slow, pool: ThreadPoolExecutor, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt while waiting takes the call back if it was not sent, and passes the lead on if it had just come."""
    leader = lead(batching, slow, pool)
    waiting, interrupt = threading.Event(), threading.Event()

    class Interrupted:
        def acquire(self, *, timeout: float) -> bool:
            waiting.set()
            assert interrupt.wait(WAIT_S)
            raise KeyboardInterrupt

        def release(self) -> None:
            """Waking it comes too late."""

    class VictimsCall(_ThreadCall):
        def __init__(self, ops: Sequence[Op]) -> None:
            super().__init__(ops)
            self.wake = Interrupted()  # type: ignore[assignment]  # it has what is used

    with monkeypatch.context() as patch:
        patch.setattr("notwice.stores.batching._ThreadCall", VictimsCall)
        victim = pool.submit(put, batching, "victim")
        assert waiting.wait(WAIT_S)
    other = pool.submit(put, batching, "other")
    pending(batching, 2)
    if leads:
        slow.let_go()
        assert leader.result(WAIT_S)
        interrupt.set()
    else:
        interrupt.set()
        assert isinstance(victim.exception(WAIT_S), KeyboardInterrupt)
        slow.let_go()
    assert isinstance(victim.exception(WAIT_S), KeyboardInterrupt)
    assert other.result(WAIT_S)
    assert slow.batches == [["idem_leader"], ["idem_other"]]
    assert not batching._leader.held


async def test_a_cancelled_task_disturbs_no_other(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """A task that is cancelled before its call was sent takes it back; those beside it are served."""
    leader = lead(batching, slow, pool)
    doomed, other = (asyncio.create_task(put_async(batching, name)) for name in ("doomed", "other"))
    await until(lambda: len(batching._pending) == 2)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    slow.let_go()
    assert await other
    assert await asyncio.wrap_future(leader)
    assert slow.batches == [["idem_leader"], ["idem_other"]]


def test_a_loop_that_ended_disturbs_no_other(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """A batch whose task's loop was closed meanwhile is carried out, and the next caller is served."""
    slow.held = True
    loop = asyncio.new_event_loop()
    task = loop.create_task(put_async(batching, "a"))
    while not slow.entered.acquire(blocking=False):
        loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    slow.let_go()
    wait_until(lambda: not batching._leader.held)
    assert not put(batching, "a")


# --- the end, and forks -----------------------------------------------------------------------------------------------


def test_what_is_pending_is_carried_out_before_the_end(slow: Slow, pool: ThreadPoolExecutor) -> None:
    """Closing refuses new calls, carries out those that wait, ends the worker, and closes the store below."""
    batching = Batching(slow, timeout=WAIT_S)
    assert asyncio.run(put_async(batching, "first"))
    leader = lead(batching, slow, pool)
    call = pool.submit(put, batching, "pending")
    pending(batching, 1)
    closing = pool.submit(batching.close)
    wait_until(lambda: batching._closed)
    with pytest.raises(StoreUnavailable, match="closed"):
        put(batching, "new")
    with pytest.raises(StoreUnavailable, match="closed"):
        asyncio.run(put_async(batching, "new"))
    assert slow.closed == 0
    slow.let_go()
    assert leader.result(WAIT_S)
    assert call.result(WAIT_S)
    closing.result(WAIT_S)
    assert slow.closed == 1
    assert batching._worker is not None
    assert not batching._worker._thread.is_alive()


async def test_a_loop_can_close_it(slow: Slow) -> None:
    """Closing from a loop waits for the pending calls of that loop without blocking it."""
    batching = Batching(slow, timeout=WAIT_S)
    slow.held = True
    task = asyncio.create_task(put_async(batching, "a"))
    await until(partial(slow.entered.acquire, blocking=False))
    closing = asyncio.create_task(batching.asynchronous.close())
    await until(lambda: batching._closed)
    slow.let_go()
    assert await task
    await closing
    with pytest.raises(StoreUnavailable, match="closed"):
        await batching.asynchronous.scan(Query())


async def test_an_unused_worker_goes_with_its_store(slow: Slow) -> None:
    """A store that was forgotten without being closed leaves no thread behind."""
    batching = Batching(slow, timeout=0.2)
    assert await put_async(batching, "a")
    assert batching._worker is not None
    thread = batching._worker._thread
    del batching
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.to_thread(thread.join, WAIT_S)
    assert not thread.is_alive()


def test_a_child_begins_anew(batching: Batching, slow: Slow, pool: ThreadPoolExecutor) -> None:
    """A child that was forked amid a shared commit has no pending calls, no leader and a worker of its own."""
    assert asyncio.run(put_async(batching, "before"))
    leader = lead(batching, slow, pool)
    call = pool.submit(put, batching, "pending")
    pending(batching, 1)
    assert in_child(partial(_use_in_child, batching, slow)) == 0
    slow.let_go()
    assert leader.result(WAIT_S)
    assert call.result(WAIT_S)


def _use_in_child(batching: Batching, slow: Slow) -> None:
    slow.held = False
    assert put(batching, "child")
    assert asyncio.run(put_async(batching, "child task"))


def test_the_store_below_is_asked_as_it_was_asked(batching: Batching, slow: Slow) -> None:
    """Batches, pages and purges go through as they are."""
    first = new_record()
    batching.apply([Insert(first), Insert(new_record("b"))])
    replies = batching.apply([Get(first.namespace, first.id), Insert(new_record("b"))])
    assert [reply.won for reply in replies] == [False, False]
    assert isinstance(replies[0].record, Record)
    assert replies[0].record.etag == first.etag
    assert len(batching.scan(Query()).items) == 2
    assert batching.purge(10) == 0


@pytest.mark.parametrize("refusal", [KeyLocked, RecordTooLarge])
def test_a_refusal_concerns_only_its_callers(refusal: type[StoreUnavailable]) -> None:
    """T22: a batch that meets a locked key, or a record that is too large, is split: only who asked for it is told."""

    class Locks(Slow):
        def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
            if any(not isinstance(op, Get) and op.record.key == "3" for op in ops):
                self.batches.append(["refused"])
                raise refusal("nothing was done")
            return super().apply(ops)

    slow = Locks()
    batching = Batching(slow, timeout=WAIT_S)
    slow.held = True
    with ThreadPoolExecutor(7) as pool:
        first = pool.submit(batching.apply, [Insert(new_record("first"))])
        assert slow.entered.acquire(timeout=WAIT_S)
        calls = [pool.submit(batching.apply, [Insert(new_record(str(number)))]) for number in range(6)]
        wait_until(lambda: len(batching._pending) == 6)
        slow.let_go()
        assert first.result()[0].won
        errors = [call.exception() for call in calls]
        assert [isinstance(error, StoreUnavailable) for error in errors] == [number == 3 for number in range(6)]
        assert isinstance(errors[3], RecordTooLarge) is (refusal is RecordTooLarge)
    assert slow.batches.count(["refused"]) == 2
    assert max(map(len, slow.batches)) == 1


def test_those_who_have_given_up_keep_nobody_from_a_batch() -> None:
    """However many they are: an empty batch would leave the one behind them waiting for somebody else to come."""
    gone = [Call([Get("n", f"gone-{number}")]) for number in range(5_000)]
    for call in gone:
        call.given_up = True
    waiting = Call([Get("n", "waiting")])
    pending = deque([*gone, waiting])
    assert take(pending, 256) == [waiting]
    assert not pending
