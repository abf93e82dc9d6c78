"""The store on PostgreSQL, next to bare drivers that send the same statements, one by one, to the same server."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import psycopg
from psycopg.types.numeric import Int8BinaryDumper

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
from notwice.stores import open_async_store
from notwice.stores.postgres.place import Place, place_of, session_settings
from notwice.stores.postgres.rows import Statement, statement_of
from notwice.stores.urls import parsed
from tests.engines.postgres import SYSTEM, PostgresServer, make_data, programs, reachable, server_on
from tests.engines.private import GROUP, USER

TASKS_SPEED_MIN: Final = 6


class Bare:
    """The statements of a guard, one for each move."""

    def __init__(self, place: Place) -> None:
        self._dialect = place.dialect
        self._asked = asked()

    def pair(self) -> tuple[Statement, Statement]:
        """What is sent for a begin and its complete."""
        insert, swap = self._asked()
        return statement_of([insert], self._dialect), statement_of([swap], self._dialect)

    def look(self) -> Statement:
        """What is sent for a replay of the first."""
        return statement_of([look_at(asked()()[0])], self._dialect)


class Client:
    """A connection of psycopg that is set as a session of the store."""

    def __init__(self, place: Place) -> None:
        self._connection = psycopg.connect(place.address, autocommit=True, prepare_threshold=0)
        self._connection.adapters.register_dumper(int, Int8BinaryDumper)
        for name, value in session_settings(place).items():
            self._connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        self._cursor = psycopg.RawCursor(self._connection)

    def send(self, *statements: Statement) -> None:
        """Send statements one by one, each of which commits."""
        for statement in statements:
            text: Any = statement.text
            self._cursor.execute(text, statement.parameters, prepare=True, binary=True)
            self._cursor.fetchone()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, Place]]:
    """The URL of a store on a server of its own, whose files are on the disk that counts."""
    folder = folder.absolute()
    if os.geteuid() == 0:
        shutil.chown(folder, USER, GROUP)
    path = reachable(programs(SYSTEM), folder)
    make_data(path, folder / "data")
    with server_on(folder / "data", path) as server:
        url = _with_tables(server)
        yield url, place_of(parsed(url))


def _with_tables(server: PostgresServer) -> str:
    url = server.url()
    with Guard.open(url) as guard:
        guard.lookup(SCOPE, "nothing")
    return url


def apply_tasks(size: Size, folder: Path) -> Figure:
    """Inserts and swaps by 64 tasks that share trips, next to as many tasks and a pool that send one statement each."""
    with _served(folder) as (url, place), closing(asyncio.new_event_loop()) as loop:
        wanted = asked(10**9)
        store = open_async_store(url)

        async def ours() -> None:
            for op in wanted():
                await store.apply((op,))

        pool, base = _pooled(place, Bare(place), loop)
        measured = paired(together(ours, loop), together(base, loop), size, operations=PAIRS)
        loop.run_until_complete(store.close())
        loop.run_until_complete(pool.close())
    goal = Goal(speed_min=TASKS_SPEED_MIN)
    return Figure("postgres-apply-tasks", "insert and swap by 64 tasks", "one statement each", goal, measured)


def guard_tasks(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 tasks, next to as many tasks and a pool that send one statement each."""
    with _served(folder) as (url, place), closing(asyncio.new_event_loop()) as loop:
        guard = AsyncGuard.open(url)
        pool, base = _pooled(place, Bare(place), loop)
        measured = paired(together(pairs_of_tasks(guard), loop), together(base, loop), size, operations=PAIRS)
        loop.run_until_complete(guard.close())
        loop.run_until_complete(pool.close())
    return Figure("postgres-guard-tasks", "begin and complete by 64 tasks", "one statement each", NONE, measured)


def _pooled(place: Place, bare: Bare, loop: asyncio.AbstractEventLoop) -> tuple[Any, Any]:
    settings = {name: value for name, value in session_settings(place).items() if name != "client_encoding"}

    async def connected() -> Any:  # noqa: ANN401 - asyncpg has no annotations
        return await asyncpg.create_pool(place.address, min_size=POOL, max_size=POOL, server_settings=settings)

    pool = loop.run_until_complete(connected())

    async def base() -> None:
        for statement in bare.pair():
            async with pool.acquire() as connection:
                await connection.fetchrow(statement.text, *statement.parameters)

    return pool, base


def guard_threads(size: Size, folder: Path) -> Figure:
    """Begin and complete by 64 threads that share trips, next to one connection that sends one statement each."""
    with _served(folder) as (url, place), Guard.open(url) as guard, closing(Client(place)) as client:
        bare = Bare(place)
        measured = paired(
            in_threads(pairs(guard)),
            repeated(lambda: client.send(*bare.pair())),
            size,
            operations=PAIRS,
        )
    return Figure("postgres-guard-threads", f"begin and complete by {CALLERS} threads", "one caller", NONE, measured)


def guard_alone(size: Size, folder: Path) -> Figure:
    """Begin and complete by one caller, next to the same two statements."""
    with _served(folder) as (url, place), Guard.open(url) as guard, closing(Client(place)) as client:
        bare = Bare(place)
        measured = paired(
            repeated(pairs(guard)),
            repeated(lambda: client.send(*bare.pair())),
            size,
            operations=PAIRS_ALONE,
        )
    goal = Goal(ratio_max=ALONE_RATIO_MAX)
    return Figure("postgres-guard-alone", "begin and complete by one caller", "two statements", goal, measured)


def replay(size: Size, folder: Path) -> Figure:
    """A begin of a finished operation and its answer, next to the statement that reads it."""
    with _served(folder) as (url, place), Guard.open(url) as guard, closing(Client(place)) as client:
        bare = Bare(place)
        client.send(*bare.pair())
        measured = paired(
            repeated(replays(guard)), repeated(lambda: client.send(bare.look())), size, operations=REPLAYS
        )
    return Figure("postgres-replay", "replay from PostgreSQL", "the same statement", NONE, measured)
