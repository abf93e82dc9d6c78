"""A MySQL or MariaDB store's records on a transaction of the caller's, at whatever isolation level that has.

Why it is safe, and leaves the transaction usable: what is there already is read on a connection of the store's own,
which sees all commits and none of the transaction's own writes; so the usual duplicate never touches the transaction.
Each write waits for others for `LOCK_S` at most, and the transaction's own time-out is set back afterwards. A write
looks at the newest version of a row at every level, and locks it; who won is read back. Such locks stay until the
transaction's end.

A statement that is refused is undone alone, and a savepoint before it shows whether that is so: what rolls back the
whole transaction (a deadlock, a change since the snapshot, or a lock time-out where the server is set so) takes the
savepoint with it, and is given to the caller as it is. Nothing is tried twice here.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER, SERVER_STATUS
from pymysql.cursors import Cursor

from notwice.model import Get, Insert, Op, Record, Reply, Swap
from notwice.stores.mysql.dialect import LOCK, LOOK, PUT, UPDATE
from notwice.stores.mysql.place import code_of
from notwice.stores.mysql.rows import Asked, Found, asked_of, named, replies_to, text_of
from notwice.stores.mysql.session import Rows
from notwice.stores.mysql.store import MysqlStore
from notwice.stores.port import Fate, Joined
from notwice.stores.shared import KeyLocked, name_of, refuse_repeated_names
from notwice.stores.tables import answer_while_locked
from notwice.stores.transactions import (
    Handed,
    another_place,
    driver_connection,
    handed_over,
    no_connection,
    not_open,
    transaction_over,
)

LOCK_S: Final = 1
"""How long a statement waits for rows and keys that others hold; MySQL can't wait for less."""

_MARK: Final = "SELECT GET_LOCK('{mark}', 0), CONNECTION_ID(), HEX(DATABASE())"
_SEE: Final = "SELECT IS_USED_LOCK('{mark}'), HEX(DATABASE()), @@session.innodb_lock_wait_timeout"
_UNMARK: Final = "SELECT RELEASE_LOCK('{mark}')"
"""Whether two connections are to one server: what one has locked by a name that nobody else has, the other sees."""


def join(store: MysqlStore, transaction: object) -> Joined:
    """The records of `store` on the transaction that is open on a connection of PyMySQL's."""
    connection = driver_connection(transaction)
    if not isinstance(connection, Connection):
        raise no_connection(transaction, "a connection of PyMySQL")
    if connection.get_autocommit() and not _in_transaction(connection):
        raise not_open("it is in autocommit mode; call its begin() before")
    mark = f"notwice {os.urandom(16).hex()}"
    with store._pool.turn() as session:
        ((_, number, database),) = session.ask(_MARK.format(mark=mark))
        try:
            ((holder, given, wait_s),) = _asked(connection, _SEE.format(mark=mark))
        finally:
            session.ask(_UNMARK.format(mark=mark))
    if holder != number:
        raise another_place("one to another server")
    if _hexadecimal(given) != _hexadecimal(database):
        raise another_place("one to another database of this server")
    quoted = bytes.fromhex(_hexadecimal(database)).decode().replace("`", "``")
    table = f"`{quoted}`.{store._place.names.records}"
    return JoinedConnection(store, connection, table, wait_s=int(wait_s), handed=handed_over(transaction))


class JoinedConnection:
    """A `Joined` on a connection of PyMySQL's, whose own statements wait `wait_s` for locks."""

    def __init__(
        self,
        store: MysqlStore,
        connection: Connection[Any],
        table: str,
        *,
        wait_s: int,
        handed: Handed,
    ) -> None:
        self._store = store
        self._table = table
        self._connection = connection
        self._wait_s = wait_s
        self._handed = handed
        self._begun = False

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Raises what the driver raises; that operation then did nothing."""
        refuse_repeated_names(ops)
        if self._begun and not _in_transaction(self._connection):
            raise transaction_over()
        return [self._carried_out(op) for op in ops]

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return bool(self._connection.open) and _in_transaction(self._connection)

    def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        if not self._handed.goes_on() or not self.is_open():
            return self._handed.fate_once_over()
        try:
            found = self._look(Get(record.namespace, record.id)).record
        except pymysql.MySQLError:  # the connection is gone
            return Fate.UNDONE
        return Fate.OPEN if isinstance(found, Record) and found.etag == record.etag else Fate.PARTED

    def _carried_out(self, op: Op) -> Reply:
        if not isinstance(op, Swap):
            seen = self._seen(op)
            if isinstance(op, Get) or seen.record is not None:
                return seen
        (asked,) = asked_of([op])
        self._ask("SAVEPOINT notwice")
        try:
            with self._short_waits():
                reply = self._written(asked)
        except pymysql.MySQLError as error:
            if not self._is_undone_alone():
                raise
            answer = self._explained(op, code_of(error))
            if answer is None:
                raise
            return answer
        self._ask("RELEASE SAVEPOINT notwice")
        self._begun = True
        return reply

    def _written(self, asked: Asked) -> Reply:
        """Write it if its condition holds. What is found else is this transaction's own, or the newest commit."""
        values = named(asked.given)
        if isinstance(asked.op, Swap):
            rows = self._ask(LOCK.format(table=self._table, **values))
            if rows and Found(*rows[0]).etag != asked.op.expected_etag:
                return replies_to([asked], rows)[asked.place]
            self._ask(UPDATE.format(table=self._table, **values))
        else:
            self._ask(PUT.format(table=self._table, **values))
        look = LOOK.format(table=self._table, names=values["name"], etags=values["etag"])
        return replies_to([asked], self._ask(look))[asked.place]

    def _explained(self, op: Insert | Swap, code: int) -> Reply | None:
        """What answers an operation that was refused; ``None``: nothing but the server's error."""
        if code not in {ER.DUP_ENTRY, ER.LOCK_WAIT_TIMEOUT}:
            return None
        seen = self._seen(op)
        if code == ER.DUP_ENTRY:  # a rival's, committed since it was looked for, or this transaction's own
            return seen if seen.record is not None else self._look(op)
        try:
            return answer_while_locked(op, seen)
        except KeyLocked:
            return None

    def _is_undone_alone(self) -> bool:
        """Whether the transaction and what it did before are still there, without the statement that was refused."""
        with suppress(pymysql.MySQLError):
            self._ask("ROLLBACK TO SAVEPOINT notwice")
            self._ask("RELEASE SAVEPOINT notwice")
            return True
        return False

    def _seen(self, op: Op) -> Reply:
        """What is committed."""
        (seen,) = self._store.apply((Get(*name_of(op)),))
        return seen

    def _look(self, op: Op) -> Reply:
        """What this transaction sees."""
        look = asked_of([Get(*name_of(op))])
        return replies_to(look, self._ask(text_of(look, self._table, compound=False)))[0]

    @contextmanager
    def _short_waits(self) -> Generator[None]:
        self._ask(f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}")
        try:
            yield
        finally:
            with suppress(pymysql.MySQLError):  # the connection is gone, and the first error says more
                self._ask(f"SET SESSION innodb_lock_wait_timeout = {self._wait_s}")

    def _ask(self, text: str) -> Rows:
        return _asked(self._connection, text)


def _asked(connection: Connection[Any], text: str) -> Rows:
    """Send a statement by a cursor that knows nothing of how the caller likes rows."""
    with connection.cursor(Cursor) as cursor:
        cursor.execute(text)
        return cursor.fetchall()


def _in_transaction(connection: Connection[Any]) -> bool:
    status: int = connection.server_status  # type: ignore[attr-defined]  # the annotations forgot it
    return bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


def _hexadecimal(column: str | bytes | None) -> str:
    return column.decode() if isinstance(column, bytes) else column or ""
