"""What survives: killed servers, replicas that are behind, fail-overs, slots that move."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import pytest
from redis.crc import key_slot

from notwice import AsyncGuard, AsyncOperation, Guard, Policy, StoreUnavailable
from notwice.model import Get, Insert, Record, Reply
from notwice.stores import open_store
from notwice.stores.port import Store
from notwice.stores.redis.rows import Keys
from notwice.stores.redis.settings import settings_of
from notwice.stores.redis.store import Plan, RedisStore
from notwice.stores.shared import PartlyDone
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import get, insert, new_record
from tests.engines.claims import Claims, missing_in
from tests.engines.private import wait_until
from tests.engines.redis import (
    REDIS,
    SAFE,
    VALKEY,
    Cluster,
    RedisServer,
    is_at_rest,
    is_master,
    redis_cluster,
    redis_cluster_with_doors,
    redis_pair,
    redis_server,
)
from tests.engines.takeovers import ROUNDS, Paired, TakeOverCases

HASTY = Policy(lease=60, store_timeout=3)
PATIENT = Policy(lease=60, store_timeout=3, wait=20)


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server and its replica."""
    with redis_server(REDIS) as master, redis_server(REDIS) as replica:
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        yield master, replica


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that a test may break."""
    with redis_cluster(VALKEY, node_timeout_ms=1_000) as cluster:
        yield cluster


@pytest.fixture(params=range(ROUNDS))
def again() -> None:
    """Has a test repeated."""


def run(client: Any, *command: object) -> Any:
    """Run a command for which redis-py has no types."""
    return client.execute_command(*command)


class TestTakeOvers(TakeOverCases):
    """A server, and a replica that claims wait for, or don't."""

    @pytest.fixture(params=[REDIS, VALKEY])
    def paired(self, request: pytest.FixtureRequest) -> Paired:
        return partial(redis_pair, kind=request.param)


@pytest.mark.parametrize("kind", [REDIS, VALKEY])
@pytest.mark.parametrize("durable", [True, False], ids=["always", "snapshots"])
def test_a_killed_server(kind: str, durable: bool) -> None:
    """P1: a server that syncs each write loses no acknowledged claim when it is killed; one with snapshots does."""
    settings = SAFE if durable else ("--appendonly", "no", "--save", "3600 1000000")
    with redis_server(kind, settings) as server:
        url = server.url(safe="ignore")
        claims = Claims(url)
        assert claims.enough.wait(30)
        server.kill()
        acknowledged = claims.join()
        server.start()
        store = open_store(url)
        assert (missing_in(store, acknowledged) == 0) is durable
        store.close()


def test_a_replica_refuses(pair: tuple[RedisServer, RedisServer]) -> None:
    """C13: a replica is never asked for what it has; a server that was made one refuses, and nothing runs."""
    master, replica = pair
    url = master.url(safe="ignore")
    with Guard.open(url) as guard:
        guard.run(lambda: 1, scope="pay", key="k")
        asks_replica = open_store(url.replace(str(master.port), str(replica.port)))
        with pytest.raises(StoreUnavailable, match="ReadOnlyError"):
            get(asks_replica, new_record())
        asks_replica.close()
        with master.client() as client:
            client.replicaof("127.0.0.1", replica.port)
        ran: list[int] = []
        for key in ("k", "new"):
            with pytest.raises(StoreUnavailable):
                guard.run(lambda: ran.append(1), scope="pay", key=key)
        assert not ran


def test_too_few_replicas(pair: tuple[RedisServer, RedisServer]) -> None:
    """P8, P13: a claim that no replica has is unknown: nothing runs, not even once it is found under its own etag."""
    master, replica = pair
    with Guard.open(master.url(wait=1, timeout=1), policy=HASTY) as guard:
        assert guard.run(lambda: "paid", scope="pay", key="k1") == "paid"
        replica.pause()
        ran: list[int] = []
        with pytest.raises(StoreUnavailable):
            guard.run(lambda: ran.append(1), scope="pay", key="k2")
        assert not ran
        assert guard.run(lambda: "again", scope="pay", key="k1") == "paid"  # a replay needs no replica
        replica.go_on()
        guard.run(lambda: ran.append(1), scope="pay", key="k2", policy=PATIENT)
        assert ran == [1], "it was freed behind the caller, or is owned by the next"


def test_too_few_replicas_for_another(pair: tuple[RedisServer, RedisServer]) -> None:
    """P2, P8: a claim that too few replicas have fails alone: what was only read with it is told."""
    master, replica = pair
    store = RedisStore(Plan(settings_of(parsed(master.url(wait=1, safe="ignore")))))
    record = new_record("a")
    insert(store, record)
    replica.kill()
    with pytest.raises(PartlyDone) as raised:
        store.apply([Get(record.namespace, record.id), Insert(new_record("b"))])
    read, refusal = raised.value.outcomes
    assert isinstance(read, Reply)
    assert isinstance(read.record, Record)
    assert isinstance(refusal, StoreUnavailable)
    store.close()


async def test_too_few_replicas_for_tasks(pair: tuple[RedisServer, RedisServer]) -> None:
    """P8, P13: the same for an event loop."""
    master, replica = pair
    guard = AsyncGuard.open(master.url(wait=1, timeout=1), policy=HASTY)
    assert isinstance(await guard.begin("pay", "k1"), AsyncOperation)
    replica.pause()
    with pytest.raises(StoreUnavailable):
        await guard.begin("pay", "k2")
    replica.go_on()
    assert isinstance(await guard.begin("pay", "k2", policy=PATIENT), AsyncOperation)
    await guard.close()


@pytest.mark.usefixtures("again")
def test_a_master_that_is_killed(own_cluster: Cluster) -> None:
    """P1: with wait=1 a fail-over loses no acknowledged claim, and grants none twice; clients find the new master."""
    url = own_cluster.url(timeout=2)
    claims = Claims(url)
    assert claims.enough.wait(30)
    master = own_cluster.masters()[0]
    replica = own_cluster.replica_of(master)
    store = open_store(url)
    early = [new_record(f"early-{number}") for number in range(200)]
    assert all(reply.won for reply in store.apply([Insert(record) for record in early]))
    master.kill()
    wait_until(lambda: is_master(replica))
    acknowledged = claims.join() + early
    without_wait = open_store(url.replace("wait=1", "wait=0&safe=ignore"))  # the new master has no replica yet
    wait_until(lambda: _answers(without_wait))
    assert missing_in(without_wait, acknowledged) == 0
    again = without_wait.apply([Insert(new_record(record.key, id=record.id)) for record in acknowledged])
    assert not any(reply.won for reply in again)
    for each in (store, without_wait):
        each.close()


@pytest.mark.usefixtures("again")
def test_a_fail_over_to_a_replica_that_is_behind(own_cluster: Cluster) -> None:
    """The control: without wait, claims that the replica had not heard of are lost, and granted again."""
    url = own_cluster.url(timeout=2, wait=0, safe="ignore")
    store = open_store(url)
    insert(store, new_record("warm"))
    master = own_cluster.masters()[0]
    replica = own_cluster.replica_of(master)
    replica.pause()
    with master.client() as client:
        client.client_kill_filter(_type="replica")  # what it has not read yet does not wait for it in a buffer
    claims = [new_record(f"k{number}") for number in range(300)]
    assert all(reply.won for reply in store.apply([Insert(claim) for claim in claims]))
    master.kill()
    replica.go_on()
    wait_until(lambda: is_master(replica))
    wait_until(lambda: _answers(store))
    again = store.apply([Insert(new_record(claim.key)) for claim in claims])
    assert 50 < sum(reply.won for reply in again) < 200
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
def test_a_master_that_is_cut_off(waits: bool) -> None:
    """P1: a master that the others don't hear grants nothing that they grant again; the control without wait does."""
    twice = 0
    with redis_cluster_with_doors(VALKEY, node_timeout_ms=1_000) as cluster:
        for _ in range(ROUNDS):
            claims = Claims(cluster.url(timeout=2, wait=int(waits), safe="ignore"))
            assert claims.enough.wait(30)
            master = cluster.masters()[0]
            replica = cluster.replica_of(master)
            with cluster.without(master):
                wait_until(partial(is_master, replica))
            wait_until(lambda: all(map(is_at_rest, cluster.nodes)))
            acknowledged = claims.join()
            store = open_store(claims.url)
            again = store.apply([Insert(new_record(record.key, id=record.id)) for record in acknowledged])
            twice += sum(reply.won for reply in again)
            print(f"{twice} of {len(acknowledged)} granted twice")
            store.close()
    assert (twice == 0) is waits


def _answers(store: Store) -> bool:
    """Whether every shard answers."""
    with suppress(StoreUnavailable):
        return bool(store.apply([Get("n", f"idem_{number}") for number in range(500)]))
    return False


def test_slots_that_moved(own_cluster: Cluster) -> None:
    """MOVED: a store that has an old map finds the new owners within the call."""
    url = own_cluster.url()
    stores = [open_store(url), open_store(url.replace("prefix", "safe=warn&prefix"))]
    records = [new_record(str(number)) for number in range(100)]
    stores[0].apply([Insert(record) for record in records])
    stores[1].apply([Get("n", "i")])
    master = own_cluster.masters()[0]
    replica = own_cluster.replica_of(master)
    with replica.client() as client:
        run(client, "CLUSTER", "FAILOVER")
    wait_until(lambda: is_master(replica) and not is_master(master))
    for store in stores:
        assert missing_in(store, records) == 0
        wait_until(partial(_counts, store))
        store.close()


def _counts(store: Store) -> bool:
    """Whether a claim is acknowledged by a replica."""
    with suppress(StoreUnavailable):
        return isinstance(store.apply([Insert(new_record("probe"))])[0].record, Record)
    return False


def test_a_slot_on_its_way(own_cluster: Cluster) -> None:
    """ASK, TRYAGAIN: while a slot is half moved its records are found or refused, and no claim is lost."""
    url = own_cluster.url(timeout=1, safe="ignore")
    store = open_store(url)
    prefix = url.partition("prefix=")[2].partition("&")[0]
    keys = Keys(prefix)
    in_shard = [new_record(str(number)) for number in range(6_000)]
    in_shard = [each for each in in_shard if keys.of((each.namespace, each.id))[0] == "00"]
    assert len(in_shard) > 8
    half = len(in_shard) // 2
    assert all(reply.won for reply in store.apply([Insert(record) for record in in_shard[:half]]))
    with HalfMoved(own_cluster, [keys.of((each.namespace, each.id))[1] for each in in_shard[: half // 2]]) as finish:
        told = [_asked(store, record) for record in in_shard]
        assert None in told, "a record and its set on two nodes: refused"
        for record, reply in zip(in_shard, told, strict=True):
            assert reply is None or reply.etag == record.etag, "found, or claimed"
        finish(keys.open_of("00"), [keys.of((each.namespace, each.id))[1] for each in in_shard])
    wait_until(lambda: _answers(store))
    assert missing_in(store, in_shard[:half]) == 0
    assert [_asked(store, record) is not None for record in in_shard] == [True] * len(in_shard)
    store.close()


def _asked(store: Store, record: Record) -> Record | None:
    """What an insert finds or stores; ``None`` if it is refused."""
    try:
        found = store.apply([Insert(record)])[0].record
    except StoreUnavailable:
        return None
    assert isinstance(found, Record)
    return found


class HalfMoved:
    """Shard 00 on its way from its node to another, which has some of its records already."""

    def __init__(self, cluster: Cluster, keys: Sequence[str]) -> None:
        self.slot = key_slot(b"00")
        self.clients = [node.client() for node in cluster.masters()]
        self.names = [run(client, "CLUSTER", "MYID").decode() for client in self.clients]
        self.ports = [node.port for node in cluster.masters()]
        self.keys = keys
        owned = [run(client, "CLUSTER", "COUNTKEYSINSLOT", self.slot) for client in self.clients]
        self.source = max(range(3), key=owned.__getitem__)
        self.target = (self.source + 1) % 3

    def __enter__(self) -> Self:
        source, target = self.clients[self.source], self.clients[self.target]
        run(target, "CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.names[self.source])
        run(source, "CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.names[self.target])
        self._move(self.keys)
        return self

    def __call__(self, open_key: str, keys: Sequence[str]) -> None:
        """Finish the move."""
        self._move([open_key, *keys])
        for client in (self.clients[self.target], self.clients[self.source]):
            run(client, "CLUSTER", "SETSLOT", self.slot, "NODE", self.names[self.target])

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()

    def _move(self, keys: Sequence[str]) -> None:
        for key in keys:
            run(self.clients[self.source], "MIGRATE", "127.0.0.1", self.ports[self.target], key, 0, 5_000)
