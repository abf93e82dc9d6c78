"""The store in SQLite, next to bare statements that are as durable: WAL, synchronous=FULL, one commit each."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from bench.callers import SCOPE, in_threads, inserts, pairs, pairs_of_tasks, replays, together
from bench.figures import NONE, Figure, Goal
from bench.measure import Pair, Size, paired, repeated
from notwice import AsyncGuard, Guard
from notwice.identity import operation_id
from notwice.stores.batching import Batching
from notwice.stores.sqlite import SqliteStore, schema
from notwice.stores.sqlite.connection import open_file

APPLIES: Final = 640  # ten for each of the 64 callers
APPLIES_ALONE: Final = 100
PAIRS: Final = 320
PAIRS_ALONE: Final = 60  # a round: some 100 ms on a disk that syncs in a millisecond
REPLAYS: Final = 1_000

APPLY_SPEED_MIN: Final = 8
GUARD_SPEED_MIN: Final = 5
ALONE_SPEED_MIN: Final = 0.8

CREATE: Final = """
    CREATE TABLE bare (
        id TEXT PRIMARY KEY, etag BLOB NOT NULL, scope TEXT NOT NULL, state TEXT NOT NULL, lease_ms INTEGER NOT NULL,
        created_ms INTEGER NOT NULL, written_ms INTEGER NOT NULL, expires_ms INTEGER, record BLOB NOT NULL
    ) WITHOUT ROWID
"""
INSERT: Final = "INSERT INTO bare VALUES (?, ?, ?, 'in_progress', 300000, ?, ?, NULL, ?) ON CONFLICT DO NOTHING"
UPDATE: Final = """
    UPDATE bare SET etag = ?, state = 'completed', written_ms = ?, expires_ms = ?, record = ? WHERE id = ? AND etag = ?
"""
BOOT: Final = "5b4c1f0e-3f1a-4a52-9d0b-0f6f2c0f7a11"
RECORD: Final = b"x" * 300  # about as large as a record with a small request and a small result


class Bare:
    """The two statements of a guard and nothing else."""

    def __init__(self, folder: Path) -> None:
        self.connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL").fetchall()
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute(CREATE)
        self.numbers = itertools.count()

    def pair(self) -> None:
        """Insert a row, then update it, each with a commit of its own."""
        name, now_ms = f"idem_{next(self.numbers):032x}", time.time_ns() // 1_000_000
        etags = os.urandom(16), os.urandom(16)
        self.connection.execute(INSERT, (name, etags[0], SCOPE, now_ms, now_ms, RECORD))
        done = self.connection.execute(UPDATE, (etags[1], now_ms, now_ms + 1, RECORD, name, etags[0])).rowcount
        assert done == 1

    def look(self) -> object:
        """Read one row."""
        return self.connection.execute("SELECT etag, record FROM bare LIMIT 1").fetchall()


class BareStatements:
    """The two statements of the store itself, on its own table with all its indexes, and nothing else."""

    def __init__(self, folder: Path) -> None:
        file = (folder / "statements.db").absolute()
        SqliteStore(file).close()
        deadline = time.monotonic() + 1
        self.connection = open_file(file, deadline=deadline, create=False)
        self.numbers = itertools.count()

    def pair(self) -> None:
        """Insert a row, then update it, each with a commit of its own."""
        key = f"key-{next(self.numbers)}"
        name, now_ms, record = operation_id(SCOPE, key), time.time_ns() // 1_000_000, bytearray(RECORD)
        etags, times = [bytearray(os.urandom(16)) for _ in range(2)], (now_ms, now_ms, BOOT)
        checksum, place = crc32(record), ("", name, now_ms)
        begun = (etags[0], SCOPE, "in_progress", "", 300_000, *times, 0, checksum, record, *place)
        assert self.connection.execute(schema.INSERT, begun).rowcount == 1
        ended = (etags[1], SCOPE, "completed", "", 300_000, *times, now_ms + 1, checksum, record, *place, etags[0])
        assert self.connection.execute(schema.REPLACE, ended).rowcount == 1


@contextmanager
def _closing(*things: Any) -> Iterator[None]:  # noqa: ANN401 - whatever can be closed
    try:
        yield
    finally:
        for thing in things:
            thing.close()


def apply_tasks(size: Size, folder: Path) -> Figure:
    """Inserts by 64 tasks that share commits, next to one commit each."""
    insert, loop = inserts(), asyncio.new_event_loop()
    shared, alone = Batching(SqliteStore(folder / "shared.db")), SqliteStore(folder / "alone.db")
    apply = shared.asynchronous.apply

    async def work() -> None:
        await apply((insert(),))

    with _closing(loop, shared, alone):
        measured = paired(
            together(work, loop),
            repeated(lambda: alone.apply((insert(),))),
            size,
            operations=APPLIES,
            base_operations=APPLIES_ALONE,
        )
    goal = Goal(speed_min=APPLY_SPEED_MIN)
    return Figure("sqlite-apply-tasks", "store.apply by 64 tasks", "store.apply, one commit each", goal, measured)


def apply_threads(size: Size, folder: Path) -> Figure:
    """Inserts by 64 threads that share commits, next to one commit each."""
    insert = inserts()
    shared, alone = Batching(SqliteStore(folder / "shared.db")), SqliteStore(folder / "alone.db")
    with _closing(shared, alone):
        measured = paired(
            in_threads(lambda: shared.apply((insert(),))),
            repeated(lambda: alone.apply((insert(),))),
            size,
            operations=APPLIES,
            base_operations=APPLIES_ALONE,
        )
    return Figure("sqlite-apply-threads", "store.apply by 64 threads", "store.apply, one commit each", NONE, measured)


def guard_tasks(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 tasks that share commits, next to the same by one caller, one commit each."""
    with Guard(SqliteStore(folder / "alone.db")) as alone:
        measured = _by_tasks(pairs(alone), size, folder)
    goal = Goal(speed_min=GUARD_SPEED_MIN)
    return Figure("sqlite-guard-tasks", "begin and complete by 64 tasks", "the same, one commit each", goal, measured)


def guard_tasks_bare(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 tasks, next to two bare statements with one commit each."""
    bare = Bare(folder)
    with _closing(bare.connection):
        measured = _by_tasks(bare.pair, size, folder)
    ours, base = "begin and complete by 64 tasks", "INSERT, UPDATE, one by one"
    return Figure("sqlite-guard-tasks-bare", ours, base, NONE, measured)


def _by_tasks(base: Callable[[], object], size: Size, folder: Path) -> Pair:
    """What `CALLERS` tasks do, next to `base`."""
    loop, guard = asyncio.new_event_loop(), AsyncGuard.open(f"sqlite:///{folder / 'guard.db'}")
    with _closing(loop):
        ours = together(pairs_of_tasks(guard), loop)
        measured = paired(ours, repeated(base), size, operations=PAIRS, base_operations=PAIRS_ALONE)
        loop.run_until_complete(guard.close())
    return measured


def guard_alone(size: Size, folder: Path) -> Figure:
    """Begin and complete by one caller, next to the least that such statements can be."""
    return _guard_alone("sqlite-guard-alone", "INSERT, UPDATE", Bare(folder), size, folder)


def guard_statements(size: Size, folder: Path) -> Figure:
    """Begin and complete by one caller, next to the store's own two statements."""
    return _guard_alone("sqlite-guard-statements", "its own two statements", BareStatements(folder), size, folder)


def _guard_alone(name: str, what: str, bare: Bare | BareStatements, size: Size, folder: Path) -> Figure:
    guard = Guard.open(f"sqlite:///{folder / 'guard.db'}")
    with _closing(guard, bare.connection):
        measured = paired(repeated(pairs(guard)), repeated(bare.pair), size, operations=PAIRS_ALONE)
    return Figure(name, "begin and complete by one caller", what, Goal(speed_min=ALONE_SPEED_MIN), measured)


def replay(size: Size, folder: Path) -> Figure:
    """A begin of a finished operation and its answer, next to a bare SELECT."""
    bare, guard = Bare(folder), Guard.open(f"sqlite:///{folder / 'guard.db'}")
    bare.pair()
    with _closing(guard, bare.connection):
        measured = paired(repeated(replays(guard)), repeated(bare.look), size, operations=REPLAYS)
    return Figure("sqlite-replay", "replay from SQLite", "SELECT", NONE, measured)
