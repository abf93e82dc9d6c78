"""What the callers of every engine do: a begin and its complete, a replay; and what a store is asked for then."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench.measure import Run, repeated
from notwice import AsyncGuard, AsyncOperation, Guard, Operation, Replay
from notwice.core import Ask, fresh
from notwice.model import Get, Insert, State, Swap
from notwice.policy import Policy
from notwice.runtime import new_etag

SCOPE: Final = "charge:ord_1"
REQUEST: Final = {"amount": 100, "id": "x"}
RESULT: Final = {"id": "ch_1", "paid": True}

CALLERS: Final = 64
POOL: Final = 16
PAIRS: Final = 1_280
PAIRS_ALONE: Final = 200
REPLAYS: Final = 400
ALONE_RATIO_MAX: Final = 1.2


def together(work: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> Run:
    """A run in which `CALLERS` tasks of one loop share the operations."""

    async def caller(operations: int) -> None:
        for _ in range(operations):
            await work()

    async def all_callers(operations: int) -> None:
        share, more = divmod(operations, CALLERS)
        await asyncio.gather(*(caller(share + (number < more)) for number in range(CALLERS)))

    def run(operations: int) -> float:
        started = time.perf_counter()
        loop.run_until_complete(all_callers(operations))
        return time.perf_counter() - started

    return run


def in_threads(work: Callable[[], object]) -> Run:
    """A run in which `CALLERS` threads share the operations."""

    def run(operations: int) -> float:
        share, more = divmod(operations, CALLERS)
        threads = [
            threading.Thread(target=repeated(work), args=(share + (number < more),)) for number in range(CALLERS)
        ]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started

    return run


def inserts(first: int = 0) -> Callable[[], Insert]:
    """Makes begins as a store is asked for them, each with a name of its own."""
    terms, numbers = Policy().terms, itertools.count(first)

    def made() -> Insert:
        name = f"bare_{next(numbers):032x}"
        return Insert(fresh(Ask("", name, SCOPE, name, None, None, terms, can_ask=False), new_etag()))

    return made


def asked(first: int = 0) -> Callable[[], tuple[Insert, Swap]]:
    """Makes begins and their completes as a store is asked for them, each with a name of its own."""
    begin = inserts(first)

    def made() -> tuple[Insert, Swap]:
        insert = begin()
        completed = insert.record._replace(state=State.COMPLETED, etag=new_etag())
        return insert, Swap(completed, insert.record.etag)

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
