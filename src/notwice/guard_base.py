"""What both faces of a guard share: all that happens before and after the store is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar, cast

from notwice import core, identity
from notwice.codec import closed_reason, encode_value
from notwice.core import Ask, make_ask
from notwice.decorate import refuse_lazy
from notwice.errors import (
    EncodingError,
    InvalidKey,
    OperationInProgress,
    OperationUnresolved,
    RecordedFailure,
    RequestMismatch,
    ResultOmitted,
    StoreUnavailable,
    UnresolvedFull,
)
from notwice.fingerprint import fingerprint_value
from notwice.flows import OperatorChange, Ownership, Sent
from notwice.model import (
    Failure,
    Fingerprint,
    InProgress,
    Mismatch,
    Page,
    RecordView,
    RecoveryKind,
    Replay,
    Reply,
    State,
    Unreadable,
    Unresolved,
)
from notwice.operation_base import CURRENT, OperationBase
from notwice.policy import NOT_APPLIED, UNKNOWN, Applied, Policy, Verdict
from notwice.recovery import Handlers, Work
from notwice.results import result_of
from notwice.runtime import Runtime
from notwice.stores.port import check_atomic

_F = TypeVar("_F", bound=Callable[..., Any])

Scope = str | tuple[object, ...]
Key = str | tuple[object, ...]


class Absent(Enum):
    """Says that no value was given, where ``None`` is one."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT


DEFAULT_POLICY: Final = Policy()


class Done(NamedTuple):
    """What `call` ended in: the value, whether it is a replay, and the operation id."""

    result: Any
    replayed: bool
    operation: str


class RequestPrint(Protocol):
    """A request's fingerprint by the current recipe, and by older ones for records that were made with them."""

    @property
    def current(self) -> Fingerprint:
        """By the recipe of this release."""
        ...

    def by(self, recipe: str) -> Fingerprint | None:
        """By `recipe`; ``None`` if this release doesn't know it."""
        ...


Duplicate = Replay | InProgress | Unresolved | Mismatch

_NESTED_MAX: Final = 100  # handlers within handlers that are looked at; a thousand calls are the interpreter's limit
_EVENTS: Final[Mapping[type, str]] = {
    Replay: "replayed",
    InProgress: "in_progress",
    Unresolved: "unresolved",
    Mismatch: "mismatch",
}


class GuardBase:
    """Settings and the shared runtime; the two faces add the waiting."""

    _asynchronous: ClassVar[bool]

    def __init__(self, runtime: Runtime, policy: Policy, namespace: str) -> None:
        self._runtime = runtime
        self._policy = self._checked(policy)
        self._namespace = identity.check_namespace(namespace)

    @property
    def namespace(self) -> str:
        """The namespace that this guard is bound to."""
        return self._namespace

    @property
    def has_handlers(self) -> bool:
        """Whether anything is registered by `recovers`."""
        return bool(self._runtime.handlers)

    def within(self, namespace: str) -> Self:
        """The same guard, bound to `namespace`. It shares the store, and is closed with it.

        Raises `InvalidKey` for what names nobody; so does the empty text, the namespace of a guard that was given none:
        callers without a name would share it, and each other's answers.
        """
        if namespace == "":
            message = (
                "within takes whose keys these are, and an empty text is nobody: callers without a name would be given "
                "each other's answers. Refuse them, or use a guard without a namespace where all callers are one"
            )
            raise InvalidKey(message)
        return self._bound(namespace)

    def _bound(self, namespace: str) -> Self:
        """The same, also for the default namespace."""
        bound = object.__new__(type(self))
        GuardBase.__init__(bound, self._runtime, self._policy, namespace)
        return bound

    def recovers(self, scope: str, *, policy: Policy | None = None, needs_request: bool = False) -> Callable[[_F], _F]:
        """Register what finishes the operations of a scope for `recover`: ``@guard.recovers("refund:{order_id}")``.

        `scope` is a scope as it is, or a template with plain names. The function is called with the operation and, by
        their names, with the texts that the template's fields stand for; what it returns completes the operation,
        unless it has ended that itself. Of `policy` (by default the guard's) count the lease and the function of
        `reconcile`: whether an operation may run again says the policy that was stored with it. `needs_request`: what
        keeps no request is left alone, instead of using up its attempts.

        Raises `ValueError` for a malformed template or one that has a handler, `TypeError` for what can't be called.
        """

        def register(function: _F) -> _F:
            refuse_lazy(function, asynchronous=self._asynchronous)
            self._policy_of(policy)
            self._runtime.handlers.add(scope, function, policy, needs_request=needs_request)
            return function

        return register

    def _handlers(self, given: Mapping[str, Callable[..., Any]] | None) -> Handlers:
        """The handlers of a round: those that are given, by the rules of `recovers`, or those that are registered."""
        if given is None:
            return self._runtime.handlers
        handlers = Handlers(given)
        for function in given.values():
            refuse_lazy(function, asynchronous=self._asynchronous)
        return handlers

    # -- before

    def _policy_of(self, policy: Policy | None) -> Policy:
        return self._policy if policy is None else self._checked(policy)

    def _checked(self, policy: Policy) -> Policy:
        if not isinstance(cast("object", policy), Policy):
            message = f"policy must be a Policy, such as Policy(recovery=rerun), not {policy!r}"
            raise TypeError(message)
        if policy.recovery.function is not None:
            refuse_lazy(policy.recovery.function, asynchronous=self._asynchronous)
        return policy

    def _asking(
        self,
        scope: Scope,
        key: Key,
        *,
        request: object,
        fingerprint: Fingerprint | RequestPrint | None,
        policy: Policy,
        namespace: str | None,
    ) -> Ask:
        if policy.atomic:
            check_atomic(self._runtime.asynchronous or self._runtime.store)
        scope_text, key_text = identity.join_scope(scope), identity.check_key(key)
        identifier = identity.operation_id(scope_text, key_text)
        by_recipe = None
        if fingerprint is None:
            current = None if request is ABSENT else fingerprint_value(request)
        elif isinstance(fingerprint, Fingerprint):
            current = _well_made(fingerprint)
        else:
            current, by_recipe = fingerprint.current, fingerprint.by
        return make_ask(
            (
                self._namespace if namespace is None else identity.check_namespace(namespace),
                identifier,
                scope_text,
                identifier if self._runtime.privacy.hash_keys else key_text,
                current,
                by_recipe,
                policy.terms,
                policy.recovery.function is not None,
                _storable(request) if policy.store_request and request is not ABSENT else None,
                True,
            )
        )

    def _place(self, scope: Scope, key: Key, namespace: str | None) -> tuple[str, str]:
        identifier = identity.operation_id(identity.join_scope(scope), identity.check_key(key))
        return self._namespace if namespace is None else identity.check_namespace(namespace), identifier

    def _judged(self, view: RecordView | Unreadable, handlers: Handlers, policy: Policy) -> Work | str:
        """The work that an unresolved operation is, or by which name of a `Round` it counts."""
        if isinstance(view, Unreadable):
            return "unreadable"
        record, found = view.record, handlers.find(view.record.scope)
        if found is None:
            return "held" if core.held(view) else "unhandled"
        handler, values = found
        if handler.needs_request and record.request is None:
            return "held" if core.held(view) else "unhandled"
        policy = replace(handler.policy or policy, store_failure="refuse")  # nothing runs without its record
        terms = record.terms._replace(lease_ms=policy.terms.lease_ms)
        can_ask = policy.recovery.function is not None
        ask = Ask(record.namespace, record.id, record.scope, record.key, None, None, terms, can_ask, creates=False)
        decision = core.settle(ask, Reply(False, *view), ())
        match decision:
            case core.Reclaim():
                return Work(ask, handler.function, values, policy)
            case InProgress():
                return "waiting"
            case Unresolved() | Replay() if not view.record.terminal:
                return "held" if core.held(view) else "waiting" if can_ask else "unhandled"
            case _:
                return "elsewhere"

    # -- after

    def _full(self, ask: Ask, limit: int) -> UnresolvedFull:
        self._runtime.tell("unresolved_full", core.fresh(ask, b""))
        return UnresolvedFull(ask.id, limit)

    def _must_wait(self, outcome: InProgress, policy: Policy) -> bool:
        """Whether the running operation's answer is waited for: inside of its own handler that would be in vain."""
        return bool(policy.wait_seconds) and not _is_inside(self._runtime, outcome.view)

    def _tell_outcome(self, outcome: Duplicate) -> None:
        self._runtime.tell(_EVENTS[type(outcome)], outcome.view.record)

    def _tell_claim(self, own: Ownership) -> None:
        self._runtime.tell("claimed" if own.claim.created else "reclaimed", own.record)

    def _left_behind(self, ask: Ask, sent: Sent, error: BaseException | None, *, policy: Policy) -> Ownership | None:
        """Take care of the claims of a begin that did not own; gives what runs unguarded, if the policy says so."""
        place = (ask.namespace, ask.id)
        unavailable = isinstance(error, StoreUnavailable)
        proceeds = unavailable and policy.store_failure == "proceed"
        if sent and error is None:
            self._runtime.unanswered.put(*place, sent)
        elif sent and not proceeds:  # what runs unguarded must not be freed: it lapses, and shows as unresolved
            self._runtime.unanswered.settle_begin(place, sent, within=ask.terms.lease_ms / 1000)
        if unavailable:
            name = "unguarded" if proceeds else "store_unavailable"
            self._runtime.tell(name, core.fresh(ask, b""), detail=str(error))
        return Ownership(core.fresh(ask, b""), core.Claim(created=True)) if proceeds else None

    def _duplicate_of(self, view: RecordView | None, operation: str, policy: Policy) -> Duplicate:
        """What a duplicate would get from `view`: for an owner who lost its operation."""
        if view is None:
            message = f"operation {operation} was taken over, and its record is gone; look the effect up"
            raise StoreUnavailable(message)
        record = view.record
        terms = policy.terms._replace(recovery=RecoveryKind.HOLD)  # whoever has lost it takes nothing over
        ask = Ask(record.namespace, record.id, record.scope, record.key, None, None, terms, can_ask=False)
        decision = core.settle(
            ask, Reply(won=False, record=record, written_ms=view.written_ms, now_ms=view.now_ms, age_ms=view.age_ms), ()
        )
        return decision if isinstance(decision, Duplicate) else Unresolved(view)

    def _answer(self, outcome: Duplicate) -> Done:
        """A duplicate's answer as a value, or as the error that fits."""
        match outcome:
            case Replay():
                return _replayed(outcome)
            case InProgress():
                raise OperationInProgress(outcome, inside=_is_inside(self._runtime, outcome.view))
            case Unresolved():
                raise OperationUnresolved(outcome)
            case Mismatch():
                raise RequestMismatch(outcome)

    def _settled_by_asking(self, outcome: Duplicate | None, work: Work) -> str:
        """What became of an operation that a worker does not own: `reconcile` was asked, or another was first."""
        if not work.ask.can_ask or outcome is None:
            return "elsewhere"
        if isinstance(outcome, Replay) and outcome.view.record.terminal:
            return "finished"
        return "waiting" if isinstance(outcome, Unresolved) else "elsewhere"

    def _tell_lost(self, operation: OperationBase, value: object) -> None:
        self._runtime.tell("result_lost", operation.view.record, detail="ownership lost", value=value)

    # -- an operator's moves

    def _check_view(self, view: RecordView) -> None:
        if not isinstance(cast("object", view), RecordView):
            message = (
                f"this takes a record as lookup or operations give it, not {type(view).__qualname__}; what is absent "
                "can't be moved"
            )
            raise TypeError(message)

    def _resolving(self, result: object, failed: object, *, who: str, why: str) -> OperatorChange:
        if (result is ABSENT) == (failed is ABSENT):
            message = "resolve takes either the result that the operation had, or failed=... with its refusal"
            raise TypeError(message)
        _check_operator(who, why)
        state = State.COMPLETED if failed is ABSENT else State.FAILED
        stored = result_of(result if failed is ABSENT else failed)
        return partial(core.resolved, state=state, result=stored, who=who, why=why)

    def _releasing(self, *, who: str, why: str, from_start: bool, new_downstream_key: bool) -> OperatorChange:
        _check_operator(who, why)
        return partial(core.released, who=who, why=why, from_start=from_start, new_downstream_key=new_downstream_key)

    def _tell_operator(self, name: str, view: RecordView, who: str) -> None:
        self._runtime.tell(name, view.record, detail=f"by {who}")


def _is_inside(runtime: Runtime, view: RecordView) -> bool:
    """Whether this is called inside of the handler of that very operation, however many others are between them."""
    operation, place = CURRENT.get(None), (view.record.namespace, view.record.id, view.record.attempt)
    for _ in range(_NESTED_MAX):
        if operation is None:
            return False
        record = operation._own.record
        if operation._runtime is runtime and (record.namespace, record.id, record.attempt) == place:
            return operation.joined or not operation.ended
        around = Token.MISSING if operation._token is None else operation._token.old_value
        operation = around if isinstance(around, OperationBase) else None
    return False


def _well_made(fingerprint: Fingerprint) -> Fingerprint:
    recipe, digest = cast("tuple[object, object]", fingerprint)
    if not isinstance(recipe, str) or not isinstance(digest, bytes):
        message = "a Fingerprint has the name of its recipe as text, and a digest of bytes. Nothing ran"
        raise TypeError(message)
    return fingerprint


def _storable(request: object) -> bytes:
    """The request as the record keeps it. Raises `EncodingError` if it can't be kept."""
    data = encode_value(request)
    if len(data) > core.REQUEST_BYTES_MAX:
        message = (
            f"the request has {len(data)} bytes, and {core.REQUEST_BYTES_MAX} are the most that are stored. "
            "Nothing ran. Give a reference in its place, or leave store_request out"
        )
        raise EncodingError(message)
    return data


def _check_operator(who: str, why: str) -> None:
    if not who or not why:
        message = "an operator's move needs who and why: they stay in the record for those who come after"
        raise ValueError(message)
    if not isinstance(cast("object", who), str) or not isinstance(cast("object", why), str):
        message = (
            f"who and why are texts, not {type(who).__name__} and {type(why).__name__}: the record keeps no others"
        )
        raise TypeError(message)


def _replayed(outcome: Replay) -> Done:
    operation = outcome.view.operation
    try:
        value = outcome.result
    except ResultOmitted as error:
        error.operation = operation
        raise
    if isinstance(value, Failure):
        raise RecordedFailure(value.kind, value.message, operation=operation)
    if outcome.failed:
        message = "the operation was finished with a refusal"
        raise RecordedFailure("failed", message, operation=operation, value=value)
    return Done(value, replayed=True, operation=operation)


_OF_RECONCILE: Final = (Applied, Verdict)


def check_result(value: object) -> None:
    """Raise `TypeError` for what only a reconcile function says: taken for a result, it would finish the operation."""
    if issubclass(type(value), _OF_RECONCILE):  # a value may raise when it is looked at any closer
        said = value.name if isinstance(value, Verdict) else "Applied(...)"
        message = (
            f"the handler returned {said}, which is what a reconcile function says: return the result itself, and "
            "raise NotApplied where nothing happened"
        )
        raise TypeError(message)


def reconciled(answer: object, *, may_run: bool) -> Applied | BaseException | str | None:
    """What a reconcile function's answer means: its result, why the outcome stays unknown, or ``None``: run it now."""
    if isinstance(answer, Applied | BaseException):
        return answer
    if answer is NOT_APPLIED:
        return None if may_run else "reconcile says not applied, but an earlier owner may still act"
    if answer is UNKNOWN:
        return "reconcile says unknown"
    return f"reconcile must return Applied(result), NOT_APPLIED or UNKNOWN, not {type(answer).__name__}"


def readable(page: Page) -> Sequence[RecordView | Unreadable]:
    """The records of a page as a guard shows them: one that is still sealed can't be read."""
    return [_unless_sealed(item) for item in page.items]


def _unless_sealed(item: RecordView | Unreadable) -> RecordView | Unreadable:
    if isinstance(item, Unreadable) or not item.record.sealed:
        return item
    return Unreadable(item.record.namespace, item.record.id, closed_reason(item.record))


def held_open(ask: Ask) -> Ask:
    """What a begin on the caller's transaction asks: were it committed unfinished, the record would be held.

    It has no lease: nobody sees it before the commit, and nobody is at work after that.
    """
    return ask._replace(terms=ask.terms._replace(recovery=RecoveryKind.HOLD, atomic=False, lease_ms=1), can_ask=False)
