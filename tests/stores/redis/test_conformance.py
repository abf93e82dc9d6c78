"""The suite on Redis, Valkey and a cluster, both faces."""

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


def prefix_of(url: str) -> str:
    return url.partition("prefix=")[2].partition("&")[0]


def damage(_: Store, namespace: str, operation: str, *, server: RedisServer | Cluster, url: str) -> None:
    """Overwrite the end of a record, as nothing of ours would."""
    key = Keys(prefix_of(url)).of((namespace, operation))[1]
    with client_of(server) as client:
        size = client.strlen(key)
        assert size > 8
        client.setrange(key, size - 8, b"damaged!")


AGE = """
local function checksum(head, rest)
    return string.sub(redis.sha1hex(head .. rest), 1, 16)
end
local found = redis.call('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
local head, rest = string.sub(found, 1, 17), string.sub(found, 34)
if string.sub(found, 18, 33) == checksum(head, rest) then
    local format, written, created = struct.unpack('>BI8I8', head)
    head = struct.pack('>BI8I8', format, written - ARGV[1], created)
    redis.call('SET', KEYS[1], head .. checksum(head, rest) .. rest, 'KEEPTTL')
end
if left >= 0 then
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left - ARGV[1]))
end
"""


def age(seconds: float, *, server: RedisServer | Cluster, url: str) -> None:
    """Make all records older."""
    milliseconds = round(seconds * 1_000)
    for node in server.masters() if isinstance(server, Cluster) else [server]:
        with node.client() as client, client.pipeline(transaction=False) as pipeline:
            script = client.script_load(AGE)
            for key in client.scan_iter(Keys(prefix_of(url)).pattern, count=10_000):
                pipeline.evalsha(script, 1, key, milliseconds)
            pipeline.execute()


def engine_of(server: RedisServer | Cluster, *, alone_length: int = 2) -> Engine:
    server.empty()
    url = server.url()
    return Engine(
        open=partial(open_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
        alone_length=alone_length,
    )


def async_engine_of(server: RedisServer | Cluster) -> AsyncEngine:
    server.empty()
    url = server.url()
    return AsyncEngine(
        open=partial(open_async_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
        alone_length=2,
    )


class TestRedis(StoreCases, GuardCases):
    """P16: a server of Redis."""

    @pytest.fixture
    def engine(self, one_redis: RedisServer) -> Engine:
        return engine_of(one_redis, alone_length=3)


class TestAsyncRedis(AsyncStoreCases, AsyncGuardCases):
    """P16: a server of Redis, for event loops."""

    @pytest.fixture
    def async_engine(self, one_redis: RedisServer) -> AsyncEngine:
        return async_engine_of(one_redis)


class TestValkey(StoreCases, GuardCases):
    """P16: a server of Valkey."""

    @pytest.fixture
    def engine(self, one_valkey: RedisServer) -> Engine:
        return engine_of(one_valkey)


class TestAsyncValkey(AsyncStoreCases, AsyncGuardCases):
    """P16: a server of Valkey, for event loops."""

    @pytest.fixture
    def async_engine(self, one_valkey: RedisServer) -> AsyncEngine:
        return async_engine_of(one_valkey)


class TestCluster(StoreCases, GuardCases):
    """P16: a cluster of six nodes, each claim waiting for a replica."""

    @pytest.fixture
    def engine(self, cluster: Cluster) -> Engine:
        return engine_of(cluster)


class TestAsyncCluster(AsyncStoreCases, AsyncGuardCases):
    """P16: a cluster of six nodes, for event loops."""

    @pytest.fixture
    def async_engine(self, cluster: Cluster) -> AsyncEngine:
        return async_engine_of(cluster)
