"""The suite on Redis, Valkey and a cluster, both faces."""

import pytest
import redis

from notwice.stores.port import Store
from notwice.stores.redis.rows import Keys
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.redis import Cluster, RedisServer
from tests.engines.suites import async_engine_of, engine_of


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


@pytest.fixture(params=["one_redis", "one_valkey", "cluster"])
def server(request: pytest.FixtureRequest) -> RedisServer | Cluster:
    """Redis, Valkey, and a cluster of six nodes, where each claim waits for a replica."""
    server: RedisServer | Cluster = request.getfixturevalue(request.param)
    server.empty()
    return server


class TestRedis(StoreCases, GuardCases):
    """P16: threads."""

    @pytest.fixture
    def engine(self, server: RedisServer | Cluster) -> Engine:
        return engine_of(server, server.url(), damage=damage, age=age, alone_length=2)


class TestAsyncRedis(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops."""

    @pytest.fixture
    def async_engine(self, server: RedisServer | Cluster) -> AsyncEngine:
        return async_engine_of(server, server.url(), damage=damage, age=age)
