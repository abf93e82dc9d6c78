"""What lies on a server: keys, expiries, the sets of open records; and what a URL may say."""

import re
from collections.abc import Iterator

import pytest

from notwice import Guard, InProgress, Operation, UnsupportedRecord
from notwice.model import Get, Insert, Query, RecordView, Released, State, Unreadable
from notwice.stores import open_async_store, open_store
from notwice.stores.port import Store
from notwice.stores.redis.rows import Keys
from notwice.stores.redis.script import EXPIRY_SLACK_MS
from notwice.testing.conformance.records import (
    TERMS,
    finished,
    followed,
    get,
    insert,
    new_record,
    stored,
    swap,
)
from tests.engines.redis import RedisServer

PREFIX = "keys:"


@pytest.fixture
def store(one_redis: RedisServer) -> Iterator[Store]:
    one_redis.empty()
    store = open_store(one_redis.url(prefix=PREFIX))
    yield store
    store.close()


def key_of(name: str) -> str:
    return Keys(PREFIX).of((new_record().namespace, f"idem_{name}"))[1]


def test_no_key_is_a_clients(store: Store, one_redis: RedisServer) -> None:
    """T21: whatever a client sends as a key, or a namespace is called, the keys on the server are digests."""
    with Guard(store) as guard:
        for hostile in ("*", "keys:{00}open", "a}b{c", "FLUSHALL\r\n"[:8], "../x"):
            guard.within(hostile).begin("pay", hostile)
    with one_redis.client() as client:
        for key in client.scan_iter():
            assert re.fullmatch(r"keys:\{[0-9a-f]{2}\}([0-9a-f]{30}|open)", key.decode())


def test_a_loser_changes_nothing(store: Store, one_redis: RedisServer) -> None:
    """C02: of two claims the second is told so, and the record's bytes on the server stay as they were."""
    insert(store, new_record("k"))
    with one_redis.client() as client:
        before = client.get(key_of("k"))
        reply = store.apply([Insert(new_record("k"))])[0]
        assert not reply.won
        assert client.get(key_of("k")) == before


def test_expiries(store: Store, one_redis: RedisServer) -> None:
    """P6: what is open has no expiry on the server; each write sets or clears it."""
    first = new_record("k")
    with one_redis.client() as client:
        insert(store, first)
        assert client.pttl(key_of("k")) == -1
        done = finished("k", retention_ms=500_000)
        swap(store, done, first.etag)
        assert 500_000 < client.pttl(key_of("k")) <= 500_000 + EXPIRY_SLACK_MS
        again = followed(done, state=State.ACCEPTED)
        swap(store, again, done.etag)
        assert client.pttl(key_of("k")) == -1
        freed = followed(again, released=Released.AS_NEW)
        swap(store, freed, again.etag)
        assert 0 < client.pttl(key_of("k")) <= TERMS.lease_ms + EXPIRY_SLACK_MS
        for_ever = followed(freed, state=State.COMPLETED, released=Released.NO, terms=TERMS._replace(retention_ms=None))
        swap(store, for_ever, freed.etag)
        assert client.pttl(key_of("k")) == -1


def test_a_century_is_for_ever(store: Store, one_redis: RedisServer) -> None:
    """A retention that no server can count is kept as for ever, and times that nearly are work."""
    for number, retention_ms in enumerate((2**62, 2**53, 99 * 365 * 24 * 3_600_000, 0)):
        insert(store, finished(str(number), retention_ms=retention_ms))
    with one_redis.client() as client:
        assert [client.pttl(key_of(str(number))) > 0 for number in range(4)] == [False, False, True, True]


def test_the_set_of_open_records(store: Store, one_redis: RedisServer) -> None:
    """What is open stands in its shard's set; what is finished, freed or dropped does not."""
    records = [new_record(str(number)) for number in range(30)]
    for record in records:
        insert(store, record)
    for number, record in enumerate(records):
        if number % 3 == 0:
            swap(store, followed(record, state=State.COMPLETED), record.etag)
        elif number % 3 == 1:
            swap(store, followed(record, state=State.ACCEPTED), record.etag)  # and has a new creation time
    with one_redis.client() as client:
        members = [each for key in client.scan_iter(match="*open") for each in client.zrange(key, 0, -1)]
    opened = [record for number, record in enumerate(records) if number % 3]
    assert sorted(member.rpartition(b"\0")[2].decode() for member in members) == sorted(each.id for each in opened)


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_pages_of_unresolved_operations(store: Store, limit: int) -> None:
    """Pages of what is unresolved, from the sets of open records, are those that a scan of everything gives."""
    for number in range(120):
        state = (State.ACCEPTED, State.IN_PROGRESS, State.COMPLETED)[number % 3]
        insert(store, new_record(str(number), namespace=f"n{number % 2}", state=state, created_ms=1 + number // 5))
    wanted = [view for view in store.scan(Query(limit=1_000)).items if isinstance(view, RecordView) and view.unresolved]
    assert len(wanted) == 40
    for namespace in (None, "n1"):
        query = Query(namespace=namespace, unresolved=True, limit=limit)
        found: list[str] = []
        while True:
            page = store.scan(query)
            assert len(page.items) <= limit
            found += [item.record.key for item in page.items if isinstance(item, RecordView)]
            if page.cursor is None:
                break
            query = query._replace(cursor=page.cursor)
        assert found == [view.record.key for view in wanted if namespace in (None, view.record.namespace)]


def test_expired_records_are_replaced(store: Store) -> None:
    """C42: a record that is expired and still there is replaced by one claim of ten; a purge leaves the new one."""
    done = finished("k", retention_ms=1)
    insert(store, done)
    while get(store, done).now_ms - get(store, done).written_ms <= 1:
        pass
    claims = [new_record("k", attempt=number + 1) for number in range(10)]
    replies = [swap(store, claim, done.etag) for claim in claims]
    assert [reply.won for reply in replies] == [True] + [False] * 9
    assert store.purge(100) == 0
    assert stored(store, done).etag == claims[0].etag


@pytest.mark.parametrize("value", [b"", b"garbage", b"\x02" + b"x" * 80, b"\x01" + b"x" * 80, b"\x01" + bytes(80)])
def test_what_is_not_ours(store: Store, one_redis: RedisServer, value: bytes) -> None:
    """What somebody else put under a record's key, or a newer release, is neither absent nor overwritten nor purged."""
    with one_redis.client() as client:
        client.set(key_of("k"), value, px=EXPIRY_SLACK_MS - 1)
        for reply in store.apply([Get(new_record().namespace, "idem_k")]), store.apply([Insert(new_record("k"))]):
            assert isinstance(reply[0].record, Unreadable)
        assert not swap(store, new_record("k"), b"x" * ord("x")).won
        assert store.purge(10) == 0
        assert client.get(key_of("k")) == value
        assert any(isinstance(item, Unreadable) for item in store.scan(Query()).items) == bool(value)
        client.delete(key_of("k"))
        client.hset(key_of("k"), "a", "b")
        replies = store.apply([Insert(new_record("before")), Insert(new_record("k")), Insert(new_record("after"))])
        assert [reply.won for reply in replies] == [True, False, True], "it is nobody else's trouble"
        assert isinstance(replies[1].record, Unreadable)
        assert client.type(key_of("k")) == b"hash"


def test_a_newer_record_stops_a_guard(store: Store, one_redis: RedisServer) -> None:
    """P14: a guard that meets a record of a newer release refuses; it does not run."""
    with Guard(store) as guard:
        operation = guard.begin("pay", "k")
        assert isinstance(operation, Operation)
        assert isinstance(guard.begin("pay", "k"), InProgress)
        with one_redis.client() as client:
            (key,) = [each for each in client.scan_iter() if not each.endswith(b"open")]
            client.setrange(key, 0, b"\x02")
        with pytest.raises(UnsupportedRecord):
            guard.begin("pay", "k")


def test_databases_are_apart(one_redis: RedisServer) -> None:
    """Two databases of a server, and two prefixes of one, have nothing in common."""
    base = f"redis://127.0.0.1:{one_redis.port}"
    stores = [open_store(f"{base}{rest}") for rest in ("/1?prefix=a:", "/2?prefix=a:", "/2?prefix=b:")]
    assert [store.apply([Insert(new_record("same"))])[0].won for store in stores] == [True] * 3
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://localhost/x", "number"),
        ("redis://a,b/0", "name a server"),
        ("redis://", "name a server"),
        ("redis://localhost:abc/0", "no port from 1 to 65535"),
        ("redis+cluster://a:1,b:65536", "no port from 1 to 65535"),
        ("redis+cluster://a:1,b:2/1", "no databases"),
        ("redis://localhost?wait=-1", "number of replicas"),
        ("redis://localhost?wait=all", "number of replicas"),
        ("redis://localhost?timeout=0", "more than 0"),
        ("redis://localhost?prefix={x}", "letters"),
        ("redis://localhost?ca_file=x", "rediss://"),
        ("redis://localhost?safe=no", "one of"),
        ("redis://localhost?wiat=1", "did you mean 'wait'"),
    ],
)
def test_urls_that_are_refused(url: str, said: str) -> None:
    """A URL that can't be meant is refused with a sentence, by both faces, before anything is connected."""
    for open_it in (open_store, open_async_store):
        with pytest.raises(ValueError, match=re.escape(said)):
            open_it(url)
