"""What a guard is made of, and what it says of anything else."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from notwice import AsyncGuard, AsyncOperation, CountingObserver, Guard, Observers, Privacy
from notwice.model import Op, Page, Query, Reply
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.port import Store


class Wrapped:
    """A store for event loops whose `apply` is a plain function that gives an awaitable, as a wrapper's is."""

    def __init__(self) -> None:
        self.inner = AsyncMemoryStore()
        self.blocking: Store = self.inner.blocking

    def apply(self, ops: Sequence[Op]) -> Any:
        return self.inner.apply(ops)

    async def scan(self, query: Query) -> Page:
        return await self.inner.scan(query)

    async def purge(self, limit: int) -> int:
        return await self.inner.purge(limit)

    async def close(self) -> None:
        await self.inner.close()


class Half:
    """It has only some of a store's methods."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        raise AssertionError(ops)

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("guard", [Guard, AsyncGuard])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("postgresql://user:secret@host/db", r"not its URL: use \w+\.open\(url\)"),
        (MemoryStore, r"not its class: make one, by MemoryStore\(\)"),
        (None, "NoneType has no apply, scan, purge, close"),
        (Half(), r"Half has no scan, purge: use \w+\.open\(url\)"),
    ],
)
def test_what_is_no_store_is_refused_at_once(guard: Any, given: object, said: str) -> None:
    """A guard says what it was given in place of a store, and what to do, before anything is begun with it."""
    with pytest.raises(TypeError, match=said) as raised:
        guard(given)
    assert guard.__name__ in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("given", [AsyncMemoryStore(), Wrapped()])
def test_a_store_for_event_loops_is_refused_by_a_guard_that_blocks(given: Any) -> None:
    """A blocking guard would take the awaitable for an answer that is missing; it names the guard that is meant."""
    with pytest.raises(TypeError, match=r"use AsyncGuard, or Guard\(store\.blocking\)"):
        Guard(given)


def test_a_store_for_event_loops_is_known_by_its_blocking_face() -> None:
    """One whose `apply` is no coroutine function is awaited all the same."""

    async def begun() -> object:
        operation = await AsyncGuard(Wrapped()).begin("charge", "key")
        assert isinstance(operation, AsyncOperation)
        await operation.complete("done")
        return operation.view.record.state

    assert asyncio.run(begun()) == "completed"


@pytest.mark.parametrize("given", [print, CountingObserver, "log", lambda: print])
def test_what_is_no_observer_is_refused_at_once(given: Any) -> None:
    """A function would be told nothing, and each event would be a failure in the log: the guard says what it takes."""
    for make in (partial(Guard, MemoryStore()), partial(AsyncGuard, MemoryStore())):
        with pytest.raises(TypeError, match=r"an object with a method on_event\(event\)"):
            make(observer=given)
    with pytest.raises(TypeError, match="on_event"):
        Observers(CountingObserver(), given)


@pytest.mark.parametrize("given", ["key:secret", {"hash_keys": True}, Privacy])
def test_what_is_no_privacy_is_refused_at_once(given: Any) -> None:
    """Nothing lies in the open because privacy was given in another form; and no secret is shown."""
    for make in (partial(Guard, MemoryStore()), partial(AsyncGuard, MemoryStore())):
        with pytest.raises(TypeError, match="privacy must be a Privacy") as raised:
            make(privacy=given)
        assert "secret" not in str(raised.value)
