"""What the callers of every engine do: a begin and its complete, a replay; and what a store is asked for then."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Coroutine
from typing import Final

from bench.sqlite import REQUEST, RESULT, SCOPE
from notwice import AsyncGuard, AsyncOperation, Guard, Operation, Replay
from notwice.core import Ask, fresh
from notwice.model import Get, Insert, State, Swap
from notwice.policy import Policy

POOL: Final = 16
PAIRS: Final = 1_280
PAIRS_ALONE: Final = 200
REPLAYS: Final = 400
ALONE_RATIO_MAX: Final = 1.2


def asked(first: int = 0) -> Callable[[], tuple[Insert, Swap]]:
    """Makes begins and their completes as a store is asked for them, each with a name of its own."""
    terms, numbers = Policy().terms, itertools.count(first)

    def made() -> tuple[Insert, Swap]:
        name = f"bare_{next(numbers):032x}"
        record = fresh(Ask("", name, SCOPE, name, None, None, terms, can_ask=False), os.urandom(16))
        return Insert(record), Swap(record._replace(state=State.COMPLETED, etag=os.urandom(16)), record.etag)

    return made


def look_at(insert: Insert) -> Get:
    """What a store is asked for to read what was inserted."""
    return Get(insert.record.namespace, insert.record.id)


def pairs(guard: Guard) -> Callable[[], None]:
    """Begins an operation and completes it, at each call another one."""
    numbers = itertools.count()

    def pair() -> None:
        operation = guard.begin(SCOPE, f"key-{next(numbers)}", request=REQUEST)
        assert isinstance(operation, Operation)
        operation.complete(RESULT)

    return pair


def pairs_of_tasks(guard: AsyncGuard) -> Callable[[], Coroutine[object, object, None]]:
    """The same for tasks."""
    numbers = itertools.count()

    async def pair() -> None:
        operation = await guard.begin(SCOPE, f"key-{next(numbers)}", request=REQUEST)
        assert isinstance(operation, AsyncOperation)
        await operation.complete(RESULT)

    return pair


def replays(guard: Guard) -> Callable[[], object]:
    """Begins an operation that is finished, and takes its answer."""
    pairs(guard)()

    def replay() -> object:
        found = guard.begin(SCOPE, "key-0", request=REQUEST)
        assert isinstance(found, Replay)
        return found.result

    return replay
