"""The caller's side: its connections, its transactions and its rows, by driver."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import django.db.utils
import psycopg
import pymysql
import sqlalchemy
import sqlalchemy.orm

from tests.engines.mariadb import MariadbServer
from tests.engines.postgres import PostgresServer

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
CREATE = "CREATE TABLE IF NOT EXISTS business (name VARCHAR(100))"


@dataclass(frozen=True)
class Ledger:
    """Where the caller's rows are.

    `transaction` opens a connection and a transaction on it, and gives what is handed over as ``transaction=``. It
    commits in the end, or rolls back by an exception. `execute` runs a statement on what it gave. `nested` is a block
    within it whose exception rolls back what was done there, as the driver has it, or else by SQL.
    """

    url: str
    transaction: Callable[[], AbstractContextManager[Any]]
    execute: Callable[[Any, str], list[tuple[Any, ...]]]
    locks_rows: bool = True  # a rival is told at once; else the whole database is locked
    stale: tuple[type[Exception], ...] = ()  # how a transaction is told that it began too early
    committed: Callable[[str], list[tuple[Any, ...]]] = field(default=lambda _: [])
    blocks: Callable[[Any], AbstractContextManager[Any]] | None = None
    tells_apart: bool = False  # the rollback of all from one to a savepoint, once the transaction is over
    patience: tuple[str, str, object] = ("", "", None)  # how it is told to wait for locks, and asked; and the answer

    def insert(self, transaction: Any, name: str) -> None:
        self.execute(transaction, f"INSERT INTO business (name) VALUES ('{name}')")

    @contextmanager
    def nested(self, transaction: Any) -> Iterator[None]:
        if self.blocks is not None:
            with self.blocks(transaction):
                yield
            return
        self.execute(transaction, "SAVEPOINT callers")
        try:
            yield
        except BaseException:
            self.execute(transaction, "ROLLBACK TO SAVEPOINT callers")
            raise
        self.execute(transaction, "RELEASE SAVEPOINT callers")

    def count(self, name: str) -> int:
        """How many rows of that name are committed."""
        ((count,),) = self.committed(f"SELECT count(*) FROM business WHERE name = '{name}'")
        return int(count)


def by_cursor(connection: Any, text: str) -> list[tuple[Any, ...]]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(text)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


# --- SQLite -----------------------------------------------------------------------------------------------------------


def sqlite_file(folder: Path) -> Path:
    """A database that is the application's: it was there before the store's tables."""
    path = folder / "app.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(CREATE)
    return path


def url_of(path: Path) -> str:
    return f"sqlite:///{path}?other_tables=allow&timeout=0.2"


def in_sqlite(path: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    def committed(text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return by_cursor(connection, text)

    return committed


def sqlite_ledger(folder: Path, **options: Any) -> Ledger:
    path = sqlite_file(folder)

    @contextmanager
    def transaction() -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(path, timeout=0.2, **options)) as connection:
            if connection.isolation_level is None:
                connection.execute("BEGIN")
            with connection:
                yield connection

    stale = (sqlite3.OperationalError,)
    return Ledger(url_of(path), transaction, by_cursor, locks_rows=False, stale=stale, committed=in_sqlite(path))


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def address_of(server: PostgresServer, driver: str = "") -> str:
    return f"postgresql{driver}://notwice@127.0.0.1:{server.port}/postgres"


def psycopg_ledger(server: PostgresServer, level: str, *, implicit: bool = False, **options: Any) -> Ledger:
    """`implicit`: as the driver begins transactions by itself, else in a block on a connection in autocommit."""
    address = address_of(server)

    def committed(text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(address, autocommit=True) as connection:
            return by_cursor(connection, text)

    @contextmanager
    def transaction() -> Iterator[Any]:
        with psycopg.connect(address, autocommit=not implicit, **options) as connection:
            connection.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
            if implicit:
                yield connection
            else:
                with connection.transaction():
                    yield connection

    committed(CREATE)
    return Ledger(
        server.url(table="records"),
        transaction,
        by_cursor,
        stale=(psycopg.errors.SerializationFailure,),
        committed=committed,
        blocks=psycopg.Connection.transaction,
        tells_apart=True,
        patience=("SET LOCAL lock_timeout = '7s'", "SELECT current_setting('lock_timeout')", "7s"),
    )


# --- MariaDB ----------------------------------------------------------------------------------------------------------


def pymysql_ledger(server: MariadbServer, level: str) -> Ledger:
    def committed(text: str) -> list[tuple[Any, ...]]:
        with server.connect() as connection:
            return by_cursor(connection, text)

    @contextmanager
    def transaction() -> Iterator[Any]:
        with server.connect(autocommit=False) as connection:
            by_cursor(connection, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    committed(CREATE)
    return Ledger(
        server.url(table="records"),
        transaction,
        by_cursor,
        stale=(pymysql.OperationalError,),
        committed=committed,
        patience=("SET SESSION innodb_lock_wait_timeout = 7", "SELECT @@session.innodb_lock_wait_timeout", 7),
    )


# --- SQLAlchemy and Django --------------------------------------------------------------------------------------------


def by_sqlalchemy(given: Any, text: str) -> list[tuple[Any, ...]]:
    result = given.execute(sqlalchemy.text(text))
    return [tuple(row) for row in result] if result.returns_rows else []


def sqlalchemy_ledger(base: Ledger, address: str, *, session: bool, **options: Any) -> Ledger:
    engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool, **options)

    @contextmanager
    def opened() -> Iterator[Any]:
        if session:
            with sqlalchemy.orm.Session(engine) as given, given.begin():
                yield given
        else:
            with engine.begin() as connection:
                yield connection

    return replace(
        base,
        transaction=opened,
        execute=by_sqlalchemy,
        stale=(sqlalchemy.exc.DBAPIError, *base.stale),
        blocks=lambda given: given.begin_nested(),
        tells_apart=True,
    )


def django_ledger(base: Ledger, names: Sequence[str]) -> Ledger:
    """Each of the names is a connection for one transaction at a time."""
    from django.db import connections, transaction  # noqa: PLC0415 - Django is set up first

    @contextmanager
    def opened() -> Iterator[Any]:
        name = next(name for name in names if not connections[name].in_atomic_block)
        try:
            with transaction.atomic(using=name):
                yield connections[name]
        finally:
            connections[name].close()

    return replace(
        base,
        transaction=opened,
        execute=by_cursor,
        stale=(django.db.utils.DatabaseError, *base.stale),
        blocks=lambda connection: transaction.atomic(using=connection.alias),
        tells_apart=True,
    )
