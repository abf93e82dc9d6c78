"""The memory store: its bounds, its sweeping, its cap, and forks."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, NoReturn

import pytest

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Query, Record, RecordView, Released, State, Swap
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, followed, get, insert, new_record, swap
from tests.stores.children import in_child


class Unwalkable(dict[Any, Any]):
    """A dictionary in which one can only look up: walking through it fails."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("an operation walked through all records")

    __iter__ = keys = values = items = _refuse


def kept(store: MemoryStore) -> set[str]:
    return {item.record.key for item in store.scan(Query(limit=1_000)).items if isinstance(item, RecordView)}


def test_records_that_nobody_asks_for_leave() -> None:
    """C43: 200,000 unique keys with 0.1 s of retention: what is kept goes back to near nothing without a purge."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    terms = new_record().terms._replace(retention_ms=100)
    template = new_record(state=State.COMPLETED, terms=terms)
    most = 0
    for batch in range(2_000):
        store.apply([Insert(template._replace(id=f"{batch}-{number}")) for number in range(100)])
        clock.advance(0.1)
        most = max(most, len(store._kept))
    assert most <= 300
    assert len(store._deadlines) <= most + 200
    clock.advance(1)
    store.apply([Insert(template._replace(id=f"last-{number}")) for number in range(150)])
    assert len(store._kept) <= 150


def test_no_operation_walks_through_all_records() -> None:
    """T13, C43: a claim, a completion, a replay, an eviction and a purge look at the records they are about only."""
    clock = VirtualClock()
    store = MemoryStore(clock, records_max=50)
    for number in range(49):
        insert(store, finished(f"done-{number}", retention_ms=1_000))
    store._kept = Unwalkable(store._kept)
    claim = new_record("claim")
    assert insert(store, claim).won
    assert swap(store, followed(claim, state=State.COMPLETED), claim.etag).won
    assert not store.apply([Insert(claim)])[0].won
    assert insert(store, new_record("evicts")).won
    clock.advance(2)
    assert store.purge(5) == 5


def test_deadlines_that_changed_do_not_pile_up() -> None:
    """A record that is finished and freed again and again leaves no trail of deadlines."""
    store = MemoryStore(VirtualClock())
    record = finished("again", retention_ms=10**9)
    insert(store, record)
    for _ in range(1_000):
        after = followed(record)
        assert swap(store, after, record.etag).won
        record = after
    assert len(store._deadlines) < 100
    assert kept(store) == {"again"}


def test_a_sweep_takes_only_what_is_expired_now() -> None:
    """C42: an expired record that was claimed anew is not swept by its old deadline."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    old = finished("renewed", retention_ms=1_000)
    insert(store, old)
    clock.advance(2)
    claim = followed(old, state=State.IN_PROGRESS)
    assert swap(store, claim, old.etag).won
    for number in range(10):
        insert(store, new_record(f"other-{number}"))
    assert store.purge(10) == 0
    assert get(store, claim).record is not None


def test_a_record_that_was_finished_again_expires_by_its_last_write() -> None:
    """An answer that was written anew is kept for its whole retention from then on, whatever deadline came before."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    first = finished("again", retention_ms=1_000)
    insert(store, first)
    clock.advance(0.9)
    assert swap(store, followed(first), first.etag).won
    clock.advance(0.9)
    assert store.purge(10) == 0
    clock.advance(0.2)
    assert store.purge(10) == 1


@pytest.fixture
def full() -> Iterator[MemoryStore]:
    """A store for three records that holds one finished, one open and one released as new, in this order."""
    store = MemoryStore(VirtualClock(), records_max=3)
    insert(store, finished("finished"))
    insert(store, new_record("open"))
    insert(store, new_record("free", state=State.ACCEPTED, released=Released.AS_NEW))
    yield store
    store.close()


def test_the_oldest_record_that_may_leave_makes_room(full: MemoryStore) -> None:
    """P6: at the cap the records finished, or released as new, the longest time ago leave, and no other does."""
    insert(full, new_record("a"))
    assert kept(full) == {"open", "free", "a"}
    insert(full, new_record("b"))
    assert kept(full) == {"open", "a", "b"}
    insert(full, new_record("c"))
    assert kept(full) == {"open", "a", "b", "c"}, "open operations stay beyond the cap"
    full.apply([Insert(finished("d"))])
    insert(full, new_record("e"))
    assert kept(full) == {"open", "a", "b", "c", "e"}


def test_the_order_of_leaving_is_the_order_of_finishing() -> None:
    """A record is as old as its last write; one that was claimed again may no longer leave."""
    store = MemoryStore(VirtualClock(), records_max=3)
    first, second, third = (finished(name) for name in ("first", "second", "third"))
    for record in (first, second, third):
        insert(store, record)
    swap(store, followed(first, state=State.FAILED), first.etag)
    swap(store, followed(second, state=State.IN_PROGRESS), second.etag)
    insert(store, new_record("a"))
    assert kept(store) == {"first", "second", "a"}
    insert(store, new_record("b"))
    assert kept(store) == {"second", "a", "b"}


def test_a_store_that_is_told_to_refuse_does() -> None:
    """With nothing that may leave, a full store refuses new records, and goes on with those it has."""
    store = MemoryStore(VirtualClock(), records_max=2, when_full="refuse")
    first = new_record("first")
    insert(store, first)
    insert(store, new_record("second"))
    with pytest.raises(StoreUnavailable, match="records_max"):
        store.apply([Insert(new_record("third"))])
    assert not store.apply([Insert(first)])[0].won, "a duplicate is still answered"
    assert swap(store, finished("first"), first.etag).won
    assert store.apply([Insert(new_record("third"))])[0].won
    assert kept(store) == {"second", "third"}


@pytest.mark.parametrize("seed", range(200))
def test_a_batch_that_is_refused_leaves_nothing_behind(seed: int) -> None:
    """P9: a full store refuses a batch as a whole or not at all, and refuses none that it has room for."""
    random = Random(seed)
    records = [new_record(str(number)) for number in range(6)]
    chosen = [random.choice(records)._replace(state=random.choice([*State])) for _ in range(5)]
    store, other = (MemoryStore(VirtualClock(), records_max=3, when_full="refuse") for _ in range(2))
    for each in (store, other):
        for record in chosen:
            with suppress(StoreUnavailable):
                each.apply([Insert(record)])
    ops: list[Op] = []
    for record in random.sample(records, 5):
        changed = followed(record, state=random.choice([*State]))
        choices: list[Op] = [Insert(changed), Swap(changed, record.etag), Get(record.namespace, record.id)]
        ops.append(random.choice(choices))
    before = dict(store._kept)
    named = {(record.namespace, record.id) for record in records} & store._droppable.keys()
    try:
        store.apply(ops)
    except StoreUnavailable:
        assert store._kept == before
        try:
            for op in ops:
                other.apply([op])
        except StoreUnavailable:
            return
        assert named - other._kept.keys(), "there was room, and nothing that the batch names had to leave"
    else:
        assert len(store._kept) <= 3


@pytest.mark.parametrize("options", [{"records_max": 0}, {"records_max": -1}, {"when_full": "drop"}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    """A cap below one and an unknown answer to a full store are refused with a sentence."""
    with pytest.raises(ValueError, match="must be"):
        MemoryStore(**options)


def test_a_fork_amid_writes_leaves_both_sides_usable() -> None:
    """A child forked while threads write has a whole copy of its own, and neither side waits for the other's locks."""
    store = MemoryStore()
    stop = threading.Event()

    def write(worker: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            insert(store, finished(f"{worker}-{number}", retention_ms=1))

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    try:
        assert [in_child(lambda: _use(store)) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert get(store, new_record("child")).record is None, "what the child wrote is the child's"


def _use(store: MemoryStore) -> None:
    assert insert(store, new_record("child")).won
    assert store.purge(10**6) >= 0
    assert all(name == (record.namespace, record.id) for name, (record, *_) in store._kept.items())


async def test_the_async_face_has_the_same_records() -> None:
    """The face for event loops is the same store, without a thread in between."""
    store = AsyncMemoryStore()
    record = new_record()
    assert (await store.apply([Insert(record)]))[0].won
    (reply,) = store.blocking.apply([Get(record.namespace, record.id)])
    assert isinstance(reply.record, Record)
    assert await store.purge(1) == 0
    assert len((await store.scan(Query())).items) == 1
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.blocking.scan(Query())
