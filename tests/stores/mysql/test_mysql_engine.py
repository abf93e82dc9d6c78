"""What is special about MySQL and MariaDB: locks, flags of connections, letters, sizes, rivals."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
from pymysql.constants import CLIENT

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Guard,
    Operation,
    Policy,
    RecordTooLarge,
    Replay,
    StoreUnavailable,
)
from notwice.codec import encode_record
from notwice.model import Get, Insert, Op, Query, Record, RecordView, Reply, Result, ResultKind, State, Swap, Unreadable
from notwice.stores import open_store
from notwice.stores.mysql import session as sessions
from notwice.stores.mysql import store as stores
from notwice.stores.mysql.dialect import ROW_BYTES_MAX
from notwice.stores.mysql.place import Place, Undone, place_of
from notwice.stores.mysql.rows import asked_of, digest_of, text_of
from notwice.stores.mysql.store import TRIES_MAX, MysqlStore
from notwice.stores.shared import KeyLocked, PartlyDone
from notwice.stores.sweeping import INSERTS_PER_SWEEP
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import (
    at_once,
    finished,
    followed,
    full_record,
    get,
    insert,
    new_record,
    one,
    stored,
    swap,
)
from tests.engines.locks import LockCases, Locks
from tests.engines.mariadb import MariadbServer

STATEMENTS = ["auto", "no"]


@pytest.fixture(params=STATEMENTS)
def where(mariadb: MariadbServer, request: pytest.FixtureRequest) -> Place:
    """The address of a new store, to be spoken to as MariaDB or as MySQL."""
    return place_of(parsed(mariadb.url(returning=request.param)))


@pytest.fixture
def store(where: Place) -> Iterator[MysqlStore]:
    store = MysqlStore(where)
    yield store
    store.close()


@contextmanager
def open_transaction(server: MariadbServer, *statements: str) -> Iterator[None]:
    """A rival's transaction that has run some statements and stays open. It locks what it names, and no gaps."""
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for statement in statements:
            cursor.execute(statement)
        yield
        connection.rollback()


def fetched(server: MariadbServer, statement: str) -> Sequence[Sequence[Any]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def inserted_by_a_rival(where: Place, record: Record) -> str:
    """The statement with which a rival inserts a record."""
    text = text_of(asked_of([Insert(record)]), where.names.records, compound=False)
    return text.split(";")[1]


def locking(where: Place, record: Record) -> str:
    """The statement with which a rival locks a record."""
    digest = digest_of((record.namespace, record.id)).hex()
    return f"SELECT 1 FROM {where.names.records} WHERE name = X'{digest}' FOR UPDATE"


def put_long_ago(store: MysqlStore, record: Record) -> None:
    """Store a record that is long expired."""
    assert list(store.load([RecordView(record._replace(created_ms=1), 1, 1, 0)])) == [True]


# --- flags and settings of connections --------------------------------------------------------------------------------


def test_affected_rows_decide_nothing(
    mariadb: MariadbServer, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: with CLIENT_FOUND_ROWS a duplicate's insert counts as one row; it loses all the same, and so does a swap."""
    connect = sessions._Connection

    def flagged(**options: Any) -> Any:
        options["client_flag"] |= CLIENT.FOUND_ROWS
        return connect(**options)

    monkeypatch.setattr(sessions, "_Connection", flagged)
    first, second = new_record(), new_record(attempt=2)
    assert one(store, Insert(first)).won
    assert not one(store, Insert(second)).won
    assert [reply.won for reply in store.apply([Insert(second), Insert(new_record("b"))])] == [False, True]
    third = followed(first, attempt=3)
    assert swap(store, third, first.etag).won
    assert not swap(store, followed(first), first.etag).won
    assert stored(store, first).etag == third.etag
    with store._pool.turn() as session:
        assert session._connection.client_flag & CLIENT.FOUND_ROWS


@pytest.mark.parametrize("returning", STATEMENTS)
def test_a_session_is_set_whatever_the_server_says(mariadb: MariadbServer, returning: str) -> None:
    """P1, T11: levels, modes, limits and a time zone that the server sets for everybody change nothing."""
    odd = {
        "tx_isolation": "'SERIALIZABLE'",
        "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
        "autocommit": "0",
        "completion_type": "'RELEASE'",
        "sql_select_limit": "1",
        "sql_safe_updates": "1",
        "time_zone": "'-11:00'",
        "innodb_lock_wait_timeout": "50",
        "character_set_server": "latin1",
    }
    before = {name: fetched(mariadb, f"SELECT @@global.{name}")[0][0] for name in odd}
    mariadb.execute(*(f"SET GLOBAL {name} = {value}" for name, value in odd.items()))
    try:
        store = open_store(mariadb.url(returning=returning))
        records = [new_record(text, namespace=text) for text in ("straße", "STRASSE", "a'b\"c\\d")]
        replies = store.apply([Insert(record) for record in records])
        assert [reply.won for reply in replies] == [True] * 3
        assert len(store.scan(Query()).items) == 3
        (now_ms,) = fetched(mariadb, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)")[0]
        assert abs(replies[0].written_ms - now_ms) < 60_000
        assert swap(store, followed(records[0]), records[0].etag).won
        store.close()
    finally:
        mariadb.execute(*(f"SET GLOBAL {name} = {value!r}" for name, value in before.items()))


def test_an_atomic_commit_of_a_whole_batch(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """A batch is one commit: swaps, inserts and what they find are of one moment."""
    for record in (first := [new_record(name) for name in "abc"]):
        insert(store, record)
    before = fetched(mariadb, "SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1]
    ops: list[Op] = [Swap(followed(record), record.etag) for record in first]
    replies = store.apply([*ops, Insert(new_record("d")), Insert(new_record("e"))])
    assert [reply.won for reply in replies] == [True] * 5
    assert int(fetched(mariadb, "SHOW GLOBAL STATUS LIKE 'Com_commit'")[0][1]) - int(before) == 1


# --- letters and sizes ------------------------------------------------------------------------------------------------


def test_keys_that_a_collation_takes_for_one(mariadb: MariadbServer) -> None:
    """C28: case, trailing blanks, accents and sharp s make different keys, namespaces and scopes."""
    with Guard.open(mariadb.url()) as guard:
        for text in ("Ab", "aB", "Ab ", "straße", "strasse", "café", "cafe\u0301", "ﬁ", "fi"):
            assert isinstance(guard.begin("s", text), Operation), text
            assert isinstance(guard.begin(text, "k"), Operation), text
            assert isinstance(guard.begin("s", "k", namespace=text), Operation), text


def test_names_as_long_as_they_may_be(mariadb: MariadbServer) -> None:
    """T11, C27: namespaces, scopes and keys of the greatest length are kept whole, in the widest letters."""
    namespace, scope, key = "🔑" * 255, "🔒" * 1_024, "🗝" * 255
    with Guard.open(mariadb.url()) as guard:
        owned = guard.begin(scope, key, namespace=namespace)
        assert isinstance(owned, Operation)
        owned.complete(1)
        (view,) = guard.within(namespace).operations(scope_prefix=scope)
        assert isinstance(view, RecordView)
        assert (view.record.namespace, view.record.scope, view.record.key) == (namespace, scope, key)
        assert not isinstance(guard.begin(scope, key, namespace=namespace), Operation)


def test_what_does_not_fit_is_refused_whole(store: MysqlStore) -> None:
    """T11: a value that is longer than its column is refused before anything is written, and never cut."""
    record = new_record(scope="x" * 5_000)
    with pytest.raises(StoreUnavailable, match="nothing was done"):
        store.apply([Insert(record)])
    assert get(store, record).record is None


def body(size: int) -> Result:
    return Result(ResultKind.VALUE, b"\xff" * size)


@contextmanager
def small_packets(server: MariadbServer) -> Iterator[None]:
    """A server that takes no packet of more than a mebibyte."""
    server.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        yield
    finally:
        server.execute("SET GLOBAL max_allowed_packet = 16777216")


async def test_answers_that_fit_no_packet(mariadb: MariadbServer) -> None:
    """T11, T12: an answer that is too large is kept without its body, and completes; nobody else notices, in threads
    and tasks that share trips with it.
    """
    with small_packets(mariadb):
        guard = AsyncGuard.open(mariadb.url(), policy=Policy(store_timeout=20))
        owned = await asyncio.gather(*(guard.begin("s", str(number)) for number in range(24)))
        sizes = [700_000 if number % 5 == 0 else 10 for number in range(24)]
        async with asyncio.TaskGroup() as group:
            for operation, size in zip(owned, sizes, strict=True):
                assert isinstance(operation, AsyncOperation)
                group.create_task(operation.complete(b"x" * size))
        for number, size in enumerate(sizes):
            view = await guard.lookup("s", str(number))
            assert view is not None
            assert view.result is not None
            assert (view.state, view.result.body is None) == (State.COMPLETED, size > 10)
        await guard.close()


def test_a_record_that_fits_no_packet(mariadb: MariadbServer, where: Place) -> None:
    """T11: a record larger than the server takes is refused with what to do, before anything is sent."""
    with small_packets(mariadb):
        store = MysqlStore(where)
        small, large = new_record("small"), new_record("large", result=body(600_000))
        insert(store, small)
        for ops in ([Insert(large)], [Insert(new_record("b")), Insert(large)], [Swap(large, small.etag)]):
            with pytest.raises(RecordTooLarge, match="max_allowed_packet"):
                store.apply(ops)
        assert get(store, new_record("b")).record is None
        fits = [new_record(str(number), result=body(200_000), created_ms=1) for number in range(9)]
        assert all(reply.won for reply in store.apply([Insert(record) for record in fits]))
        assert [stored(store, record) for record in fits] == fits
        store.close()


@pytest.mark.parametrize("size", [10_000, 15_000, 30_000, 32_000, 65_000, 66_000, 200_000])
def test_large_records_in_a_batch(store: MysqlStore, size: int) -> None:
    """T11, T23: records of any size are stored whole, alone and many at once, whatever a server makes of literals."""
    small = [new_record(str(number), created_ms=1) for number in range(3)]
    large = [new_record(f"large-{number}", created_ms=1, result=body(size + number)) for number in range(3)]
    assert all(reply.won for reply in store.apply([Insert(record) for record in (*small, *large)]))
    assert [stored(store, record) for record in (*small, *large)] == [*small, *large]
    grown = [followed(record, result=body(size + 7)) for record in (*small, *large)]
    swaps = [Swap(new, old.etag) for new, old in zip(grown, (*small, *large), strict=True)]
    assert all(reply.won for reply in store.apply(swaps))
    assert [stored(store, record) for record in grown] == grown
    others = [record._replace(namespace="loaded") for record in grown]
    assert all(store.load([RecordView(record, 1, 1, 0) for record in others]))
    assert [stored(store, record) for record in others] == others


# --- damaged records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    ["X''", "X'01'", "CONCAT(record, X'00')", "INSERT(record, 40, 1, X'00')", "INSERT(record, 1, 1, X'02')", "X'7B7D'"],
)
def test_damage_of_every_kind(mariadb: MariadbServer, where: Place, store: MysqlStore, damage: str) -> None:
    """P6: whatever happened to a record's bytes, it is given as unreadable, and neither overwritten nor purged."""
    record = finished(retention_ms=1)
    put_long_ago(store, record)
    mariadb.execute(f"UPDATE {where.names.records} SET record = {damage}")
    ops = (Get(record.namespace, record.id), Insert(new_record()), Swap(new_record(), record.etag))
    for op in ops:
        reply = one(store, op)
        assert not reply.won
        assert isinstance(reply.record, Unreadable)
    both: list[Op] = [Swap(new_record(), record.etag), Swap(new_record("b"), b"x")]
    assert not store.apply(both)[0].won
    assert store.purge(10) == 0


def test_a_record_that_is_sound_is_known_to_be(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """The server's check of a record's bytes agrees with ours, whatever is in it."""
    for number in range(40):
        record = full_record(str(number))._replace(result=body(number * 37))
        insert(store, record)
        assert swap(store, followed(record), record.etag).won, encode_record(record)


# --- locked rows and keys ---------------------------------------------------------------------------------------------


def test_a_replay_neither_locks_nor_waits(
    mariadb: MariadbServer, where: Place, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that somebody has locked is read as ever: inserts on it, gets and scans meet no lock, alone or together."""
    monkeypatch.delattr(stores, "answer_while_locked")
    record = new_record()
    insert(store, record)
    with open_transaction(mariadb, locking(where, record)):
        for op in (Insert(new_record()), Get(record.namespace, record.id)):
            assert one(store, op).record == stored(store, record)
        batch = store.apply([Insert(new_record()), Get("", "nothing"), Insert(new_record("b"))])
        assert [reply.won for reply in batch] == [False, False, True]
        assert len(store.scan(Query()).items) == 2


def test_a_replay_writes_nothing(mariadb: MariadbServer, store: MysqlStore) -> None:
    """A replay makes no row dirty and writes no log."""
    insert(store, new_record())

    def written() -> object:
        return fetched(mariadb, "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'")

    quiet = False
    for _ in range(20):  # the server itself may write a little now and then
        before = written()
        for _ in range(10):
            assert not one(store, Insert(new_record())).won
            assert not store.apply([Insert(new_record()), Get("", "nothing")])[0].won
        quiet = quiet or written() == before
    assert quiet


def test_a_key_that_an_open_transaction_holds(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """T22: a claim on a key that somebody's open transaction has just made is told so; then it is free."""
    get(store, new_record())
    with open_transaction(mariadb, inserted_by_a_rival(where, new_record())):
        reply = one(store, Insert(new_record()))
        assert not reply.won
        assert isinstance(reply.record, Record)
        assert reply.record.state is State.IN_PROGRESS
    assert one(store, Insert(new_record())).won


class TestLocks(LockCases):
    """Rows of MariaDB."""

    @pytest.fixture(params=STATEMENTS)
    def locks(self, mariadb: MariadbServer, request: pytest.FixtureRequest) -> Locks:
        def held(url: str, operation: str) -> AbstractContextManager[None]:
            table = place_of(parsed(url)).names.records
            return open_transaction(mariadb, f"SELECT 1 FROM {table} WHERE id = '{operation}' FOR UPDATE")

        url = partial(mariadb.url, returning=request.param)
        return Locks(url, lambda url: MysqlStore(place_of(parsed(url))), held)


def test_a_batch_that_was_begun_is_undone(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """T22: what a batch had written when it met a locked key is undone, and no later call commits it."""
    first, second = new_record(), new_record("b")
    insert(store, first)
    ops: list[Op] = [Swap(followed(first), first.etag), Insert(second)]
    with open_transaction(mariadb, inserted_by_a_rival(where, second)):
        with pytest.raises(KeyLocked):
            store.apply(ops)
        assert store._held.has(Insert(second)), "it has been waited for"
        assert not store._held.has(Swap(second, second.etag)), "owners wait"
        assert insert(store, new_record("c")).won
        assert stored(store, first).etag == first.etag
        assert fetched(mariadb, f"SELECT etag FROM {where.names.records} WHERE id = 'idem_a'") == ((first.etag,),)
    assert [reply.won for reply in store.apply(ops)] == [True, True]


def test_many_duplicates_of_a_key_that_is_held(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """T22: of many claims of a held key the first waits for it, the others hold up no batch; then it is free."""
    get(store, new_record())
    with open_transaction(mariadb, inserted_by_a_rival(where, new_record())):
        assert not one(store, Insert(new_record())).won
        for number in range(1 if where.returning == "no" else 20):  # MySQL can't wait for less than a second
            held, other = store.apply([Insert(new_record()), Insert(new_record(f"{number}"))])
            assert (held.won, other.won) == (False, True)
            assert isinstance(held.record, Record)
            assert held.record.state is State.IN_PROGRESS
    assert one(store, Insert(new_record())).won


def test_a_locked_key_in_a_later_packet(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """T22: where a batch takes several packets, what the first one wrote is not told to have failed."""
    get(store, new_record())
    records = [new_record(name, error="x" * ROW_BYTES_MAX) for name in "ab"]
    first, last = sorted(records, key=lambda record: digest_of((record.namespace, record.id)))
    with open_transaction(mariadb, inserted_by_a_rival(where, last)):
        won, lost = store.apply([Insert(first), Insert(last)])
        assert (won.won, lost.won) == (True, False)
        assert isinstance(lost.record, Record)
        assert lost.record.state is State.IN_PROGRESS
    assert one(store, Insert(last)).won


def test_a_locked_row_in_a_later_packet(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """T22, P13: an owner whose row is locked is told so, and takes the winner of an earlier packet not along."""
    records = [new_record(name, error="x" * ROW_BYTES_MAX) for name in "ab"]
    first, last = sorted(records, key=lambda record: digest_of((record.namespace, record.id)))
    assert insert(store, last).won
    owned = stored(store, last)
    lock = f"SELECT 1 FROM {where.names.records} WHERE id = '{last.id}' FOR UPDATE"
    with open_transaction(mariadb, lock), pytest.raises(PartlyDone) as raised:
        store.apply([Insert(first), Swap(followed(owned), owned.etag)])
    won, refusal = raised.value.outcomes
    assert isinstance(won, Reply)
    assert won.won
    assert isinstance(refusal, KeyLocked)
    assert stored(store, last).etag == last.etag


def test_purge_goes_round_what_is_locked(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """C42: expired records that somebody is changing stay, the others leave."""
    records = [finished(key, retention_ms=1) for key in "abc"]
    for record in records:
        put_long_ago(store, record)
    with open_transaction(mariadb, locking(where, records[0])):
        assert store.purge(10) == 2
        assert isinstance(get(store, records[0]).record, Record)
    assert store.purge(10) == 1


def test_expired_records_do_not_pile_up(mariadb: MariadbServer, where: Place, store: MysqlStore) -> None:
    """C42, C43: after some hundred new records, the expired ones leave by themselves."""
    for number in range(3):
        put_long_ago(store, finished(f"old-{number}", retention_ms=1))
    for start in range(0, INSERTS_PER_SWEEP, 64):
        store.apply([Insert(new_record(str(number))) for number in range(start, start + 64)])
    ((count,),) = fetched(mariadb, f"SELECT COUNT(*) FROM {where.names.records}")
    assert count == INSERTS_PER_SWEEP


# --- rivals that commit in between ------------------------------------------------------------------------------------


def test_an_insert_that_a_rival_overtakes(
    mariadb: MariadbServer, where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: a rival's insert commits while ours waits for the key: ours loses and is shown the rival's record."""
    monkeypatch.setattr(stores, "LOCK_S", 20)
    store, theirs = MysqlStore(where), new_record(attempt=7)
    get(store, theirs)
    with mariadb.connect(autocommit=False) as rival, rival.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute(inserted_by_a_rival(where, theirs))
        call = pool.submit(store.apply, [Insert(new_record()), Insert(new_record("b"))])
        rival.commit()
        lost, won = call.result()
    assert (lost.won, won.won) == (False, True)
    assert isinstance(lost.record, Record)
    assert lost.record.etag == theirs.etag
    store.close()


class Scripted:
    """A session whose answers are given; it counts what it is asked."""

    compound = True
    packet_max = 10**9

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.asked = 0

    def ask(self, text: str) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def remaining(self) -> float:
        return 20


def driven(session: Scripted, ops: Sequence[Op], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a store makes of a session's answers."""
    store = MysqlStore(place_of(parsed("mysql://host/database")))

    @contextmanager
    def turn() -> Iterator[Scripted]:
        yield session

    monkeypatch.setattr(store._pool, "turn", turn)
    return store.apply(ops)


def test_only_what_was_raced_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An insert that neither won nor found anything is asked for again; what its batch won stays won."""
    a, b = new_record("a"), new_record("b")
    row_of = {record: (5, digest_of((record.namespace, record.id)), record.etag, 5, 5, None) for record in (a, b)}
    session = Scripted([row_of[a], (5, *[None] * 5)], [row_of[b]])
    assert [reply.won for reply in driven(session, [Insert(a), Insert(b)], monkeypatch)] == [True, True]
    assert session.asked == 2


@pytest.mark.parametrize("answer", [[(5, *[None] * 5)], Undone("deadlock")])
def test_asking_again_is_bounded(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    """However often rivals come in between, and deadlocks too, it ends in an error."""
    session = Scripted(answer)
    with pytest.raises(StoreUnavailable):
        driven(session, [Insert(new_record("a")), Insert(new_record("b"))], monkeypatch)
    assert session.asked == TRIES_MAX


def test_a_deadlock_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """T22: what the server undid because of others is sent again as it was: 1213 reaches no caller."""
    record = new_record()
    row = (5, digest_of((record.namespace, record.id)), record.etag, 5, 5, None)
    session = Scripted(Undone("deadlock"), [row])
    assert driven(session, [Insert(record)], monkeypatch)[0].won


def test_batches_of_the_same_keys_in_any_order(where: Place) -> None:
    """T22: many batches on the same keys, in different orders, from several stores: no error, one winner each."""
    several = [MysqlStore(where) for _ in range(4)]
    records = [new_record(f"{number:02}") for number in range(40)]
    insert(several[0], new_record("first"))

    def claim(number: int) -> int:
        mine = [Insert(record._replace(etag=bytes([number]) * 16)) for record in records]
        return sum(reply.won for reply in patiently(several[number], mine[:: 1 if number % 2 else -1]))

    def take(number: int) -> int:
        held = [stored(several[number], record) for record in records]
        mine = [Swap(followed(each), each.etag) for each in held]
        return sum(reply.won for reply in patiently(several[number], mine[:: 1 if number % 2 else -1]))

    assert sum(at_once(4, claim)) == len(records)
    assert sum(at_once(4, take)) >= len(records)
    for each in several:
        each.close()


def patiently(store: MysqlStore, ops: list[Op] | list[Insert] | list[Swap]) -> Any:
    """Carry out a batch, again while others hold its keys for longer than a call waits."""
    while True:
        try:
            return store.apply(ops)
        except KeyLocked:
            continue


# --- policies ---------------------------------------------------------------------------------------------------------


def test_a_record_may_outlive_every_clock(mariadb: MariadbServer) -> None:
    """Retention and leases of any length are stored, and nothing overflows."""
    with Guard.open(mariadb.url()) as guard:
        owned = guard.begin("s", "k", policy=Policy(retention=3 * 10**9, lease=3 * 10**9))
        assert isinstance(owned, Operation)
        owned.complete(1)
        assert guard.purge() == 0
        assert isinstance(guard.begin("s", "k"), Replay)
