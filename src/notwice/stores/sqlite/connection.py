"""Opening a store's file: making it, refusing what is not ours, and the settings that durability rests on.

A file is only ever opened by SQLite, but for the moment in which it is made: closing any other descriptor of it would
drop the locks that SQLite holds for this process.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from notwice.errors import StoreUnavailable, UnsupportedRecord
from notwice.stores.sqlite import schema
from notwice.stores.sqlite.mounts import network_file_system
from notwice.stores.sqlite.rows import crc32_of, is_readable

T = TypeVar("T")

SQLITE_MIN: Final = (3, 38, 0)

BUSY_MS: Final = 10
"""How long SQLite itself waits for a lock. We ask again after that: its own pauses grow to 100 ms, ours don't."""

PAUSE_MAX_S: Final = 0.001

_CHECKPOINT_PAGES = 1_000
_LOG_BYTES_MAX = 64 * 1024 * 1024

SETTINGS: Final[dict[str, tuple[object, object]]] = {
    "journal_mode": ("WAL", "wal"),
    "synchronous": ("FULL", 2),  # a commit is on disk before it is reported
    "fullfsync": ("ON", 1),  # on macOS a plain fsync leaves data in the drive's cache
    "checkpoint_fullfsync": ("ON", 1),
    "wal_autocheckpoint": (_CHECKPOINT_PAGES, _CHECKPOINT_PAGES),
    "journal_size_limit": (_LOG_BYTES_MAX, _LOG_BYTES_MAX),
    "busy_timeout": (BUSY_MS, BUSY_MS),
    "trusted_schema": ("OFF", 0),
}
"""What each connection is set to, and what it must say then."""

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_KEEPS_ITS_CONNECTION = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""Not so a protocol that fails for as long as that: a lock that could not be given back is, when the file is closed."""

_making = threading.Lock()


class TablesGone(StoreUnavailable):
    """The file has no tables, and none were to be made."""


def primary_code(error: BaseException) -> int:
    """SQLite's code without its details; 0 for an error of Python's own."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: BaseException) -> bool:
    """Whether somebody else held a lock: nothing was done, and it may be tried again."""
    return primary_code(error) in _BUSY


def breaks_the_connection(error: BaseException) -> bool:
    """Whether what this connection holds in memory may no longer be what is on disk."""
    return primary_code(error) not in _KEEPS_ITS_CONNECTION


def patiently(attempt: Callable[[], T], deadline: float) -> T:
    """Do `attempt` again while others hold the lock that it needs, until `deadline` of the monotonic clock."""
    while True:
        try:
            return attempt()
        except sqlite3.Error as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0, PAUSE_MAX_S))  # noqa: S311 - rivals must not come back all at once; no secret


def open_file(
    path: Path,
    *,
    deadline: float,
    create: bool,
    network: Literal["refuse", "allow"] = "refuse",
    other_tables: Literal["refuse", "allow"] = "refuse",
) -> sqlite3.Connection:
    """Open the store in the file at `path`, and make it if `create` and it is not there.

    Raises `UnsupportedRecord` for a file that was made by a newer release, `StoreUnavailable` for one that is no
    store of notwice's or can't be used. Such a file is left as it is. A new file belongs to its user alone (0600), and
    its name survives a power cut.
    """
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        raise StoreUnavailable(
            f"SQLite {'.'.join(map(str, SQLITE_MIN))} or newer is needed, not {sqlite3.sqlite_version}"
        )
    if network == "refuse":
        _refuse_networks(path)
    if create:
        _make(path)
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.create_function("crc32", 1, crc32_of, deterministic=True)
        connection.create_function("is_readable", 3, is_readable, deterministic=True)
        shared = other_tables == "allow"
        patiently(lambda: _prepare(connection, path, create=create, shared=shared), deadline)
    except BaseException:
        connection.close()
        raise
    return connection


def explained(error: sqlite3.Error | OSError, path: Path, timeout: float) -> StoreUnavailable:
    """The error that a caller gets for one of SQLite's, or of the making of a file."""
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            reason = f"other processes kept the database locked for {timeout:g} s"
        case sqlite3.SQLITE_FULL:
            reason = "the disk is full"
        case sqlite3.SQLITE_IOERR:
            reason = "reading or writing failed; whether this write is there is not known"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            reason = "it is not a SQLite database, or damaged"
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            reason = "it can't be opened for writing; look at its path, its permissions and the number of open files"
        case _:
            reason = _of_the_system(error) if isinstance(error, OSError) else str(error)
    return StoreUnavailable(f"{path}: {reason} ({name})")


def _of_the_system(error: OSError) -> str:
    """What is wrong with a file that can't be made."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return "its folder is not there; make that first, or name another one"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "it can't be made; look at the permissions of its folder"
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full"
        case _:
            return error.strerror or type(error).__name__


def _refuse_networks(path: Path) -> None:
    kind = network_file_system(path.parent)
    if kind is not None:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite's locks can't be relied on; put the file on a "
            "local disk, use a server store, or pass network=allow if one host alone ever opens it"
        )


def _make(path: Path) -> None:
    if path.exists():
        return
    with _making, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _prepare(connection: sqlite3.Connection, path: Path, *, create: bool, shared: bool) -> None:
    present = _check_tables(connection, path, shared=shared)
    if not present and not create:
        raise TablesGone(f"{path}: the store's tables are gone; restart this process if that is meant")
    for name, (value, expected) in SETTINGS.items():
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
        (found,) = connection.execute(f"PRAGMA {name}").fetchone()
        if found != expected:
            raise StoreUnavailable(f"{path}: SQLite can't be set to {name} = {value}; it says {found}")
    if not present:
        _create_tables(connection, path, shared=shared)


def _check_tables(connection: sqlite3.Connection, path: Path, *, shared: bool) -> bool:
    """Whether the store's tables are there. Raises for those of a newer release, and, unless `shared`, of others."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if schema.TABLE_OF_VERSION not in names:
        if not names or shared:
            return False
        raise StoreUnavailable(
            f"{path} is a SQLite database of something else; name a file of its own for the store, or pass "
            "other_tables=allow if the records are to be kept beside those tables"
        )
    (version,) = connection.execute(f"SELECT max(version) FROM {schema.TABLE_OF_VERSION}").fetchone()  # noqa: S608 - a constant
    if version > schema.VERSION:
        raise UnsupportedRecord(
            f"{path} was made by a newer release (tables of version {version}, this release knows {schema.VERSION}); "
            "upgrade this process"
        )
    return True


def _create_tables(connection: sqlite3.Connection, path: Path, *, shared: bool) -> None:
    try:
        connection.execute(schema.BEGIN)
        if not _check_tables(connection, path, shared=shared):  # else another process has just made them
            for statement in schema.CREATE:
                connection.execute(statement)
            connection.execute(f"INSERT INTO {schema.TABLE_OF_VERSION} VALUES (?)", (schema.VERSION,))  # noqa: S608 - a constant
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # the first error says more
            connection.execute("ROLLBACK")
        raise
