"""The store on Redis, next to a bare client that sends the same scripts, one by one, to the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import Redis as AsyncRedis

from bench.callers import (
    ALONE_RATIO_MAX,
    CALLERS,
    PAIRS,
    PAIRS_ALONE,
    POOL,
    REPLAYS,
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
from notwice.model import Get, Insert, Swap
from notwice.stores.redis.rows import Command, Keys, command_of
from notwice.stores.redis.script import MOVE
from notwice.stores.shared import name_of
from tests.engines.redis import REDIS, redis_server

TASKS_SPEED_MIN: Final = 2


class Bare:
    """The commands of a guard."""

    def __init__(self) -> None:
        self._keys = Keys("bare:")
        self._asked = asked()

    def pair(self) -> tuple[Command, Command]:
        """What is sent for a begin and its complete."""
        insert, swap = self._asked()
        return self._sent(insert), self._sent(swap)

    def look(self) -> Command:
        """What is sent for a replay of the first."""
        return self._sent(look_at(asked()()[0]))

    def _sent(self, op: Insert | Swap | Get) -> Command:
        _, key, open_key = self._keys.of(name_of(op))
        return command_of(op, key, open_key)


@contextmanager
def _served() -> Iterator[tuple[str, redis.Redis]]:
    """The URL of a store on a server of its own, and a bare client."""
    with redis_server(REDIS) as server, closing(redis.Redis(port=server.port, protocol=2)) as client:
        client.script_load(MOVE)
        yield server.url(), client


def guard_tasks(size: Size, _folder: Path) -> Figure:
    """Begin and complete by 64 tasks that share trips, next to as many tasks that send one script each."""
    bare, loop = Bare(), asyncio.new_event_loop()
    with _served() as (url, client), closing(loop):
        port = client.connection_pool.connection_kwargs["port"]
        pool = AsyncRedis(connection_pool=BlockingConnectionPool(port=port, protocol=2, max_connections=POOL))
        guard = AsyncGuard.open(url)

        async def base() -> None:
            for command in bare.pair():
                await pool.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it out

        measured = paired(together(pairs_of_tasks(guard), loop), together(base, loop), size, operations=PAIRS)
        loop.run_until_complete(guard.close())
        loop.run_until_complete(pool.connection_pool.disconnect())
    goal = Goal(speed_min=TASKS_SPEED_MIN)
    return Figure("redis-guard-tasks", "begin and complete by 64 tasks", "one script each", goal, measured)


def guard_threads(size: Size, _folder: Path) -> Figure:
    """Begin and complete by 64 threads that share trips, next to as many threads that send one script each."""
    bare = Bare()
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(
            in_threads(pairs(guard)),
            in_threads(lambda: _send(client, *bare.pair())),
            size,
            operations=PAIRS,
        )
    return Figure("redis-guard-threads", f"begin and complete by {CALLERS} threads", "one script each", NONE, measured)


def guard_alone(size: Size, _folder: Path) -> Figure:
    """Begin and complete by one caller, next to the same two scripts."""
    bare = Bare()
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(
            repeated(pairs(guard)),
            repeated(lambda: _send(client, *bare.pair())),
            size,
            operations=PAIRS_ALONE,
        )
    goal = Goal(ratio_max=ALONE_RATIO_MAX)
    return Figure("redis-guard-alone", "begin and complete by one caller", "two scripts", goal, measured)


def replay(size: Size, _folder: Path) -> Figure:
    """A begin of a finished operation and its answer, next to a script that reads."""
    bare = Bare()
    with _served() as (url, client), Guard.open(url) as guard:
        _send(client, *bare.pair())
        measured = paired(
            repeated(replays(guard)), repeated(lambda: _send(client, bare.look())), size, operations=REPLAYS
        )
    return Figure("redis-replay", "replay from Redis", "a script that reads", NONE, measured)


def _send(client: Any, *commands: Command) -> None:  # noqa: ANN401 - redis-py leaves out the types of what is used
    for command in commands:
        client.execute_command(*command)
