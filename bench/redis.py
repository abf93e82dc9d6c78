"""The store on Redis, next to a bare client that sends the same scripts, one by one, to the same server."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import Redis as AsyncRedis

from bench.figures import NONE, Figure, Goal
from bench.measure import Size, paired, repeated
from bench.sqlite import CALLERS, REQUEST, RESULT, SCOPE, in_threads, together
from notwice import AsyncGuard, AsyncOperation, Guard, Operation, Replay
from notwice.core import Ask, fresh
from notwice.model import Get, Insert, Record, State, Swap
from notwice.policy import Policy
from notwice.stores.redis.rows import Command, Keys, command_of
from notwice.stores.redis.script import MOVE
from notwice.stores.shared import name_of
from tests.engines.redis import REDIS, redis_server

POOL: Final = 16
PAIRS: Final = 1_280
PAIRS_ALONE: Final = 200
REPLAYS: Final = 400

TASKS_SPEED_MIN: Final = 2
ALONE_RATIO_MAX: Final = 1.2


class Bare:
    """The commands of a guard, made beforehand but for their names and etags."""

    def __init__(self) -> None:
        self._keys = Keys("bare:")
        self._numbers = itertools.count()
        self._terms = Policy().terms

    def pair(self) -> tuple[Command, Command]:
        """What is sent for a begin and its complete."""
        record = self._record(next(self._numbers))
        done = record._replace(state=State.COMPLETED, etag=os.urandom(16))
        return self._sent(Insert(record)), self._sent(Swap(done, record.etag))

    def look(self) -> Command:
        """What is sent for a replay."""
        record = self._record(0)
        return self._sent(Get(record.namespace, record.id))

    def _record(self, number: int) -> Record:
        name = f"idem_{number:032x}"
        return fresh(Ask("", name, SCOPE, name, None, None, self._terms, can_ask=False), os.urandom(16))

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
    bare, numbers, loop = Bare(), itertools.count(), asyncio.new_event_loop()
    with _served() as (url, client), closing(loop):
        port = client.connection_pool.connection_kwargs["port"]
        pool = AsyncRedis(connection_pool=BlockingConnectionPool(port=port, protocol=2, max_connections=POOL))
        guard = AsyncGuard.open(url)

        async def ours() -> None:
            operation = await guard.begin(SCOPE, f"key-{next(numbers)}", request=REQUEST)
            assert isinstance(operation, AsyncOperation)
            await operation.complete(RESULT)

        async def base() -> None:
            for command in bare.pair():
                await pool.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it out

        measured = paired(together(ours, loop), together(base, loop), size, operations=PAIRS)
        loop.run_until_complete(guard.close())
        loop.run_until_complete(pool.connection_pool.disconnect())
    goal = Goal(speed_min=TASKS_SPEED_MIN)
    return Figure("redis-guard-tasks", "begin and complete by 64 tasks", "one script each", goal, measured)


def guard_threads(size: Size, _folder: Path) -> Figure:
    """Begin and complete by 64 threads that share trips, next to as many threads that send one script each."""
    bare, numbers = Bare(), itertools.count()
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(
            in_threads(lambda: _pair(guard, next(numbers))),
            in_threads(lambda: _send(client, *bare.pair())),
            size,
            operations=PAIRS,
        )
    return Figure("redis-guard-threads", f"begin and complete by {CALLERS} threads", "one script each", NONE, measured)


def guard_alone(size: Size, _folder: Path) -> Figure:
    """Begin and complete by one caller, next to the same two scripts."""
    bare, numbers = Bare(), itertools.count()
    with _served() as (url, client), Guard.open(url) as guard:
        measured = paired(
            repeated(lambda: _pair(guard, next(numbers))),
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
        _pair(guard, 0)

        def ours() -> object:
            found = guard.begin(SCOPE, "key-0", request=REQUEST)
            assert isinstance(found, Replay)
            return found.result

        measured = paired(repeated(ours), repeated(lambda: _send(client, bare.look())), size, operations=REPLAYS)
    return Figure("redis-replay", "replay from Redis", "a script that reads", NONE, measured)


def _pair(guard: Guard, number: int) -> None:
    operation = guard.begin(SCOPE, f"key-{number}", request=REQUEST)
    assert isinstance(operation, Operation)
    operation.complete(RESULT)


def _send(client: Any, *commands: Command) -> None:  # noqa: ANN401 - redis-py leaves out the types of what is used
    for command in commands:
        client.execute_command(*command)
