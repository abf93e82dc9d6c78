"""A PostgreSQL store's records on a transaction of the caller's, at whatever isolation level that has.

Why it is safe, and leaves the transaction usable: what is there already is read on a connection of the store's own,
which sees all commits and none of the transaction's own writes; so the usual duplicate never touches the transaction.
Each write has a savepoint around it, to which it is rolled back if the server refuses it, or if it changed nothing;
that also gives its locks back. It waits for others for `LOCK_MS` at most, and the transaction's own time-out is set
back afterwards.

An insert meets what no snapshot shows: the unique index waits for a rival's commit. A swap locks the row first; see
`LOCK` in the dialect. What the server refuses because others were quicker (40001), or are at it (55P03), is explained
by what has been committed meanwhile, if it is; else the server's own error is the caller's, who begins the transaction
again. Nothing is tried twice here: at the levels above READ COMMITTED it would fail again.

What became of a write that is not committed, the server knows: of each transaction, by its number, whether it was
committed as a whole; and of one that goes on, whether it still shows the record. Only a savepoint parts the two.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it ships none
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Record, Reply, Swap
from notwice.stores.port import AsyncJoined, Fate, Joined
from notwice.stores.postgres.async_store import AsyncPostgresStore
from notwice.stores.postgres.dialect import Dialect
from notwice.stores.postgres.flows import Rows
from notwice.stores.postgres.migrations import Names
from notwice.stores.postgres.place import LOCK_MS
from notwice.stores.postgres.rows import Found, Statement, found_of, statement_of
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.shared import KeyLocked, name_of, refuse_repeated_names
from notwice.stores.tables import answer_while_locked
from notwice.stores.transactions import (
    another_place,
    async_driver_connection,
    driver_connection,
    is_explained,
    no_connection,
    not_open,
    transaction_over,
)

_R = TypeVar("_R")

_LOCKED: Final = "55P03"
_QUICKER: Final = "40001"
_ABORTED: Final = "25P02"
_PSYCOPG: Final = "a connection of psycopg 3"

PLACE: Final = """
SELECT current_setting('lock_timeout'), {transaction},
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    (SELECT pg_class.oid::bigint FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1::text AND relname = $2::text),
    (SELECT oid::bigint FROM pg_class WHERE relname = $2::text AND pg_table_is_visible(oid))
"""
"""Where a connection is: what it waits for a lock, and in which transaction; the start of the server, the database and
the store's table, which no two have in common; and which table it would take for the store's by the order of its
schemas."""

STATUS: Final = "SELECT txid_status($1::bigint)"
"""What became of a transaction: ``in progress``, ``committed`` or ``aborted``. Savepoints make no difference to it."""


class Where(NamedTuple):
    """A row of `PLACE`."""

    lock_timeout: str
    transaction: int | None
    server: int
    database: int
    table: int | None
    visible: int | None


class Around(NamedTuple):
    """What is sent around a write, and the transaction that it is part of."""

    before: Statement
    undo: Statement
    keep: Statement
    transaction: int


def around(there: Where) -> Around:
    """A savepoint, and the short wait for locks instead of the caller's own. A rollback sets that back, too."""
    texts = (
        f"SAVEPOINT notwice; SET LOCAL lock_timeout = {LOCK_MS}",
        "ROLLBACK TO SAVEPOINT notwice; RELEASE SAVEPOINT notwice",
        f"RELEASE SAVEPOINT notwice; SET LOCAL lock_timeout = '{there.lock_timeout}'",
    )
    before, undo, keep = (Statement(text, often=False) for text in texts)
    assert there.transaction is not None  # it was asked for
    return Around(before, undo, keep, there.transaction)


def place_of(names: Names, *, transaction: bool) -> Statement:
    """Asks where a connection is; with `transaction` also for the number of the open one, which then has one."""
    text = PLACE.format(transaction="txid_current()" if transaction else "NULL::bigint")
    return Statement(text, (names.schema, names.table), often=False)


# --- the conversations: a statement is for the caller's transaction, all else for the store's own connection ----------


class Own(NamedTuple):
    """A statement for the store's own connection."""

    statement: Statement


Asked = Statement | Get | Own


def carrying_out(op: Op, dialect: Dialect, around_it: Around) -> Generator[Asked, Any, Reply]:
    """Carry out one operation."""
    name = Get(*name_of(op))
    if not isinstance(op, Swap):
        seen: Reply = yield name
        if isinstance(op, Get) or seen.record is not None:
            return seen
    try:
        return (yield from _within_savepoint(op, dialect, around_it))
    except Exception as error:
        state = getattr(error, "sqlstate", None)
        if state not in {_LOCKED, _QUICKER}:
            raise
        seen = yield name
        if state == _QUICKER and is_explained(op, seen):
            return seen
        if state == _LOCKED and (answer := _while_locked(op, seen)):
            return answer
        raise


def _while_locked(op: Op, seen: Reply) -> Reply | None:
    try:
        return answer_while_locked(op, seen)
    except KeyLocked:
        return None


def _within_savepoint(op: Insert | Swap, dialect: Dialect, around_it: Around) -> Generator[Asked, Any, Reply]:
    yield around_it.before
    try:
        found = yield from _writing(op, dialect)
    except Exception:
        yield around_it.undo
        raise
    yield around_it.keep if found.won else around_it.undo
    return found.reply(op)


def _writing(op: Insert | Swap, dialect: Dialect) -> Generator[Asked, Rows, Found]:
    """Write it if its condition holds. What is found else is this transaction's own, or has just been committed."""
    if isinstance(op, Swap):
        yield Statement(dialect.lock, (op.record.id, op.record.namespace))
        rows = yield statement_of((op,), dialect)
    else:
        rows = yield statement_of((op,), dialect)._replace(text=dialect.put)
        if not rows:
            rows = yield statement_of((Get(*name_of(op)),), dialect)
    return found_of(rows[0])


def judging(record: Record, dialect: Dialect, transaction: int, *, is_open: bool) -> Generator[Asked, Any, Fate]:
    """Find out what became of `record`, which was written in a transaction, and is not committed.

    The server knows that of each transaction. As long as this one is in progress, nobody else has its connection.
    """
    try:
        ((status,),) = yield Own(Statement(STATUS, (transaction,), often=False))
    except StoreUnavailable:
        return Fate.UNDONE
    if status == "in progress" and is_open:
        shown = Statement(dialect.shown, (record.id, record.namespace, record.etag), often=False)
        try:
            return Fate.OPEN if (yield shown) else Fate.PARTED
        except Exception as error:  # noqa: BLE001 - whatever a driver raises; an aborted transaction is undecided
            return Fate.OPEN if getattr(error, "sqlstate", None) == _ABORTED else Fate.UNDONE
    return {"aborted": Fate.UNDONE, "committed": Fate.PARTED}.get(status, Fate.UNDONE)


def check_place(mine: Sequence[Any], given: Sequence[Any], names: Names) -> Where:
    """Refuse a connection whose commit is not the store's; else give where it is."""
    here, there = Where(*mine), Where(*given)
    if there.server != here.server:
        raise another_place("one to another server")
    if there.database != here.database:
        raise another_place("one to another database of this server")
    if there.visible not in {None, here.table}:
        raise another_place(f"one to another schema, which has a table {names.table} of its own")
    return there


# --- callers that block -----------------------------------------------------------------------------------------------


def join(store: PostgresStore, transaction: object) -> Joined:
    """The records of `store` on the transaction that is open on a connection of psycopg's."""
    connection = driver_connection(transaction)
    if not isinstance(connection, Connection):
        raise no_connection(transaction, _PSYCOPG)
    _check_psycopg(connection)
    names = store._place.names
    (given,) = _asked(connection, place_of(names, transaction=True))
    (mine,) = store._ask(place_of(names, transaction=False))
    return JoinedConnection(store, connection, around(check_place(mine, given, names)))


class JoinedConnection:
    """A `Joined` on a connection of psycopg's."""

    def __init__(self, store: PostgresStore, connection: Connection[Any], around_it: Around) -> None:
        self._store = store
        self._dialect = store._place.dialect
        self._connection = connection
        self._around = around_it

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Raises what the driver raises; that operation then did nothing."""
        refuse_repeated_names(ops)
        _check_still_open(self._connection)
        return [self._run(carrying_out(op, self._dialect, self._around)) for op in ops]

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return _is_open(self._connection)

    def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        return self._run(judging(record, self._dialect, self._around.transaction, is_open=self.is_open()))

    def _run(self, flow: Generator[Asked, Any, _R]) -> _R:
        try:
            asked = next(flow)
            while True:
                try:
                    found = self._answer(asked)
                except Exception as error:  # noqa: BLE001 - the flow knows what it can deal with
                    asked = flow.throw(error)
                else:
                    asked = flow.send(found)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    def _answer(self, asked: Asked) -> Reply | Rows:
        if isinstance(asked, Get):
            (reply,) = self._store.apply((asked,))
            return reply
        if isinstance(asked, Own):
            return self._store._ask(asked.statement)
        return _asked(self._connection, asked)


def _asked(connection: Connection[Any], statement: Statement) -> Rows:
    """Send a statement by a cursor that knows nothing of how the caller likes rows."""
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(
            statement.text.encode(), statement.parameters or None, prepare=None if statement.often else False
        )
        return cursor.fetchall() if cursor.description else []


def _check_psycopg(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise not_open("its transaction was aborted by an earlier error; roll it back")
    if connection.autocommit and status is TransactionStatus.IDLE:
        raise not_open("it is in autocommit mode; use `with connection.transaction():`")
    if connection.info.pipeline_status is not PipelineStatus.OFF:
        raise not_open("it is in pipeline mode, where answers come late; leave that first")


def _is_open(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    over = {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}  # unknown: it is closed
    return connection.info.transaction_status not in over


def _check_still_open(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.info.transaction_status is TransactionStatus.IDLE:
        raise transaction_over()


# --- event loops ------------------------------------------------------------------------------------------------------


async def join_async(store: AsyncPostgresStore, transaction: object) -> AsyncJoined:
    """The records of `store` on the transaction that is open on a connection of asyncpg's, or of psycopg's."""
    connection = await async_driver_connection(transaction)
    given: AsyncpgConnection | PsycopgConnection
    if isinstance(connection, asyncpg.Connection):
        given = AsyncpgConnection(connection)
    elif isinstance(connection, AsyncConnection):
        given = PsycopgConnection(connection)
    else:
        raise no_connection(transaction, "a connection of asyncpg, or of psycopg 3 for event loops")
    given.check()
    names = store._place.names
    (there,) = await given.ask(place_of(names, transaction=True))
    (here,) = await store._ask(place_of(names, transaction=False))
    return AsyncJoinedConnection(store, given, around(check_place(here, there, names)))


class AsyncpgConnection:
    """A caller's connection of asyncpg's."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - it ships no annotations
        self._connection = connection

    def check(self) -> None:
        """Raise `ValueError` if no transaction is open."""
        if not self.is_open():
            raise not_open("use `async with connection.transaction():`")

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        try:
            return not self._connection.is_closed() and self._connection.is_in_transaction()
        except asyncpg.InterfaceError:  # it is its pool's again
            return False

    def check_still_open(self) -> None:
        """Raise `ValueError` if the transaction that was open is over."""
        if not self.is_open():
            raise transaction_over()

    async def ask(self, statement: Statement) -> Rows:
        """Send a statement."""
        if not statement.parameters:
            await self._connection.execute(statement.text)
            return []
        rows: Rows = await self._connection.fetch(statement.text, *statement.parameters)
        return [tuple(row) for row in rows]


class PsycopgConnection:
    """A caller's connection of psycopg's for event loops."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        """Raise `ValueError` if no transaction is open."""
        _check_psycopg(self._connection)

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return _is_open(self._connection)

    def check_still_open(self) -> None:
        """Raise `ValueError` if the transaction that was open is over."""
        _check_still_open(self._connection)

    async def ask(self, statement: Statement) -> Rows:
        """Send a statement by a cursor that knows nothing of how the caller likes rows."""
        async with AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
            await cursor.execute(
                statement.text.encode(), statement.parameters or None, prepare=None if statement.often else False
            )
            return await cursor.fetchall() if cursor.description else []


class AsyncJoinedConnection:
    """An `AsyncJoined` on a connection of either driver."""

    def __init__(
        self, store: AsyncPostgresStore, connection: AsyncpgConnection | PsycopgConnection, around_it: Around
    ) -> None:
        self._store = store
        self._dialect = store._place.dialect
        self._connection = connection
        self._around = around_it

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Raises what the driver raises; that operation then did nothing."""
        refuse_repeated_names(ops)
        self._connection.check_still_open()
        return [await self._run(carrying_out(op, self._dialect, self._around)) for op in ops]

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return self._connection.is_open()

    async def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        flow = judging(record, self._dialect, self._around.transaction, is_open=self.is_open())
        return await self._run(flow)

    async def _run(self, flow: Generator[Asked, Any, _R]) -> _R:
        try:
            asked = next(flow)
            while True:
                try:
                    found = await self._answer(asked)
                except Exception as error:  # noqa: BLE001 - the flow knows what it can deal with
                    asked = flow.throw(error)
                else:
                    asked = flow.send(found)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    async def _answer(self, asked: Asked) -> Reply | Rows:
        if isinstance(asked, Get):
            (reply,) = await self._store.apply((asked,))
            return reply
        if isinstance(asked, Own):
            return await self._store._ask(asked.statement)
        return await self._connection.ask(asked)
