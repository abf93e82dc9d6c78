"""One file on a local disk, for any number of processes of one host."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from notwice.codec import encode_record
from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, RecordView, Reply, Swap
from notwice.stores.clocks import Moment, SystemStoreClock, TrustedClock
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.interrupts import take_lock
from notwice.stores.migrations import none_yet
from notwice.stores.port import Joined, StoreClock
from notwice.stores.shared import closed, cursor_after, name_of, refuse_repeated_names, reply_of, stamped
from notwice.stores.sqlite import schema
from notwice.stores.sqlite.connection import (
    TablesGone,
    breaks_the_connection,
    explained,
    open_file,
    patiently,
    primary_code,
)
from notwice.stores.sqlite.rows import Row, Write, look, may_all_be_present, scan_of

T = TypeVar("T")

INSERTS_PER_SWEEP = 64
SWEPT_PER_INSERT = 2
"""Every so many new records, up to twice as many expired ones leave with the same commit: they can't pile up."""

TIMEOUT_MAX = 3_600

LOGS_EVERY_S = 0.01
"""How often the log is looked for at most. Calls that come further apart than this each do so."""

_LOG_GONE = (
    "its log (the files -wal and -shm) was removed or replaced while it was open, so processes don't see each other's "
    "records any longer; stop all that use it, then start them anew"
)

Identity = tuple[int, int]
"""Which file stands under a path: device and number, or zeros for none."""

Found = Row | bool | None
"""What became of an operation: ``True`` if it wrote, else the row that is there, or ``None``."""


class SqliteStore:
    """A `Store` in a SQLite database of its own.

    A commit is on disk before it is reported. After an error of input or output the file is closed, the call is
    refused, and the next one opens it anew; a commit that failed is never repeated. What an interrupted call left open
    is rolled back before the next one. A forked child opens the file for itself. Any number of processes of one host
    may use one file; each call waits up to `timeout` for the others.

    Arguments:
        path: the file. It is made if it is not there; its folder must be.
        timeout: seconds to wait for other threads and processes. The time that the disk takes comes on top.
        clock: wall and boot clock; the host's by default.
        network: ``"allow"`` opens a file on a network file system, too. Only do so if one host alone ever opens it.
        other_tables: ``"allow"`` makes the store's tables in a database that has others, too, and sets it to WAL.
        tables: ``"expect"`` makes neither the file nor its tables, but refuses where they are not there yet.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 2.0,
        clock: StoreClock | None = None,
        network: Literal["refuse", "allow"] = "refuse",
        other_tables: Literal["refuse", "allow"] = "refuse",
        tables: Literal["make", "expect"] = "make",
    ) -> None:
        if not 0 < timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout must be more than 0 and at most {TIMEOUT_MAX} seconds; it is {timeout}")
        clock = clock or SystemStoreClock()
        if not clock.boot_id():
            raise StoreUnavailable(
                "this system names no boot, so leases of before a restart can't be told from later ones; "
                "SQLite stores need Linux or macOS"
            )
        self._path = Path(path).absolute()
        self._files = tuple(f"{self._path}{suffix}" for suffix in ("", "-wal", "-shm"))
        self._timeout = timeout
        self._kind: dict[str, Literal["refuse", "allow"]] = {"network": network, "other_tables": other_tables}
        self._clock = TrustedClock(clock)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identities: Sequence[Identity] = ()
        self._unjudged: BaseException | None = None  # how a call ended, until what it left behind is seen to
        self._closed = False
        self._suspect = False  # the log may hold what never reached the disk
        self._rested: list[bool] = []
        self._stranded = ""  # why this process may never use the file again
        self._unswept = 0
        self._swept_up_to = (0, 0)
        self._logs_due = 0.0
        self._deadline = time.monotonic() + timeout
        try:
            self._connect(create=tables == "make", first=True)
        except (sqlite3.Error, OSError) as error:
            raise explained(error, self._path, timeout) from error
        stand_still_at_forks(self)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one commit. If it only finds, nothing is locked or written."""
        alone = len(ops) == 1
        if not alone:
            refuse_repeated_names(ops)
        return self._turn(partial(self._apply, ops))

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        moment, found = self._turn(partial(self._scan, query))
        rows = [
            ((namespace, identifier), Row(*columns)) for namespace, identifier, *columns in found[: max(query.limit, 0)]
        ]
        items = tuple(row.item(name, moment) for name, row in rows)
        if len(found) <= query.limit or not rows:
            return Page(items, None)
        name, last = rows[-1]
        return Page(items, cursor_after((last.created_ms, *name)))

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records in one commit, and say how many went. Writes nothing if there are none."""
        return self._turn(partial(self._purge, limit))

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, in one commit."""
        writes = [(Write(Insert(view.record), encode_record(view.record)), view.written_ms) for view in views]
        return self._turn(partial(self._load, writes))

    def join(self, transaction: object) -> Joined:
        """The same records on a transaction that is open on a ``sqlite3.Connection`` to this file."""
        from notwice.stores.sqlite.joined import join  # noqa: PLC0415 - it uses this module

        return join(self, transaction)

    def close(self) -> None:
        """Close the file; the last process to do so leaves no log behind. Raises `StoreUnavailable` if a call hangs."""
        self._closed = True
        lock = self._lock
        taken: list[bool] = []
        try:
            if not take_lock(lock, self._timeout, taken):
                raise StoreUnavailable(
                    f"{self._path}: a call hangs, so the file stays open as long as this process lives"
                )
            self._disconnect()
        finally:
            if True in taken:
                lock.release()

    def before_fork(self) -> None:
        """Close the file: SQLite's state must not be copied, for locks and logs belong to one process."""
        if take_lock(self._lock, self._timeout, self._rested):
            self._disconnect()

    def after_fork_in_parent(self) -> None:
        """Go on; the next call opens the file anew."""
        rested, self._rested = self._rested, []
        if True in rested:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew; or never, if a call of another thread hung in the parent and its connection was copied."""
        self._lock = threading.Lock()
        self._rested = []
        if self._connection is not None:
            self._abandon("this process was forked while a call hung; start it anew")

    # --- what a call does with the connection ----------------------------------------------------------------------

    def _apply(self, ops: Sequence[Op], connection: sqlite3.Connection) -> Sequence[Reply]:
        if len(ops) == 1 and self._unswept < INSERTS_PER_SWEEP and not self._suspect:
            return [self._alone(connection, ops[0])]
        moment = self._clock.read()
        found = None if any(isinstance(op, Swap) for op in ops) else self._look(connection, ops)
        if found is None:
            moment, found = self._write(connection, ops)
        return [_reply(op, each, moment) for op, each in zip(ops, found, strict=True)]

    def _scan(self, query: Query, connection: sqlite3.Connection) -> tuple[Moment, list[tuple[Any, ...]]]:
        moment = self._clock.read()
        statement, parameters = scan_of(query, moment)
        return moment, self._patiently(lambda: connection.execute(statement, parameters).fetchall())

    def _purge(self, limit: int, connection: sqlite3.Connection) -> int:
        if not self._patiently(lambda: self._expired(connection, self._clock.read(), limit)):
            return 0
        return self._transaction(connection, lambda: self._sweep(connection, self._clock.read(), limit))

    def _load(self, writes: Sequence[tuple[Write, int]], connection: sqlite3.Connection) -> Sequence[bool]:
        def carry_out() -> Sequence[bool]:
            moment = self._clock.read()
            return [write.carry_out(connection, moment.at(written_ms)) is True for write, written_ms in writes]

        return self._transaction(connection, carry_out)

    def _alone(self, connection: sqlite3.Connection, op: Op) -> Reply:
        """Carry out one operation, whose statement is its commit."""
        if not isinstance(op, Swap):
            moment = self._clock.read()
            row = self._patiently(partial(look, connection, name_of(op)))
            if row is not None or isinstance(op, Get):
                return _reply(op, row, moment)
        write = Write(op, encode_record(op.record))
        moment, found = self._patiently(partial(self._carry_out_alone, connection, write))
        self._unswept += found is True and isinstance(op, Insert)
        return _reply(op, found, moment)

    def _carry_out_alone(self, connection: sqlite3.Connection, write: Write) -> tuple[Moment, Found]:
        moment = self._clock.read()
        return moment, write.carry_out(connection, moment)

    def _look(self, connection: sqlite3.Connection, ops: Sequence[Op]) -> Sequence[Found] | None:
        """What is there, if that settles all of `ops`: each is a get, or an insert of what is there already."""
        if len(ops) > 1 and not self._patiently(lambda: may_all_be_present(connection, ops)):
            return None
        found = self._patiently(lambda: [look(connection, name_of(op)) for op in ops])
        settled = all(row is not None or isinstance(op, Get) for op, row in zip(ops, found, strict=True))
        return found if settled else None

    def _write(self, connection: sqlite3.Connection, ops: Sequence[Op]) -> tuple[Moment, Sequence[Found]]:
        encoded = [op if isinstance(op, Get) else Write(op, encode_record(op.record)) for op in ops]
        sweeps = self._unswept >= INSERTS_PER_SWEEP
        moment, found = self._transaction(connection, lambda: self._carry_out(connection, encoded, sweeps=sweeps))
        inserted = sum(each is True and isinstance(op, Insert) for op, each in zip(ops, found, strict=True))
        self._unswept = inserted if sweeps else self._unswept + inserted
        return moment, found

    def _carry_out(
        self, connection: sqlite3.Connection, ops: Sequence[Get | Write], *, sweeps: bool
    ) -> tuple[Moment, Sequence[Found]]:
        moment = self._clock.read()
        found = [
            look(connection, name_of(op)) if isinstance(op, Get) else op.carry_out(connection, moment) for op in ops
        ]
        if sweeps:
            self._sweep(connection, moment, SWEPT_PER_INSERT * self._unswept)
        return moment, found

    def _sweep(self, connection: sqlite3.Connection, moment: Moment, limit: int) -> int:
        """Drop up to `limit` expired records, within a transaction. Goes round those that it can't decode."""
        gone = 0
        for place, etag, expires_ms in self._expired(connection, moment, limit):
            if connection.execute(schema.PURGE, (place, etag, moment.now_ms)).rowcount == 1:
                gone += 1
            else:
                self._swept_up_to = (expires_ms, place)
        return gone

    def _expired(self, connection: sqlite3.Connection, moment: Moment, limit: int) -> list[tuple[Any, ...]]:
        after_ms, after_place = self._swept_up_to
        parameters = {"now_ms": moment.now_ms, "after_ms": after_ms, "after_place": after_place, "limit": max(limit, 0)}
        return connection.execute(schema.EXPIRED, parameters).fetchall()

    def _transaction(self, connection: sqlite3.Connection, job: Callable[[], T]) -> T:
        """Hold the one lock for writing that there is, from before the first read of `job` to after the commit."""
        if self._suspect:
            self._settle(connection)
        try:
            self._patiently(lambda: connection.execute(schema.BEGIN))
            result = job()
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the first error says more
                connection.execute("ROLLBACK")
            raise
        return result

    def _settle(self, connection: sqlite3.Connection) -> None:
        """Empty the log before anything is added to it: after a failed sync, nobody knows what of it is on disk."""
        ((busy, *_),) = self._patiently(lambda: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        if busy:
            raise StoreUnavailable(f"{self._path}: its log can't be emptied after an error while others use it")
        self._suspect = False

    # --- one call at a time ------------------------------------------------------------------------------------------

    def _turn(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Do `job` while no other thread uses the connection."""
        timeout = self._timeout
        deadline = time.monotonic() + timeout
        lock = self._lock
        taken: list[bool] = []
        try:
            if not take_lock(lock, timeout, taken):
                raise StoreUnavailable(f"{self._path}: other threads kept it busy for {timeout:g} s")
            self._deadline = deadline
            return self._use(job)
        finally:
            if True in taken:
                lock.release()

    def _use(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return job(self._connected())
        except BaseException as error:
            self._unjudged = error  # if this handler is interrupted, the next call sees to it
            self._judge(error)
            if isinstance(error, sqlite3.Error):
                raise explained(error, self._path, self._timeout) from error
            raise

    def _judge(self, error: BaseException) -> None:
        """After a call that raised: give up the connection, unless it refused, or only a lock or room was missing."""
        if not isinstance(error, StoreUnavailable) and breaks_the_connection(error):
            failures = {primary_code(error), primary_code(error.__context__ or error)}
            self._suspect = self._suspect or sqlite3.SQLITE_IOERR in failures
            self._disconnect()
        self._unjudged = None

    def _patiently(self, attempt: Callable[[], T]) -> T:
        return patiently(attempt, self._deadline)

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise closed()
        if self._stranded:
            raise StoreUnavailable(f"{self._path}: {self._stranded}")
        if self._unjudged is not None:
            self._judge(self._unjudged)
        if self._connection is not None:
            self._check(self._connection)
        if self._connection is None:
            self._connect(create=False)
        assert self._connection is not None
        return self._connection

    def _check(self, connection: sqlite3.Connection) -> None:
        """Give up a connection that is not as a call has to find it. Raises `StoreUnavailable` if its log is gone."""
        if _identity_of(self._files[0]) != self._identities[0]:
            self._abandon()
        elif connection.in_transaction:  # whatever joined it would be reported before it is committed
            self._disconnect()
        elif self._deadline >= self._logs_due:
            if self._identities_of_files() != self._identities:
                raise StoreUnavailable(f"{self._path}: {_LOG_GONE}")
            self._logs_due = self._deadline + LOGS_EVERY_S

    def _connect(self, *, create: bool, first: bool = False) -> None:
        if first and not create and not self._path.exists():
            raise none_yet(str(self._path))
        try:
            connection = open_file(self._path, deadline=self._deadline, create=create, **self._kind)
        except TablesGone as error:
            raise (none_yet(f"the table of records in {self._path}") if first else error) from None
        self._swept_up_to = (0, 0)
        identities = self._identities_of_files()
        self._identities, self._connection = identities, connection

    def _disconnect(self) -> None:
        """Close the connection. What is open in it is rolled back, even if something still holds its cursors."""
        connection = self._connection
        if connection is None:
            return
        (main, _, index), (own_main, _, own_index) = self._identities_of_files(), self._identities
        if main != own_main or index != own_index:  # without its -wal alone, closing still saves what is in there
            self._abandon("" if main != own_main else _LOG_GONE)
            return
        with suppress(sqlite3.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._connection = None  # before it is closed, for then its log may be gone
        with suppress(sqlite3.Error):  # it is given up either way
            connection.close()

    def _abandon(self, stranded: str = "") -> None:
        """Let go of the connection without ever closing it, for closing could remove a log that is not its own."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._stranded = self._stranded or stranded
        self._connection = None

    def _identities_of_files(self) -> Sequence[Identity]:
        """Which files stand under the paths: they may have been put aside, and others put there."""
        return [_identity_of(file) for file in self._files]


def _identity_of(file: str) -> Identity:
    try:
        status = os.stat(file)  # noqa: PTH116 - on the hot path
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _reply(op: Op, found: Found, moment: Moment) -> Reply:
    if found is True and not isinstance(op, Get):
        record = stamped(op.record, moment.stamp_ms)
        return reply_of((True, record, moment.stamp_ms, moment.now_ms, 0))
    if isinstance(found, Row):
        return found.reply(name_of(op), moment)
    return reply_of((False, None, 0, moment.now_ms, 0))
