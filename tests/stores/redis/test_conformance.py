"""The suite on Redis, Valkey and a cluster, both faces.

What a guard promises is tried on two of the six: its cases wait for real, and the store's cases hold all six alike.
"""

from functools import partial

import pytest
import redis

from notwice.stores import open_async_store, open_store
from notwice.stores.port import Store
from notwice.stores.redis.rows import Keys
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.redis import Cluster, RedisServer


def client_of(server: RedisServer | Cluster) -> redis.Redis | redis.RedisCluster:
    return server.client() if isinstance(server, RedisServer) else redis.RedisCluster("127.0.0.1", server.nodes[0].port)


def damage(_: Store, namespace: str, operation: str, *, server: RedisServer | Cluster, url: str) -> None:
    """Overwrite the end of a record, as nothing of ours would."""
    prefix = url.partition("prefix=")[2].partition("&")[0]
    key = Keys(prefix).of((namespace, operation))[1]
    with client_of(server) as client:
        size = client.strlen(key)
        assert size > 8
        client.setrange(key, size - 8, b"damaged!")


def engine_of(server: RedisServer | Cluster, *, history_length: int = 3) -> Engine:
    server.empty()
    url = server.url()
    return Engine(
        open=partial(open_store, url),
        damage=partial(damage, server=server, url=url),
        history_length=history_length,
    )


def async_engine_of(server: RedisServer | Cluster) -> AsyncEngine:
    server.empty()
    url = server.url()
    return AsyncEngine(
        open=partial(open_async_store, url), damage=partial(damage, server=server, url=url), history_length=2
    )


class TestRedis(StoreCases, GuardCases):
    """P16: a server of Redis."""

    @pytest.fixture
    def engine(self, one_redis: RedisServer) -> Engine:
        return engine_of(one_redis)


class TestAsyncRedis(AsyncStoreCases):
    """P16: a server of Redis, for event loops."""

    @pytest.fixture
    def async_engine(self, one_redis: RedisServer) -> AsyncEngine:
        return async_engine_of(one_redis)


class TestValkey(StoreCases):
    """P16: a server of Valkey."""

    @pytest.fixture
    def engine(self, one_valkey: RedisServer) -> Engine:
        return engine_of(one_valkey, history_length=2)


class TestAsyncValkey(AsyncStoreCases):
    """P16: a server of Valkey, for event loops."""

    @pytest.fixture
    def async_engine(self, one_valkey: RedisServer) -> AsyncEngine:
        return async_engine_of(one_valkey)


class TestCluster(StoreCases):
    """P16: a cluster of six nodes, each claim waiting for a replica."""

    @pytest.fixture
    def engine(self, cluster: Cluster) -> Engine:
        return engine_of(cluster, history_length=2)


class TestAsyncCluster(AsyncStoreCases, AsyncGuardCases):
    """P16: a cluster of six nodes, for event loops."""

    @pytest.fixture
    def async_engine(self, cluster: Cluster) -> AsyncEngine:
        return async_engine_of(cluster)
