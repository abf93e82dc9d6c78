"""What both faces of an operation share: everything but the waiting."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Generator
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, NoReturn, SupportsIndex, cast
from uuid import UUID
from weakref import ref

from notwice import core, flows, identity
from notwice.awaiting import Call, not_started
from notwice.codec import decode_value, encode_value
from notwice.errors import (
    NotApplied,
    NotAwaited,
    NotCompleted,
    OperationEnded,
    OwnershipLost,
    ProgressFull,
    StepsChanged,
    StoreUnavailable,
)
from notwice.flows import Change, Ownership
from notwice.heart import Hold
from notwice.model import COMPLETED, Op, Record, RecordView, Released, Reply, Result, State, maker
from notwice.policy import Policy
from notwice.results import result_of, told_of
from notwice.runtime import (
    Runtime,
)
from notwice.steps import Step, Steps
from notwice.stores.port import AsyncJoined, Fate, Joined

_MAKING: Final = threading.Lock()
_NOT_BELIEVED: Final = (NotAwaited, StepsChanged)
"""What is raised where a handler left something out, or does it otherwise than an earlier attempt."""
CURRENT: contextvars.ContextVar[OperationBase] = contextvars.ContextVar("notwice_operation")


class Move(NamedTuple):
    """One of an owner's moves: what it makes of the record, and what it means."""

    event: str
    change: Change
    ends: bool = False
    forgiving: bool = False
    detail: str = ""


make_move = maker(Move)
BEAT: Final = Move("", core.beaten)


class JoinedEnd:
    """A last move on the caller's transaction: where it was made, what it wrote, and what became of that.

    ``fate`` is ``None`` until it is asked for, and where it is committed; ``told`` is whether the observer knows that.
    """

    __slots__ = ("fate", "store", "told", "written")

    def __init__(self, store: Joined | AsyncJoined, written: Record) -> None:
        self.store = store
        self.written = written
        self.fate: Fate | None = None
        self.told = False


def _abandoned(record: Record, etag: bytes, *, own: Ownership, why: str, patient: bool) -> Record:
    """What to abandon makes of the record, judged when it is written: branches of the handler may still be at work."""
    own.freeing = True  # first: what another thread begins meanwhile sees this, or is seen here
    touched = own.touched
    own.freeing = not touched  # else it frees nothing, and what was begun may go on
    return core.abandoned(record, etag, claim=own.claim, touched=touched, why=why, patient=patient)


class OperationBase:
    """An operation without its moves."""

    _asynchronous: ClassVar[bool]

    __slots__ = (
        "__weakref__",
        "_called",
        "_hold",
        "_home",
        "_joined",
        "_own",
        "_patient",
        "_policy",
        "_process",
        "_runtime",
        "_steps",
        "_token",
        "_told_lost",
        "_unproven",
        "_within",
        "guarded",
    )

    def __init__(
        self,
        runtime: Runtime,
        own: Ownership,
        policy: Policy,
        *,
        guarded: bool = True,
        within: Joined | AsyncJoined | None = None,
    ) -> None:
        self._runtime = runtime
        self._process = runtime.process
        self._policy = policy
        self._token: contextvars.Token[OperationBase] | None = None
        self._told_lost = False
        self._own = own
        self.guarded = guarded
        """Whether a record stands behind this operation; not so under ``store_failure="proceed"`` without a store."""
        now, beat_seconds = runtime.clock.monotonic(), policy.beat_seconds
        self._hold = Hold(
            own,
            runtime,
            operation=ref(self),
            beat_seconds=beat_seconds,
            run_until=now + policy.run_max_seconds,
            confirmed_at=now,
        )
        self._called: list[Call] = []  # moves that may not have been awaited
        self._steps: Steps | None = None  # made by the first step
        self._home = self._lane()  # the task or thread that runs the handler
        self._within = within  # where a claim on the caller's transaction goes on
        self._joined: JoinedEnd | None = None  # a last move, which may not be committed
        self._patient = False  # it is a worker's: who else asks for it has a pace of their own
        self._unproven = False  # its handler has returned or was refused an end, and what it did may stay
        if guarded and within is None:
            runtime.heart.add(self._hold, now + beat_seconds)

    @property
    def view(self) -> RecordView:
        """The record as its owner last knew it. Its times are those of its creation."""
        record = self._own.record
        return RecordView(record, record.created_ms, record.created_ms, 0)

    @property
    def _finished(self) -> RecordView | None:
        """The record as it is finished, or will be as soon as the store has confirmed that; else ``None``."""
        record = self._own.pending or self._own.record
        return RecordView(record, record.created_ms, record.created_ms, 0) if record.terminal else None

    @property
    def policy(self) -> Policy:
        """The policy that this attempt was begun with."""
        return self._policy

    @property
    def namespace(self) -> str:
        """Whose key it is."""
        return self._own.record.namespace

    @property
    def scope(self) -> str:
        """What is guarded."""
        return self._own.record.scope

    @property
    def key(self) -> str:
        """The caller's idempotency key; the operation id, if it was begun with ``Privacy(hash_keys=True)``."""
        return self._own.record.key

    @property
    def operation(self) -> str:
        """The operation id."""
        return self._own.record.id

    @property
    def attempt(self) -> int:
        """How often the operation was claimed, this time included."""
        return self._own.record.attempt

    @property
    def recovery_point(self) -> str:
        """The last step known done, or an empty text."""
        return self._own.record.recovery_point

    @property
    def lost(self) -> bool:
        """Whether another owner has taken the operation over."""
        return self._own.lost

    @property
    def ended(self) -> bool:
        """Whether a last move was made, be it confirmed or not."""
        return self._own.ended or self.joined or self._own.pending is not None

    @property
    def joined(self) -> bool:
        """Whether a last move was made on the caller's transaction, which may or may not be committed."""
        return self._joined is not None

    @property
    def finishing(self) -> bool:
        """Whether it was finished, or will be as soon as the store, or the caller's transaction, has confirmed that."""
        return self.joined or (self._own.pending or self._own.record).terminal

    @property
    def freed(self) -> bool:
        """Whether it was abandoned and its key is free again, or will be as soon as the store has confirmed that."""
        return (self._own.pending or self._own.record).released is not Released.NO

    @property
    def recovered(self) -> bool:
        """Whether an earlier attempt may have left something behind."""
        return not self._own.claim.created

    @property
    def request(self) -> Any:  # noqa: ANN401 - whatever was begun with
        """The request that the operation was begun with. Raises `LookupError` if its policy has not stored it."""
        data = self._own.record.request
        if data is None:
            message = f"operation {self.operation} keeps no request: begin it with Policy(store_request=True)"
            raise LookupError(message)
        return decode_value(data)

    @property
    def progress(self) -> dict[str, object]:
        """What was checkpointed so far, by this and by earlier attempts: point to data."""
        return {point: decode_value(data) for point, data in self._own.record.progress}

    def downstream_key(self, name: str = "") -> str:
        """A key for the next system, at most 38 characters: the same for every attempt, another for each `name`."""
        self._touch()
        record = self._own.record
        return identity.downstream_key(
            namespace=record.namespace, scope=record.scope, key=record.key, generation=record.generation, name=name
        )

    def downstream_uuid(self, name: str = "") -> UUID:
        """The same as `downstream_key`, for systems that take a UUID."""
        self._touch()
        record = self._own.record
        return identity.downstream_uuid(
            namespace=record.namespace, scope=record.scope, key=record.key, generation=record.generation, name=name
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: two of one operation would be two owners."""
        message = "an operation can't be copied or pickled, for it has one owner; hand on its scope and key instead"
        raise TypeError(message)

    # -- the moves as values

    def _completing(self, value: object, why_omitted: str = "") -> Move:
        self._check_whole()
        error = told_of(why_omitted)[: core.ERROR_CHARACTERS_MAX] if why_omitted != "" else ""
        change = partial(core.finished, state=COMPLETED, result=result_of(value), error=error)
        return make_move(("completed", change, True, False, ""))

    def _failing(self, value: object) -> Move:
        self._check_whole()
        result = result_of(value)
        return Move("failed", partial(core.finished, state=State.FAILED, result=result), ends=True)

    def _suspending(self, error: object, answer: Result | None) -> Move:
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        answer = None if answer is None else result_of(answer)
        unasked = self._joined is not None and self._joined.fate is None  # suspended by hand, after an end on one
        proves = not ((self._unproven or unasked) and self._own.record.terms.atomic)
        change = partial(
            core.suspended,
            error=told_of(error),
            answer=answer,
            patient=isinstance(error, _NOT_BELIEVED),  # a release mends that, and no repetition
            proves=proves,
        )
        return Move("suspended", change, ends=True, forgiving=True, detail=kind)

    def _abandoning(self, error: object = "") -> Move:
        change = partial(_abandoned, own=self._own, why=told_of(error), patient=self._patient)
        return Move("abandoned", change, ends=True, forgiving=True)

    def _touch(self) -> None:
        """Note that something may come of this claim from now on. Raises `OperationEnded` if it is being abandoned."""
        own = self._own
        own.touched = True  # first: an abandon in another thread or task sees this, or is seen here
        if own.freeing:
            message = f"operation {own.record.id} is being abandoned, or was: nothing more may begin under it"
            raise OperationEnded(message)

    def _kept_back(self) -> str:
        """Why to abandon would not free the key; empty if it would."""
        own = self._own
        if own.touched:
            return "a downstream key or a checkpoint was taken before"
        if own.claim.created or (own.claim.prior is not None and own.claim.prior.released is not Released.NO):
            return ""
        return f"this is attempt {own.record.attempt}, and an earlier one may have taken effect"

    def _putting_back(self, why: str | BaseException) -> Move:
        """The move after a reconcile that could not tell: the record says all, the event no more than the kind."""
        if isinstance(why, BaseException):
            error, kind = f"reconcile raised {told_of(why)}", type(why).__name__
        else:
            error = kind = why
        return Move("reconcile_unknown", partial(core.put_back, error=error), ends=True, forgiving=True, detail=kind)

    def _checkpointing(self, point: str, data: object) -> Move:
        if not point or not isinstance(cast("object", point), str):
            message = f"a recovery point is named by a text that is not empty, not by {point!r}"
            raise ValueError(message)
        change = partial(core.checkpointed, point=point, data=encode_value(data))
        self._check_room(change)
        self._touch()
        return Move("", change)

    def _checkpointed(self, point: str, data: object, transaction: object) -> None:
        """Let the steps of this attempt know of a checkpoint that is stored, as those of the next one will."""
        if self._steps is not None and transaction is None and self._within is None:
            self._steps.checkpointed(point, encode_value(data))

    def _stepping(self, step: Step) -> Move:
        change = partial(core.stepped, label=step.label, data=step._data or b"")
        self._check_room(change)
        return Move("", change)

    def _check_room(self, change: Change) -> None:
        progress = change(self._own.record, b"").progress
        if core.too_full(progress):
            size = sum(len(point) + len(data) for point, data in progress)
            message = (
                f"operation {self.operation} would keep {len(progress)} steps and checkpoints in {size} bytes, and "
                f"{core.PROGRESS_POINTS_MAX} in {core.PROGRESS_BYTES_MAX} are the most. Keep references to large data, "
                "put the steps of a loop into one step around it, or make each turn an operation of its own"
            )
            raise ProgressFull(message)

    def _returned(self) -> None:
        """Its handler has returned: whatever is raised from now on is not its word that nothing happened."""
        self._unproven = self._unproven or not self.joined

    def _leaving(self, error: BaseException | None) -> Move:
        """The move for a handler that left without one."""
        policy = self._policy
        if error is None and self.joined:
            how = "went back to a savepoint from before that" if self._known_undone else "was not committed"
            return self._suspending(f"ended on a transaction that {how}", None)
        if error is None:
            self._unproven = True
            return self._suspending("left without an answer", None)
        refused = self._unproven and not isinstance(error, NotApplied)  # it may be the guard's error, of any type
        if refused or isinstance(error, _NOT_BELIEVED):  # whatever else it may count as, what is done is not known
            return self._suspending(error, None)
        match policy.says_of(error):
            case "not_applied":
                return self._abandoning(error)
            case "final":
                try:
                    return self._failing(error)
                except _NOT_BELIEVED as refusal:
                    return self._suspending(refusal, None)
            case "unknown":
                return self._suspending(error, None)

    def _is_over(self, error: BaseException | None) -> bool:
        """Whether nothing is left to do for a handler that leaves; who never heard of its loss is to hear of it now."""
        if self._process is not self._runtime.process:
            return True
        if self._joined is not None and self._own.ended and not (self._own.lost or self._joined.told):
            self._found()  # by a heartbeat, or by an end that was repeated
        if error is None and self._joined is not None and not self._own.ended and self._own.pending is None:
            return False  # it is to be looked for
        if error is None:
            return self.ended and (not self.lost or self._told_lost)
        if self._within is not None:
            return True  # the caller's transaction is rolled back, and the claim with it
        return self._own.ended or self._own.pending is not None  # what was joined may have been rolled back

    def _judge(self, end: JoinedEnd, fate: Fate, error: BaseException | None) -> None:
        """Note what became of an end on the caller's transaction that is not committed.

        An exception says that the whole transaction is rolled back, unless a savepoint is known of. Who leaves without
        an exception takes it for done, and may have committed what came before a savepoint that is not known of, or
        what was written again in another transaction, without the end.
        """
        end.fate = fate
        if fate in {Fate.PARTED, Fate.NESTED} or (fate is Fate.UNDONE and error is None):
            self._unproven = True

    def _interrupted(self, error: BaseException | None, interruption: BaseException) -> None:
        """Have it left behind its caller, who was interrupted in that: as it would have been, or as not known.

        Until its lease is over it would look as if it were running, and then as if its rows were not there.
        """
        if self._within is not None or not self.guarded or self._own.pending is not None or self._own.ended:
            return
        if self._joined is not None and self._joined.fate is None:
            self._unproven = True
        move = self._leaving(error)
        self._hold.last, self._hold.forgiving = move.change, move.forgiving
        self._runtime.tell("unanswered", self._own.record, detail=type(interruption).__name__)
        self._runtime.unanswered.settle_end(self._hold)

    @property
    def _known_undone(self) -> bool:
        """Whether an end on the caller's transaction is known to be rolled back, though that may go on."""
        return self._joined is not None and self._joined.fate is Fate.PARTED

    def _found(self) -> None:
        """Tell of an end on the caller's transaction that was found to be committed."""
        if self._joined is not None:
            self._joined.told = True
        self._runtime.tell(str(self._own.record.state), self._own.record)
        self._runtime.on_end(self._own)

    def _tell_replaced(self, answer: Result) -> None:
        """Tell of an answer that is not the one which duplicates get: the handler had ended the operation before it."""
        detail = "the handler had finished the operation with another answer"
        self._runtime.tell("result_lost", self._own.record, detail=detail, value=answer)

    def _not_completed(self) -> NotCompleted:
        if self.joined:
            happened, left = self._not_kept()
        elif self._within is not None:
            happened, left = "was left without an answer", "roll its transaction back"
        elif self._unproven and self._policy.atomic:
            happened = "was left without an answer"
            left = (
                "it is suspended, and its recovery policy applies, as for one that is not atomic: its rows may be "
                "committed. Complete it on their transaction"
            )
        else:
            happened, left = "was left without an answer", f"it is suspended. {self._what_ends_it()}"
        return NotCompleted(f"operation {self.operation} {happened}; {left}")

    def _what_ends_it(self) -> str:
        """What the handler should have done, in words."""
        if not self._asynchronous:
            return "End its handler with complete(...), or with fail, abandon or suspend"
        told = "End its handler with `await op.complete(...)`, or with fail, abandon or suspend"
        forgotten = " and ".join(map(repr, not_started(self._called)))
        return f"{told}: {forgotten} was called and not awaited" if forgotten else told

    def _not_kept(self) -> tuple[str, str]:
        """What became of an end on the caller's transaction, and what is left of the operation."""
        happened = "was ended on a transaction that was not committed"
        if self._known_undone:
            happened = "was ended on a transaction that went back to a savepoint from before that"
        if self._within is not None:
            return happened, "nothing is kept of that: roll the transaction back, and begin the operation again"
        left = (
            "it is suspended, and its recovery policy applies, as for one that is not atomic: what else was done there "
            "may be committed. End it outside of savepoints, and leave it by an exception where all is rolled back"
        )
        return happened, left

    def _check_process(self) -> None:
        """Raise in a forked child, before its copy of a gate is waited for: the owner is the parent."""
        if self._process is not self._runtime.process:
            message = (
                f"operation {self.operation} belongs to the process that began it, and this is a fork of that one. "
                "Nothing changed: end it there, or begin the operation here under a scope or key of its own"
            )
            raise OperationEnded(message)

    # -- what happens around a step

    def _lane(self) -> object:
        """Which thread, or task, this is."""
        return threading.get_ident()

    @property
    def _ledger(self) -> Steps:
        """What is known of the steps."""
        if self._steps is None:
            with _MAKING:
                if self._steps is None:
                    self._steps = Steps(self, self._own.record.progress, home=self._home)
        return self._steps

    def _recalled(self, step: Step) -> Any:  # noqa: ANN401 - whatever the step gave
        """The result of a step that is kept."""
        self._ready(BEAT, None)
        value = decode_value(step._data or b"")
        self._ledger.returned(step)
        return value

    def _must_confirm(self, step: Step) -> bool:
        """Get ready to run a step; gives whether half of the lease has gone since the last confirmed write."""
        self._ready(BEAT, None)
        self._check_room(partial(core.stepped, label=step.label, data=b""))
        self._touch()
        silent = self._runtime.clock.monotonic() - self._hold.confirmed_at
        return self._within is None and silent >= self._own.record.terms.lease_ms / 2000

    def _check_whole(self) -> None:
        """Raise if the handler left something out: its answer, and its refusal, speak of what never ran."""
        if self._called and (left_out := not_started(self._called)):
            raise NotAwaited(left_out, operation=self.operation, in_a_loop=True)
        if self._steps is not None:
            self._steps.check_all_asked()

    def _refused(self, step: Step) -> StepsChanged:
        """The refusal of a step that has waited in vain; raises if the operation is over meanwhile."""
        self._ready(BEAT, None)
        return self._ledger.refuse(step)

    # -- what happens around a move

    def _check_transaction(self, move: Move, transaction: object) -> None:
        """Refuse a move that would not be committed together with the caller's rows, or together with wrong ones."""
        if self._within is not None:
            given = transaction is not None
            wrong = "was begun on a transaction, and goes on there: leave transaction= out" if given else ""
        elif transaction is not None:
            atomic = self._own.record.terms.atomic or self._policy.atomic  # the first claim may be of an older release
            wrong = "" if atomic else "takes no transaction: begin it with Policy(atomic=True)"
        else:
            atomic = self._own.record.terms.atomic and move.event == "completed"
            wrong = "is atomic: complete it together with its rows, by transaction=..." if atomic else ""
        if wrong:
            self._unproven = True  # who completes it apart from its rows has committed them, or will
            raise ValueError(f"operation {self._own.record.id} {wrong}")

    def _ready(self, move: Move, transaction: object) -> bool:
        """Whether `move` is to be sent; raises if it can't follow what was done before."""
        own = self._own
        if own.lost:
            self._told_lost = True
            raise OwnershipLost(own.record.id)
        if not self.guarded:
            own.ended = own.ended or move.ends
            return False
        if own.ended:
            message = f"operation {own.record.id} is over: it is {own.record.state} already"
            raise OperationEnded(message)
        pending = own.pending
        if pending is not None and (not move.ends or not core.ends_alike(pending, self._made(move))):
            message = (
                f"the store has not confirmed the last move of operation {own.record.id}; only the same may follow"
            )
            raise StoreUnavailable(message)
        self._check_transaction(move, transaction)
        if move.ends and transaction is None:  # else it is the owner's until that is committed
            self._hold.forgiving = move.forgiving
            self._runtime.heart.remove(self._hold)
        return True

    def _made(self, move: Move) -> Record:
        return move.change(self._own.record, b"")

    def _flow(self, move: Move) -> Generator[Op, Reply, Record]:
        flow = flows.move(
            self._own, move.change, ends=move.ends, forgiving=move.forgiving, new_etag=self._runtime.new_etag
        )
        return flows.after_a_transaction(self._own, flow) if self.joined else flow

    def _flow_within(self, move: Move) -> Generator[Op, Reply, Record]:
        begun_there = self._within is not None
        return flows.move_within(self._own, move.change, begun_there=begun_there, new_etag=self._runtime.new_etag)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, OwnershipLost):
            self._told_lost = True
            self._runtime.on_lost(self._own)
        elif self._own.pending is not None:
            self._runtime.tell("unanswered", self._own.record, detail=type(error).__name__)
            self._runtime.unanswered.settle_end(self._hold)

    def _done(self, move: Move) -> None:
        runtime = self._runtime
        if move.event and runtime.observer is not None:
            record = self._own.record  # after a move on a transaction, it may be found finished by that
            event = str(record.state) if self.joined and record.terminal else move.event
            kept = self._kept_back() if event == "abandoned" and record.released is Released.NO else ""
            runtime.tell("not_freed" if kept else event, record, detail=kept or move.detail)
        if self._joined is not None:
            self._joined.told = True
        if move.ends:
            runtime.on_end(self._own)

    @contextlib.contextmanager
    def _current(self) -> Generator[None, None, None]:
        """Make this the `current_operation`, without ending it at the end."""
        self._set_current()
        try:
            yield
        finally:
            self._reset_current()

    def _set_current(self) -> None:
        if self._token is None:  # else it was entered already, and the first to leave resets it
            self._token = CURRENT.set(self)

    def _reset_current(self) -> None:
        if self._token is not None:
            with contextlib.suppress(ValueError):  # left in another context than it was entered in
                CURRENT.reset(self._token)
            self._token = None
