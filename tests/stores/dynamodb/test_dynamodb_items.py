"""What lies in the table: keys, expiry, the index of what is open, limits, look-ups."""

import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from notwice import Guard, Operation, Policy, RecordTooLarge, Replay, Result, ResultKind
from notwice.errors import StoreUnavailable
from notwice.model import Insert, Query, Record, RecordView, Released, Reply, State
from notwice.stores import open_async_store, open_store
from notwice.stores.dynamodb import scans
from notwice.stores.dynamodb.items import ITEM_BYTES_MAX, PLACE_BYTES_MAX, TTL_SLACK_S, place_bytes
from notwice.stores.dynamodb.store import DynamoStore
from notwice.stores.shared import PartlyDone
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, followed, get, insert, new_record, stored, swap
from tests.engines.dynamodb import Table


class Counted(DynamoStore):
    """A store that keeps a list of the requests that it sends."""

    def __init__(self, table: Table, clock: VirtualClock | None = None) -> None:
        super().__init__(table.place, clock=clock)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        sent = self._link._sent

        def note(method: str, request: dict[str, Any]) -> dict[str, Any]:
            self.requests.append((method, request))
            return sent(method, request)

        self._link._sent = note  # type: ignore[method-assign]  # watched, not changed

    def methods(self, act: Callable[[], object]) -> list[str]:
        """The requests that `act` sends."""
        self.requests.clear()
        act()
        return [method for method, _ in self.requests]


def test_nothing_that_a_client_chose_is_a_key(table: Table) -> None:
    """T21: an item's key is a digest, so no key of a client's reaches another's item."""
    hostile = ["a", "a b", "../x", '"; DELETE', "#n = :x", "idem_", "*"]
    with Guard.open(table.url) as guard:
        for number, key in enumerate(hostile):
            scope = ("refund", "a:b", str(number))
            assert guard.within(f"tenant {number}").run(partial(str, key), scope=scope, key=key) == key
    items = table.items()
    assert len(items) == len(hostile)
    assert all(len(item["pk"]["S"]) == 64 and set(item["pk"]["S"]) <= set("0123456789abcdef") for item in items)
    raw = json.dumps(items, default=bytes.hex)
    assert "DELETE" not in raw, "a client's key is in no attribute that can be read or asked for"


def test_names_are_framed(table: Table) -> None:
    """P11: namespaces and ids that run together are two records."""
    store = open_store(table.url)
    pair = [new_record("k", namespace=namespace, id=name) for namespace, name in (("ab", "c"), ("a", "bc"))]
    for record in pair:
        insert(store, record)
    assert [stored(store, record).etag for record in pair] == [record.etag for record in pair]
    store.close()


def test_each_write_sets_or_clears_the_expiry(table: Table) -> None:
    """P6: the service's own expiry is set on what may expire, an hour late, and is on nothing else."""
    clock = VirtualClock()
    store = DynamoStore(table.place, clock=clock)
    record = new_record()

    def expiry() -> int | None:
        (item,) = table.items()
        assert ("expires_ms" in item) is ("expires_at" in item)
        return int(item["expires_at"]["N"]) if "expires_at" in item else None

    def move(state: State, **changes: Any) -> int | None:
        nonlocal record
        following = followed(record, state=state, **changes)
        assert swap(store, following, record.etag).won
        record = following
        return expiry()

    terms = record.terms
    insert(store, record)
    assert expiry() is None
    due_s = clock.wall_ms() // 1000 + TTL_SLACK_S + 1
    assert move(State.COMPLETED) == due_s + 3_600
    assert move(State.ACCEPTED) is None
    assert move(State.ACCEPTED, released=Released.OPERATOR) is None
    assert move(State.ACCEPTED, released=Released.AS_NEW) == due_s + 300
    assert move(State.IN_PROGRESS, released=Released.NO) is None
    assert move(State.FAILED, terms=terms._replace(retention_ms=None)) is None
    assert move(State.FAILED, terms=terms._replace(retention_ms=10**15)) is None
    assert move(State.FAILED, terms=terms._replace(retention_ms=0)) == due_s
    store.close()


def test_what_is_expired_and_not_dropped_begins_anew(table: Table) -> None:
    """C42: the service may drop hours late; an expired record is replaced by its condition, and a purge spares that."""
    clock = VirtualClock()
    store = DynamoStore(table.place, clock=clock)
    guard = Guard(store, clock=VirtualClock(), policy=Policy(retention=60))
    first = guard.begin("pay", "k", request=1)
    assert isinstance(first, Operation)
    first.complete(1)
    clock.advance(60)
    assert isinstance(guard.begin("pay", "k", request=1), Replay)
    clock.advance(0.001)
    anew = guard.begin("pay", "k", request=2)
    assert isinstance(anew, Operation)
    assert (anew.attempt, guard.purge()) == (1, 0)
    anew.complete(2)
    guard.close()


def test_reads_are_consistent(table: Table) -> None:
    """C13: whatever is read is read from the leader; a claim is decided by its own condition and reads nothing."""
    store = Counted(table)
    record = new_record()
    assert store.methods(lambda: insert(store, record)) == ["put_item"]
    assert store.methods(lambda: store.apply([Insert(followed(record))])) == ["put_item"]
    assert store.methods(lambda: get(store, record)) == ["get_item"]
    assert store.requests[0][1]["ConsistentRead"] is True
    assert store.methods(lambda: store.scan(Query())) == ["scan", "batch_get_item"]
    assert store.requests[0][1]["ConsistentRead"] is True
    (asked,) = store.requests[1][1]["RequestItems"].values()
    assert asked["ConsistentRead"] is True
    store.close()


def test_what_is_open_has_an_index(table: Table) -> None:
    """What is not finished is listed without reading the table; one operation of a namespace by its key alone."""
    store = Counted(table)
    store.apply([Insert(finished(f"done-{number}")) for number in range(20)])
    insert(store, new_record("open"))
    assert "scan" not in store.methods(lambda: store.scan(Query(unresolved=True)))
    assert "scan" not in store.methods(lambda: store.scan(Query(states=frozenset({State.IN_PROGRESS}))))
    one = Query(namespace=new_record().namespace, operation="idem_done-3")
    assert store.methods(lambda: store.scan(one)) == ["batch_get_item"]
    assert len(store.scan(one).items) == 1
    assert store.scan(Query(namespace="nobody", operation="idem_done-3")).items == ()
    assert "scan" in store.methods(lambda: store.scan(Query(unresolved=False)))
    store.close()


def test_pages_of_what_is_open(table: Table) -> None:
    """Pages from the index are in order, and give each record once, however alike their times and long their names."""
    store = open_store(table.url)
    spaces = ["", "n", "n\u00e9", "\U0001f511" * 255, "\U0001f511" * 254 + "\U0001f512"]
    made = [
        new_record(f"{number}", namespace=namespace, created_ms=created_ms)
        for number in range(4)
        for namespace in spaces
        for created_ms in (5,)
    ]
    store.apply([Insert(record) for record in [*made, new_record("later", created_ms=6), finished("done")]])
    query = Query(states=frozenset({State.IN_PROGRESS}), limit=3)
    found: list[Record] = []
    while True:
        page = store.scan(query)
        found += [item.record for item in page.items if isinstance(item, RecordView)]
        if page.cursor is None:
            break
        query = query._replace(cursor=page.cursor)
    assert {(each.namespace, each.id) for each in found} == {(each.namespace, each.id) for each in made} | {
        (new_record().namespace, "idem_later")
    }
    assert len(found) == len(made) + 1
    short = [place for each in found if len(place := place_bytes((each.created_ms, each.namespace, each.id))) < 1_000]
    assert short == sorted(short)
    assert all(len(place_bytes((5, namespace, "idem_" + "f" * 32))) <= PLACE_BYTES_MAX for namespace in spaces)
    store.close()


def test_a_look_up_that_takes_too_long(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that has to read too much gives up, and says what to ask for instead."""
    monkeypatch.setattr(scans, "LOOK_S", -1)
    store = open_store(table.url)
    insert(store, new_record())
    with pytest.raises(StoreUnavailable, match="unresolved"):
        store.scan(Query())
    store.close()


def test_a_purge_goes_on_where_it_stopped(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """C42: a purge looks at so many items at once, and the next one goes on behind them, round and round."""
    monkeypatch.setattr(scans, "PURGE_READ", 4)
    clock = VirtualClock()
    store = Counted(table, clock)
    store.apply([Insert(new_record(f"open-{number}")) for number in range(10)])
    store.apply([Insert(finished(f"done-{number}", retention_ms=1_000)) for number in range(10)])
    assert store.purge(100) == 0
    clock.advance(2)
    counts = [store.purge(3) for _ in range(6)]
    assert sum(counts) == 10
    assert max(counts) == 3
    assert store.purge(100) == 0
    assert len(table.items()) == 10
    assert store.methods(lambda: store.purge(100)).count("scan") >= 3
    store.close()


def test_a_foreign_item_is_left_alone(table: Table) -> None:
    """What is none of ours in the table is neither listed nor purged."""
    table.client().put_item(TableName=table.place.table, Item={"pk": {"S": "x"}, "expires_ms": {"N": "1"}})
    store = open_store(table.url)
    assert (store.scan(Query()).items, store.purge(10)) == ((), 0)
    assert len(table.items()) == 1
    store.close()


def test_the_largest_item(table: Table) -> None:
    """T11, T12: an answer just below the limit is kept; one above it is omitted, and no key stays open for it."""
    with Guard.open(table.url) as guard:
        for key, size in (("fits", ITEM_BYTES_MAX - 5_000), ("large", ITEM_BYTES_MAX)):
            operation = guard.begin("s" * 1_024, key * 40, namespace="n" * 255)
            assert isinstance(operation, Operation)
            operation.complete(Result(ResultKind.HTTP, bytes(size), 201))
            replay = guard.begin("s" * 1_024, key * 40, namespace="n" * 255)
            assert isinstance(replay, Replay)
            assert (replay.stored.status, replay.stored.body is None) == (201, key == "large")


def test_a_running_operation_leaves_room_for_its_end(table: Table) -> None:
    """T12: checkpoints may fill an item only so far that the operation can still be ended, if without its body."""
    with Guard.open(table.url) as guard:
        operation = guard.begin("pay", "k")
        assert isinstance(operation, Operation)
        with pytest.raises(RecordTooLarge):
            operation.checkpoint("page", bytes(ITEM_BYTES_MAX - 10_000))
        operation.checkpoint("page", bytes(ITEM_BYTES_MAX - 18_000))
        operation.complete(Result(ResultKind.HTTP, bytes(20_000), 200, (("location", "/" * 8_000),)))
        replay = guard.begin("pay", "k")
        assert isinstance(replay, Replay)
        assert replay.stored.body is None


async def test_one_that_is_too_large_does_not_speak_for_a_batch(table: Table) -> None:
    """In a batch, a record that is too large is its own error, and the others are told that they won."""
    huge = finished("huge")._replace(result=Result(ResultKind.HTTP, bytes(ITEM_BYTES_MAX)))
    with closing(open_store(table.url)) as store:
        tasks = open_async_store(table.url)
        with pytest.raises(PartlyDone) as of_threads:
            store.apply([Insert(new_record("a")), Insert(huge)])
        with pytest.raises(PartlyDone) as of_tasks:
            await tasks.apply([Insert(new_record("b")), Insert(huge)])
        await tasks.close()
        for caught in (of_threads, of_tasks):
            assert not isinstance(caught.value, RecordTooLarge)
            won, refused = caught.value.outcomes
            assert isinstance(won, Reply)
            assert won.won
            assert isinstance(refused, RecordTooLarge)
        assert stored(store, new_record("a"))
