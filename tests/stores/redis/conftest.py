"""Private servers, each started when the first test asks for it and killed after the last one."""

from collections.abc import Iterator

import pytest

from tests.engines.redis import REDIS, VALKEY, Cluster, RedisServer, redis_cluster, redis_server


@pytest.fixture(scope="session")
def one_redis() -> Iterator[RedisServer]:
    """A server of Redis."""
    with redis_server(REDIS) as server:
        yield server


@pytest.fixture(scope="session")
def one_valkey() -> Iterator[RedisServer]:
    """A server of Valkey."""
    with redis_server(VALKEY) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Six nodes of Redis."""
    with redis_cluster(REDIS) as cluster:
        yield cluster
