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
from notwice.testing.conformance.records import followed, get, insert, new_record, stored, swap
from tests.engines.faults import FaultCases, Subject
from tests.engines.proxy import Proxy
from tests.engines.redis import REDIS, VALKEY, RedisServer, query, redis_server

POLICY = Policy(lease=300, store_timeout=5)
ANSWER_BYTES = 26
"""Of a write: whether it won, and the time."""
ROUNDS = 20


@pytest.fixture
def proxy(one_redis: RedisServer) -> Iterator[Proxy]:
    with Proxy(one_redis.port) as proxy:
        yield proxy


def url_of(proxy: Proxy, **options: object) -> str:
    return f"redis://127.0.0.1:{proxy.port}?{query({'safe': 'ignore', **options})}"


class TestFaults(FaultCases):
    """A server of Redis, and one of Valkey."""

    @pytest.fixture(params=[REDIS, VALKEY])
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        server: RedisServer = request.getfixturevalue(f"one_{request.param}")
        return Subject(
            port=server.port,
            url=server.url,
            served=partial(redis_server, request.param),
            refused="redis://:secret@127.0.0.1:1?timeout=1",
            opened=open_store,
        )


def test_round_trips_of_duplicates(proxy: Proxy) -> None:
    """Begin, complete, replay and mismatch take one round trip each."""
    with Guard.open(url_of(proxy), policy=POLICY) as guard:
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


async def test_round_trips_of_tasks(proxy: Proxy) -> None:
    """The same for an event loop, and a hundred tasks share a few trips."""
    guard = AsyncGuard.open(url_of(proxy), policy=POLICY)
    await guard.begin("warm", "up")
    before = proxy.trips
    operation = await guard.begin("pay", "k")
    assert isinstance(operation, AsyncOperation)
    assert isinstance(await guard.begin("pay", "k"), InProgress)
    await operation.complete("paid")
    assert isinstance(await guard.begin("pay", "k"), Replay)
    assert proxy.trips - before == 4
    before = proxy.trips
    await asyncio.gather(*(guard.begin("pay", f"k{number}") for number in range(100)))
    assert proxy.trips - before < 50
    await guard.close()


def test_a_batch_is_one_round_trip(proxy: Proxy) -> None:
    """A batch of many operations is one round trip."""
    store = open_store(url_of(proxy))
    get(store, new_record())
    ops = [Insert(new_record(str(number))) for number in range(100)]
    assert proxy.counted(lambda: store.apply(ops)) <= 3  # the answers may come in parts
    assert all(not reply.won for reply in store.apply(ops))
    store.close()


def test_lost_acknowledgements(proxy: Proxy) -> None:
    """P13, P9: an answer that is cut after any of its bytes: the owner owns, its answer is kept, none runs twice."""
    cuts = proxy.cuts
    with Guard.open(url_of(proxy, timeout=2), policy=POLICY) as guard:
        for number, length in enumerate(list(range(ANSWER_BYTES)) * ROUNDS):
            begin = partial(guard.begin, "pay", f"k{number}", request=1)
            operation = _spoiled(proxy, length, begin) or begin()
            assert isinstance(operation, Operation), f"cut after {length}: {operation}"
            assert operation.attempt == 1
            _spoiled(proxy, length, partial(operation.complete, length))
            proxy.cut(None)
            replay = begin()
            if isinstance(replay, InProgress):  # its complete was cut before it was carried out
                operation.complete(length)
                replay = begin()
            assert isinstance(replay, Replay)
            assert replay.result == length
    assert proxy.cuts - cuts > ANSWER_BYTES * ROUNDS


async def test_lost_acknowledgements_of_tasks(proxy: Proxy) -> None:
    """P13, P9: the same for an event loop."""
    guard = AsyncGuard.open(url_of(proxy, timeout=2), policy=POLICY)
    for number, length in enumerate(list(range(ANSWER_BYTES)) * ROUNDS):
        key = f"k{number}"
        proxy.cut(length)
        try:
            operation = await guard.begin("pay", key)
        except StoreUnavailable:
            proxy.cut(None)
            operation = await guard.begin("pay", key)
        assert isinstance(operation, AsyncOperation)
        proxy.cut(length)
        try:
            await operation.complete(key)
        except StoreUnavailable:
            proxy.cut(None)
            await operation.complete(key)
        proxy.cut(None)
        replay = await guard.begin("pay", key)
        assert isinstance(replay, Replay)
        assert replay.result == key
    await guard.close()


def test_cut_replays(proxy: Proxy) -> None:
    """P2: a stored answer that is cut anywhere on its way is never given in part."""
    with Guard.open(url_of(proxy), policy=POLICY) as guard:
        assert guard.run(lambda: "x" * 300, scope="pay", key="k") == "x" * 300
        for length in range(0, 800, 37):
            outcome = _spoiled(proxy, length, partial(guard.begin, "pay", "k"))
            assert outcome is None or (isinstance(outcome, Replay) and outcome.result == "x" * 300)
            proxy.cut(None)


def _spoiled(proxy: Proxy, length: int, act: Callable[[], object]) -> object:
    """What `act` gives while the next answer is cut, or ``None`` if it raises."""
    proxy.cut(length)
    try:
        return act()
    except StoreUnavailable:
        return None


def test_a_server_that_says_nothing(proxy: Proxy) -> None:
    """P8, C12: a server that swallows everything is given up in time; afterwards a fresh connection is used."""
    with Guard.open(url_of(proxy, timeout=0.3), policy=Policy(store_timeout=0.3)) as guard:
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


def test_connections_that_were_ended_while_idle(proxy: Proxy) -> None:
    """A connection that the server ended while nobody used it costs no call."""
    store = open_store(url_of(proxy))
    insert(store, new_record())
    proxy.reset()
    inner = store._store._links  # type: ignore[attr-defined]  # as if it had been idle for long
    for links in inner._idle.values():
        for link in links:
            link.used_at -= 60
    assert stored(store, new_record())
    store.close()


def test_a_forgotten_script(one_redis: RedisServer) -> None:
    """A server that has forgotten the script is given it again, within the call."""
    store = open_store(one_redis.url())
    first = new_record()
    insert(store, first)
    with one_redis.client() as client:
        client.script_flush()
    assert swap(store, followed(first), first.etag).won
    with one_redis.client() as client:
        client.script_flush()
    assert all(reply.won for reply in store.apply([Insert(new_record(str(number))) for number in range(5)]))
    store.close()


def test_fork(one_redis: RedisServer) -> None:
    """A forked child talks to the server on connections of its own, and the parent's go on."""
    store = open_store(one_redis.url())
    insert(store, new_record("before"))
    child = os.fork()
    if child == 0:
        won = all(store.apply([Insert(new_record(f"child-{number}"))])[0].won for number in range(50))
        os._exit(0 if won else 1)
    for number in range(50):
        insert(store, new_record(f"parent-{number}"))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store.scan(Query(limit=1_000)).items) == 101
    store.close()


def test_a_server_that_is_gone() -> None:
    """P8: a server that is not there is an error that says so, and a store finds it again when it is back."""
    with redis_server(REDIS) as server:
        store = open_store(server.url(safe="ignore"))
        insert(store, new_record())
        server.kill()
        with pytest.raises(StoreUnavailable):
            get(store, new_record())
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            get(store, new_record())
        server.start()
        assert stored(store, new_record())
        store.close()
