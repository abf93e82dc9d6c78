"""A PostgreSQL store on the caller's transactions: psycopg's, SQLAlchemy's, Django's."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from notwice import Guard, Operation, Replay, Unresolved
from notwice.errors import NotCompleted, StoreUnavailable
from notwice.model import State
from notwice.stores.postgres.store import PostgresStore
from tests.engines.postgres import SYSTEM, PostgresServer, postgres_server
from tests.stores.transactions.ledgers import (
    LEVELS,
    Ledger,
    address_of,
    django_ledger,
    psycopg_ledger,
    sqlalchemy_ledger,
)
from tests.stores.transactions.levels import AtEachLevel
from tests.stores.transactions.moves import ATOMIC, Crash, begun, completed_and_undone, pay, refused_there, view_of
from tests.stores.transactions.scenarios import Joining


class TestBlocks(Joining):
    """Transaction blocks on a connection in autocommit, at each isolation level."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer, level: str) -> Ledger:
        return psycopg_ledger(postgres, level)


class TestLevels(AtEachLevel):
    """The same with what others do meanwhile."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer, level: str) -> Ledger:
        return psycopg_ledger(postgres, level)


class TestImplicit(Joining):
    """Transactions that the driver begins by itself, on a connection with rows of its own kind."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer) -> Ledger:
        return psycopg_ledger(postgres, LEVELS[0], implicit=True)


class TestSqlalchemyConnection(Joining):
    """A connection of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer) -> Ledger:
        level = LEVELS[1]
        return sqlalchemy_ledger(
            psycopg_ledger(postgres, level), address_of(postgres, "+psycopg"), session=False, isolation_level=level
        )


class TestSqlalchemySession(Joining):
    """A session of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer) -> Ledger:
        return sqlalchemy_ledger(psycopg_ledger(postgres, LEVELS[0]), address_of(postgres, "+psycopg"), session=True)


class TestDjango(Joining):
    """A connection of Django's."""

    @pytest.fixture
    def ledger(self, postgres: PostgresServer, django_databases: Callable[..., tuple[str, ...]]) -> Ledger:
        names = django_databases(
            ENGINE="django.db.backends.postgresql",
            HOST="127.0.0.1",
            PORT=postgres.port,
            USER="notwice",
            NAME="postgres",
        )
        return django_ledger(psycopg_ledger(postgres, LEVELS[0]), names)


# --- what is PostgreSQL's alone ---------------------------------------------------------------------------------------


@pytest.fixture
def ledger(postgres: PostgresServer, level: str) -> Ledger:
    return psycopg_ledger(postgres, level)


def test_a_heartbeat_after_the_transaction_began(ledger: Ledger, guard: Guard, key: str, level: str) -> None:
    """C14: above READ COMMITTED it is a serialization failure as any other; the whole transaction is done again."""
    with begun(guard, key, policy=ATOMIC) as operation:
        with suppress(psycopg.errors.SerializationFailure), ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            operation.heartbeat()
            operation.complete("done", transaction=transaction)
        if level != LEVELS[0]:
            assert ledger.count(key) == 0
            assert not operation.ended
            pay(ledger, operation)
    assert ledger.count(key) == 1
    assert isinstance(guard.begin("s", key), Replay)


def test_a_serialization_failure_at_the_commit(ledger: Ledger, guard: Guard, key: str, level: str) -> None:
    """C14: 40001 comes through as itself, wherever the server raises it; complete then works again."""
    tries = 0
    with begun(guard, key, policy=ATOMIC) as operation:
        while not isinstance(guard.begin("s", key), Replay):
            tries += 1
            with suppress(psycopg.errors.SerializationFailure), ledger.transaction() as transaction:
                ledger.execute(transaction, "SELECT count(*) FROM business")
                ledger.insert(transaction, key)
                if tries == 1:
                    with ledger.transaction() as rival:
                        ledger.execute(rival, "SELECT count(*) FROM business")
                        ledger.insert(rival, "rival")
                operation.complete("done", transaction=transaction)
    assert ledger.count(key) == 1
    assert tries == (2 if level == "SERIALIZABLE" else 1)


def test_two_at_once_on_keys_of_their_own(ledger: Ledger, guard: Guard, key: str) -> None:
    """Transactions that begin other keys at the same time do not wait for each other."""
    with ledger.transaction() as one, ledger.transaction() as two:
        first = begun(guard, f"{key}1", transaction=one)
        second = begun(guard, f"{key}2", transaction=two)
        ledger.insert(one, key)
        ledger.insert(two, key)
        first.complete("one")
        if ledger.execute(one, "SHOW transaction_isolation") != [("serializable",)]:
            second.complete("two")


# --- what the server knows of a transaction ---------------------------------------------------------------------------


@pytest.fixture
def bare(postgres: PostgresServer) -> Iterator[Any]:
    """A connection whose transactions are begun and ended by hand."""
    with closing(psycopg.connect(address_of(postgres))) as connection:
        yield connection


@pytest.mark.parametrize("level", LEVELS[:1])
@pytest.mark.parametrize("end", ["commit", "rollback", "nothing"])
def test_left_by_an_exception_after_a_savepoint(ledger: Ledger, guard: Guard, key: str, bare: Any, end: str) -> None:
    """C09, P10: the server tells the rollback of all from one to a savepoint, whatever else the connection does now."""
    with suppress(Crash), begun(guard, key, policy=ATOMIC) as operation:
        ledger.insert(bare, key)
        completed_and_undone(ledger, operation, bare)
        if end != "nothing":
            getattr(bare, end)()
        bare.execute("SELECT 'of another transaction'")
        raise Crash
    again = guard.begin("s", key, policy=ATOMIC)
    assert isinstance(again, Operation if end == "rollback" else Unresolved)


@pytest.mark.parametrize("level", LEVELS[:1])
def test_whose_connection_it_is(ledger: Ledger, guard: Guard, key: str, bare: Any) -> None:
    """Once its transaction is over nothing is asked on the caller's connection: it may be somebody else's by now."""
    operation = begun(guard, key, policy=ATOMIC)
    operation.complete("done", transaction=bare)
    bare.rollback()
    bare.execute("SELECT 'of another transaction'")
    with pytest.MonkeyPatch.context() as patch, suppress(Crash), operation:
        patch.setattr(psycopg.RawCursor, "execute", lambda *_, **__: pytest.fail("it was asked"))
        raise Crash
    assert isinstance(guard.begin("s", key, policy=ATOMIC), Operation)
    assert ledger.count(key) == 0


@pytest.mark.parametrize("level", LEVELS[:1])
@pytest.mark.parametrize("away", ["aborted", "closed", "busy", "server"])
def test_a_transaction_that_can_not_be_asked(guard: Guard, key: str, bare: Any, away: str) -> None:
    """P9: left while nothing can be said, it is not taken back: if it is committed after all, it is completed."""
    operation = begun(guard, key, policy=ATOMIC)
    operation.complete("done", transaction=bare)
    with pytest.MonkeyPatch.context() as patch, suppress(NotCompleted), operation:
        if away == "aborted":
            bare.execute("SAVEPOINT callers")
            with suppress(psycopg.Error):
                bare.execute("SELECT 1 / 0")
        elif away == "closed":
            patch.setattr(psycopg.RawCursor, "execute", lambda *_, **__: bare.close() or 1 / 0)
        elif away == "busy":
            patch.setattr(psycopg.RawCursor, "execute", lambda *_, **__: 1 / 0)
        else:
            patch.setattr(PostgresStore, "_carry_out", refused)
    if away == "aborted":
        assert operation._own.pending is None  # the transaction goes on, and nothing waits for its locks
        bare.execute("ROLLBACK TO callers")
    if away != "closed":
        bare.commit()
    guard._runtime.clock.advance(1)  # type: ignore[attr-defined]  # a VirtualClock: what was locked is sent again
    assert view_of(guard, key).state is (State.ACCEPTED if away == "closed" else State.COMPLETED)


def refused(*_: object) -> None:
    raise StoreUnavailable("away")


def test_rows_of_the_callers_own_kind(postgres: PostgresServer) -> None:
    """A connection that gives rows as dictionaries is as good as any, and gives them afterwards."""
    ledger = psycopg_ledger(postgres, LEVELS[0])
    with (
        Guard.open(ledger.url) as guard,
        psycopg.connect(address_of(postgres), row_factory=dict_row) as connection,
    ):
        begun(guard, "dictionaries", transaction=connection).complete("done")
        assert connection.execute("SELECT 1 AS one").fetchall() == [{"one": 1}]


def test_connections_that_would_commit_apart(postgres: PostgresServer) -> None:
    """One in autocommit, aborted, or to another server, database or schema is refused by a sentence."""
    ledger = psycopg_ledger(postgres, LEVELS[0])
    ledger.committed("CREATE SCHEMA IF NOT EXISTS tenant")
    with postgres.connect() as connection:
        connection.execute("DROP DATABASE IF EXISTS another")
        connection.execute("CREATE DATABASE another")
    with (
        postgres_server(SYSTEM) as other,
        Guard.open(ledger.url) as guard,
        Guard.open(postgres.url(table="records", schema="tenant")) as tenant,
    ):
        tenant.check()
        operation = begun(guard, "apart", policy=ATOMIC)
        aborted = psycopg.connect(address_of(postgres))
        with suppress(psycopg.Error):
            aborted.execute("SELECT 1 / 0")
        for connection, sentence in (
            (psycopg.connect(address_of(postgres), autocommit=True), "autocommit"),
            (aborted, "aborted"),
            (psycopg.connect(address_of(other)), "another server"),
            (psycopg.connect(address_of(postgres).replace("/postgres", "/another")), "another database"),
            (psycopg.connect(address_of(postgres), options="-c search_path=tenant"), "another schema"),
        ):
            refused_there(guard, operation, connection, sentence)
        with pytest.raises(TypeError, match="a connection of psycopg 3"):
            operation.complete("done", transaction=postgres.port)
        operation.heartbeat()


def test_a_schema_of_the_records_own(postgres: PostgresServer) -> None:
    """The records may be in a schema that the caller's connection does not look into."""
    ledger = psycopg_ledger(postgres, LEVELS[0])
    ledger.committed("CREATE SCHEMA IF NOT EXISTS apart")
    with Guard.open(postgres.url(schema="apart")) as guard, ledger.transaction() as transaction:
        begun(guard, "k", transaction=transaction).complete("done")


def test_after_the_transaction_is_over(postgres: PostgresServer) -> None:
    """An operation that was begun on a transaction can't be ended after that was committed."""
    ledger = psycopg_ledger(postgres, LEVELS[0])
    with Guard.open(ledger.url) as guard, psycopg.connect(address_of(postgres), autocommit=True) as connection:
        with connection.transaction():
            operation = begun(guard, "over", transaction=connection)
        with pytest.raises(ValueError, match="is over"):
            operation.complete("done")
