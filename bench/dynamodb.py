"""The store on DynamoDB, next to a bare client that sends the same requests, to an emulator, which bounds both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.callers import (
    ALONE_RATIO_MAX,
    CALLERS,
    POOL,
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
from notwice.model import Insert, Swap
from notwice.stores.dynamodb.items import key_of, write_of
from notwice.stores.dynamodb.link import Link
from notwice.stores.shared import name_of
from tests.engines.dynamodb import Table, dynamodb_server, new_table

PAIRS: Final = 128
PAIRS_ALONE: Final = 30
REPLAYS: Final = 60
NOW_MS: Final = 1_800_000_000_000


class Client:
    """A client of botocore, which threads share, and the requests of a guard, one for each move."""

    def __init__(self, table: Table) -> None:
        link = Link(table.place._replace(pool=POOL))
        link.call("describe_table")
        self._client: Any = link._client
        self._link = link
        self._table = table.place.table
        self._asked = asked()
        self._first = self._asked()
        self._send(*self._first)

    def pair(self) -> None:
        """Send what a begin and its complete are."""
        self._send(*self._asked())

    def look(self) -> None:
        """Send what a replay is."""
        key = key_of(name_of(look_at(self._first[0])))
        assert "Item" in self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)

    def close(self) -> None:
        """Close the connections."""
        self._link.close()

    def _send(self, *ops: Insert | Swap) -> None:
        for op in ops:
            self._client.put_item(TableName=self._table, **write_of(op, NOW_MS)[0])


@contextmanager
def _served() -> Iterator[tuple[str, Client]]:
    """The URL of a store on an emulator of its own, and a bare client."""
    with dynamodb_server() as server:
        table = new_table(server, safe="ignore", pool=POOL)
        with closing(Client(table)) as client:
            yield table.url, client


def guard_tasks(size: Size, _folder: Path) -> Figure:
    """Begin and complete by 64 tasks, next to as many threads and a client with 16 connections."""
    loop: Any = asyncio.new_event_loop()
    with _served() as (url, client), closing(loop):
        guard = AsyncGuard.open(url)
        measured = paired(together(pairs_of_tasks(guard), loop), in_threads(client.pair), size, operations=PAIRS)
        loop.run_until_complete(guard.close())
    return Figure("dynamodb-guard-tasks", f"begin and complete by {CALLERS} tasks", "a bare client", NONE, measured)


def guard_alone(size: Size, _folder: Path) -> Figure:
    """Begin and complete by one caller, next to the same two requests."""
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(repeated(pairs(guard)), repeated(client.pair), size, operations=PAIRS_ALONE)
    goal = Goal(ratio_max=ALONE_RATIO_MAX)
    return Figure("dynamodb-guard-alone", "begin and complete by one caller", "two requests", goal, measured)


def replay(size: Size, _folder: Path) -> Figure:
    """A begin of a finished operation and its answer, next to a request that reads the item."""
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(repeated(replays(guard)), repeated(client.look), size, operations=REPLAYS)
    return Figure("dynamodb-replay", "replay from DynamoDB", "a request that reads", NONE, measured)
