"""A SQLite store on the caller's transactions: the driver's, SQLAlchemy's."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from notwice import AsyncGuard, Guard, Operation, Policy, Replay, Unresolved
from notwice.errors import NotCompleted, OwnershipLost, StoreUnavailable
from notwice.operation import AsyncOperation
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.stores.transactions.ledgers import (
    Ledger,
    django_ledger,
    sqlalchemy_ledger,
    sqlite_file,
    sqlite_ledger,
    url_of,
)
from tests.stores.transactions.moves import begun, refused_there
from tests.stores.transactions.scenarios import Joining


class TestImplicit(Joining):
    """A transaction that the driver begins by itself."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return sqlite_ledger(tmp_path)


class TestExplicit(Joining):
    """A transaction that was begun by BEGIN, on a connection that begins none by itself."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return sqlite_ledger(tmp_path, isolation_level=None)


class TestSqlalchemyConnection(Joining):
    """A connection of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return sqlalchemy_ledger(sqlite_ledger(tmp_path), f"sqlite:///{tmp_path / 'app.db'}?timeout=0.2", session=False)


class TestSqlalchemySession(Joining):
    """A session of SQLAlchemy's."""

    @pytest.fixture
    def ledger(self, tmp_path: Path) -> Ledger:
        return sqlalchemy_ledger(sqlite_ledger(tmp_path), f"sqlite:///{tmp_path / 'app.db'}?timeout=0.2", session=True)


class TestDjango(Joining):
    """A connection of Django's."""

    @pytest.fixture
    def ledger(self, tmp_path: Path, django_databases: Callable[..., tuple[str, ...]]) -> Ledger:
        names = django_databases(
            ENGINE="django.db.backends.sqlite3", NAME=str(tmp_path / "app.db"), OPTIONS={"timeout": 0.2}
        )
        return django_ledger(sqlite_ledger(tmp_path), names)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sqlite_file(tmp_path)


def names_in(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name FROM business").fetchall()


def test_a_transaction_that_began_too_early(path: Path) -> None:
    """C15: what has read before another wrote can't write any more. It is told so, and does all of it again."""
    with Guard.open(url_of(path)) as guard, closing(sqlite3.connect(path, isolation_level=None)) as connection:
        operation = begun(guard, "k", policy=Policy(atomic=True))
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM business").fetchall()
        begun(guard, "another")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            operation.complete("done", transaction=connection)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO business VALUES ('k')")
        operation.complete("done", transaction=connection)
        connection.execute("COMMIT")
        assert isinstance(guard.begin("s", "k"), Replay)
        assert names_in(path) == [("k",)]


def test_connections_that_would_commit_apart(path: Path, tmp_path: Path) -> None:
    """One in autocommit, to another file or to memory, or with the store's file attached, is refused by a sentence."""
    other, memory = sqlite3.connect(tmp_path / "other.db"), sqlite3.connect(":memory:")
    bare, attached = sqlite3.connect(path, isolation_level=None), sqlite3.connect(tmp_path / "other.db")
    attached.execute("ATTACH ? AS records", (str(path),))
    with Guard.open(url_of(path)) as guard:
        operation = begun(guard, "k", policy=Policy(atomic=True))
        for connection, sentence in (
            (bare, "BEGIN IMMEDIATE"),
            (other, "one to 'other.db'; the store's file is not open there"),
            (memory, "one to 'memory'"),
            (attached, "attached as 'records'"),
        ):
            refused_there(guard, operation, connection, sentence)
        for given in (path, "BEGIN", 1, object()):
            with pytest.raises(TypeError, match=r"takes a sqlite3\.Connection"):
                operation.complete("done", transaction=given)
        operation.heartbeat()


def test_whatever_the_caller_has_set(path: Path) -> None:
    """Row and text factories of the caller's connection are the caller's, before and after."""
    with Guard.open(url_of(path)) as guard, closing(sqlite3.connect(path)) as connection:
        connection.row_factory = lambda _, row: {"only": row[0]}
        connection.text_factory = bytes
        operation = begun(guard, "k", transaction=connection)
        assert not isinstance(guard.begin("s", "k", transaction=connection), Operation)
        operation.complete("done")
        connection.execute("INSERT INTO business VALUES ('k')")
        assert connection.execute("SELECT name FROM business").fetchall() == [{"only": b"k"}]
        connection.commit()
        assert isinstance(guard.begin("s", "k"), Replay)


@pytest.mark.parametrize("kind", ["new", "of another thread"])
def test_a_connection_with_another_transaction(path: Path, kind: str) -> None:
    """C09, P10: a completion that the open transaction does not show is not there; it is told, and held."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, Guard.open(url_of(path)) as guard:
        operation = begun(guard, "k", policy=Policy(atomic=True))
        connection.execute("BEGIN")
        operation.complete("done", transaction=connection)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        with ThreadPoolExecutor(1) as pool:
            leave = partial(operation.__exit__, None, None, None)
            with pytest.raises(NotCompleted):
                leave() if kind == "new" else pool.submit(leave).result()
        assert isinstance(guard.begin("s", "k"), Unresolved)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_store_that_is_away_after_the_transaction(path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P9: what was committed is not taken back for it; what was not is made visible behind the caller."""
    clock = VirtualClock()
    with (
        closing(sqlite3.connect(path)) as connection,
        Guard(SqliteStore(path, other_tables="allow"), clock=clock) as guard,
    ):
        with monkeypatch.context() as patch, begun(guard, "k", policy=Policy(atomic=True)) as operation:
            operation.complete("done", transaction=connection)
            getattr(connection, end)()
            patch.setattr(guard._runtime.store, "apply", lambda _: 1 / 0)
        clock.advance(1)
        view = guard.lookup("s", "k")
        assert view is not None
        assert str(view.state) == ("completed" if end == "commit" else "accepted")


def test_a_damaged_record_is_not_replaced(path: Path) -> None:
    """What the store would not overwrite, it does not overwrite on the caller's transaction either."""
    with Guard.open(url_of(path)) as guard, closing(sqlite3.connect(path)) as connection:
        operation = begun(guard, "k", policy=Policy(atomic=True))
        connection.execute("UPDATE notwice_record SET record = x'00'")
        connection.commit()
        with pytest.raises(OwnershipLost):
            operation.complete("done", transaction=connection)
        connection.rollback()
        assert connection.execute("SELECT record FROM notwice_record").fetchall() == [(b"\0",)]


def test_after_the_transaction_is_over(path: Path) -> None:
    """An operation that was begun on a transaction can't be ended after that was committed."""
    with Guard.open(url_of(path)) as guard, closing(sqlite3.connect(path)) as connection:
        operation = begun(guard, "k", transaction=connection)
        connection.commit()
        with pytest.raises(ValueError, match="is over"):
            operation.complete("done")


def test_tables_of_others_are_not_joined_unasked(path: Path, tmp_path: Path) -> None:
    """A database of something else is refused, unless the URL says that the records are to be kept beside it."""
    with pytest.raises(StoreUnavailable, match="other_tables=allow"):
        Guard.open(f"sqlite:///{path}")
    Guard.open(url_of(path)).close()
    Guard.open(f"sqlite:///{path}").close()


async def test_an_event_loop(path: Path) -> None:
    """An async guard takes a connection of the blocking driver, for there is no other."""
    async with AsyncGuard.open(url_of(path)) as guard:
        outcome = await guard.begin("s", "k", policy=Policy(atomic=True))
        assert isinstance(outcome, AsyncOperation)
        async with outcome:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("INSERT INTO business VALUES ('k')")
                await outcome.complete("done", transaction=connection)
        with closing(sqlite3.connect(path)) as connection, connection:
            inner = await guard.begin("s", "l", transaction=connection)
            assert isinstance(inner, AsyncOperation)
            async with inner:
                await inner.complete("too")
        with closing(sqlite3.connect(path)) as connection, connection:
            undone = await guard.begin("s", "m", transaction=connection)
            assert isinstance(undone, AsyncOperation)
            await undone.complete("never")
            connection.rollback()
            connection.execute("INSERT INTO business VALUES ('l')")
            with pytest.raises(NotCompleted, match="went back to a savepoint"):
                async with undone:
                    pass
        assert isinstance(await guard.begin("s", "k"), Replay)
        assert isinstance(await guard.begin("s", "l"), Replay)
    assert names_in(path) == [("k",), ("l",)]


def test_stores_that_nothing_can_join(tmp_path: Path) -> None:
    """A store in no database of the caller's says so, before it claims anything."""
    with Guard.open("memory://") as guard, closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        with pytest.raises(TypeError, match="no database"):
            guard.begin("s", "k", policy=Policy(atomic=True))
        assert guard.lookup("s", "k") is None
        with pytest.raises(TypeError, match="no database"):
            guard.begin("s", "l", transaction=connection)
