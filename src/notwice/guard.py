"""`Guard`: the guard for code that blocks. Plan, one store call, settle."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, cast

from notwice import core, flows
from notwice.backlog import PAGE_MAX
from notwice.core import Ask
from notwice.decorate import Target, computed, refuse_lazy
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
from notwice.operation import Operation
from notwice.policy import Applied, Duration, Policy, milliseconds, seconds
from notwice.privacy import Privacy
from notwice.purging import Purger
from notwice.recovery import Round, Work, round_of
from notwice.results import decode_result
from notwice.runtime import Runtime, drive, drive_within
from notwice.stores import open_store
from notwice.stores.port import Store, check_store, is_asynchronous, joined
from notwice.stores.sealed import SealedStore
from notwice.waiting import Backoff, Clock

_T = TypeVar("_T")
_R = TypeVar("_R")
_P = ParamSpec("_P")


class Guard(GuardBase):
    """Makes side effects safe to retry, for code that blocks. Any number of threads may share one.

    It may be made before a fork: connections and threads start at first use in each process. What survives a crash is
    what the store keeps: an operation that was begun is found again as unresolved, and its stored policy applies.

    Raises `TypeError` for what is no store, or one for event loops.
    """

    _asynchronous = False

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy = DEFAULT_POLICY,
        namespace: str = "",
        observer: Observer | None = None,
        clock: Clock | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        check_store(store, type(self).__name__)
        if is_asynchronous(store):
            raise TypeError("this store is for event loops: use AsyncGuard, or Guard(store.blocking)")
        store = store if privacy is None else SealedStore(store, privacy)
        runtime = Runtime(store, observer=observer, clock=clock, asynchronous=None, privacy=privacy)
        super().__init__(runtime, policy, namespace)

    @property
    def _store(self) -> Store:
        return self._runtime.store

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
        """A guard on the store at `url`: ``sqlite:///payments.db``, ``memory://``.

        No event is logged unless there is an `observer` like `LogObserver`. Raises `ValueError` for a URL that names
        no known store, with a suggestion.
        """
        return cls(open_store(url), policy=policy, namespace=namespace, observer=observer, privacy=privacy)

    def begin(
        self,
        scope: Scope,
        key: Key,
        *,
        request: object = ABSENT,
        fingerprint: Fingerprint | RequestPrint | None = None,
        policy: Policy | None = None,
        namespace: str | None = None,
        transaction: object = None,
    ) -> Operation | Replay | InProgress | Unresolved | Mismatch:
        """Claim an operation, or say why it is not yours to run.

        `scope` and `key` are text, or tuples of stable parts. `request` is what a duplicate must repeat; leave it out
        to compare nothing. `fingerprint` is a ready one in its place. With ``Policy.wait`` a duplicate of a running
        operation waits for its answer, and then begins again; called by that operation's own handler, it does not wait.

        With `transaction`, an open connection of the store's database, the claim too is part of the caller's
        transaction: for operations that touch nothing but that database. It has no lease; a rival waits or is told of
        it; complete it before the commit, and what is rolled back never was.

        Gives an `Operation` (run it, and end it), a `Replay` of the first answer, `InProgress`, `Unresolved` or
        `Mismatch`. Raises `StoreUnavailable`, `ContentionError` or `UnsupportedRecord` (nothing may run), `InvalidKey`,
        `EncodingError` or `UnresolvedFull`, or `TypeError` for an atomic policy on a store that no transaction of the
        caller's can take in (nothing was stored).
        """
        policy = self._policy_of(policy)
        ask = self._asking(scope, key, request=request, fingerprint=fingerprint, policy=policy, namespace=namespace)
        if policy.unresolved_max is not None:
            self._check_room(ask, policy, policy.unresolved_max)
        if transaction is not None:
            return self._claim_within(ask, policy, transaction)
        outcome = self._claim(ask, policy)
        if isinstance(outcome, InProgress) and self._must_wait(outcome, policy):
            outcome = self._wait(ask, policy, outcome)
        if not isinstance(outcome, Operation):
            self._tell_outcome(outcome)
        return outcome

    def call(
        self,
        function: Callable[[], _T],
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
        outcome = self.begin(scope, key, request=request, policy=policy, namespace=namespace)
        if not isinstance(outcome, Operation):
            return self._answer(outcome)
        with outcome as operation:
            found: Any = function()
            operation._returned()
            value = computed(found)
            if operation.joined:
                return Done(value, replayed=False, operation=operation.operation)
            return self._finish(operation, value, policy)

    def run(
        self,
        function: Callable[[], _T],
        *,
        scope: Scope,
        key: Key,
        request: object = ABSENT,
        policy: Policy | None = None,
        namespace: str | None = None,
    ) -> _T:
        """Run `function` once for (scope, key), and give its value, or the first run's. Raises what `call` raises."""
        done = self.call(function, scope=scope, key=key, request=request, policy=policy, namespace=namespace)
        return cast("_T", done.result)

    def idempotent(
        self,
        *,
        scope: str | Callable[..., Scope],
        key: str | Callable[..., Key],
        request: Callable[..., object] | None = None,
        policy: Policy | None = None,
        shared_scope: bool = False,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Guard a function or method: ``@guard.idempotent(scope="refund:{order_id}", key="{key}")``.

        `scope` and `key` are templates over the call's arguments, or functions of them. The request is all bound
        arguments but ``self`` and ``cls``, or what `request` makes of them. Raises `TypeError` for what can't be
        guarded (coroutines, generators, classes), and `ValueError` for a scope template that another function uses,
        unless `shared_scope`. Calls raise what `call` raises.
        """

        def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
            target = Target(function, scope=scope, key=key, request=request, asynchronous=self._asynchronous)
            target.register(self._runtime.scopes, shared=shared_scope)

            def guarded(*args: _P.args, **options: _P.kwargs) -> _R:
                named = target.name(args, options)
                value: _R = self.run(
                    lambda: target.function(*args, **options),
                    scope=named.scope,
                    key=named.key,
                    request=named.request,
                    policy=policy,
                )
                return value

            return target.dress(guarded)

        return decorate

    def lookup(self, scope: Scope, key: Key, *, namespace: str | None = None) -> RecordView | None:
        """What is stored of an operation, ``None`` if absent; `StoreUnavailable` and `UnsupportedRecord` are raised."""
        return self._look(*self._place(scope, key, namespace))

    def operations(
        self,
        *,
        state: State | str | None = None,
        unresolved: bool | None = None,
        scope_prefix: str | None = None,
        older_than: Duration | None = None,
        operation: str | None = None,
        all_namespaces: bool = False,
    ) -> Iterator[RecordView | Unreadable]:
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
            page = self._asked(partial(self._store.scan, query))
            yield from readable(page)
            if page.cursor is None:
                return
            query = query._replace(cursor=page.cursor)

    def recover(
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
        for view in self.operations(unresolved=True, all_namespaces=all_namespaces):
            if stopping is not None and stopping():
                break
            work = self._judged(view, registered, policy)
            counts[work if isinstance(work, str) else self._redo(work)] += 1
        return round_of(counts)

    def resolve(
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
        return self._operate("resolved", view, change, who=who, force=force)

    def release(
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
        return self._operate("released", view, change, who=who, force=force)

    def check(self) -> None:
        """Make sure that the store answers, so that a wrong URL is found at the start and not by the first request.

        Raises `StoreUnavailable`.
        """
        self._asked(partial(self._store.scan, Query(namespace=self._namespace, limit=1)))

    def purge(self, limit: int = 1000) -> int:
        """Drop up to `limit` expired records, and say how many went. Raises `StoreUnavailable`."""
        return self._asked(partial(self._store.purge, limit))

    def purge_every(self, every: Duration, *, limit: int = 1000) -> Purger:
        """Drop expired records from time to time: ``with guard.purge_every(3600): ...``, or until ``stop()``.

        `every` is in seconds or a timedelta; each pause differs a little, so that many processes don't purge in step.
        In a thread of its own, in steps of `limit` records with a pause after each. A store that does not answer is
        tried again the next time, and told to the observer. Raises `TypeError` or `ValueError` for no duration.
        """
        return Purger(self, self._runtime, every_seconds=seconds("every", every), limit=limit)

    def close(self) -> None:
        """Close the store. Operations that are still open lapse, and show as unresolved."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, namespace: str, operation: str) -> RecordView | None:
        return drive(flows.look(namespace, operation), self._runtime, self._policy.store_timeout_seconds)

    def _check_room(self, ask: Ask, policy: Policy, limit: int) -> None:
        """Refuse what would be a new operation in a namespace that is full. Whatever is there already goes on."""
        namespace, backlog = ask.namespace, self._runtime.backlog
        began = self._runtime.clock.monotonic()
        if backlog.must_count(namespace, began):
            known = None
            try:
                known = self._count_unresolved(namespace, limit)
            except StoreUnavailable:
                pass  # the claim will say so, too
            finally:
                backlog.counted(namespace, known, began=began, ended=self._runtime.clock.monotonic())
        if backlog.full(namespace, limit):
            with contextlib.suppress(StoreUnavailable):
                if drive(flows.is_new(ask), self._runtime, policy.store_timeout_seconds):
                    raise self._full(ask, limit)

    def _count_unresolved(self, namespace: str, limit: int) -> int:
        query, known = Query(namespace=namespace, unresolved=True, limit=min(limit, PAGE_MAX)), 0
        while True:
            page = self._asked(partial(self._store.scan, query))
            known += len(page.items)
            if page.cursor is None or known >= limit:
                return known
            query = query._replace(cursor=page.cursor)

    def _claim(self, ask: Ask, policy: Policy) -> Operation | Replay | InProgress | Unresolved | Mismatch:
        outcome = self._claim_if_there(ask, policy)
        assert outcome is not None  # this ask creates what is not there
        return outcome

    def _claim_if_there(
        self, ask: Ask, policy: Policy
    ) -> Operation | Replay | InProgress | Unresolved | Mismatch | None:
        found: Operation | Duplicate | None
        sent: Sent = {}
        orphans = self._runtime.unanswered if ask.creates else NO_ORPHANS
        flow = flows.begin(ask, sent, orphans=orphans, new_etag=self._runtime.new_etag)
        try:
            self._runtime.be_ready()
            outcome = drive(flow, self._runtime, policy.store_timeout_seconds)
            if not isinstance(outcome, Ownership):
                asks, found = False, outcome
            else:
                asks, etag, found = outcome.claim.asks, outcome.record.etag, self._made(outcome, policy)
                del sent[etag]  # nothing below lets an interrupt in: from here on it is its holder's
        except BaseException as error:
            unguarded = self._left_behind(ask, sent, error, policy=policy)
            if unguarded is None:
                raise
            return Operation(self._runtime, unguarded, policy, guarded=False)
        if sent:
            self._left_behind(ask, sent, None, policy=policy)
        return self._reconcile(found, policy) if asks and isinstance(found, Operation) else found

    def _made(self, own: Ownership, policy: Policy) -> Operation:
        if self._runtime.observer is not None:
            self._tell_claim(own)
        return Operation(self._runtime, own, policy)

    def _claim_within(
        self, ask: Ask, policy: Policy, transaction: object
    ) -> Operation | Replay | InProgress | Unresolved | Mismatch:
        store = joined(self._store, transaction)
        flow = flows.begin(held_open(ask), {}, orphans=NO_ORPHANS, new_etag=self._runtime.new_etag)
        outcome = drive_within(flow, store)
        assert outcome is not None  # as for a claim on the store itself
        return Operation(self._runtime, outcome, policy, within=store) if isinstance(outcome, Ownership) else outcome

    def _wait(
        self, ask: Ask, policy: Policy, outcome: InProgress
    ) -> Operation | Replay | InProgress | Unresolved | Mismatch:
        event, place = threading.Event(), (ask.namespace, ask.id)
        wake = event.set
        backoff = Backoff(self._runtime.clock, policy.wait_seconds)
        guarded = replace(policy, store_failure="refuse")  # another is at work: nothing proceeds without the store
        found: Operation | Replay | InProgress | Unresolved | Mismatch = outcome
        self._runtime.waiters.add(place, wake)
        try:
            while isinstance(found, InProgress) and (pause := backoff.next()) is not None:
                self._runtime.clock.wait(event, pause)
                event.clear()
                found = self._claim(ask, guarded)
        finally:
            self._runtime.waiters.remove(place, wake)
        return found

    def _reconcile(
        self, operation: Operation, policy: Policy
    ) -> Operation | Replay | InProgress | Unresolved | Mismatch:
        """Ask what became of the effect of an earlier attempt, and do what the answer says."""
        function = policy.recovery.function
        assert function is not None  # only who has one is told to ask
        try:
            with operation._current():
                answer = function(operation)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the outcome stays unknown
            answer = error
        except BaseException:
            operation._put_back("reconcile was interrupted")
            raise
        try:
            match reconciled(answer, may_run=core.may_run(operation.view.record, policy.terms)):
                case Applied(result):
                    self._complete(operation, result)
                    return Replay(operation.view, decode_result)
                case str() | BaseException() as unknown:
                    operation._put_back(unknown)
                    return Unresolved(operation.view, core.RECONCILE_PAUSE_MS // 1000)
                case None:
                    operation._start()
                    return operation
        except OwnershipLost as error:
            return self._loser(operation, error, policy)
        except BaseException:
            with contextlib.suppress(NotwiceError):  # it is over, or its last move is repeated behind the caller
                operation._put_back("reconcile was interrupted")
            raise

    def _redo(self, work: Work) -> str:
        """Claim one operation and have it finished; gives by which name of a `Round` it counts."""
        try:
            outcome = self._claim_if_there(work.ask, work.policy)
        except (ContentionError, UnsupportedRecord):
            return "elsewhere"
        if not isinstance(outcome, Operation):
            return self._settled_by_asking(outcome, work)
        outcome._patient = True
        try:
            with outcome as operation:
                found: Any = work.function(operation, **work.values)
                operation._returned()
                value = computed(found)
                if not operation.ended:
                    self._finish(operation, value, work.policy)
        except Exception as error:  # noqa: BLE001 - a handler may raise anything, and other operations wait
            self._runtime.tell("recovery_failed", outcome.view.record, detail=type(error).__name__, value=error)
            return "finished" if outcome.view.record.terminal else "failed"
        return "finished" if outcome.finishing else "failed"

    def _finish(self, operation: Operation, value: object, policy: Policy) -> Done:
        check_result(value)
        try:
            self._complete(operation, value)
        except StoreUnavailable:
            pass  # it is repeated behind the caller, who gets the value
        except OwnershipLost as error:
            self._tell_lost(operation, value)
            return self._answer(self._loser(operation, error, policy))
        return Done(value, replayed=False, operation=operation.operation)

    def _complete(self, operation: Operation, value: object) -> None:
        """Complete it with `value`, or without one that can't be stored: the effect is done."""
        try:
            operation.complete(value)
        except EncodingError as error:
            self._runtime.tell("result_omitted", operation.view.record, detail=str(error))
            operation.omit(f"the result was not kept: {error}")

    def _loser(self, operation: Operation, error: OwnershipLost, policy: Policy) -> Duplicate:
        """What a duplicate would get now: that is what the owner who lost its operation gets."""
        view = error.view or self._look(operation.namespace, operation.operation)
        return self._duplicate_of(view, operation.operation, policy)

    def _operate(self, event: str, view: RecordView, change: OperatorChange, *, who: str, force: bool) -> RecordView:
        self._check_view(view)
        flow = flows.operate(view, change, force=force, new_etag=self._runtime.new_etag)
        found = drive(flow, self._runtime, self._policy.store_timeout_seconds)
        self._tell_operator(event, found, who)
        return found

    def _asked(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except NotwiceError:
            raise
        except Exception as error:
            raise unavailable(error) from error
