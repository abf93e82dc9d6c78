"""Concurrent tasks share trips to a store of event loops.

A call is set off in the same turn of the loop in which it comes, with all others of that turn. Up to `TRIPS_MAX`
batches are under way at once; whoever comes meanwhile is pending until one of them is back. So alone nobody waits for
company, and in company batches grow by themselves. When all trips are free, what is pending is parted between them, so
that the server works on one batch while the loop makes or reads another.

A call that names an id of a batch under way, or of a call that has to wait, waits, too: the operations on one id are
carried out in the order in which they came.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, Reply
from notwice.stores.calls import (
    BATCH_MAX,
    PENDING_MAX,
    WATCHES,
    LoopCall,
    may_be_split,
    operations_of,
    settle,
    share_out,
    take,
)
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.port import AsyncJoined, AsyncStore, Store, joined_async
from notwice.stores.shared import Name, closed, refuse_repeated_names

TRIPS_MAX: Final = 2
"""How many batches of a loop are under way at once: one that the server works on, one on its way."""

PARTED_MIN: Final = 8
"""Fewer operations than this are not parted between trips: a commit costs more than they do."""


class SharedTrips:
    """An `AsyncStore` in front of a native one that lets the tasks of each event loop share its trips.

    If the store raises, each caller of that batch is told so: whether its writes are there is not known. A caller that
    is cancelled, or waits longer than `timeout`, gets no answer; its call may still be carried out.

    Arguments:
        store: the store that carries out the batches.
        timeout: seconds that a call waits for its turn and for its batch.
    """

    def __init__(self, store: AsyncStore, *, timeout: float = 2.0) -> None:
        self._store = store
        self._timeout = timeout
        self._closed = False
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Trips] = weakref.WeakKeyDictionary()

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return self._store.blocking

    @property
    def behind(self) -> AsyncStore:
        """The store that this one stands before."""
        return self._store

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in company or alone."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        return await self._trips().apply(ops)

    async def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return await self._store.scan(query)

    async def purge(self, limit: int) -> int:
        """Purge the store."""
        return await self._store.purge(limit)

    async def join(self, transaction: object) -> AsyncJoined:
        """The store's records on the caller's transaction, alone. Raises `TypeError` if the store behind can't."""
        return await joined_async(self._store, transaction)

    async def close(self) -> None:
        """Carry out what is pending in this loop, then close the store."""
        self._closed = True
        trips = self._loops.get(asyncio.get_running_loop())
        if trips is not None:
            await trips.drain()
        await self._store.close()

    def before_fork(self) -> None:
        """Let nobody change the loops while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: what was pending is the parent's."""
        self._start_anew()

    def _trips(self) -> _Trips:
        if self._closed:
            raise closed()
        loop = asyncio.get_running_loop()
        trips = self._loops.get(loop)
        if trips is None:
            with self._lock:
                trips = self._loops[loop] = _Trips(self._store, self._timeout)
        return trips


class _Trips:
    """What is pending and under way in one event loop."""

    def __init__(self, store: AsyncStore, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._pending: deque[LoopCall] = deque()
        self._under_way: dict[asyncio.Task[None], Sequence[LoopCall]] = {}
        self._busy: set[Name] = set()
        self._due = False  # it is to be set off in this turn of the loop
        self._watched = False

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out `ops` with what else is pending."""
        if not ops:
            return []
        if len(self._pending) >= PENDING_MAX:
            raise StoreUnavailable(f"{len(self._pending)} calls are waiting for the store already; nothing was done")
        call = LoopCall(ops)
        self._pending.append(call)
        self._set_off_soon(call.loop)
        if not self._watched:
            self._watched = True
            call.loop.call_later(self._timeout / WATCHES, self._watch, call.loop)
        try:
            await call.future
        finally:
            call.given_up = not call.answered
        return call.result()

    async def drain(self) -> None:
        """Wait for what is pending and under way, not longer than a call may take."""
        until = time.monotonic() + self._timeout
        while (self._pending or self._under_way) and time.monotonic() < until:
            tasks = list(self._under_way)
            if tasks:
                await asyncio.wait(tasks, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    def _set_off_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._due and len(self._under_way) < TRIPS_MAX:
            self._due = True
            loop.call_soon(self._set_off, loop)

    def _set_off(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = False
        while self._pending and (free := TRIPS_MAX - len(self._under_way)) > 0:
            part = -(-len(self._pending) // free)
            batch = take(self._pending, min(max(part, PARTED_MIN), BATCH_MAX), self._busy)
            if not batch:
                return
            self._busy.update(name for call in batch for name in call.names)
            self._under_way[loop.create_task(self._trip(batch, loop))] = batch

    async def _trip(self, batch: Sequence[LoopCall], loop: asyncio.AbstractEventLoop) -> None:
        try:
            if not await self._carry_out(batch):
                for call in batch:
                    if not call.given_up:
                        await self._carry_out([call])
        finally:
            if left := [call for call in batch if not call.answered]:  # it was cancelled in between
                share_out(left, (), StoreUnavailable("this event loop ended; whether it was carried out is not known"))
                settle(left)
            task = asyncio.current_task()
            assert task is not None
            del self._under_way[task]
            self._busy.difference_update(name for call in batch for name in call.names)
            if self._pending:
                self._set_off_soon(loop)

    async def _carry_out(self, batch: Sequence[LoopCall]) -> bool:
        """Carry out a batch and answer its callers. If nothing was done and it can be split, nobody is answered."""
        try:
            replies = await self._store.apply(operations_of(batch))
        except Exception as error:  # noqa: BLE001 - each caller is told
            if may_be_split(error, batch):
                return False
            share_out(batch, (), error)
        except BaseException:  # the loop ends
            share_out(batch, (), StoreUnavailable("this event loop ended; whether it was carried out is not known"))
            raise
        else:
            share_out(batch, replies, None)
        finally:
            settle(call for call in batch if call.answered)
        return True

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse what has waited for too long. One timer for all calls, as long as there are any."""
        everyone = [call for batch in self._under_way.values() for call in batch] + list(self._pending)
        calls = [call for call in everyone if call.is_awaited_in(loop)]
        self._watched = bool(calls)
        if not calls:
            return
        late = time.monotonic() - self._timeout
        for call in calls:
            if call.since <= late and not call.future.done():
                call.given_up = True
                call.future.set_exception(call.too_late(self._timeout))
        loop.call_later(self._timeout / WATCHES, self._watch, loop)
