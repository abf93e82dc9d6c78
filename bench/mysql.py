"""The store on MariaDB, next to bare drivers that send the same statements, one by one, to the same server."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from bench.callers import (
    ALONE_RATIO_MAX,
    CALLERS,
    PAIRS,
    PAIRS_ALONE,
    POOL,
    REPLAYS,
    SCOPE,
    asked,
    in_threads,
    look_at,
    pairs,
    pairs_of_tasks,
    replays,
    together,
)
from bench.figures import NONE, Figure, Goal
from bench.measure import Size, paired, repeated
from notwice import AsyncGuard, Guard
from notwice.model import Op
from notwice.stores.mysql.place import Place, place_of
from notwice.stores.mysql.rows import asked_of, text_of
from notwice.stores.urls import parsed
from tests.engines.mariadb import SETUP, MariadbServer, install, server_on
from tests.engines.private import GROUP, USER

LEVEL: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"


class Client:
    """A connection of PyMySQL, and the statements of a guard, one for each move."""

    def __init__(self, server: MariadbServer, place: Place) -> None:
        self._table = place.names.records
        self._connection = server.connect()
        self._cursor = self._connection.cursor()
        self._cursor.execute(LEVEL)
        self._asked = asked(id(self) << 64)
        self._first = self._asked()
        self.send(*self._first)

    def pair(self) -> None:
        """Send what a begin and its complete are."""
        self.send(*self._asked())

    def look(self) -> None:
        """Send what a replay is."""
        self.send(look_at(self._first[0]))

    def send(self, *ops: Op) -> None:
        """Send operations one by one, each of which commits."""
        for op in ops:
            self._cursor.execute(text_of(asked_of([op]), self._table, compound=True))
            while True:
                self._cursor.fetchall()
                if not self._cursor.nextset():
                    break

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, Callable[[], Client]]]:
    """The URL of a store on a server of its own, whose files are on the disk that counts, and what makes clients."""
    folder = folder.absolute()
    if os.geteuid() == 0:
        shutil.chown(folder, USER, GROUP)
    install(folder / "data")
    with server_on(folder / "data", folder, setup=SETUP) as server:
        url = server.url()
        place = place_of(parsed(url))
        with Guard.open(url) as guard:
            guard.lookup(SCOPE, "nothing")
        yield url, lambda: Client(server, place)


@contextmanager
def _pooled(connect: Callable[[], Client]) -> Iterator[Callable[[], None]]:
    """A begin and its complete on one of 16 connections."""
    with ExitStack() as stack:
        idle: SimpleQueue[Client] = SimpleQueue()
        for _ in range(POOL):
            idle.put(stack.enter_context(closing(connect())))

        def pair() -> None:
            client = idle.get()
            client.pair()
            idle.put(client)

        yield pair


def guard_tasks(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 tasks that share trips, next to 64 threads and a pool that send one statement each."""
    loop: Any = asyncio.new_event_loop()
    with _served(folder) as (url, connect), _pooled(connect) as base, closing(loop):
        guard = AsyncGuard.open(url)
        measured = paired(together(pairs_of_tasks(guard), loop), in_threads(base), size, operations=PAIRS)
        loop.run_until_complete(guard.close())
    return Figure("mysql-guard-tasks", f"begin and complete by {CALLERS} tasks", "one statement each", NONE, measured)


def guard_threads(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 threads that share trips, next to as many and a pool that send one statement each."""
    with _served(folder) as (url, connect), _pooled(connect) as base, Guard.open(url) as guard:
        measured = paired(in_threads(pairs(guard)), in_threads(base), size, operations=PAIRS)
    what = f"begin and complete by {CALLERS} threads"
    return Figure("mysql-guard-threads", what, "one statement each", NONE, measured)


def guard_alone(size: Size, folder: Path) -> Figure:
    """Begin and complete by one caller, next to the same two statements."""
    with _served(folder) as (url, connect), Guard.open(url) as guard, closing(connect()) as client:
        measured = paired(repeated(pairs(guard)), repeated(client.pair), size, operations=PAIRS_ALONE)
    goal = Goal(ratio_max=ALONE_RATIO_MAX)
    return Figure("mysql-guard-alone", "begin and complete by one caller", "two statements", goal, measured)


def replay(size: Size, folder: Path) -> Figure:
    """A begin of a finished operation and its answer, next to the statement that reads it."""
    with _served(folder) as (url, connect), Guard.open(url) as guard, closing(connect()) as client:
        measured = paired(repeated(replays(guard)), repeated(client.look), size, operations=REPLAYS)
    return Figure("mysql-replay", "replay from MariaDB", "the same statement", NONE, measured)
