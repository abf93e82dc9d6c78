"""What goes over the wire: round trips, lost and late answers, ends of connections."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Guard,
    InProgress,
    Mismatch,
    Operation,
    Policy,
    Replay,
    StoreUnavailable,
)
from notwice.model import Insert, Query
from notwice.stores import open_store
from notwice.testing.conformance.records import get, insert, new_record, stored
from tests.engines.dynamodb import Table, dynamodb_server, new_table
from tests.engines.private import Server, wait_until
from tests.engines.proxy import Proxy

POLICY = Policy(lease=300, store_timeout=5)
ANSWER_BYTES = 600
"""Of an acknowledged write: the status, headers and two bytes."""
STRIDE = 7


@pytest.fixture
def proxy(emulator: Server) -> Iterator[Proxy]:
    with Proxy(emulator.port) as proxy:
        yield proxy


def test_round_trips(proxy: Proxy, table: Table) -> None:
    """Begin, complete, replay and mismatch take one round trip each."""
    with Guard.open(table.through(proxy.port), policy=POLICY) as guard:
        guard.begin("warm", "up")
        outcomes: list[object] = []

        def begin(request: int) -> None:
            outcomes.append(guard.begin("pay", "k", request=request))

        assert proxy.counted(lambda: begin(1)) == 1
        operation = outcomes.pop()
        assert isinstance(operation, Operation)
        assert proxy.counted(lambda: begin(1)) == 1
        assert proxy.counted(lambda: operation.complete("paid")) == 1
        assert proxy.counted(lambda: begin(1)) == 1
        assert proxy.counted(lambda: begin(2)) == 1
        assert [type(each) for each in outcomes] == [InProgress, Replay, Mismatch]


async def test_round_trips_of_tasks(proxy: Proxy, table: Table) -> None:
    """The same for an event loop; the trips of many tasks go side by side."""
    guard = AsyncGuard.open(table.through(proxy.port), policy=POLICY)
    await guard.begin("warm", "up")
    before = proxy.trips
    operation = await guard.begin("pay", "k")
    assert isinstance(operation, AsyncOperation)
    assert isinstance(await guard.begin("pay", "k"), InProgress)
    await operation.complete("paid")
    assert isinstance(await guard.begin("pay", "k"), Replay)
    assert proxy.trips - before == 4
    with proxy.held():
        many = [asyncio.ensure_future(guard.begin("pay", f"k{number}")) for number in range(8)]
        await asyncio.to_thread(wait_until, lambda: proxy.connections >= 8)
    assert all(isinstance(each, AsyncOperation) for each in await asyncio.gather(*many))
    await guard.close()


def test_the_settings_are_asked_for_once(proxy: Proxy, emulator: Server) -> None:
    """The table's settings cost three round trips when a store is used for the first time, and none later."""
    store = open_store(new_table(emulator).through(proxy.port))
    assert proxy.counted(lambda: insert(store, new_record())) == 4
    assert proxy.counted(lambda: insert(store, new_record("b"))) == 1
    store.close()


def spoiled(proxy: Proxy, length: int, act: Callable[[], object]) -> object:
    """What `act` gives while the next answer is cut, or ``None`` if it raises."""
    proxy.cut(length)
    try:
        return act()
    except StoreUnavailable:
        return None


def test_lost_acknowledgements(proxy: Proxy, table: Table) -> None:
    """P13, P9: an answer that is cut anywhere on its way: the owner owns, its answer is kept, none runs twice."""
    cuts = proxy.cuts
    lengths = range(0, ANSWER_BYTES, STRIDE)
    with Guard.open(table.through(proxy.port), policy=POLICY) as guard:
        for length in lengths:
            begin = partial(guard.begin, "pay", f"k{length}", request=1)
            operation = spoiled(proxy, length, begin) or begin()
            assert isinstance(operation, Operation), f"cut after {length}: {operation}"
            assert operation.attempt == 1
            spoiled(proxy, length, partial(operation.complete, length))
            proxy.cut(None)
            replay = begin()
            if isinstance(replay, InProgress):  # its complete was cut before it was carried out
                operation.complete(length)
                replay = begin()
            assert isinstance(replay, Replay)
            assert replay.result == length
    assert proxy.cuts - cuts > len(lengths)


def test_cut_replays(proxy: Proxy, table: Table) -> None:
    """P2: a stored answer that is cut anywhere on its way is never given in part."""
    with Guard.open(table.through(proxy.port), policy=POLICY) as guard:
        assert guard.run(lambda: "x" * 300, scope="pay", key="k") == "x" * 300
        for length in range(0, 2_400, 97):
            outcome = spoiled(proxy, length, partial(guard.begin, "pay", "k"))
            assert outcome is None or (isinstance(outcome, Replay) and outcome.result == "x" * 300)
            proxy.cut(None)


def test_the_driver_repeats_nothing(proxy: Proxy, table: Table) -> None:
    """P13: a write whose answer is lost is sent once; the store says that it does not know."""
    store = open_store(table.through(proxy.port))
    insert(store, new_record("warm"))
    proxy.cut(0)
    with pytest.raises(StoreUnavailable, match="not known"):
        insert(store, new_record())
    proxy.cut(None)
    assert not store.apply([Insert(new_record())])[0].won, "it was carried out"
    assert len(table.items()) == 2
    store.close()


def test_a_server_that_says_nothing(proxy: Proxy, table: Table) -> None:
    """P8, C12: a server that swallows everything is given up in time; afterwards a fresh connection is used."""
    url = table.through(proxy.port).replace("timeout=10", "timeout=0.5")
    with Guard.open(url, policy=Policy(store_timeout=0.5)) as guard:
        ran: list[str] = []
        assert guard.run(lambda: ran.append("before"), scope="pay", key="k0") is None
        proxy.black_hole = True
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            guard.run(lambda: ran.append("meanwhile"), scope="pay", key="k1")
        assert time.monotonic() - started < 5
        proxy.black_hole = False
        proxy.reset()
        guard.run(lambda: ran.append("after"), scope="pay", key="k2")
        assert ran == ["before", "after"]


def test_connections_that_were_ended_while_idle(proxy: Proxy, table: Table) -> None:
    """A connection that the server ended while nobody used it costs no call."""
    store = open_store(table.through(proxy.port))
    insert(store, new_record())
    proxy.reset()
    assert stored(store, new_record())
    store.close()


def test_all_requests_are_busy(proxy: Proxy, table: Table) -> None:
    """P8: more callers than the store may have requests wait for their turn, and not for ever."""
    url = table.through(proxy.port).replace("timeout=10", "timeout=0.3&pool=2")
    store = open_store(url)
    insert(store, new_record())
    with proxy.held():
        outcomes: list[str] = []
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as caught:
                store.apply([Insert(new_record(f"{number}")) for number in range(8)])
            outcomes.append(str(caught.value))
    assert all("not known" in each or "nothing was done" in each for each in outcomes)
    assert stored(store, new_record())
    store.close()


def test_fork(table: Table) -> None:
    """A forked child talks to the server on connections of its own, and the parent's go on."""
    store = open_store(table.url)
    store.apply([Insert(new_record(name)) for name in ("before", "and")])
    child = os.fork()
    if child == 0:
        fresh = store._link._client is None  # type: ignore[attr-defined]  # it is a DynamoStore
        won = fresh and all(
            reply.won for reply in store.apply([Insert(new_record(f"child-{number}")) for number in range(20)])
        )
        os._exit(0 if won else 1)
    for number in range(20):
        insert(store, new_record(f"parent-{number}"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store.scan(Query(limit=1_000)).items) == 42
    store.close()


def test_a_server_that_is_gone() -> None:
    """P8: a server that is not there is an error that says so; one that has lost its table, too, and nothing runs."""
    with dynamodb_server() as server:
        table = new_table(server)
        store = open_store(table.url)
        insert(store, new_record())
        server.kill()
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            get(store, new_record())
        server.start()
        with pytest.raises(StoreUnavailable, match="there is no such table"):
            insert(store, new_record())
        store.close()
