"""Races on servers of Redis and Valkey, and on a cluster."""

from pathlib import Path

import pytest

from tests.engines.private import TIMES
from tests.engines.races import KEYS, race_processes, race_tasks, race_threads
from tests.engines.redis import Cluster, RedisServer

KEYS_OF_A_CLUSTER = 60 * TIMES


@pytest.mark.slow
def test_threads(one_redis: RedisServer) -> None:
    """P1 to P5, C01, C06, T09: 16 threads on 300 keys: one first owner, one taker, no way back, equal replays."""
    race_threads(one_redis.url(), KEYS)


@pytest.mark.slow
async def test_tasks(one_valkey: RedisServer) -> None:
    """P1 to P5, C01: the same for 16 tasks of an event loop."""
    await race_tasks(one_valkey.url(), KEYS)


@pytest.mark.slow
def test_processes(one_redis: RedisServer, tmp_path: Path) -> None:
    """P1, P5, C42: of 8 processes that find the same new, stale and expired keys, one owns each."""
    race_processes(one_redis.url(), tmp_path)


@pytest.mark.slow
def test_threads_on_a_cluster(cluster: Cluster) -> None:
    """P1 to P5: the same on six nodes, each claim waiting for a replica."""
    race_threads(cluster.url(), KEYS_OF_A_CLUSTER)


@pytest.mark.slow
async def test_tasks_on_a_cluster(cluster: Cluster) -> None:
    """P1 to P5: the same for tasks."""
    await race_tasks(cluster.url(), KEYS_OF_A_CLUSTER)


@pytest.mark.slow
def test_processes_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """P1, P5, C42: the same for 8 processes."""
    race_processes(cluster.url(), tmp_path, keys=40 * TIMES)
