"""`AsyncGuard`: the guard for event loops, method by method the same as `Guard`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, cast

from notwice import core, flows
from notwice.backlog import PAGE_MAX
from notwice.core import Ask
from notwice.decorate import Target, computed, isawaitable, refuse_lazy
from notwice.errors import (
    ContentionError,
    EncodingError,
    NotwiceError,
    OwnershipLost,
    StoreUnavailable,
    UnsupportedRecord,
)
from notwice.flows import NO_ORPHANS, OperatorChange, Ownership, Sent
from notwice.guard_base import (
    ABSENT,
    DEFAULT_POLICY,
    Done,
    Duplicate,
    GuardBase,
    Key,
    RequestPrint,
    Scope,
    check_result,
    held_open,
    readable,
    reconciled,
)
from notwice.heart import unavailable
from notwice.model import (
    Fingerprint,
    InProgress,
    Mismatch,
    Query,
    RecordView,
    Replay,
    State,
    Unreadable,
    Unresolved,
)
from notwice.observe import Observer
from notwice.operation import AsyncOperation
from notwice.policy import Applied, Duration, Policy, milliseconds, seconds
from notwice.privacy import Privacy
from notwice.purging import AsyncPurger
from notwice.recovery import Round, Work, round_of
from notwice.results import decode_result
from notwice.runtime import Runtime, drive_async, drive_within_async
from notwice.stores import open_async_store
from notwice.stores.batching import Batching
from notwice.stores.port import AsyncStore, Store, check_store, is_asynchronous, joined_async
from notwice.stores.sealed import AsyncSealedStore
from notwice.waiting import Backoff, Clock

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


class AsyncGuard(GuardBase):
    """Makes side effects safe to retry, for event loops. Any number of loops, tasks and threads may share one.

    It may be made before a fork: connections and threads start at first use in each process. What survives a crash is
    what the store keeps: an operation that was begun is found again as unresolved, and its stored policy applies.

    Raises `TypeError` for what is no store.
    """

    _asynchronous = True

    def __init__(
        self,
        store: AsyncStore | Store,
        *,
        policy: Policy = DEFAULT_POLICY,
        namespace: str = "",
        observer: Observer | None = None,
        clock: Clock | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        check_store(store, type(self).__name__)
        faces = _asynchronous(store)
        faces = faces if privacy is None else AsyncSealedStore(faces, privacy)
        runtime = Runtime(faces.blocking, observer=observer, clock=clock, asynchronous=faces, privacy=privacy)
        super().__init__(runtime, policy, namespace)

    @property
    def _store(self) -> AsyncStore:
        faces = self._runtime.asynchronous
        assert faces is not None  # made in __init__
        return faces

    @classmethod
    def open(
        cls,
        url: str,
        *,
        policy: Policy = DEFAULT_POLICY,
        namespace: str = "",
        observer: Observer | None = None,
        privacy: Privacy | None = None,
    ) -> Self:
        """A guard on the store at `url`: ``sqlite:///payments.db``, ``memory://``. It is not awaited.

        No event is logged unless there is an `observer` like `LogObserver`. Raises `ValueError` for a URL that names
        no known store, with a suggestion.
        """
        return cls(open_async_store(url), policy=policy, namespace=namespace, observer=observer, privacy=privacy)

    async def begin(
        self,
        scope: Scope,
        key: Key,
        *,
        request: object = ABSENT,
        fingerprint: Fingerprint | RequestPrint | None = None,
        policy: Policy | None = None,
        namespace: str | None = None,
        transaction: object = None,
    ) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch:
        """Claim an operation, or say why it is not yours to run.

        `scope` and `key` are text, or tuples of stable parts. `request` is what a duplicate must repeat; leave it out
        to compare nothing. `fingerprint` is a ready one in its place. With ``Policy.wait`` a duplicate of a running
        operation waits for its answer, and then begins again; called by that operation's own handler, it does not wait.

        With `transaction`, an open connection of the store's database, the claim too is part of the caller's
        transaction: for operations that touch nothing but that database. It has no lease; a rival waits or is told of
        it; complete it before the commit, and what is rolled back never was.

        Gives an `AsyncOperation` (run it, and end it), a `Replay` of the first answer, `InProgress`, `Unresolved` or
        `Mismatch`. Raises `StoreUnavailable`, `ContentionError` or `UnsupportedRecord` (nothing may run), `InvalidKey`,
        `EncodingError` or `UnresolvedFull`, or `TypeError` for an atomic policy on a store that no transaction of the
        caller's can take in (nothing was stored).
        """
        policy = self._policy_of(policy)
        ask = self._asking(scope, key, request=request, fingerprint=fingerprint, policy=policy, namespace=namespace)
        if policy.unresolved_max is not None:
            await self._check_room(ask, policy, policy.unresolved_max)
        if transaction is not None:
            return await self._claim_within(ask, policy, transaction)
        outcome = await self._claim(ask, policy)
        if isinstance(outcome, InProgress) and self._must_wait(outcome, policy):
            outcome = await self._wait(ask, policy, outcome)
        if not isinstance(outcome, AsyncOperation):
            self._tell_outcome(outcome)
        return outcome

    async def call(
        self,
        function: Callable[[], Awaitable[_T]],
        *,
        scope: Scope,
        key: Key,
        request: object = ABSENT,
        policy: Policy | None = None,
        namespace: str | None = None,
    ) -> Done:
        """Run `function` once for (scope, key), and give its value and whether it is a replay.

        The function takes no arguments and finds its operation by `current_operation`. What it raises is raised to
        this caller; whether the key is free, failed or unresolved then says the policy. If the value can't be stored,
        the caller still gets it. Raises `OperationInProgress`, `OperationUnresolved`, `RequestMismatch` and
        `RecordedFailure` to duplicates, and what `begin` raises.
        """
        policy = self._policy_of(policy)
        refuse_lazy(function, asynchronous=self._asynchronous)
        outcome = await self.begin(scope, key, request=request, policy=policy, namespace=namespace)
        if not isinstance(outcome, AsyncOperation):
            return self._answer(outcome)
        async with outcome as operation:
            found: Any = function()
            if isawaitable(found):
                found = await found
            operation._returned()
            value = computed(found)
            if operation.joined:
                return Done(value, replayed=False, operation=operation.operation)
            return await self._finish(operation, value, policy)

    async def run(
        self,
        function: Callable[[], Awaitable[_T]],
        *,
        scope: Scope,
        key: Key,
        request: object = ABSENT,
        policy: Policy | None = None,
        namespace: str | None = None,
    ) -> _T:
        """Run `function` once for (scope, key), and give its value, or the first run's. Raises what `call` raises."""
        done = await self.call(function, scope=scope, key=key, request=request, policy=policy, namespace=namespace)
        return cast("_T", done.result)

    def idempotent(
        self,
        *,
        scope: str | Callable[..., Scope],
        key: str | Callable[..., Key],
        request: Callable[..., object] | None = None,
        policy: Policy | None = None,
        shared_scope: bool = False,
    ) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
        """Guard a coroutine function or method: ``@guard.idempotent(scope="refund:{order_id}", key="{key}")``.

        `scope` and `key` are templates over the call's arguments, or functions of them. The request is all bound
        arguments but ``self`` and ``cls``, or what `request` makes of them. Raises `TypeError` for what can't be
        guarded (plain functions, generators, classes), and `ValueError` for a scope template of another function,
        unless `shared_scope`. Calls raise what `call` raises.
        """

        def decorate(function: Callable[_P, Awaitable[_R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
            target = Target(function, scope=scope, key=key, request=request, asynchronous=self._asynchronous)
            target.register(self._runtime.scopes, shared=shared_scope)

            async def guarded(*args: _P.args, **options: _P.kwargs) -> _R:
                named = target.name(args, options)
                value: _R = await self.run(
                    lambda: target.function(*args, **options),
                    scope=named.scope,
                    key=named.key,
                    request=named.request,
                    policy=policy,
                )
                return value

            return target.dress(guarded)

        return decorate

    async def lookup(self, scope: Scope, key: Key, *, namespace: str | None = None) -> RecordView | None:
        """What is stored of an operation, ``None`` if absent; `StoreUnavailable` and `UnsupportedRecord` are raised."""
        return await self._look(*self._place(scope, key, namespace))

    async def operations(
        self,
        *,
        state: State | str | None = None,
        unresolved: bool | None = None,
        scope_prefix: str | None = None,
        older_than: Duration | None = None,
        operation: str | None = None,
        all_namespaces: bool = False,
    ) -> AsyncIterator[RecordView | Unreadable]:
        """The operations that are kept, oldest first, with those that this release can't read.

        They are those of the guard's own namespace, or with `all_namespaces` all: guarded requests lie in those of
        their principals. `older_than` is the time since a record was last written, in seconds or as a timedelta. Raises
        `StoreUnavailable`.
        """
        query = Query(
            states=None if state is None else frozenset({State(state)}),
            older_than_ms=None if older_than is None else milliseconds(seconds("older_than", older_than, zero=True)),
            unresolved=unresolved,
            scope_prefix=scope_prefix,
            operation=operation,
            namespace=None if all_namespaces else self._namespace,
        )
        while True:
            page = await self._asked(partial(self._store.scan, query))
            for item in readable(page):
                yield item
            if page.cursor is None:
                return
            query = query._replace(cursor=page.cursor)

    async def recover(
        self,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
        *,
        policy: Policy | None = None,
        all_namespaces: bool = False,
        stopping: Callable[[], bool] | None = None,
    ) -> Round:
        """Finish what is unresolved and may run again, or be asked about, by the policies that were stored: one round.

        It looks at the guard's own namespace, or with `all_namespaces` at all of them: guarded requests lie in those of
        their principals. `handlers` is which function finishes which scope, as `recovers` registers them; ``None``:
        those registered.
        Each operation is claimed as by any other caller, so that of many workers one gets it, and is run from its
        recovery point. One whose handler raises is left for a later round, after a pause that grows; beyond
        ``attempts_max`` or ``rerun_within`` it is held. What an operator has released waits for its next retry.

        `stopping` is asked before each operation. What a handler raises is told to the observer, not raised. Raises
        `StoreUnavailable` if the store does not answer: a later round goes on. If the process is killed meanwhile, what
        was under way lapses, and is found again.
        """
        policy = self._policy_of(policy)
        registered = self._handlers(handlers)
        counts: Counter[str] = Counter()
        async for view in self.operations(unresolved=True, all_namespaces=all_namespaces):
            if stopping is not None and stopping():
                break
            work = self._judged(view, registered, policy)
            counts[work if isinstance(work, str) else await self._redo(work)] += 1
        return round_of(counts)

    async def resolve(
        self,
        view: RecordView,
        result: object = ABSENT,
        *,
        failed: object = ABSENT,
        who: str,
        why: str,
        force: bool = False,
    ) -> RecordView:
        """Finish an unresolved operation as a person found it to be: with `result`, or with the refusal `failed`.

        `view` is the record that the person was shown. `who` and `why` stay in it. Raises `RecordChanged` if it is
        another by now, and `ForceRequired` for a live or finished one without `force`; nothing changed then.
        """
        change = self._resolving(result, failed, who=who, why=why)
        return await self._operate("resolved", view, change, who=who, force=force)

    async def release(
        self,
        view: RecordView,
        *,
        who: str,
        why: str,
        force: bool = False,
        from_start: bool = False,
        new_downstream_key: bool = False,
    ) -> RecordView:
        """Free an unresolved operation to run again, for the same request. A paused owner may still act after it.

        `from_start` drops the steps that are done; `new_downstream_key` gives the next system new keys, so that it
        will not take the next attempt for a repetition. Raises what `resolve` raises.
        """
        change = self._releasing(who=who, why=why, from_start=from_start, new_downstream_key=new_downstream_key)
        return await self._operate("released", view, change, who=who, force=force)

    async def check(self) -> None:
        """Make sure that the store answers, so that a wrong URL is found at the start and not by the first request.

        Raises `StoreUnavailable`.
        """
        await self._asked(partial(self._store.scan, Query(namespace=self._namespace, limit=1)))

    async def purge(self, limit: int = 1000) -> int:
        """Drop up to `limit` expired records, and say how many went. Raises `StoreUnavailable`."""
        return await self._asked(partial(self._store.purge, limit))

    def purge_every(self, every: Duration, *, limit: int = 1000) -> AsyncPurger:
        """Drop expired records from time to time: ``async with guard.purge_every(3600): ...``, or until ``stop()``.

        `every` is in seconds or a timedelta; each pause differs a little, so that many processes don't purge in step.
        In a task of the running loop, in steps of `limit` records with a pause after each. A store that does not answer
        is tried again the next time, and told to the observer. Raises `TypeError` or `ValueError` for no duration.
        """
        return AsyncPurger(self, self._runtime, every_seconds=seconds("every", every), limit=limit)

    async def close(self) -> None:
        """Close the store. Operations that are still open lapse, and show as unresolved."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _look(self, namespace: str, operation: str) -> RecordView | None:
        return await drive_async(flows.look(namespace, operation), self._runtime, self._policy.store_timeout_seconds)

    async def _check_room(self, ask: Ask, policy: Policy, limit: int) -> None:
        """Refuse what would be a new operation in a namespace that is full. Whatever is there already goes on."""
        namespace, backlog = ask.namespace, self._runtime.backlog
        began = self._runtime.clock.monotonic()
        if backlog.must_count(namespace, began):
            known = None
            try:
                known = await self._count_unresolved(namespace, limit)
            except StoreUnavailable:
                pass  # the claim will say so, too
            finally:
                backlog.counted(namespace, known, began=began, ended=self._runtime.clock.monotonic())
        if backlog.full(namespace, limit):
            with contextlib.suppress(StoreUnavailable):
                if await drive_async(flows.is_new(ask), self._runtime, policy.store_timeout_seconds):
                    raise self._full(ask, limit)

    async def _count_unresolved(self, namespace: str, limit: int) -> int:
        query, known = Query(namespace=namespace, unresolved=True, limit=min(limit, PAGE_MAX)), 0
        while True:
            page = await self._asked(partial(self._store.scan, query))
            known += len(page.items)
            if page.cursor is None or known >= limit:
                return known
            query = query._replace(cursor=page.cursor)

    async def _claim(self, ask: Ask, policy: Policy) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch:
        outcome = await self._claim_if_there(ask, policy)
        assert outcome is not None  # this ask creates what is not there
        return outcome

    async def _claim_if_there(
        self, ask: Ask, policy: Policy
    ) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch | None:
        found: AsyncOperation | Duplicate | None
        sent: Sent = {}
        orphans = self._runtime.unanswered if ask.creates else NO_ORPHANS
        flow = flows.begin(ask, sent, orphans=orphans, new_etag=self._runtime.new_etag)
        try:
            self._runtime.be_ready()
            outcome = await drive_async(flow, self._runtime, policy.store_timeout_seconds)
            if not isinstance(outcome, Ownership):
                asks, found = False, outcome
            else:
                asks, etag, found = outcome.claim.asks, outcome.record.etag, self._made(outcome, policy)
                del sent[etag]  # nothing below lets an interrupt in: from here on it is its holder's
        except BaseException as error:
            unguarded = self._left_behind(ask, sent, error, policy=policy)
            if unguarded is None:
                raise
            return AsyncOperation(self._runtime, unguarded, policy, guarded=False)
        if sent:
            self._left_behind(ask, sent, None, policy=policy)
        return await self._reconcile(found, policy) if asks and isinstance(found, AsyncOperation) else found

    def _made(self, own: Ownership, policy: Policy) -> AsyncOperation:
        if self._runtime.observer is not None:
            self._tell_claim(own)
        return AsyncOperation(self._runtime, own, policy)

    async def _claim_within(
        self, ask: Ask, policy: Policy, transaction: object
    ) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch:
        store = await joined_async(self._store, transaction)
        flow = flows.begin(held_open(ask), {}, orphans=NO_ORPHANS, new_etag=self._runtime.new_etag)
        outcome = await drive_within_async(flow, store)
        assert outcome is not None  # as for a claim on the store itself
        return (
            AsyncOperation(self._runtime, outcome, policy, within=store) if isinstance(outcome, Ownership) else outcome
        )

    async def _wait(
        self, ask: Ask, policy: Policy, outcome: InProgress
    ) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch:
        event, place = asyncio.Event(), (ask.namespace, ask.id)
        wake = partial(_set, asyncio.get_running_loop(), event)
        backoff = Backoff(self._runtime.clock, policy.wait_seconds)
        guarded = replace(policy, store_failure="refuse")  # another is at work: nothing proceeds without the store
        found: AsyncOperation | Replay | InProgress | Unresolved | Mismatch = outcome
        self._runtime.waiters.add(place, wake)
        try:
            while isinstance(found, InProgress) and (pause := backoff.next()) is not None:
                await self._runtime.clock.wait_async(event, pause)
                event.clear()
                found = await self._claim(ask, guarded)
        finally:
            self._runtime.waiters.remove(place, wake)
        return found

    async def _reconcile(
        self, operation: AsyncOperation, policy: Policy
    ) -> AsyncOperation | Replay | InProgress | Unresolved | Mismatch:
        """Ask what became of the effect of an earlier attempt, and do what the answer says."""
        function = policy.recovery.function
        assert function is not None  # only who has one is told to ask
        try:
            with operation._current():
                answer = function(operation)
                if isawaitable(answer):
                    answer = await answer
        except Exception as error:  # noqa: BLE001 - whatever it raises, the outcome stays unknown
            answer = error
        except BaseException:
            await operation._put_back("reconcile was interrupted")
            raise
        try:
            match reconciled(answer, may_run=core.may_run(operation.view.record, policy.terms)):
                case Applied(result):
                    await self._complete(operation, result)
                    return Replay(operation.view, decode_result)
                case str() | BaseException() as unknown:
                    await operation._put_back(unknown)
                    return Unresolved(operation.view, core.RECONCILE_PAUSE_MS // 1000)
                case None:
                    await operation._start()
                    return operation
        except OwnershipLost as error:
            return await self._loser(operation, error, policy)
        except BaseException:
            with contextlib.suppress(NotwiceError):  # it is over, or its last move is repeated behind the caller
                await operation._put_back("reconcile was interrupted")
            raise

    async def _redo(self, work: Work) -> str:
        """Claim one operation and have it finished; gives by which name of a `Round` it counts."""
        try:
            outcome = await self._claim_if_there(work.ask, work.policy)
        except (ContentionError, UnsupportedRecord):
            return "elsewhere"
        if not isinstance(outcome, AsyncOperation):
            return self._settled_by_asking(outcome, work)
        outcome._patient = True
        try:
            async with outcome as operation:
                found: Any = work.function(operation, **work.values)
                if isawaitable(found):
                    found = await found
                operation._returned()
                value = computed(found)
                if not operation.ended:
                    await self._finish(operation, value, work.policy)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything, and other operations wait
            self._runtime.tell("recovery_failed", outcome.view.record, detail=type(error).__name__, value=error)
            return "finished" if outcome.view.record.terminal else "failed"
        return "finished" if outcome.finishing else "failed"

    async def _finish(self, operation: AsyncOperation, value: object, policy: Policy) -> Done:
        check_result(value)
        try:
            await self._complete(operation, value)
        except StoreUnavailable:
            pass  # it is repeated behind the caller, who gets the value
        except OwnershipLost as error:
            self._tell_lost(operation, value)
            return self._answer(await self._loser(operation, error, policy))
        return Done(value, replayed=False, operation=operation.operation)

    async def _complete(self, operation: AsyncOperation, value: object) -> None:
        """Complete it with `value`, or without one that can't be stored: the effect is done."""
        try:
            await operation.complete(value)
        except EncodingError as error:
            self._runtime.tell("result_omitted", operation.view.record, detail=str(error))
            await operation.omit(f"the result was not kept: {error}")

    async def _loser(self, operation: AsyncOperation, error: OwnershipLost, policy: Policy) -> Duplicate:
        """What a duplicate would get now: that is what the owner who lost its operation gets."""
        view = error.view or await self._look(operation.namespace, operation.operation)
        return self._duplicate_of(view, operation.operation, policy)

    async def _operate(
        self, event: str, view: RecordView, change: OperatorChange, *, who: str, force: bool
    ) -> RecordView:
        self._check_view(view)
        flow = flows.operate(view, change, force=force, new_etag=self._runtime.new_etag)
        found = await drive_async(flow, self._runtime, self._policy.store_timeout_seconds)
        self._tell_operator(event, found, who)
        return found

    async def _asked(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await ask()
        except NotwiceError:
            raise
        except Exception as error:
            raise unavailable(error) from error


def _asynchronous(store: AsyncStore | Store) -> AsyncStore:
    """The face of `store` for event loops: its own, or that of a worker thread which shares commits."""
    if is_asynchronous(store):
        return cast("AsyncStore", store)
    blocking = cast("Store", store)
    own: AsyncStore | None = getattr(blocking, "asynchronous", None)
    return Batching(blocking).asynchronous if own is None else own


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Set an event of `loop` from any thread."""
    with contextlib.suppress(RuntimeError):  # that loop has been closed, and nobody waits in it
        loop.call_soon_threadsafe(event.set)
