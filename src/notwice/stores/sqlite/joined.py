"""A SQLite store's records on a transaction of the caller's, in the same file.

Why it is safe: SQLite has one lock for writing, which the caller's transaction takes with its first write, or with
ours, and keeps until its end. A statement of ours fails as a whole or not at all, and a refusal is no error, so that
nothing has to be rolled back. A transaction that has read before, and whose reading is old by now, can't write any
longer: SQLite says so (``SQLITE_BUSY_SNAPSHOT``), and that is given to the caller as it is, who begins it again.

What others have committed is read on the store's own connection, which waits for no lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from notwice.codec import encode_record
from notwice.model import Get, Insert, Op, Record, Reply, Swap, Unreadable
from notwice.stores.port import Fate
from notwice.stores.shared import name_of, refuse_repeated_names
from notwice.stores.sqlite import schema
from notwice.stores.sqlite.connection import is_busy
from notwice.stores.sqlite.rows import Row, Write, look
from notwice.stores.sqlite.store import Found, SqliteStore, _identity_of, _reply
from notwice.stores.transactions import (
    Handed,
    another_place,
    driver_connection,
    handed_over,
    is_explained,
    no_connection,
    not_open,
    transaction_over,
)


def join(store: SqliteStore, transaction: object) -> JoinedFile:
    """The records of `store` on the transaction that is open on a connection to its file."""
    connection = driver_connection(transaction)
    if not isinstance(connection, sqlite3.Connection):
        raise no_connection(transaction, "a sqlite3.Connection")
    begins_itself = connection.isolation_level is not None and getattr(connection, "autocommit", False) is not True
    if not connection.in_transaction and not begins_itself:
        raise not_open("it is in autocommit mode; execute BEGIN IMMEDIATE before")
    _check_file(store, connection)
    return JoinedFile(store, connection, handed_over(transaction))


class JoinedFile:
    """A `Joined` in the store's file."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection, handed: Handed) -> None:
        self._store = store
        self._connection = connection
        self._handed = handed
        self._begun = connection.in_transaction

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Raises what SQLite raises; that operation then did nothing."""
        refuse_repeated_names(ops)
        return [self._carried_out(op) for op in ops]

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:  # the connection is closed
            return False

    def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        if not self._handed.goes_on() or not self.is_open():
            return self._handed.fate_once_over()
        try:
            with _as_made(self._connection) as cursor:
                row = look(cursor, (record.namespace, record.id))
        except sqlite3.Error:  # closed since, or of another thread by now
            return Fate.UNDONE
        return Fate.OPEN if row is not None and row.etag == record.etag else Fate.PARTED

    def _carried_out(self, op: Op) -> Reply:
        if not isinstance(op, Swap):
            seen = self._seen(op)
            if isinstance(op, Get) or seen.record is not None:
                return seen
        self._begin()
        moment = self._store._turn(lambda _: self._store._clock.read())
        values = Write(op, encode_record(op.record)).columns(moment)
        try:
            found = self._written(op, values)
        except sqlite3.OperationalError as error:
            seen = self._seen(op)
            if not is_busy(error) or not is_explained(op, seen):
                raise
            return seen
        return _reply(op, found, moment)

    def _seen(self, op: Op) -> Reply:
        """What is committed."""
        (seen,) = self._store.apply((Get(*name_of(op)),))
        return seen

    def _begin(self) -> None:
        """Make sure of the transaction; where the driver would begin one with the next write, begin it."""
        if not self._connection.in_transaction:
            if self._begun:
                raise transaction_over()
            self._connection.execute(schema.BEGIN)
        self._begun = True

    def _written(self, op: Insert | Swap, values: Sequence[object]) -> Found:
        """Write it if its condition holds: ``True``. Else the row that is there, or ``None`` for none.

        A row that is to be replaced is looked at first, for the caller's connection has no function to do so in SQL;
        the statement that follows finds it as it was, or fails.
        """
        name = name_of(op)
        with _as_made(self._connection) as cursor:
            if isinstance(op, Insert):
                return cursor.execute(schema.INSERT, values).rowcount == 1 or look(cursor, name)
            row = look(cursor, name)
            if not _is_whole(row, op):
                return row
            return cursor.execute(schema.REPLACE_WHOLE, (*values, op.expected_etag)).rowcount == 1 or look(cursor, name)


def _is_whole(row: Row | None, op: Swap) -> bool:
    """Whether it is the expected record, and undamaged."""
    return row is not None and row.etag == op.expected_etag and not isinstance(row.decoded(name_of(op)), Unreadable)


@contextmanager
def _as_made(connection: sqlite3.Connection) -> Generator[sqlite3.Cursor]:
    """A cursor that gives rows and text as SQLite's module does, whatever the caller has set."""
    factory = connection.text_factory
    connection.text_factory = str
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        yield cursor
    finally:
        cursor.close()
        connection.text_factory = factory


def _check_file(store: SqliteStore, connection: sqlite3.Connection) -> None:
    with _as_made(connection) as cursor:
        files = {str(name): str(file or "") for _, name, file in cursor.execute("PRAGMA database_list").fetchall()}
    mine = _identity_of(str(store._path))
    found = [name for name, file in files.items() if file and _identity_of(file) == mine]
    if found[:1] != ["main"]:
        how = f"attached as {found[0]!r}, which commits by itself" if found else "not open there"
        raise another_place(f"one to {Path(files['main']).name or 'memory'!r}; the store's file is {how}")
