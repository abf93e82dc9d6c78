"""What is special about PostgreSQL: locks, rivals that commit in between, settings, standbys, round trips."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Guard,
    InProgress,
    Operation,
    Policy,
    Replay,
    StoreUnavailable,
    rerun,
)
from notwice.codec import encode_record
from notwice.model import Get, Insert, Op, Record, Reply, State, Swap
from notwice.stores.postgres import place as settings
from notwice.stores.postgres.async_store import AsyncPostgresStore
from notwice.stores.postgres.flows import ASKED_MAX, Undone, applying
from notwice.stores.postgres.place import Place, place_of
from notwice.stores.postgres.rows import statement_of
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.shared import KeyLocked, PartlyDone
from notwice.stores.tables import HeldKeys
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import at_once, finished, followed, insert, new_record, one, swap
from tests.engines.locks import LockCases, Locks
from tests.engines.postgres import PostgresServer
from tests.engines.private import wait_until

WAIT_S = 20


def place(server: PostgresServer, **options: object) -> Place:
    return place_of(parsed(server.url(**options)))


@pytest.fixture
def where(system_postgres: PostgresServer) -> Place:
    return place(system_postgres)


@pytest.fixture
def store(where: Place) -> Iterator[PostgresStore]:
    store = PostgresStore(where)
    yield store
    store.close()


@contextmanager
def open_transaction(server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A connection whose transaction stays open until the test ends it."""
    with psycopg.connect(f"postgresql://notwice@127.0.0.1:{server.port}/postgres") as connection:
        yield connection
        connection.rollback()


def waits_for_a_lock(server: PostgresServer) -> bool:
    with server.connect() as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'notwice' AND wait_event_type = 'Lock'"
        ).fetchone() or (0,)
    return bool(count)


def written_by_a_rival(connection: psycopg.Connection, where: Place, record: Record) -> None:
    """Insert a record within the rival's transaction, as a store does."""
    statement = statement_of([Insert(record)], where.dialect)
    psycopg.RawCursor(connection).execute(statement.text, statement.parameters)


# --- rivals that commit in between ------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements wait for locks as long as the test needs."""
    monkeypatch.setattr(settings, "LOCK_MS", WAIT_S * 1000)


@pytest.mark.usefixtures("patient")
def test_an_insert_that_a_rival_overtakes(system_postgres: PostgresServer, where: Place) -> None:
    """P1: a rival's insert commits between the reading and the writing: no row comes back; asking again shows it."""
    store, record, mine = PostgresStore(where), new_record(), new_record(attempt=7)
    store.apply([Get("", "")])
    with open_transaction(system_postgres) as rival, ThreadPoolExecutor(1) as pool:
        written_by_a_rival(rival, where, record)
        call = pool.submit(store.apply, [Insert(mine), Insert(new_record("b"))])
        wait_until(lambda: waits_for_a_lock(system_postgres))
        rival.commit()
        lost, won = call.result()
    assert (lost.won, won.won) == (False, True)
    assert isinstance(lost.record, Record)
    assert lost.record.etag == record.etag
    store.close()


@pytest.mark.usefixtures("patient")
def test_a_swap_that_a_rival_overtakes(system_postgres: PostgresServer, where: Place) -> None:
    """P1, P5: a rival's swap commits while ours waits for the row: ours loses and is shown the rival's record."""
    store, record = PostgresStore(where), new_record()
    insert(store, record)
    with open_transaction(system_postgres) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(f"UPDATE {where.names.records} SET etag = 'another'")
        call = pool.submit(store.apply, [Swap(followed(record), record.etag)])
        wait_until(lambda: waits_for_a_lock(system_postgres))
        rival.commit()
        (lost,) = call.result()
    assert not lost.won
    store.close()


Row = tuple[bool, bool, int, int | None, int | None, bytes | None]
RACED: Row = (False, False, 5, None, None, None)
WON: Row = (True, False, 5, None, None, None)


LOCKED = KeyLocked("somebody holds it")


def answered(rows: list[Any], second: Op | None = None) -> tuple[list[str], list[Reply] | Exception]:
    """Drive the conversation with these answers, the last of them for ever; gives the statements, and the end."""
    dialect = place_of(parsed("postgresql://host/database")).dialect
    flow = applying([Insert(new_record("a")), second or Insert(new_record("b"))], dialect, HeldKeys())
    asked = []
    try:
        statement = next(flow)
        while True:
            asked.append("batch" if statement.text == dialect.batch else "one")
            answer = rows.pop(0) if len(rows) > 1 else rows[0]
            statement = flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer)
    except StopIteration as stop:
        return asked, list(stop.value)
    except Exception as error:  # noqa: BLE001 - what it ends in
        return asked, error


def test_only_what_was_raced_is_asked_for_again() -> None:
    """A raced operation is asked for again, by itself; what its batch won stays won."""
    asked, replies = answered([[WON, RACED], [WON]])
    assert asked == ["batch", "one"]
    assert isinstance(replies, list)
    assert [reply.won for reply in replies] == [True, True]


def test_a_lock_that_is_met_when_asking_again() -> None:
    """T22: what its batch won stays won, and no caller of it is told that nothing was done."""
    asked, replies = answered([[WON, RACED], LOCKED, LOCKED, [RACED]])
    assert asked == ["batch", "one", "one", "one"]
    assert isinstance(replies, list)
    assert [reply.won for reply in replies] == [True, False]
    owned = new_record("b", created_ms=1)
    there: Row = (False, True, 5, 1, 1, encode_record(owned))
    asked, end = answered([[WON, there], LOCKED, LOCKED, [there]], Swap(followed(owned), owned.etag))
    assert isinstance(end, PartlyDone)
    won, refusal = end.outcomes
    assert isinstance(won, Reply)
    assert won.won
    assert isinstance(refusal, KeyLocked)


def test_after_a_lock_no_key_of_the_batch_is_waited_for() -> None:
    """T22: a batch that met a lock has waited for all its keys: carried out one by one, its claims don't wait again."""
    dialect, held = place_of(parsed("postgresql://host/database")).dialect, HeldKeys()
    ops: list[Op] = [Insert(new_record("a")), Insert(new_record("b"))]
    flow = applying(ops, dialect, held)
    next(flow)
    with pytest.raises(KeyLocked):
        flow.throw(LOCKED)
    assert [next(applying([op], dialect, held)).text for op in ops] == [dialect.insert_at_once] * 2
    assert next(applying([Insert(new_record("c"))], dialect, held)).text == dialect.insert
    elsewhere = Insert(ops[0].record._replace(namespace="another")) if isinstance(ops[0], Insert) else ops[0]
    assert next(applying([elsewhere], dialect, held)).text == dialect.insert


def test_asking_again_is_bounded() -> None:
    """However often rivals come in between, and deadlocks too, it ends in an error that says to try again."""
    for answer in ([RACED, RACED], Undone("deadlock")):
        asked, end = answered([answer])
        assert len(asked) == ASKED_MAX
        assert isinstance(end, StoreUnavailable)


def test_a_deadlock_is_repeated() -> None:
    """T22: what the server rolled back because of others is sent again as it was: 40001 and 40P01 reach no caller."""
    asked, replies = answered([Undone("deadlock"), [WON, WON]])
    assert (len(asked), isinstance(replies, list)) == (2, True)


def test_batches_of_the_same_keys_in_any_order(where: Place) -> None:
    """T22: many batches on the same keys, in different orders, from several stores at once: no deadlock, no error."""
    stores = [PostgresStore(where) for _ in range(4)]
    insert(stores[0], new_record("first"))
    for round_ in range(12):
        records = [new_record(f"{round_}-{number:03}") for number in range(120)]

        def in_some_order(rival: int, records: Sequence[Record] = records) -> Sequence[Record]:
            return records if rival % 2 else records[::-1]

        def claim(rival: int) -> int:
            claims: list[Op] = [Insert(each._replace(attempt=rival)) for each in in_some_order(rival)]
            return sum(reply.won for reply in stores[rival].apply(claims))

        def take(rival: int) -> int:
            swaps: list[Op] = [Swap(followed(each), each.etag) for each in in_some_order(rival)]
            return sum(reply.won for reply in stores[rival].apply(swaps))

        assert sum(at_once(4, claim)) == len(records)
        assert sum(at_once(4, take)) == len(records)
    for each in stores:
        each.close()


# --- locked rows and keys ---------------------------------------------------------------------------------------------


def test_a_key_that_an_open_transaction_holds(system_postgres: PostgresServer) -> None:
    """T22: a begin on a key that somebody's open transaction has just made is told `InProgress`; then it is free."""
    url = system_postgres.url()
    where = place_of(parsed(url))
    with Guard.open(url) as guard:
        assert isinstance(guard.begin("refund", "first"), Operation)
        held = guard.begin("refund", "held")
        assert isinstance(held, Operation)
        with system_postgres.connect() as connection:
            connection.execute(f"DELETE FROM {where.names.records} WHERE id = %s", (held.operation,))
        with open_transaction(system_postgres) as rival:
            written_by_a_rival(rival, where, held.view.record)
            assert isinstance(guard.begin("refund", "held"), InProgress)
        assert isinstance(guard.begin("refund", "held"), Operation)


def test_many_duplicates_of_a_key_that_is_held(system_postgres: PostgresServer, where: Place) -> None:
    """T22: of many claims of a held key the first waits for it, the others hold up no batch; then it is free."""
    store, record = PostgresStore(where), new_record("held")
    assert one(store, Get("", "nothing")).record is None
    with open_transaction(system_postgres) as rival:
        written_by_a_rival(rival, where, record)
        assert not one(store, Insert(record)).won
        for number in range(20):
            held, other = store.apply([Insert(new_record("held")), Insert(new_record(f"{number}"))])
            assert (held.won, other.won) == (False, True)
            assert isinstance(held.record, Record)
            assert held.record.state is State.IN_PROGRESS
        assert store._held.has(Insert(record))
        assert not store._held.has(Get(record.namespace, record.id))
        assert not store._held.has(Insert(new_record("another")))
    assert one(store, Insert(record)).won
    store.close()


def test_a_locked_row_is_read(system_postgres: PostgresServer, where: Place, store: PostgresStore) -> None:
    """A row that somebody has locked is read as ever: inserts on it, gets and swaps by another etag don't wait."""
    record = new_record()
    insert(store, record)
    with open_transaction(system_postgres) as rival:
        rival.execute(f"SELECT FROM {where.names.records} FOR UPDATE")
        for op in (Insert(new_record()), Get(record.namespace, record.id), Swap(followed(record), b"another")):
            reply = one(store, op)
            assert isinstance(reply.record, Record)
            assert reply.record.etag == record.etag


class TestLocks(LockCases):
    """Rows of PostgreSQL."""

    @pytest.fixture
    def locks(self, system_postgres: PostgresServer) -> Locks:
        @contextmanager
        def held(url: str, operation: str) -> Iterator[None]:
            table = place_of(parsed(url)).names.records
            with open_transaction(system_postgres) as rival:
                rival.execute(f"SELECT FROM {table} WHERE id = %s FOR UPDATE", (operation,))
                yield

        return Locks(system_postgres.url, lambda url: PostgresStore(place_of(parsed(url))), held)


async def test_a_locked_key_among_many_tasks(system_postgres: PostgresServer) -> None:
    """T22: tasks that share trips with one that meets a locked key get what they came for."""
    url = system_postgres.url()
    policy = Policy(recovery=rerun, lease=0.001)
    guard = AsyncGuard.open(url)
    for number in range(12):
        assert isinstance(await guard.begin("race", str(number), policy=policy), AsyncOperation)
    with open_transaction(system_postgres) as rival:
        rival.execute(
            f"SELECT FROM {place_of(parsed(url)).names.records} WHERE record LIKE %s FOR UPDATE", (b'%"race","7"%',)
        )
        outcomes = await asyncio.gather(*(guard.begin("race", str(number), policy=policy) for number in range(12)))
    assert [type(outcome) for outcome in outcomes] == [
        InProgress if number == 7 else AsyncOperation for number in range(12)
    ]
    await guard.close()


def test_a_replay_writes_nothing(system_postgres: PostgresServer, where: Place, store: PostgresStore) -> None:
    """A replay locks no row, makes no dead one and writes no log."""
    record = new_record()
    insert(store, record)
    batch: list[Op] = [Insert(new_record()), Get("", "nothing")]

    def state() -> object:
        with system_postgres.connect() as connection:
            return connection.execute(
                f"SELECT xmin, xmax, ctid, pg_current_wal_insert_lsn() FROM {where.names.records}"
            ).fetchall()

    with system_postgres.connect() as connection:
        connection.execute("CHECKPOINT")
        connection.execute(f"SELECT FROM {where.names.records}")
    before = state()
    for _ in range(20):
        assert not one(store, Insert(new_record())).won
        assert not store.apply(batch)[0].won
        assert not swap(store, followed(record), b"another").won
    assert state() == before


# --- expiry -----------------------------------------------------------------------------------------------------------


def count(server: PostgresServer, where: Place) -> int:
    with server.connect() as connection:
        (found,) = connection.execute(f"SELECT count(*) FROM {where.names.records}").fetchone() or (0,)
    return int(found)


@pytest.mark.parametrize("face", ["threads", "tasks"])
async def test_expired_records_do_not_pile_up(system_postgres: PostgresServer, face: str) -> None:
    """C42: nobody purges, and still the table holds no more than a few hundred expired records."""
    where = place(system_postgres)
    blocking, native = PostgresStore(where), AsyncPostgresStore(where)
    for batch in range(30):
        ops = [Insert(finished(f"{batch}-{number}", retention_ms=1)) for number in range(100)]
        await (native.apply(ops) if face == "tasks" else asyncio.to_thread(blocking.apply, ops))
    assert count(system_postgres, where) <= 1_000
    await native.close()
    blocking.close()


@pytest.mark.slow
def test_many_expired_records(system_postgres: PostgresServer, where: Place, store: PostgresStore) -> None:
    """C42: a hundred thousand expired records leave in bounded steps, and claims go on meanwhile."""
    record = finished("model", retention_ms=1)
    insert(store, record)
    with system_postgres.connect() as connection:
        connection.execute(
            f"INSERT INTO {where.names.records} SELECT 'idem_' || number, namespace, etag, scope, state, released,"
            " lease_ms, created_ms, written_ms, expires_ms, checksum, record"
            f" FROM {where.names.records}, generate_series(1, 100000) AS number"
        )
    with ThreadPoolExecutor(1) as pool:
        purging = pool.submit(lambda: list(iter(lambda: store.purge(5_000), 0)))
        claimed = 0
        while not purging.done():
            assert one(store, Insert(new_record(f"new-{claimed}"))).won
            claimed += 1
    assert max(purging.result()) == 5_000
    assert claimed > len(purging.result()), "a claim does not wait for a purge"
    assert count(system_postgres, where) == claimed


def test_ten_callers_at_an_expired_record(system_postgres: PostgresServer) -> None:
    """C42: of ten who find an expired record that nobody has dropped yet, one begins anew."""
    with Guard.open(system_postgres.url()) as guard, ThreadPoolExecutor(10) as pool:
        done = guard.begin("s", "k", request=1, policy=Policy(retention=0.001))
        assert isinstance(done, Operation)
        done.complete(1)
        wait_until(lambda: (found := guard.lookup("s", "k")) is not None and found.expired)
        outcomes = list(pool.map(lambda _: guard.begin("s", "k", request=2), range(10)))
    (owner,) = (outcome for outcome in outcomes if isinstance(outcome, Operation))
    assert owner.attempt == 1
    assert sum(isinstance(outcome, InProgress) for outcome in outcomes) == 9


def test_names_that_look_alike(system_postgres: PostgresServer) -> None:
    """C28, T11, T21: keys that differ in case, blanks or accents are different, and the longest ones fit."""
    keys = [
        "Ab",
        "aB",
        "ab",
        "Ab ",
        " Ab",
        "stra\u00dfe",
        "strasse",
        "caf\u00e9",
        "cafe\u0301",
        "%",
        "'; --",
        "k" * 255,
    ]
    with Guard.open(system_postgres.url()) as guard:
        for key in keys:
            begun = guard.begin(("s" * 200, "\U0001f511" * 200), key, namespace="\u65e5" * 200, request=key)
            assert isinstance(begun, Operation)
            begun.complete(key)
        for key in keys:
            again = guard.begin(("s" * 200, "\U0001f511" * 200), key, namespace="\u65e5" * 200, request=key)
            assert isinstance(again, Replay)
            assert again.result == key
