"""How the suite makes, treats and breaks the stores of one engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import pytest

from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.port import AsyncStore, Loads, Store
from notwice.testing.clock import VirtualClock

T = TypeVar("T")

Inability = Literal["reopen", "damage", "load"]
"""What an engine may be unable to do: keep its records for a store opened anew; have a record damaged by a test; take
in records of another store."""


TWINKLING_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What a test of an engine says of it.

    Arguments:
        open: makes a store. All stores that it makes within one test hold the same records, as those of several
            processes do.
        damage: makes the record (namespace, id) impossible to decode, behind the store's back.
        clock: the virtual clock that its stores go by. Without one, cases about the clocks of a host are left out.
        age: makes all records older by so many seconds, as if they had been written earlier: for an engine that has
            a clock of its own. Without it, and without a virtual clock, cases that need time to pass wait for real, a
            second at most, and those that need more are left out.
        cannot: what the engine is unable to do, each with the reason. Cases that need it are skipped with that reason.
        history_length: how many steps the histories have at most that are all tried, side by side in batches.
        alone_length: how many steps those have that are also tried one by one; if it isn't given, as many.
        body_bytes_max: how large a body may be, if there is a limit; larger ones, by far, are refused.
    """

    open: Callable[[], Store]
    damage: Callable[[Store, str, str], None] | None = None
    clock: VirtualClock | None = None
    age: Callable[[float], None] | None = None
    cannot: Mapping[Inability, str] = field(default_factory=dict)
    history_length: int = 3
    alone_length: int | None = None
    body_bytes_max: int | None = None

    @contextmanager
    def opened(self) -> Generator[Store]:
        """Give a store and close it in the end."""
        store = self.open()
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def handles(self, count: int) -> Generator[Sequence[Store]]:
        """Give `count` faces of the same records: stores of their own where the engine can, else one for all."""
        stores = [self.open() for _ in range(1 if "reopen" in self.cannot else count)]
        try:
            yield [stores[index % len(stores)] for index in range(count)]
        finally:
            for store in stores:
                store.close()

    def advance(self, seconds: float) -> None:
        """Let time pass, or have it look so. A twinkling is waited for if there is no virtual clock."""
        if self.clock is not None:
            self.clock.advance(seconds)
        elif self.age is None or seconds <= TWINKLING_S:
            time.sleep(seconds)
        else:
            self.age(seconds)

    @property
    def waits(self) -> bool:
        """Whether the time that passes is real."""
        return self.clock is None and self.age is None

    def virtual_clock(self) -> VirtualClock:
        """Give the virtual clock, or skip the case."""
        if self.clock is None:
            pytest.skip("this engine has its own clock")
        return self.clock

    def needs(self, ability: Inability) -> None:
        """Skip the case if the engine says that it can't do this."""
        if ability in self.cannot:
            pytest.skip(self.cannot[ability])

    def damage_record(self, store: Store, namespace: str, operation: str) -> None:
        """Damage a record, or skip the case if the engine says that it can't."""
        self.needs("damage")
        if self.damage is None:
            pytest.fail("give the engine a function `damage`, or say in `cannot` why there is none")
        self.damage(store, namespace, operation)

    def load_views(self, store: Store, views: Sequence[RecordView]) -> Sequence[bool]:
        """Load records of another store, or skip the case if the engine says that it can't."""
        self.needs("load")
        blocking = store.inner.blocking if isinstance(store, OnLoop) else store
        if not isinstance(blocking, Loads):
            pytest.fail("give the store a method `load`, or say in `cannot` why there is none")
        return blocking.load(views)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncEngine:
    """`Engine` for stores of an event loop. ``damage`` is given the blocking face."""

    open: Callable[[], AsyncStore]
    damage: Callable[[Store, str, str], None] | None = None
    clock: VirtualClock | None = None
    age: Callable[[float], None] | None = None
    cannot: Mapping[Inability, str] = field(default_factory=dict)
    history_length: int = 3
    alone_length: int | None = None
    body_bytes_max: int | None = None

    @contextmanager
    def on_loop(self) -> Generator[Engine]:
        """Give an engine whose stores do each call in one event loop, and end the loop at last."""
        with running_loop() as loop:
            yield Engine(
                open=lambda: OnLoop(self.open(), loop),
                damage=self.damage and self._damage,
                clock=self.clock,
                age=self.age,
                cannot=self.cannot,
                history_length=self.history_length,
                alone_length=self.alone_length,
                body_bytes_max=self.body_bytes_max,
            )

    def _damage(self, store: Store, namespace: str, operation: str) -> None:
        assert isinstance(store, OnLoop)
        assert self.damage is not None
        self.damage(store.inner.blocking, namespace, operation)


class OnLoop:
    """A blocking face of an async store: each call runs in `loop`, which another thread drives."""

    def __init__(self, inner: AsyncStore, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = inner
        self._loop = loop

    def run(self, call: Coroutine[object, object, T]) -> T:
        """Run a coroutine in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out the batch in the loop."""
        return self.run(self.inner.apply(ops))

    def scan(self, query: Query) -> Page:
        """Give one page, from within the loop."""
        return self.run(self.inner.scan(query))

    def purge(self, limit: int) -> int:
        """Purge from within the loop."""
        return self.run(self.inner.purge(limit))

    def close(self) -> None:
        """Close the store from within the loop."""
        self.run(self.inner.close())


@contextmanager
def running_loop() -> Generator[asyncio.AbstractEventLoop]:
    """Give an event loop that a thread of its own drives."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="conformance loop")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
