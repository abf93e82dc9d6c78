"""Interrupts: out of a signal handler or another thread, anywhere in a call. See `notwice.stores.interrupts`."""

import asyncio
import gc
import sqlite3
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Query, Record, Reply, Swap
from notwice.stores.batching import Batching
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, followed, new_record
from tests.stores.children import in_child
from tests.stores.interrupts import Interrupted, interruptions, throw_into

TIMEOUT = 0.8
"""Seconds: short, for where the one who was to wake others was interrupted, they look around four times within it."""

LONG_TIMEOUT = 4
"""Seconds: for where callers wait for the disk."""

WAIT_S = 20
BOMBS = 250

Calls = dict[str, Callable[[Store, int], object]]

CALLS: Calls = {
    "insert": lambda store, number: store.apply([Insert(new_record(f"{number}"))]),
    "duplicate": lambda store, _: store.apply([Insert(new_record("before"))]),
    "batch": lambda store, number: store.apply([Insert(new_record(f"{number}-{part}")) for part in range(3)]),
    "get": lambda store, _: store.apply([Get("tenant-7", "idem_before")]),
    "scan": lambda store, _: store.scan(Query(limit=2)),
    "purge": lambda store, _: store.purge(1),
}


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """An interrupt in the middle of `asyncio.run` leaves its loop open: it goes here, not in some later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteStore]:
    clock = VirtualClock()
    store = SqliteStore(tmp_path / "records.db", timeout=TIMEOUT, clock=clock)
    store.apply([Insert(finished(f"expired-{number}", retention_ms=1)) for number in range(200)])
    store.apply([Insert(new_record("before"))])
    clock.advance(1)
    yield store
    store.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def in_thread(pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Any:
    return pool.submit(call).result(WAIT_S)


def wins(store: Store, name: str) -> bool:
    return store.apply([Insert(new_record(name))])[0].won


def is_committed(store: SqliteStore, name: str) -> bool:
    """Whether another program finds it in the file."""
    with closing(sqlite3.connect(store._path, timeout=0)) as other:
        return bool(other.execute("SELECT 1 FROM notwice_record WHERE id = ?", (f"idem_{name}",)).fetchall())


# --- at every point ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "shared"), [*((call, False) for call in CALLS), ("insert", True)])
def test_an_interrupt_leaves_no_lock_and_no_transaction(
    sqlite: SqliteStore, pool: ThreadPoolExecutor, call: str, shared: bool
) -> None:
    """P1: wherever a call is interrupted, what is reported afterwards is committed, and all threads are served."""
    store: Store = Batching(sqlite, timeout=TIMEOUT) if shared else sqlite
    for number, interruption in enumerate(interruptions()):
        with suppress(StoreUnavailable):  # within a function of ours, SQLite makes an error of it
            interruption.run(partial(CALLS[call], store, number))
        assert not sqlite._lock.locked(), interruption.where
        assert in_thread(pool, partial(wins, store, f"{number}-after")), interruption.where
        assert is_committed(sqlite, f"{number}-after"), interruption.where


@pytest.mark.parametrize("call", ["insert", "batch"])
def test_an_interrupt_amid_a_sweep_loses_nothing(sqlite: SqliteStore, pool: ThreadPoolExecutor, call: str) -> None:
    """P1, P6: the same where expired records leave with a new one, in a transaction; a batch is there wholly or not."""
    sqlite.purge(198)
    for number, interruption in enumerate(interruptions()):
        sqlite._unswept = 64
        with suppress(StoreUnavailable):  # as above
            interruption.run(partial(CALLS[call], sqlite, number))
        sqlite._unswept = 0
        parts = {is_committed(sqlite, f"{number}-{part}") for part in range(3)}
        assert len(parts) == 1, interruption.where
        name = f"{number}-after"
        assert in_thread(pool, partial(wins, sqlite, name)), interruption.where
        assert is_committed(sqlite, name), interruption.where


def test_an_interrupt_while_a_file_is_opened(sqlite: SqliteStore, pool: ThreadPoolExecutor) -> None:
    """P8: an interrupt while the file is closed and opened anew, as after another one, refuses no call."""
    for number, interruption in enumerate(interruptions()):
        sqlite._unjudged = Interrupted()
        interruption.run(partial(wins, sqlite, f"{number}"))
        assert in_thread(pool, partial(wins, sqlite, f"{number}-after")), interruption.where
        assert is_committed(sqlite, f"{number}-after"), interruption.where


def test_an_interrupt_in_memory_leaves_the_books_in_order(pool: ThreadPoolExecutor) -> None:
    """P6: wherever a call in memory is interrupted, listings, inserts and the cap go on, and no open record leaves."""
    for number, interruption in enumerate(interruptions()):
        store = MemoryStore(VirtualClock(), records_max=4)
        done, open_one = finished("done"), new_record("open")
        store.apply([Insert(done), Insert(finished("old", retention_ms=1)), Insert(open_one)])
        store.scan(Query())
        batch: Sequence[Op] = [
            Swap(followed(done, state=open_one.state), done.etag),
            Insert(new_record("a")),
            Insert(new_record("b")),
        ]
        interruption.run(partial(store.apply, batch))
        opened = [name for name, (record, *_) in store._kept.items() if not record.terminal]
        assert in_thread(pool, partial(wins, store, f"{number}")), interruption.where
        listed = {(item.namespace, item.id) for item in _records(in_thread(pool, partial(store.scan, Query())))}
        assert {*opened, ("tenant-7", f"idem_{number}")} <= listed, interruption.where


def _records(page: Any) -> list[Any]:
    return [view.record for view in page.items]


class Held:
    """A store in memory whose first call waits until it is let go."""

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.entered = threading.Event()
        self.go = threading.Event()

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        first = not self.entered.is_set()
        self.entered.set()
        assert not first or self.go.wait(WAIT_S)
        return self.inner.apply(ops)


async def _settled(batching: Batching, name: str) -> bool | None:
    """Whether an insert won; ``None`` if it was refused."""
    with suppress(StoreUnavailable):
        return (await batching.asynchronous.apply([Insert(new_record(name))]))[0].won
    return None


def _wins_or_not(batching: Batching, name: str) -> bool | None:
    with suppress(StoreUnavailable):
        return wins(batching, name)
    return None


def test_an_interrupted_leader_strands_nobody(pool: ThreadPoolExecutor) -> None:
    """P8, P13: wherever a thread that waits, leads and hands on is interrupted, those beside it are answered rightly.

    They win and are stored, or are told that it is not known; and whoever comes next is served at once.
    """
    for interruption in interruptions():
        held = Held()
        batching = Batching(held, timeout=TIMEOUT)  # type: ignore[arg-type]  # only batches are asked of it
        first = pool.submit(wins, batching, "first")
        assert held.entered.wait(WAIT_S)
        others = [
            pool.submit(_after, batching, 1, partial(_wins_or_not, batching, "thread")),
            pool.submit(_after, batching, 2, partial(asyncio.run, _settled(batching, "task"))),
        ]
        pool.submit(_after, batching, 3, held.go.set)
        with suppress(StoreUnavailable):
            interruption.run(partial(wins, batching, "victim"))
        held.go.set()
        assert first.result(WAIT_S)
        for name, other in zip(("thread", "task"), others, strict=True):
            won = other.result(WAIT_S)
            (found,) = held.inner.apply([Get("tenant-7", f"idem_{name}")])
            assert won is None or (won and found.record is not None), interruption.where
        assert in_thread(pool, partial(wins, batching, "next")), interruption.where
        assert not batching._leader.held, interruption.where
        assert not batching._pending, interruption.where


def _after(batching: Batching, pending: int, call: Callable[[], bool | None]) -> bool | None:
    """Call once so many are pending; or, if the one that was to be is interrupted first, after a while."""
    pause = threading.Event()
    for _ in range(30):
        if len(batching._pending) >= pending:
            break
        pause.wait(0.001)
    return call()


def test_an_interrupted_loop_strands_nobody(tmp_path: Path) -> None:
    """P8: wherever a task's call is interrupted in its loop, threads and tasks of other loops are served.

    But for where a future is settled: an interrupt there is one in the event loop itself, which can lose its task.
    In a child, for what is left of interrupted loops complains when it is collected.
    """
    assert in_child(partial(_interrupt_loops, tmp_path / "a.db")) == 0


def _interrupt_loops(path: Path) -> None:
    batching = Batching(SqliteStore(path), timeout=LONG_TIMEOUT)
    with ThreadPoolExecutor(1) as pool:
        for number, interruption in enumerate(interruptions(spared={"settle"})):
            interruption.run(partial(_run, batching, f"{number}"))
            assert in_thread(pool, partial(_run, batching, f"{number}-task")), interruption.where
            assert in_thread(pool, partial(wins, batching, f"{number}-thread")), interruption.where
            assert not batching._awaited, interruption.where


def _run(batching: Batching, name: str) -> bool | None:
    return asyncio.run(_settled(batching, name))


# --- at random, in four threads ---------------------------------------------------------------------------------------


class Bombed:
    """Four threads that write through one store while interrupts are thrown into them."""

    def __init__(self, apply: Callable[[Sequence[Op]], Sequence[Reply]]) -> None:
        self.apply = apply
        self.winners: dict[str, list[int]] = defaultdict(list)
        self.sent: dict[str, list[bytes]] = {}
        self.acknowledged: dict[str, int] = {}  # how far, of what was sent
        self.lost: list[str] = []
        self.stop = False
        self.armed = [False] * 4
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(4)]

    def work(self, number: int) -> None:
        round_ = 0
        while not self.stop:
            with suppress(Interrupted):
                while not self.stop:
                    round_ += 1
                    with suppress(Interrupted, StoreUnavailable):
                        self.step(number, round_)

    def step(self, number: int, round_: int) -> None:
        shared, own = new_record(f"shared-{round_ // 2}"), new_record(f"{number}-{round_}")
        heir = followed(own)
        self.sent[own.key] = [own.etag, heir.etag]
        self.armed[number] = True
        try:
            first, second = self.apply([Insert(shared), Insert(own)])
            if first.won:
                self.winners[shared.key].append(number)
            if second.won:
                self.acknowledged[own.key] = 0
            (reply,) = self.apply([Swap(heir, own.etag)])
            if reply.won:
                self.acknowledged[own.key] = 1
            elif second.won:
                self.lost.append(own.key)
        finally:
            self.armed[number] = False

    def run(self, bombs: int, seed: int) -> None:
        random, pause = Random(seed), threading.Event()
        for thread in self.threads:
            thread.start()
        for _ in range(bombs):
            pause.wait(random.uniform(0, 0.015))
            number = random.randrange(4)
            if self.armed[number]:
                throw_into(self.threads[number])
        self.stop = True
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread is stuck"


@pytest.mark.parametrize("kind", ["memory", "sqlite", "shared", "tasks"])
def test_under_random_interrupts_no_write_is_lost(kind: str, tmp_path: Path) -> None:
    """P1, P6: four threads that are interrupted all the time have one winner a key, and lose nothing acknowledged."""
    assert in_child(partial(_bomb, kind, tmp_path / "a.db")) == 0  # in a child, as above


def _bomb(kind: str, path: Path) -> None:
    below: MemoryStore | SqliteStore = MemoryStore() if kind == "memory" else SqliteStore(path, timeout=LONG_TIMEOUT)
    batching = Batching(below, timeout=LONG_TIMEOUT)
    ways: dict[str, Callable[[Sequence[Op]], Sequence[Reply]]] = {
        "shared": batching.apply,
        "tasks": partial(_apply_in_loop, batching),
    }
    bombed = Bombed(ways.get(kind, below.apply))
    bombed.run(BOMBS, seed=7)
    assert not bombed.lost
    assert all(len(winners) == 1 for winners in bombed.winners.values())
    assert bombed.acknowledged
    for key, acknowledged in bombed.acknowledged.items():
        (reply,) = below.apply([Get("tenant-7", f"idem_{key}")])
        assert isinstance(reply.record, Record), key
        assert bombed.sent[key].index(reply.record.etag) >= acknowledged, key
    assert not below._lock.locked()
    assert wins(batching, "after")
    assert _run(batching, "after, in a loop")


def _apply_in_loop(batching: Batching, ops: Sequence[Op]) -> Sequence[Reply]:
    return asyncio.run(_applied(batching, ops))


async def _applied(batching: Batching, ops: Sequence[Op]) -> Sequence[Reply]:
    try:
        async with asyncio.timeout(2 * LONG_TIMEOUT):
            return await batching.apply_async(ops)
    except TimeoutError as error:  # an interrupted event loop can lose a task whose future is settled
        raise StoreUnavailable("this task was lost") from error
