"""What goes over the wire: round trips, lost and late answers, ends of connections."""

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from notwice import (
    AsyncGuard,
    Policy,
    StoreUnavailable,
)
from notwice.model import Insert
from notwice.stores import open_store
from notwice.testing.conformance.records import followed, get, insert, new_record, stored, swap
from tests.engines.faults import CUTS, FaultCases, Subject
from tests.engines.proxy import Proxy
from tests.engines.redis import REDIS, VALKEY, RedisServer, query, redis_server

POLICY = Policy(lease=300, store_timeout=5)


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
            cuts=CUTS // 2,
        )


async def test_a_hundred_tasks(proxy: Proxy) -> None:
    """A hundred tasks share a few trips."""
    guard = AsyncGuard.open(url_of(proxy), policy=POLICY)
    await guard.begin("warm", "up")
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
