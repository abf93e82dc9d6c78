"""The blocking face, on psycopg."""

from __future__ import annotations

import select
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from psycopg import Connection
from psycopg.errors import Diagnostic, error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.findings import Finding, heed
from notwice.stores.migrations import Migration, pending
from notwice.stores.pool import Pool
from notwice.stores.port import Joined
from notwice.stores.postgres.flows import Rows, applying, asking, checking, looking, migrating, opening
from notwice.stores.postgres.migrations import steps_of
from notwice.stores.postgres.place import (
    Opened,
    Place,
    in_doubt,
    is_harmless,
    session_settings,
    too_slow,
    translated,
)
from notwice.stores.postgres.rows import Statement, load_of, scan_of
from notwice.stores.postgres.wire import decoded_rows, encoded
from notwice.stores.shared import refuse_repeated_names
from notwice.stores.sweeping import SWEPT_MAX, Sweeping
from notwice.stores.tables import HeldKeys, page_of

_T = TypeVar("_T")


MIGRATION_S: Final = 600
"""How long a migration may take, in seconds: it may have to wait for others, and to make an index of much."""

_FINE = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_BINARY = (Format.BINARY,) * 16


class Session:
    """One connection, with what it was warned of."""

    def __init__(self, place: Place, deadline: float) -> None:
        self.place = place
        self.warning: str | None = None
        self.deadline = deadline
        milliseconds = place.timeout_ms
        try:
            self.connection: Connection[Any] = Connection.connect(
                place.address,
                autocommit=True,
                connect_timeout=max(2, round(place.timeout)),  # libpq takes no less than two seconds
                tcp_user_timeout=milliseconds,
                target_session_attrs="read-write",
                options=_flags(place),
            )
        except Exception as error:
            raise translated(error, place, connected=False) from error
        self.connection.add_notice_handler(self._warned)
        self._prepared: dict[str, bytes] = {}
        self._poll = select.poll()
        self._poll.register(self.connection.fileno(), select.POLLIN)

    def within(self, deadline: float) -> None:
        """Have the next statements answered until `deadline`."""
        self.deadline = deadline

    def run(self, flow: Generator[Statement, Rows, _T]) -> _T:
        """Carry a conversation out."""
        try:
            statement = next(flow)
            while True:
                try:
                    rows = self._rows(statement)
                except Exception as error:  # noqa: BLE001 - the flow knows what it can deal with
                    statement = flow.throw(self._told(error))
                else:
                    statement = flow.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    def is_dead(self) -> bool:
        """Whether the server has ended a connection that nobody uses: then something is there to be read."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End it, whatever it is doing."""
        with suppress(Exception):
            self.connection.close()

    def _rows(self, statement: Statement) -> Rows:
        values = tuple(map(encoded, statement.parameters))
        formats = _BINARY[: len(values)]
        if statement.often:
            name = self._prepared.get(statement.text) or self._prepare(statement.text)
            self.connection.pgconn.send_query_prepared(name, values, formats, Format.BINARY)
        else:
            command = statement.text.encode()
            self.connection.pgconn.send_query_params(command, values, None, formats, Format.BINARY)
        result = self._result()
        if self.warning is not None:
            raise in_doubt(self.warning, self.place)
        columns = range(result.nfields)
        found = [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
        return decoded_rows([result.ftype(column) for column in columns], found)

    def _prepare(self, text: str) -> bytes:
        name = f"notwice_{len(self._prepared)}".encode()
        self.connection.pgconn.send_prepare(name, text.encode())
        self._result()
        self._prepared[text] = name
        return name

    def _result(self) -> PGresult:
        remaining = max(self.deadline - time.monotonic(), 0)
        result: PGresult
        (result,) = self.connection.wait(execute(self.connection.pgconn), timeout=remaining)
        if result.status not in _FINE:
            raise error_from_result(result)
        return result

    def _told(self, error: Exception) -> Exception:
        if time.monotonic() >= self.deadline and getattr(error, "sqlstate", None) is None:
            error = too_slow(self.place)
        return translated(error, self.place)

    def _warned(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warning = notice.message_primary


def _flags(place: Place) -> str:
    """The session's settings as libpq takes them."""
    return " ".join(
        f"-c {name}={value}".replace(" ", "\\ ").replace("-c\\ ", "-c ")
        for name, value in session_settings(place).items()
    )


class PostgresStore:
    """A `Store` in tables of a PostgreSQL database, for threads.

    Each call is one statement that commits by itself. Connections are opened when they are needed, in each process its
    own, and go back to the pool after each call; one on which anything went wrong is closed. The server's clock judges
    everything.
    """

    def __init__(self, place: Place, opened: Opened | None = None) -> None:
        self._place = place
        self._opened = opened or Opened()
        self._sweeping = Sweeping()
        self._held = HeldKeys()
        self._pool = Pool(
            self._connected, is_harmless=is_harmless, size=place.pool, timeout=place.timeout, shown=place.shown
        )

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one statement and one commit."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
            if not ops:
                return []
        replies = self._carry_out(applying(ops, self._place.dialect, self._held))
        if self._sweeping.is_due(ops, replies):
            with suppress(StoreUnavailable):  # what was asked for is done
                self.purge(SWEPT_MAX)
        return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return page_of(self._ask(scan_of(query, self._place.dialect)), query)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records in one commit. Goes round those that it can't decode, or that are busy."""
        ((count,),) = self._ask(Statement(self._place.dialect.purge, (max(limit, 0),)))
        return int(count)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, in one commit."""
        if not views:
            return []
        stored = {tuple(row) for row in self._ask(load_of(views, self._place.dialect))}
        return [(view.record.id, view.record.namespace) in stored for view in views]

    def join(self, transaction: object) -> Joined:
        """The same records on a transaction that is open on a ``psycopg.Connection`` to this database."""
        from notwice.stores.postgres.joined import join  # noqa: PLC0415 - it uses this module

        return join(self, transaction)

    def findings(self) -> list[Finding]:
        """The server's settings that break promises."""
        return self._carry_out(checking())

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        self._pool.close()

    # --- connections --------------------------------------------------------------------------------------------------

    def _ask(self, statement: Statement) -> Rows:
        return self._carry_out(asking(statement))

    def _carry_out(self, flow: Generator[Statement, Rows, _T]) -> _T:
        """Have a conversation on a connection of its own."""
        with self._pool.turn() as session:
            return session.run(flow)

    def _connected(self, deadline: float) -> Session:
        place = self._place
        session = Session(place, deadline)
        try:
            makes, first = place.tables == "make", not self._opened.yet
            flow = opening(place.names, first=first, makes=makes, timeout_ms=place.timeout_ms)
            heed(session.run(flow), safe=place.safe, shown=place.shown)
        except BaseException:
            session.close()
            raise
        self._opened.yet = True
        return session


def migrate(place: Place, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables lack, all in one transaction; or only say which they are.

    Raises `StoreUnavailable` or, for tables that only a newer release may use, `UnsupportedRecord`.
    """
    slow = place._replace(timeout=MIGRATION_S)
    session = Session(slow, time.monotonic() + MIGRATION_S)
    try:
        if dry_run:
            return pending(steps_of(place.names), session.run(looking(place.names)))
        return session.run(migrating(place.names, slow.timeout_ms))
    finally:
        session.close()
