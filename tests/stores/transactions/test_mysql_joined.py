"""A MariaDB store on the caller's transactions: PyMySQL's, SQLAlchemy's, Django's."""

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest
import sqlalchemy
import sqlalchemy.orm
from pymysql.cursors import DictCursor

from notwice import AsyncGuard, Guard, Operation, Replay, Unresolved
from notwice.errors import NotCompleted
from notwice.operation import AsyncOperation
from notwice.stores import open_store
from notwice.testing import VirtualClock
from tests.engines.mariadb import ADDRESS, DATABASE, MariadbServer, mariadb_server
from tests.stores.transactions.ledgers import LEVELS, Ledger, django_ledger, pymysql_ledger, sqlalchemy_ledger
from tests.stores.transactions.levels import AtEachLevel
from tests.stores.transactions.moves import ATOMIC, Crash, begun, pay, refused_there
from tests.stores.transactions.scenarios import Joining


class TestPyMySQL(Joining):
    """Connections of PyMySQL's, at each isolation level."""

    @pytest.fixture
    def ledger(self, mariadb: MariadbServer, level: str) -> Ledger:
        return pymysql_ledger(mariadb, level)


class TestLevels(AtEachLevel):
    """The same with what others do meanwhile."""

    @pytest.fixture
    def ledger(self, mariadb: MariadbServer, level: str) -> Ledger:
        return pymysql_ledger(mariadb, level)


def sqlalchemy_over(server: MariadbServer, level: str, *, session: bool) -> Ledger:
    address = f"mysql+pymysql://notwice@127.0.0.1:{server.port}/{DATABASE}"
    login = {"password": ADDRESS["password"].encode()}
    base = pymysql_ledger(server, level)
    return sqlalchemy_ledger(base, address, session=session, isolation_level=level, connect_args=login)


class TestSqlalchemyConnection(Joining):
    """A connection of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, mariadb: MariadbServer) -> Ledger:
        return sqlalchemy_over(mariadb, LEVELS[0], session=False)


class TestSqlalchemySession(Joining):
    """A session of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, mariadb: MariadbServer) -> Ledger:
        return sqlalchemy_over(mariadb, LEVELS[1], session=True)


class TestDjango(Joining):
    """A connection of Django's, where PyMySQL stands in for its own driver."""

    @pytest.fixture
    def ledger(self, mariadb: MariadbServer, django_databases: Callable[..., tuple[str, ...]]) -> Ledger:
        pymysql.install_as_MySQLdb()
        place = {"HOST": ADDRESS["host"], "PORT": mariadb.port, "USER": ADDRESS["user"], "NAME": DATABASE}
        options = {"isolation_level": "repeatable read", "password": ADDRESS["password"].encode()}
        names = django_databases(ENGINE="django.db.backends.mysql", OPTIONS=options, **place)
        return django_ledger(pymysql_ledger(mariadb, LEVELS[1]), names)


# --- what is MariaDB's and MySQL's alone ------------------------------------------------------------------------------


@pytest.fixture
def ledger(mariadb: MariadbServer, level: str) -> Ledger:
    return pymysql_ledger(mariadb, level)


def test_a_heartbeat_after_the_transaction_began(ledger: Ledger, guard: Guard, key: str) -> None:
    """C14: what the transaction does not see for its snapshot is no obstacle: a write finds the newest version."""
    with begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
        ledger.execute(transaction, "SELECT count(*) FROM business")
        operation.heartbeat()
        ledger.insert(transaction, key)
        operation.complete("done", transaction=transaction)
    assert ledger.count(key) == 1
    assert isinstance(guard.begin("s", key), Replay)


def test_a_deadlock_is_the_callers(ledger: Ledger, guard: Guard, key: str) -> None:
    """1213 rolls back the whole transaction, so it comes through as itself; complete then works in the next one."""
    ledger.committed(f"INSERT INTO business (name) VALUES ('{key}1')")
    with begun(guard, key, policy=ATOMIC) as operation:
        with ledger.transaction() as transaction:
            error = pymysql.OperationalError(1213, "Deadlock found")
            ledger.insert(transaction, key)
            ask = transaction.query

            def deadlocked(text: Any, *rest: Any) -> Any:
                if "FOR UPDATE" in text:
                    transaction.rollback()
                    raise error
                return ask(text, *rest)

            transaction.query = deadlocked
            with pytest.raises(pymysql.OperationalError, match="Deadlock"):
                operation.complete("done", transaction=transaction)
            transaction.query = ask
        assert ledger.count(key) == 0
        pay(ledger, operation)
    assert ledger.count(key) == 1


@pytest.mark.parametrize("kind", ["lock time-out", "changed since the snapshot"])
def test_what_rolls_back_everything_is_no_answer(kind: str) -> None:
    """A refusal that took the caller's earlier rows with it comes through as itself, for to go on would lose them."""
    settings = {
        "lock time-out": ["--innodb-rollback-on-timeout=ON"],
        "changed since the snapshot": ["--innodb-snapshot-isolation=ON"],
    }
    with mariadb_server(settings[kind]) as server:
        ledger = pymysql_ledger(server, "REPEATABLE READ")
        with Guard(open_store(ledger.url), clock=VirtualClock()) as guard:
            operation = begun(guard, "k", policy=ATOMIC)
            with ledger.transaction() as rival, ledger.transaction() as transaction:
                ledger.execute(transaction, "SELECT count(*) FROM business")
                ledger.insert(transaction, "earlier")
                if kind == "lock time-out":
                    begun(guard, "held", transaction=rival)
                    with pytest.raises(pymysql.OperationalError):
                        guard.begin("s", "held", transaction=transaction)
                else:
                    operation.heartbeat()
                    with pytest.raises(pymysql.MySQLError):
                        operation.complete("done", transaction=transaction)
            assert ledger.count("earlier") == 0
            pay(ledger, operation)


def test_connections_of_any_kind(mariadb: MariadbServer) -> None:
    """Cursors of the caller's own kind, bytes for text, a changed database: the records go where they belong."""
    ledger = pymysql_ledger(mariadb, LEVELS[1])
    options: dict[str, Any] = {"cursorclass": DictCursor, "use_unicode": False, "charset": "latin1"}
    with Guard.open(ledger.url) as guard, closing(mariadb.connect(autocommit=False, **options)) as connection:
        operation = begun(guard, "kind", transaction=connection)
        with connection.cursor() as cursor:
            cursor.execute("USE mysql")
        operation.complete("done")
        connection.commit()
        assert isinstance(guard.begin("s", "kind"), Replay)
        with pytest.raises(ValueError, match="is over"):
            operation.complete("done")


def test_connections_that_would_commit_apart(mariadb: MariadbServer) -> None:
    """One in autocommit, or to another server or database, is refused by a sentence."""
    ledger = pymysql_ledger(mariadb, LEVELS[1])
    with mariadb_server() as other, Guard.open(ledger.url) as guard:
        operation = begun(guard, "apart", policy=ATOMIC)
        for connection, sentence in (
            (mariadb.connect(), "autocommit"),
            (other.connect(autocommit=False), "another server"),
            (mariadb.connect(autocommit=False, database="mysql"), "another database"),
            (mariadb.connect(autocommit=False, database=None), "another database"),
        ):
            refused_there(guard, operation, connection, sentence)
        with pytest.raises(TypeError, match="a connection of PyMySQL"):
            operation.complete("done", transaction=mariadb.port)
        with closing(mariadb.connect()) as connection:
            connection.begin()
            operation.complete("done", transaction=connection)
            connection.commit()
        assert isinstance(guard.begin("s", "apart"), Replay)


async def test_an_event_loop(mariadb: MariadbServer) -> None:
    """An async guard takes a connection of the blocking driver, for there is no other."""
    ledger = pymysql_ledger(mariadb, LEVELS[1])
    async with AsyncGuard.open(ledger.url) as guard:
        outcome = await guard.begin("s", "loop", policy=ATOMIC)
        assert isinstance(outcome, AsyncOperation)
        async with outcome:
            with ledger.transaction() as transaction:
                await outcome.complete("done", transaction=transaction)
        assert isinstance(await guard.begin("s", "loop"), Replay)


@pytest.mark.parametrize("given", ["connection", "session", "raw"])
def test_whose_connection_it_is(mariadb: MariadbServer, given: str) -> None:
    """Once its transaction is over nothing is asked on a connection of a pool, for it may be somebody else's by now."""
    base = pymysql_ledger(mariadb, LEVELS[0])
    engine = sqlalchemy.create_engine("mysql+pymysql://", creator=lambda: mariadb.connect(autocommit=False))
    opened: dict[str, Callable[[], Any]] = {
        "connection": engine.connect,
        "session": lambda: sqlalchemy.orm.Session(engine),
        "raw": engine.raw_connection,
    }
    with Guard(open_store(base.url), clock=VirtualClock()) as guard:
        operation = begun(guard, f"whose {given}", policy=ATOMIC)
        with closing(opened[given]()) as transaction:
            operation.complete("done", transaction=transaction)
        with closing(engine.raw_connection()) as others, pytest.MonkeyPatch.context() as patch:
            base.execute(others, "INSERT INTO business (name) VALUES ('others')")
            patch.setattr(others.driver_connection, "query", lambda *_: pytest.fail("it was asked"))
            with suppress(Crash), operation:
                assert operation._joined.store.is_open()  # type: ignore[union-attr]  # it was made there
                raise Crash
        assert isinstance(guard.begin("s", f"whose {given}", policy=ATOMIC), Operation)
    engine.dispose()


@pytest.mark.parametrize("kind", ["new", "gone"])
def test_a_connection_with_another_transaction(mariadb: MariadbServer, kind: str) -> None:
    """C09, P10: a completion that the open transaction does not show is not there; it is told, and held."""
    base = pymysql_ledger(mariadb, LEVELS[0])
    with Guard(open_store(base.url), clock=VirtualClock()) as guard, closing(mariadb.connect()) as connection:
        operation = begun(guard, f"another {kind}", policy=ATOMIC)
        connection.begin()
        operation.complete("done", transaction=connection)
        connection.rollback()
        connection.begin()
        with pytest.MonkeyPatch.context() as patch:
            if kind == "gone":
                patch.setattr(connection, "query", refused)
            with pytest.raises(NotCompleted) as caught, operation:
                pass
        assert ("went back to a savepoint" in str(caught.value)) is (kind == "new")
        assert isinstance(guard.begin("s", f"another {kind}", policy=ATOMIC), Unresolved)


def refused(*_: object) -> None:
    raise pymysql.OperationalError(2013, "the connection is gone")


def test_a_server_without_returning(mariadb: MariadbServer) -> None:
    """Spoken to as to a MySQL, it is the same."""
    ledger = pymysql_ledger(mariadb, LEVELS[1])
    with Guard.open(f"{ledger.url}&returning=no") as guard:
        with ledger.transaction() as transaction, begun(guard, "no", transaction=transaction) as operation:
            assert not isinstance(guard.begin("s", "no", transaction=transaction), Operation)
            operation.complete("done")
        with begun(guard, "no2", policy=ATOMIC) as operation:
            pay(ledger, operation)
        assert isinstance(guard.begin("s", "no"), Replay)
