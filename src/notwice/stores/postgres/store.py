"""The blocking face, on psycopg."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from psycopg import Connection, RawCursor
from psycopg.abc import PQGen
from psycopg.errors import Diagnostic
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.findings import Finding, heed
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.migrations import Migration, pending
from notwice.stores.postgres.flows import Rows, applying, asking, checking, looking, migrating, opening
from notwice.stores.postgres.migrations import steps_of
from notwice.stores.postgres.place import (
    Opened,
    Place,
    all_busy,
    in_doubt,
    is_harmless,
    session_settings,
    too_slow,
    translated,
)
from notwice.stores.postgres.rows import Statement, load_of, scan_of
from notwice.stores.shared import closed, refuse_repeated_names
from notwice.stores.tables import page_of

_R = TypeVar("_R")
_T = TypeVar("_T")


MIGRATION_S: Final = 600
"""How long a migration may take, in seconds: it may have to wait for others, and to make an index of much."""

_DUMPERS: Final[Mapping[type, Any]] = {int: Int8BinaryDumper, str: StrBinaryDumper, list: ListBinaryDumper}
"""One type for all values of a column, so that one plan fits them; binary, so that bytes go as they are."""


class _Bounded(Connection[Any]):
    """A connection on which no statement waits longer than until its deadline."""

    deadline: float = 0

    def wait(self, gen: PQGen[_R], interval: float = 0.1, timeout: float | None = None) -> _R:
        """Wait for a statement, not beyond the deadline."""
        return super().wait(gen, interval, max(self.deadline - time.monotonic(), 0) if timeout is None else timeout)


class Session:
    """One connection, with what it was warned of."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.warning: str | None = None
        milliseconds = place.timeout_ms
        try:
            self.connection = _Bounded.connect(
                place.address,
                autocommit=True,
                prepare_threshold=0,
                connect_timeout=max(2, round(place.timeout)),  # libpq takes no less than two seconds
                tcp_user_timeout=milliseconds,
                target_session_attrs="read-write",
                options=_flags(place),
            )
        except Exception as error:
            raise translated(error, place) from error
        for kind, dumper in _DUMPERS.items():
            self.connection.adapters.register_dumper(kind, dumper)
        self.connection.add_notice_handler(self._warned)
        self._cursor = RawCursor(self.connection)
        self._poll = select.poll()
        self._poll.register(self.connection.fileno(), select.POLLIN)

    def run(self, flow: Generator[Statement, Rows, _T], deadline: float) -> _T:
        """Carry a conversation out."""
        self.connection.deadline = deadline
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
        cursor = self._cursor
        text: Any = statement.text  # put together of constants and checked names, which its type does not tell
        cursor.execute(text, statement.parameters, prepare=statement.often, binary=True)
        rows = cursor.fetchall() if cursor.description else ()
        if self.warning is not None:
            raise in_doubt(self.warning, self.place)
        return rows

    def _told(self, error: Exception) -> Exception:
        if time.monotonic() >= self.connection.deadline and getattr(error, "sqlstate", None) is None:
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
        self._closed = False
        self._stranded: list[object] = []
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._idle: deque[Session] = deque()
        self._free = threading.BoundedSemaphore(self._place.pool)
        self._lock = threading.Lock()

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one statement and one commit."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
            if not ops:
                return []
        with self._turn() as (session, deadline):
            return session.run(applying(ops, self._place.dialect), deadline)

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

    def findings(self) -> list[Finding]:
        """The server's settings that break promises."""
        with self._turn() as (session, deadline):
            return session.run(checking(), deadline)

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def before_fork(self) -> None:
        """Let nobody change the pool while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew. The parent's connections are kept, never to be used: closed here, they would end there."""
        self._stranded.append(self._idle)
        self._start_anew()

    # --- connections --------------------------------------------------------------------------------------------------

    def _ask(self, statement: Statement) -> Rows:
        with self._turn() as (session, deadline):
            return session.run(asking(statement), deadline)

    @contextmanager
    def _turn(self) -> Generator[tuple[Session, float]]:
        """A connection for one call, until its deadline."""
        if self._closed:
            raise closed()
        deadline = time.monotonic() + self._place.timeout
        free = self._free
        if not free.acquire(timeout=self._place.timeout):
            raise all_busy(self._place)
        try:
            session = self._session(deadline)
            try:
                yield session, deadline
            except BaseException as error:
                if not (isinstance(error, Exception) and is_harmless(error)):
                    session.close()
                    self._drop_idle()  # what ended one connection may have ended all of them
                    raise
                self._give_back(session)
                raise
            self._give_back(session)
        finally:
            free.release()

    def _session(self, deadline: float) -> Session:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is not None and session.is_dead():
            session.close()
            self._drop_idle()
            session = None
        return session or self._connected(deadline)

    def _connected(self, deadline: float) -> Session:
        session = Session(self._place)
        try:
            place = self._place
            flow = opening(place.names, first=not self._opened.yet, timeout_ms=place.timeout_ms)
            heed(session.run(flow, deadline), safe=place.safe, shown=place.shown)
        except BaseException:
            session.close()
            raise
        self._opened.yet = True
        return session

    def _give_back(self, session: Session) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for session in idle:
            session.close()


def migrate(place: Place, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables lack, all in one transaction; or only say which they are.

    Raises `StoreUnavailable` or, for tables that only a newer release may use, `UnsupportedRecord`.
    """
    deadline = time.monotonic() + MIGRATION_S
    slow = place._replace(timeout=MIGRATION_S)
    session = Session(slow)
    try:
        if dry_run:
            return pending(steps_of(place.names), session.run(looking(place.names), deadline))
        return session.run(migrating(place.names, slow.timeout_ms), deadline)
    finally:
        session.close()
