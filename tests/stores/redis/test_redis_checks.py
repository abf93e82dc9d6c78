"""Settings that lose claims are found, warned about and refused."""

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping

import pytest

from notwice import AsyncGuard, Guard, StoreUnavailable
from notwice.model import Get
from notwice.stores import open_store
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.stores.redis.checks import judged
from notwice.stores.redis.opening import opened
from notwice.stores.redis.settings import settings_of
from notwice.stores.redis.store import Plan, RedisStore
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import get, new_record
from tests.engines.private import wait_until
from tests.engines.redis import REDIS, Cluster, RedisServer, redis_server

SAFE = {
    "role": "master",
    "connected_slaves": "0",
    "wait": "0",
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "min-replicas-to-write": "0",
    "replica-read-only": "yes",
    "cluster-allow-reads-when-down": "no",
}

UNSAFE = {
    "appendonly": "no",
    "appendfsync": "everysec",
    "no-appendfsync-on-rewrite": "yes",
    "maxmemory-policy": "volatile-ttl",
    "replica-read-only": "no",
}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(REDIS) as server:
        yield server


def findings(url: str) -> Mapping[str, str]:
    store = RedisStore(Plan(settings_of(parsed(url))))
    try:
        return {finding.name: finding.severity for finding in store.findings()}
    finally:
        store.close()


def test_safe_settings() -> None:
    """A server without replicas that syncs each write and drops nothing is safe; so is one that waits for replicas."""
    assert judged(SAFE) == []
    assert judged({**SAFE, "wait": "1", "connected_slaves": "1"}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"role": "slave"}, {"role": "unsafe"}),
        ({"connected_slaves": "1"}, {"wait": "unsafe", "min-replicas-to-write": "warning"}),
        ({"connected_slaves": "1", "min-replicas-to-write": "1"}, {"wait": "unsafe"}),
        ({"connected_slaves": "2", "wait": "1"}, {"wait": "warning"}),
        ({"wait": "1"}, {"connected_slaves": "warning"}),
        ({"cluster-allow-reads-when-down": "yes"}, {"cluster-allow-reads-when-down": "warning"}),
        ({"CONFIG": "refused"}, {"CONFIG": "warning"}),
    ],
)
def test_each_rule(changes: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Each setting that breaks a promise is found, by its name, and every finding says what to do."""
    found = judged({**SAFE, **changes})
    assert {finding.name: finding.severity for finding in found} == expected
    assert all(finding.meaning and finding.remedy for finding in found)


def test_settings_of_a_server(server: RedisServer) -> None:
    """Each unsafe setting of a server is found, flipped one by one."""
    url = server.url()
    assert findings(url) == {}
    with server.client() as client:
        for name, value in UNSAFE.items():
            safe = client.config_get(name)[name]
            client.config_set(name, value)
            assert findings(url) == {name: "unsafe"}
            client.config_set(name, safe)


def test_a_server_that_does_not_say(server: RedisServer) -> None:
    """A user who may not read the settings is told so, and may go on."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">pass word", "~*", "+@all", "-config")
    url = server.url().replace("://", "://app:pass%20word@")
    assert findings(url) == {"CONFIG": "warning"}
    with pytest.raises(StoreUnavailable, match="refuses this user or password"):
        findings(url.replace("pass%20word", "wrong"))


def test_the_command_line_warns_in_one_line(server: RedisServer) -> None:
    """C52: a person is told on standard error, once and without any source code, and the list itself stays clean."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    words = [sys.executable, "-m", "notwice", "ls", "--store", server.url()]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
    warning, found = ended.stderr.splitlines()
    assert warning.startswith("warning: redis://127.0.0.1:")
    assert "maxmemory-policy = allkeys-lru: " in warning
    assert found == "no operations"


def test_open_warns_once(server: RedisServer) -> None:
    """An unsafe server is warned about once, loudly; safe=require refuses it, safe=ignore says nothing."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with Guard.open(server.url()) as guard:
            for key in "abc":
                guard.begin("pay", key)
        with Guard.open(server.url(safe="ignore")) as guard:
            guard.begin("pay", "k")
    assert [each.category for each in told] == [UnsafeSettingsWarning]
    assert "maxmemory-policy = allkeys-lru" in str(told[0].message)
    store = open_store(server.url(safe="require"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="allkeys-lru"):
            get(store, new_record())
    with server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
    assert get(store, new_record()).record is None
    store.close()


async def test_open_refuses_for_tasks(server: RedisServer) -> None:
    """safe=require refuses an unsafe server for event loops, too, and nothing runs."""
    with server.client() as client:
        client.config_set("appendfsync", "everysec")
    guard = AsyncGuard.open(server.url(safe="require"))
    ran: list[int] = []

    async def pay() -> None:
        ran.append(1)

    with pytest.raises(StoreUnavailable, match="everysec"):
        await guard.run(pay, scope="pay", key="k")
    assert not ran
    await guard.close()


def test_replicas_of_a_server(server: RedisServer) -> None:
    """A server with a replica is unsafe without wait, and safe with it."""
    with redis_server(REDIS) as replica, replica.client() as client:
        client.replicaof("127.0.0.1", server.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        wait_until(lambda: "wait" in findings(server.url()))
        assert findings(server.url(wait=1)) == {}
        assert findings(replica.url())["role"] == "unsafe"


def test_nodes_of_a_cluster(cluster: Cluster) -> None:
    """Every node of a cluster is looked at."""
    assert findings(cluster.url()) == {}
    assert "wait" in findings(cluster.url(wait=0))
    with cluster.masters()[-1].client() as client:
        client.config_set("appendfsync", "everysec")
        assert findings(cluster.url()) == {"appendfsync": "unsafe"}
        client.config_set("appendfsync", "always")


def test_a_node_of_a_cluster_is_no_server(cluster: Cluster) -> None:
    """A node of a cluster that is opened as one server says what to open in its place."""
    store = opened(parsed(f"redis://127.0.0.1:{cluster.nodes[0].port}?safe=ignore"))
    gets = [Get("n", str(number)) for number in range(50)]
    with pytest.raises(StoreUnavailable, match=r"redis\+cluster://"):
        store.apply(gets)
    store.close()
