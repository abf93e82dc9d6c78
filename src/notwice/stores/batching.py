"""Concurrent callers share trips and commits.

Whoever comes while nothing is under way leads: it carries out its own call at once, in its own thread, and nothing but
that. Whoever comes meanwhile is pending. When a leader is done it hands the lead to the first thread that is pending,
which carries out all that is pending as one batch, its own call among it. Where only event loops wait, the lead goes
to one worker thread. So alone nobody waits for company, and in company batches grow by themselves while a commit runs.

A batch names an id once. A call that names an id of a batch, or of a call that has to wait, waits for the next batch,
so that the operations on one id are carried out in the order in which they came. Nothing is reported before the commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.calls import (
    BATCH_MAX,
    PENDING_MAX,
    WATCHES,
    Call,
    LoopCall,
    operations_of,
    settle,
    share_out,
    take,
)
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.port import Loads, Store
from notwice.stores.shared import KeyLocked, closed, refuse_repeated_names

T = TypeVar("T")


class _ThreadCall(Call):
    """A call whose caller waits in a thread of its own."""

    __slots__ = ("leads", "wake")

    def __init__(self, ops: Sequence[Op]) -> None:
        super().__init__(ops)
        self.leads = False  # its caller has the lead, or is to take it
        self.wake = threading.Lock()
        self.wake.acquire()


class Batching:
    """A `Store` in front of a blocking one that lets concurrent callers, threads and tasks alike, share commits.

    If the store raises, each caller of that batch is told so: whether its writes are there is not known. A caller that
    is cancelled, or waits longer than `timeout`, gets no answer; its call may still be carried out. What is pending
    when the store is closed is carried out first.

    Arguments:
        store: the store that carries out the batches, one at a time.
        timeout: seconds that a call waits for its turn and for the batch of another caller.
        batch_max: how many operations share a commit at most.
        pending_max: how many calls may be pending; more are refused with `StoreUnavailable`.
    """

    def __init__(
        self, store: Store, *, timeout: float = 2.0, batch_max: int = BATCH_MAX, pending_max: int = PENDING_MAX
    ) -> None:
        self._store = store
        self._timeout = timeout
        self._batch_max = batch_max
        self._pending_max = pending_max
        self._closed = False
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._led = False
        self._pending: deque[_ThreadCall | LoopCall] = deque()
        self._threads: deque[_ThreadCall] = deque()  # those of `_pending`, and some that are no longer
        self._under_way: Sequence[_ThreadCall | LoopCall] = ()
        self._watched: set[asyncio.AbstractEventLoop] = set()
        self._drained = threading.Event()
        self._worker: _Worker | None = None

    @property
    def asynchronous(self) -> AsyncBatching:
        """The same store for event loops."""
        return AsyncBatching(self)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in company or alone."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        call: _ThreadCall | None = None
        with self._lock:
            self._check_open()
            if self._led:
                call = _ThreadCall(ops)
                self._append(call)
                self._threads.append(call)
            else:
                self._led = True
        if call is not None:
            return self._follow(call)
        try:
            return self._store.apply(ops)
        finally:
            self._hand_on()

    def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return self._store.scan(query)

    def purge(self, limit: int) -> int:
        """Purge the store."""
        return self._store.purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store. Raises `NotImplementedError` if the store behind can't."""
        if not isinstance(self._store, Loads):
            raise NotImplementedError("this store takes in no records of another one")
        return self._store.load(views)

    def close(self) -> None:
        """Carry out what is pending, then close the store and end the worker thread."""
        with self._lock:
            busy = self._led
            self._closed = True
        if busy:
            self._drained.wait(self._timeout)
        if self._worker is not None:
            self._worker.stop(self._timeout)
        self._store.close()

    def before_fork(self) -> None:
        """Let nobody change what is pending while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: what was pending, and the worker, are the parent's."""
        self._start_anew()

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    def _append(self, call: _ThreadCall | LoopCall) -> None:
        if len(self._pending) >= self._pending_max:
            raise StoreUnavailable(f"{len(self._pending)} calls are waiting for the store already; nothing was done")
        self._pending.append(call)

    def _follow(self, call: _ThreadCall) -> Sequence[Reply]:
        """Wait for the answer, or for the lead."""
        try:
            if not call.wake.acquire(timeout=self._timeout) and self._gives_up(call):
                raise call.too_late(self._timeout)
            while call.leads and not call.answered:
                with suppress(Exception):  # each caller is told, this one below
                    self._lead_batch()
            return call.result()
        finally:
            call.given_up = not call.answered  # only if interrupted
            if call.leads:
                self._hand_on()

    def _gives_up(self, call: _ThreadCall | LoopCall) -> bool:
        """Stop waiting for an answer; not so if it, or the lead, has just come."""
        with self._lock:
            call.given_up = not call.answered and not (isinstance(call, _ThreadCall) and call.leads)
            return call.given_up

    async def apply_async(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, for a task."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        call = LoopCall(ops)
        with self._lock:
            self._check_open()
            self._append(call)
            if not self._led:
                self._led = True
                self._in_worker(self._serve)
        if call.loop not in self._watched:
            self._watched = {loop for loop in self._watched if not loop.is_closed()} | {call.loop}
            self._watch_later(call.loop)
        try:
            await call.future
        finally:
            call.given_up = not call.answered
        return call.result()

    def _watch_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._timeout / WATCHES, self._watch, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse what a loop has waited for too long. One timer for all of its calls, as long as there are any."""
        with self._lock:
            everyone = (*self._under_way, *self._pending)
            calls = [call for call in everyone if isinstance(call, LoopCall) and call.is_awaited_in(loop)]
            if not calls:
                self._watched.discard(loop)
                return
        late = time.monotonic() - self._timeout
        for call in calls:
            if call.since <= late and self._gives_up(call) and not call.future.done():
                call.future.set_exception(call.too_late(self._timeout))
        self._watch_later(loop)

    async def run_in_worker(self, job: Callable[[], T]) -> T:
        """Run a call of the store in the worker thread, for a task."""
        future: Future[T] = Future()
        with self._lock:
            self._check_open()
            self._in_worker(partial(_run, job, future))
        return await asyncio.wrap_future(future)

    # --- leading ------------------------------------------------------------------------------------------------------

    def _lead_batch(self) -> None:
        """Carry out one batch of what is pending. If it meets a locked key, each call by itself."""
        with self._lock:
            batch = self._under_way = take(self._pending, self._batch_max)
        if self._carry_out(batch):
            return
        left = deque(batch)
        try:
            while left:
                self._under_way = tuple(left)
                with suppress(Exception):  # its caller is told
                    self._carry_out([left.popleft()])
        finally:
            if left:  # interrupted
                self._answer(
                    left, (), StoreUnavailable("the thread that was to carry this out ended; nothing was done")
                )

    def _carry_out(self, batch: Sequence[_ThreadCall | LoopCall]) -> bool:
        """Carry out a batch and answer its callers. If it met a locked key and can be split, nobody is answered."""
        try:
            replies = self._store.apply(operations_of(batch)) if batch else ()
        except BaseException as error:
            if isinstance(error, KeyLocked) and len(batch) > 1:
                return False
            self._answer(batch, (), error)
            raise
        self._answer(batch, replies, None)
        return True

    def _answer(
        self, batch: Iterable[_ThreadCall | LoopCall], replies: Sequence[Reply], error: BaseException | None
    ) -> None:
        """Give each call of a batch its part, and wake its caller: a loop once for all its tasks."""
        loops: dict[asyncio.AbstractEventLoop, list[LoopCall]] = {}
        with self._lock:
            share_out(batch, replies, error)
            self._under_way = ()
        for call in batch:
            if isinstance(call, LoopCall):
                loops.setdefault(call.loop, []).append(call)
            elif not call.leads:
                call.wake.release()
        for loop, calls in loops.items():
            with suppress(RuntimeError):  # that loop is closed, and nobody waits in it
                loop.call_soon_threadsafe(settle, calls)

    def _hand_on(self) -> None:
        """Give the lead to the first thread that is pending, else to the worker if tasks are, else to nobody."""
        with self._lock:
            while self._threads:
                call = self._threads.popleft()
                if not call.taken and not call.given_up:
                    call.leads = True
                    call.wake.release()
                    return
            if self._pending:
                self._in_worker(self._serve)
                return
            self._led = False
            if self._closed:
                self._drained.set()

    def _serve(self) -> None:
        """Lead for one batch, in the worker thread."""
        try:
            with suppress(Exception):  # each caller has been told
                self._lead_batch()
        finally:
            self._hand_on()

    def _in_worker(self, job: Callable[[], None]) -> None:
        if self._worker is None:
            self._worker = _Worker(self)
        self._worker.jobs.put(job)


class AsyncBatching:
    """`Batching` for an event loop; any number of loops may use it at once."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    @property
    def blocking(self) -> Store:
        """The same store, for callers outside a loop."""
        return self._batching

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in company or alone."""
        return await self._batching.apply_async(ops)

    async def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return await self._batching.run_in_worker(partial(self._batching.scan, query))

    async def purge(self, limit: int) -> int:
        """Purge the store."""
        return await self._batching.run_in_worker(partial(self._batching.purge, limit))

    async def close(self) -> None:
        """Carry out what is pending, then close the store and end the worker thread."""
        await asyncio.to_thread(self._batching.close)


class _Worker:
    """One thread that runs jobs in their order, until it is stopped or its `Batching` is forgotten."""

    def __init__(self, owner: Batching) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self.jobs,), name="notwice-store", daemon=True)
        self._thread.start()
        weakref.finalize(owner, self.jobs.put, None).atexit = False

    def stop(self, timeout: float) -> None:
        """End the thread after the jobs that it has, and wait up to `timeout` seconds for that."""
        self.jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may hold the last reference to the store


def _run(job: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
