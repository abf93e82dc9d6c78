"""The store that loses requests and replies on demand."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Query
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import AsyncFaultyStore, FaultPlan, FaultyStore, Pause, Slow, Trouble, VirtualClock
from notwice.testing.conformance.records import new_record

RECORD = new_record()
INSERT = Insert(RECORD)
GET = Get(RECORD.namespace, RECORD.id)


def stored(store: MemoryStore) -> bool:
    return store.apply([GET])[0].record is not None


@pytest.mark.parametrize(("trouble", "applied"), [("lost", True), ("drop", False), ("late", False)])
def test_a_call_without_a_reply(trouble: Trouble, applied: bool) -> None:
    """A call whose reply is lost was carried out; one that is dropped was not; one that is late is, when delivered."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.script(trouble)
    with pytest.raises(StoreUnavailable, match=str(store.plan.seed)):
        store.apply([INSERT])
    assert stored(inner) is applied
    replies = store.deliver()
    assert [reply.won for batch in replies for reply in batch] == [True] * (trouble == "late")
    assert stored(inner) is (applied or trouble == "late")
    assert store.apply([GET])[0].record is not None or trouble == "drop"
    assert (store.plan.calls, store.plan.ops) == (2, 2)


def test_a_slow_call() -> None:
    """A slow call moves the virtual clock and is answered."""
    clock = VirtualClock()
    store = FaultyStore(MemoryStore(), FaultPlan(Slow(3), clock=clock))
    assert store.apply([INSERT])[0].won
    assert clock.monotonic() == 3


def test_a_look_at_the_call() -> None:
    """A function sees the batch before the call and may choose what becomes of it."""
    seen: list[Sequence[Op]] = []

    def look(ops: Sequence[Op]) -> None:
        seen.append(ops)

    store = FaultyStore(MemoryStore(), FaultPlan(look, lambda _: "drop"))
    assert store.apply([INSERT])[0].won
    with pytest.raises(StoreUnavailable):
        store.apply([GET])
    assert seen == [[INSERT]]


def test_a_store_that_is_down() -> None:
    """While it is down every call fails and none is carried out."""
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.plan.down = True
    calls: list[Callable[[], object]] = [
        lambda: store.apply([INSERT]),
        lambda: store.scan(Query()),
        lambda: store.purge(1),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()
    store.plan.down = False
    assert not stored(inner)
    assert store.scan(Query()).items == ()
    assert store.purge(1) == 0


def test_chance_can_be_repeated() -> None:
    """Faults by chance follow from the seed, at about their rates."""

    def run(seed: int) -> list[object]:
        plan = FaultPlan(rates={"lost": 0.2, "drop": 0.1}, seed=seed)
        return [plan.take([GET]) for _ in range(1_000)]

    assert run(1) == run(1) != run(2)
    assert 150 < run(1).count("lost") < 250
    assert 60 < run(1).count("drop") < 140


def test_a_pause() -> None:
    """A call can be held before or after it is carried out, until it is released."""
    for applied in (False, True):
        inner = MemoryStore()
        pause = Pause(applied=applied)
        store = FaultyStore(inner, FaultPlan(pause))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(store.apply, [INSERT])
            assert pause.reached.wait(10)
            assert stored(inner) is applied
            pause.release()
            assert call.result(10)[0].won


async def test_both_faces_follow_one_plan() -> None:
    """The async face and its blocking face share script and counts; a held call can be cancelled."""
    inner = MemoryStore()
    store = AsyncFaultyStore(AsyncMemoryStore(inner))
    store.script("lost", "late", pause := Pause())
    with pytest.raises(StoreUnavailable):
        await store.apply([INSERT])
    with pytest.raises(StoreUnavailable):
        store.blocking.apply([GET])
    assert len(await store.deliver()) == 1
    call = asyncio.ensure_future(store.apply([GET]))
    assert await asyncio.to_thread(pause.reached.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await store.apply([GET]))[0].record is not None
    assert store.plan.calls == 4
