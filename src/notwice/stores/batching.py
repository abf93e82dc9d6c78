"""Concurrent callers share trips and commits.

Whoever comes while nothing is under way leads: it carries out its own call at once, in its own thread, and nothing but
that. Whoever comes meanwhile is pending. When a leader is done it calls the first thread that is pending, which takes
the lead and carries out all that is pending as one batch, its own call among it. Where only event loops wait, one
worker thread is called. So alone nobody waits for company, and in company batches grow by themselves while a commit
runs.

A batch names an id once. A call that names an id of a batch, or of a call that has to wait, waits for the next batch,
so that the operations on one id are carried out in the order in which they came. Nothing is reported before the commit.

A caller may be interrupted anywhere. The lead ends with one plain store, which can't be. All that comes after it, those
still to be told and the next one to be called, can be done by anybody and twice: by whoever comes, by those who wait,
who look around `WATCHES` times within their time-out, and by the timers of the loops.
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
from notwice.model import Op, Page, Query, Record, RecordView, Reply
from notwice.stores.calls import (
    BATCH_MAX,
    PENDING_MAX,
    WATCHES,
    Call,
    LoopCall,
    may_be_split,
    operations_of,
    settle,
    share_out,
    take,
)
from notwice.stores.findings import Finding
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.interrupts import take_lock
from notwice.stores.port import AsyncJoined, Fate, Joined, Store, joined, loading
from notwice.stores.shared import closed, no_thread, refuse_repeated_names

T = TypeVar("T")


class _Lead:
    """The right to use the store. Who is in `Batching._leader` has it for as long as it is held."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = True


class _ThreadCall(Call):
    """A call whose caller waits in a thread of its own."""

    __slots__ = ("called", "wake")

    def __init__(self, ops: Sequence[Op]) -> None:
        super().__init__(ops)
        self.called = False  # its caller was called to lead, or has taken the lead by itself
        self.wake = threading.Lock()
        self.wake.acquire()

    def wait(self, seconds: float) -> bool:
        """Wait to be woken, and say whether the answer is there."""
        self.wake.acquire(timeout=seconds)
        return self.answered

    def wake_up(self) -> None:
        """Have its caller look around. Doing so twice is harmless."""
        try:  # noqa: SIM105 - on the hot path
            self.wake.release()
        except RuntimeError:  # it is awake
            pass


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
        self._leader = _Lead()
        self._leader.held = False
        self._called = False  # somebody was called to lead, and has not begun yet
        self._pending: deque[_ThreadCall | LoopCall] = deque()
        self._threads: deque[_ThreadCall] = deque()  # those of `_pending`, and some that are no longer
        self._under_way: Sequence[_ThreadCall | LoopCall] = ()
        self._awaited: set[LoopCall] = set()
        self._watched: dict[asyncio.AbstractEventLoop, float] = {}  # when the timer of each loop is due
        self._resting: list[bool] = []
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
        lead = _Lead()
        call: _ThreadCall | None = None
        try:
            with self._lock:
                self._check_open()
                if self._leader.held or self._pending:
                    call = _ThreadCall(ops)
                    self._append(call)
                else:
                    self._leader = lead
            return self._store.apply(ops) if call is None else self._follow(call, lead)
        finally:
            lead.held = False
            if call is not None:
                call.given_up = True
            if call is None or call.called:  # in this order: who is called once it has given up is not relied on
                self._hand_on()

    @property
    def behind(self) -> Store:
        """The store that this one stands before."""
        return self._store

    def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return self._store.scan(query)

    def purge(self, limit: int) -> int:
        """Purge the store."""
        return self._store.purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store. Raises `NotImplementedError` if the store behind can't."""
        return loading(self._store).load(views)

    def join(self, transaction: object) -> Joined:
        """The store's records on the caller's transaction, alone. Raises `TypeError` if the store behind can't."""
        return joined(self._store, transaction)

    def findings(self) -> list[Finding]:
        """What could break a promise among the settings of the server behind; nothing where there are none."""
        find: Callable[[], list[Finding]] | None = getattr(self._store, "findings", None)
        return [] if find is None else find()

    def close(self) -> None:
        """Carry out what is pending, then close the store and end the worker thread."""
        with self._lock:
            busy = self._leader.held or bool(self._pending)
            self._closed = True
        if busy:
            self._drained.wait(self._timeout)
        if self._worker is not None:
            self._worker.stop(self._timeout)
        self._store.close()

    def before_fork(self) -> None:
        """Let nobody change what is pending while the process is copied."""
        take_lock(self._lock, -1, self._resting)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        resting, self._resting = self._resting, []
        if True in resting:
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
        if isinstance(call, _ThreadCall):
            self._threads.append(call)
        self._pending.append(call)
        if not self._leader.held and not self._called:
            self._call_next()

    def _follow(self, call: _ThreadCall, lead: _Lead) -> Sequence[Reply]:
        """Wait for the answer, or for the lead."""
        late = time.monotonic() + self._timeout
        while not call.wait(self._timeout / WATCHES):
            if self._takes(lead, call):
                while not call.answered:
                    self._lead_batch()
                break
            if time.monotonic() >= late and self._gives_up(call):
                raise call.too_late(self._timeout)
        return call.result()

    def _gives_up(self, call: _ThreadCall | LoopCall) -> bool:
        """Stop waiting for an answer; not so if it has just come."""
        with self._lock:
            call.given_up = not call.answered
            return call.given_up

    async def apply_async(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, for a task."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        call = LoopCall(ops)
        try:
            with self._lock:
                self._check_open()
                self._have_watched(call)
                self._append(call)
            await call.future
        finally:
            call.given_up = True
            self._awaited.discard(call)
        return call.result()

    def _have_watched(self, call: LoopCall) -> None:
        """See to it that the loop of `call` has a timer. One that is long overdue was interrupted."""
        self._awaited.add(call)
        due = self._watched.get(call.loop)
        if due is None or due < call.since - self._timeout:
            self._watch_later(call.loop)
        if due is None:
            for loop in [loop for loop in self._watched if loop.is_closed()]:
                del self._watched[loop]
            self._awaited.difference_update([each for each in tuple(self._awaited) if each.loop.is_closed()])

    def _watch_later(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = self._timeout / WATCHES
        loop.call_later(pause, self._watch, loop)
        self._watched[loop] = time.monotonic() + pause

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse what a loop has waited for too long. One timer for all of its calls, as long as there are any."""
        self._hand_on()
        with self._lock:
            calls = [call for call in tuple(self._awaited) if call.loop is loop]
            if not calls:
                self._watched.pop(loop, None)
                return
            self._watch_later(loop)
        late = time.monotonic() - self._timeout
        for call in calls:
            if call.answered:
                settle((call,))
            elif call.since <= late and self._gives_up(call) and not call.future.done():
                call.future.set_exception(call.too_late(self._timeout))

    async def run_in_worker(self, job: Callable[[], T]) -> T:
        """Run a call of the store in the worker thread, for a task."""
        future: Future[T] = Future()
        with self._lock:
            self._check_open()
            self._in_worker(partial(_run, job, future))
        return await asyncio.wrap_future(future)

    # --- leading ------------------------------------------------------------------------------------------------------

    def _takes(self, lead: _Lead, call: _ThreadCall | None = None) -> bool:
        """Take the lead, for the caller of `call` or for the worker, unless somebody has it or `call` is answered."""
        with self._lock:
            if self._leader.held or (call is not None and call.answered):
                return False
            if call is not None:
                call.called = True
            self._leader = lead
            self._called = False
            if self._under_way:
                self._tell_those_left()
        return call is None or not call.answered

    def _lead_batch(self) -> None:
        """Carry out one batch of what is pending. If a locked key or a record's size stops it, each call by itself."""
        with self._lock:
            pending = self._pending.copy()
            batch = take(pending, self._batch_max)
            self._pending, self._under_way = pending, batch
        if not self._carry_out(batch):
            for call in batch:
                if not call.given_up:
                    self._carry_out([call])
        self._under_way = ()

    def _carry_out(self, batch: Sequence[_ThreadCall | LoopCall]) -> bool:
        """Carry out a batch and answer its callers. If nothing was done and it can be split, nobody is answered."""
        try:
            replies = self._store.apply(operations_of(batch)) if batch else ()
        except BaseException as error:
            if may_be_split(error, batch):
                return False
            self._answer(batch, (), error)
            if not isinstance(error, Exception):
                raise
        else:
            self._answer(batch, replies, None)
        return True

    def _answer(
        self, batch: Sequence[_ThreadCall | LoopCall], replies: Sequence[Reply], error: BaseException | None
    ) -> None:
        """Give each call of a batch its part, and wake its caller."""
        with self._lock:
            share_out(batch, replies, error)
        _wake(batch)

    def _tell_those_left(self) -> None:
        """Answer those whom an interrupted leader left behind. To be called with the lock, while nobody leads them."""
        error = StoreUnavailable("the thread that carried this out was interrupted; its outcome is not known")
        share_out([call for call in self._under_way if not call.answered], (), error)
        _wake(self._under_way)
        self._under_way = ()

    def _hand_on(self) -> None:
        """Unless somebody leads, have the next one do so: the first thread that is pending, or else the worker."""
        with self._lock:
            if self._leader.held:
                return
            self._called = False
            if self._under_way:
                self._tell_those_left()
            if self._pending:
                self._call_next()
            if self._closed and not self._pending:
                self._drained.set()

    def _call_next(self) -> None:
        while self._threads:
            call = self._threads[0]
            if not call.taken:
                call.called = True
                if not call.given_up:  # in this order: who gives up now sees that it was called
                    call.wake_up()
                    self._called = True
                    return
            self._threads.popleft()
        try:
            self._in_worker(self._serve)
            self._called = True
        except StoreUnavailable as error:  # who has led is told of its own call, not of this
            refused, self._pending = self._pending, deque()
            share_out(refused, (), error)
            _wake(refused)

    def _serve(self) -> None:
        """Lead for one batch, in the worker thread."""
        lead = _Lead()
        try:
            if self._takes(lead):
                self._lead_batch()
        finally:
            lead.held = False
            self._hand_on()

    def _in_worker(self, job: Callable[[], None]) -> None:
        if self._worker is None or not self._worker.alive:
            try:
                self._worker = _Worker(self)
            except RuntimeError as error:  # the system has no thread left
                raise no_thread(error) from error
        self._worker.jobs.put(job)


class AsyncBatching:
    """`Batching` for an event loop; any number of loops may use it at once."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    @property
    def blocking(self) -> Store:
        """The same store, for callers outside a loop."""
        return self._batching

    @property
    def behind(self) -> Store:
        """The store that this one stands before."""
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

    async def join(self, transaction: object) -> AsyncJoined:
        """The store's records on the caller's transaction, alone. Raises `TypeError` if the store behind can't."""
        return _JoinedInLoop(self._batching.join(transaction))

    async def close(self) -> None:
        """Carry out what is pending, then close the store and end the worker thread."""
        await asyncio.to_thread(self._batching.close)


class _JoinedInLoop:
    """An `AsyncJoined` that blocks its loop, as the caller's connection does: it may be used in one thread only."""

    def __init__(self, joined: Joined) -> None:
        self._joined = joined

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        return self._joined.apply(ops)

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return self._joined.is_open()

    async def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        return self._joined.fate(record)


class _Worker:
    """One thread that runs jobs in their order, until it is stopped or its `Batching` is forgotten."""

    def __init__(self, owner: Batching) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self.jobs,), name="notwice-store", daemon=True)
        weakref.finalize(owner, self.jobs.put, None).atexit = False
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still runs jobs."""
        return self._thread.is_alive()

    def stop(self, timeout: float) -> None:
        """End the thread after the jobs that it has, and wait up to `timeout` seconds for that."""
        self.jobs.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def _work(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        with suppress(BaseException):  # thrown into a thread that is nobody's; who waits for the job was told, or looks
            job()
        del job  # it may hold the last reference to the store


def _wake(batch: Iterable[_ThreadCall | LoopCall]) -> None:
    """Wake the callers of a batch: a loop once for all its tasks."""
    loops: dict[asyncio.AbstractEventLoop, list[LoopCall]] = {}
    for call in batch:
        if isinstance(call, LoopCall):
            loops.setdefault(call.loop, []).append(call)
        else:
            call.wake_up()
    for loop, calls in loops.items():
        with suppress(RuntimeError):  # that loop is closed, and nobody waits in it
            loop.call_soon_threadsafe(settle, calls)


def _run(job: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(job())
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
