"""An operation in its owner's hands, and the moves that the owner has."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from notwice import core, flows
from notwice.awaiting import awaited
from notwice.codec import check_encodable
from notwice.decorate import computed, isawaitable, refuse_lazy, returned
from notwice.errors import NotwiceError, OwnershipLost, StoreUnavailable
from notwice.model import Result
from notwice.operation_base import BEAT, CURRENT, JoinedEnd, Move, OperationBase
from notwice.results import OMITTED
from notwice.runtime import drive, drive_async, drive_within, drive_within_async
from notwice.steps import Step
from notwice.stores.port import AsyncJoined, AsyncStore, Fate, Joined, Store, joined, joined_async

_T = TypeVar("_T")


def current_operation() -> Operation | AsyncOperation:
    """The operation that the running handler was claimed for.

    Raises `LookupError` outside a guarded handler: a handler that needs its downstream key must not run without.
    """
    try:
        return cast("Operation | AsyncOperation", CURRENT.get())
    except LookupError:
        message = "no operation is running here: call this from a guarded handler, or inside `with op:`"
        raise LookupError(message) from None


class Operation(OperationBase):
    """An operation that is yours to run. Use it as ``with op:``; end it by complete, fail, abandon or suspend.

    Every move raises `OwnershipLost` if another owner has the operation (nothing changed), `OperationEnded` after a
    last move, and `StoreUnavailable` if the store does not answer. Leaving ``with op:`` by `NotApplied` abandons, by
    one of ``final_errors`` fails, by any other exception suspends; leaving it without a move suspends and raises
    `NotCompleted`. A killed process leaves the record as it is: it lapses, and shows as unresolved.
    """

    __slots__ = ()

    _asynchronous = False

    def complete(self, value: object = None, *, transaction: object = None) -> None:
        """Finish the operation: every duplicate gets `value` from now on.

        With `transaction`, an open connection of the store's database, it is finished if and when that is committed,
        together with the rows of the handler; the operation must have been begun with ``Policy(atomic=True)``.

        `value` is anything `notwice.codec` keeps without loss, or a `Result`. Raises `EncodingError` otherwise; the
        operation then goes on. If the store does not answer, the guard goes on repeating this very write.
        """
        self._move(self._completing(value), transaction)

    def fail(self, value: object = None, *, transaction: object = None) -> None:
        """Finish the operation with a definite refusal, which is replayed, too. `value` may be an exception."""
        self._move(self._failing(value), transaction)

    def omit(self, why: str = "") -> None:
        """Finish the operation without keeping its result: duplicates are told that it is done and was omitted.

        `why` is for people: it stands in the record.
        """
        self._move(self._completing(OMITTED, why))

    def checkpoint(self, point: str, data: object = None, *, transaction: object = None) -> None:
        """Keep that the step `point` is done, with its result `data`: `step` gives that, and runs nothing."""
        self._move(self._checkpointing(point, data), transaction)
        self._checkpointed(point, data, transaction)

    def step(self, name: str, function: Callable[[], _T]) -> _T:
        """Run a part of the handler once, and give its result: again, without running it, when recovered.

        `function` takes no arguments. It finds its downstream key by ``current_step().downstream_key()``, which is
        ``operation.downstream_key(name)`` for the first call of a name. Its result is kept in the record before this
        returns; the first time its own value is given, later an equal one. Where half of a lease has gone
        since the store last confirmed a write, the lease is renewed before the function runs.

        The n-th call of a name that returned is its occurrence n; a call that raised has left no result, so the next
        call of that name runs the same step once more. Parallel branches need names of their own. After a crash each
        step that returned is skipped; the one that was running runs again, under the same downstream key.

        Raises `StepsChanged` for a new step if not all that are kept were asked for again, `StepRunning` for a second
        call of a name before the first has ended, `ProgressFull` beyond 1,000 steps or 1 MiB of results, and
        `EncodingError` for a result that can't be kept. If the store does not confirm the result, `StoreUnavailable` is
        raised, and the next call of this step in this attempt stores it without running the function again.
        """
        self._check_process()
        steps = self._ledger
        refuse_lazy(function, asynchronous=self._asynchronous)
        step = steps.open(name)
        try:
            if steps.is_kept(step):
                return cast("_T", self._recalled(step))
            if step._data is None:
                check_encodable(returned(function))
                self._turn(step)
                if self._must_confirm(step):
                    self._move(BEAT)
                with step:
                    found: Any = function()
                    value = computed(found)
                steps.ran(step, value, lane=self._lane())
            self._move(self._stepping(step))
            steps.returned(step)
            return cast("_T", step._value)
        finally:
            steps.close(step)

    def heartbeat(self) -> None:
        """Renew the lease now. The guard does this by itself three times per lease."""
        self._move(BEAT)

    def confirm(self) -> None:
        """Make sure that the operation is still yours, right before an effect; raises where that is not certain."""
        self._move(BEAT)

    def abandon(self) -> None:
        """Take back this claim: nothing happened under it. Frees the key only if this claim created the record."""
        self._move(self._abandoning())

    def suspend(self, error: object = "", answer: Result | None = None) -> None:
        """Leave the operation with an unknown outcome; `answer` is what was sent to the caller, if that was whole."""
        self._move(self._suspending(error, answer))

    def _turn(self, step: Step) -> None:
        """Wait until a new step may run: until every kept one was asked for, at most for one lease."""
        steps, clock, event = self._ledger, self._runtime.clock, threading.Event()
        deadline = clock.monotonic() + self._own.record.terms.lease_ms / 1000
        with steps.waking(event.set):
            while steps.must_wait(step, lane=self._lane()):
                left = deadline - clock.monotonic()
                if left <= 0:
                    raise self._refused(step)
                clock.wait(event, left)
                event.clear()

    def _start(self) -> None:
        """Confirm a re-claimed operation whose handler is about to run after it was reconciled."""
        self._move(Move("", core.started))

    def _put_back(self, why: str | BaseException) -> None:
        """Leave a re-claimed operation whose outcome could not be found out."""
        self._runtime.heart.remove(self._hold)  # first, as in leaving
        self._move(self._putting_back(why))

    def _move(self, move: Move, transaction: object = None) -> None:
        self._check_process()
        with self._hold.gate.turn:
            if not self._ready(move, transaction):
                return
            if transaction is not None or self._within is not None:
                self._move_within(move, transaction)
                return
            try:
                drive(self._flow(move), self._runtime, self._policy.store_timeout_seconds)
            except BaseException as error:
                self._failed(error)
                raise
        self._done(move)

    @property
    def _store(self) -> Store:
        return self._runtime.store

    def _move_within(self, move: Move, transaction: object) -> None:
        try:
            store = self._within or joined(self._store, transaction)
        except (TypeError, ValueError):
            self._unproven = True  # what is no open transaction may have committed the rows already
            raise
        try:
            written = drive_within(self._flow_within(move), cast("Joined", store))
        except OwnershipLost as error:
            self._failed(error)
            raise
        if move.ends:
            self._joined = JoinedEnd(store, written)

    def _look_for_end(self) -> None:
        """Look whether an end on the caller's transaction is committed; raises `StoreUnavailable` if it can't be seen.

        If it is not, that says nothing yet.
        """
        if self._joined is None or self._own.ended:
            return
        with self._hold.gate.turn:
            drive(flows.look_for_end(self._own), self._runtime, self._policy.store_timeout_seconds)

    def _look_back(self, end: JoinedEnd, error: BaseException | None) -> bool:
        """Find out what became of an end on the caller's transaction. Gives whether nothing is left to be done."""
        store = cast("Joined", end.store)
        with self._hold.gate.turn:
            fate = store.fate(end.written) if store.is_open() else None
            if fate is Fate.OPEN:
                self._judge(end, fate, error)
                return error is None  # what comes of it is not known yet
            try:
                drive(flows.look_for_end(self._own), self._runtime, self._policy.store_timeout_seconds)
            except StoreUnavailable:
                if self._within is not None:
                    return True
            if not self._own.ended:
                self._judge(end, store.fate(end.written) if fate is None else fate, error)
                return False
        self._found()
        return True

    def __enter__(self) -> Self:
        self._home = self._lane()
        self._set_current()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reset_current()
        self._runtime.heart.remove(self._hold)  # first: whatever interrupts the rest, nobody is at work any more
        if self._is_over(error):
            return
        try:
            if self._joined is not None and self._look_back(self._joined, error):
                return
            if self._within is None:
                self._move(self._leaving(error))
        except NotwiceError as failure:
            behind = self.joined and isinstance(failure, StoreUnavailable)  # then it is settled behind the caller
            if error is not None or (behind and not self._known_undone):
                return
            if not behind:
                raise
        except BaseException as interruption:
            self._interrupted(error, interruption)
            raise
        if error is None and not self._own.record.terminal:
            raise self._not_completed()


class AsyncOperation(OperationBase):
    """An operation that is yours to run. Use it as ``async with op:``; end it by complete, fail, abandon or suspend.

    Every move raises `OwnershipLost` if another owner has the operation (nothing changed), `OperationEnded` after a
    last move, and `StoreUnavailable` if the store does not answer. Leaving ``async with op:`` by `NotApplied` abandons,
    by one of ``final_errors`` fails, by any other exception (a cancellation too) suspends; leaving it without a move
    suspends and raises `NotCompleted`. A killed process leaves the record as it is: it lapses, and shows as unresolved.

    A move that was called and not awaited has not run. Where no event loop runs, the call raises `NotAwaited`; else
    complete and fail raise it, and nothing is finished.
    """

    __slots__ = ()

    _asynchronous = True

    @awaited
    async def complete(self, value: object = None, *, transaction: object = None) -> None:
        """Finish the operation: every duplicate gets `value` from now on.

        With `transaction`, an open connection of the store's database, it is finished if and when that is committed,
        together with the rows of the handler; the operation must have been begun with ``Policy(atomic=True)``.

        `value` is anything `notwice.codec` keeps without loss, or a `Result`. Raises `EncodingError` otherwise; the
        operation then goes on. If the store does not answer, the guard goes on repeating this very write.
        """
        await self._move(self._completing(value), transaction)

    @awaited
    async def fail(self, value: object = None, *, transaction: object = None) -> None:
        """Finish the operation with a definite refusal, which is replayed, too. `value` may be an exception."""
        await self._move(self._failing(value), transaction)

    @awaited
    async def omit(self, why: str = "") -> None:
        """Finish the operation without keeping its result: duplicates are told that it is done and was omitted.

        `why` is for people: it stands in the record.
        """
        await self._move(self._completing(OMITTED, why))

    @awaited
    async def checkpoint(self, point: str, data: object = None, *, transaction: object = None) -> None:
        """Keep that the step `point` is done, with its result `data`: `step` gives that, and runs nothing."""
        await self._move(self._checkpointing(point, data), transaction)
        self._checkpointed(point, data, transaction)

    @awaited
    async def step(self, name: str, function: Callable[[], Awaitable[_T]]) -> _T:
        """Run a part of the handler once, and give its result: again, without running it, when recovered.

        `function`, a coroutine function, takes no arguments. It finds its downstream key by
        ``current_step().downstream_key()``, which is ``operation.downstream_key(name)`` for the first call of a name.
        Its result is kept in the record before this returns; the first time its own value is given, later an equal one.
        Where half of a lease has gone since the store last confirmed a write, the lease is renewed before it runs.

        The n-th call of a name that returned is its occurrence n; a call that raised has left no result, so the next
        call of that name runs the same step once more. Parallel branches need names of their own. After a crash each
        step that returned is skipped; the one that was running runs again, under the same downstream key.

        Raises `StepsChanged` for a new step if not all that are kept were asked for again, `StepRunning` for a second
        call of a name before the first has ended, `ProgressFull` beyond 1,000 steps or 1 MiB of results, and
        `EncodingError` for a result that can't be kept. If the store does not confirm the result, `StoreUnavailable` is
        raised, and the next call of this step in this attempt stores it without running the function again.
        """
        self._check_process()
        steps = self._ledger
        refuse_lazy(function, asynchronous=self._asynchronous)
        step = steps.open(name)
        try:
            if steps.is_kept(step):
                return cast("_T", self._recalled(step))
            if step._data is None:
                check_encodable(returned(function))
                await self._turn(step)
                if self._must_confirm(step):
                    await self._move(BEAT)
                with step:
                    found: Any = function()
                    if isawaitable(found):
                        found = await found
                    value = computed(found)
                steps.ran(step, value, lane=self._lane())
            await self._move(self._stepping(step))
            steps.returned(step)
            return cast("_T", step._value)
        finally:
            steps.close(step)

    @awaited
    async def heartbeat(self) -> None:
        """Renew the lease now. The guard does this by itself three times per lease."""
        await self._move(BEAT)

    @awaited
    async def confirm(self) -> None:
        """Make sure that the operation is still yours, right before an effect; raises where that is not certain."""
        await self._move(BEAT)

    @awaited
    async def abandon(self) -> None:
        """Take back this claim: nothing happened under it. Frees the key only if this claim created the record."""
        await self._move(self._abandoning())

    @awaited
    async def suspend(self, error: object = "", answer: Result | None = None) -> None:
        """Leave the operation with an unknown outcome; `answer` is what was sent to the caller, if that was whole."""
        await self._move(self._suspending(error, answer))

    async def _turn(self, step: Step) -> None:
        """Wait until a new step may run: until every kept one was asked for, at most for one lease."""
        steps, clock, event = self._ledger, self._runtime.clock, asyncio.Event()
        deadline = clock.monotonic() + self._own.record.terms.lease_ms / 1000
        with steps.waking(partial(_wake, asyncio.get_running_loop(), event)):
            while steps.must_wait(step, lane=self._lane()):
                left = deadline - clock.monotonic()
                if left <= 0:
                    raise self._refused(step)
                await clock.wait_async(event, left)
                event.clear()

    async def _start(self) -> None:
        """Confirm a re-claimed operation whose handler is about to run after it was reconciled."""
        await self._move(Move("", core.started))

    async def _put_back(self, why: str | BaseException) -> None:
        """Leave a re-claimed operation whose outcome could not be found out."""
        self._runtime.heart.remove(self._hold)  # first, as in leaving
        await self._move(self._putting_back(why))

    async def _move(self, move: Move, transaction: object = None) -> None:
        self._check_process()
        async with self._hold.gate.turn_async:
            if not self._ready(move, transaction):
                return
            if transaction is not None or self._within is not None:
                await self._move_within(move, transaction)
                return
            try:
                await drive_async(self._flow(move), self._runtime, self._policy.store_timeout_seconds)
            except BaseException as error:
                self._failed(error)
                raise
        self._done(move)

    def _lane(self) -> object:
        return asyncio.current_task()

    @property
    def _store(self) -> AsyncStore | None:
        return self._runtime.asynchronous

    async def _move_within(self, move: Move, transaction: object) -> None:
        try:
            store = self._within or await joined_async(self._store, transaction)
        except (TypeError, ValueError):
            self._unproven = True  # what is no open transaction may have committed the rows already
            raise
        try:
            written = await drive_within_async(self._flow_within(move), cast("AsyncJoined", store))
        except OwnershipLost as error:
            self._failed(error)
            raise
        if move.ends:
            self._joined = JoinedEnd(store, written)

    async def _look_for_end(self) -> None:
        """Look whether an end on the caller's transaction is committed; raises `StoreUnavailable` if it can't be seen.

        If it is not, that says nothing yet.
        """
        if self._joined is None or self._own.ended:
            return
        async with self._hold.gate.turn_async:
            await drive_async(flows.look_for_end(self._own), self._runtime, self._policy.store_timeout_seconds)

    async def _look_back(self, end: JoinedEnd, error: BaseException | None) -> bool:
        """Find out what became of an end on the caller's transaction. Gives whether nothing is left to be done."""
        store = cast("AsyncJoined", end.store)
        async with self._hold.gate.turn_async:
            fate = await store.fate(end.written) if store.is_open() else None
            if fate is Fate.OPEN:
                self._judge(end, fate, error)
                return error is None  # what comes of it is not known yet
            try:
                await drive_async(flows.look_for_end(self._own), self._runtime, self._policy.store_timeout_seconds)
            except StoreUnavailable:
                if self._within is not None:
                    return True
            if not self._own.ended:
                self._judge(end, await store.fate(end.written) if fate is None else fate, error)
                return False
        self._found()
        return True

    async def __aenter__(self) -> Self:
        self._home = self._lane()
        self._set_current()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reset_current()
        self._runtime.heart.remove(self._hold)  # first: whatever interrupts the rest, nobody is at work any more
        if self._is_over(error):
            return
        try:
            if self._joined is not None and await self._look_back(self._joined, error):
                return
            if self._within is None:
                await self._move(self._leaving(error))
        except NotwiceError as failure:
            behind = self.joined and isinstance(failure, StoreUnavailable)  # then it is settled behind the caller
            if error is not None or (behind and not self._known_undone):
                return
            if not behind:
                raise
        except BaseException as interruption:
            self._interrupted(error, interruption)
            raise
        if error is None and not self._own.record.terminal:
            raise self._not_completed()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set the event of a task, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(event.set)
