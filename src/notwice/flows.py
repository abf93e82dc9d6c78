"""The conversations with the store, each written once: generators that yield a store operation and are sent its reply.

They are pure: etags come from a function that is handed in, and whoever drives them (a thread, an event loop, the
heartbeat) does the waiting. A store that did not answer is thrown in as `StoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from notwice import core
from notwice.codec import closed_reason
from notwice.core import Ask, Claim
from notwice.errors import (
    ContentionError,
    ForceRequired,
    OperationEnded,
    OwnershipLost,
    RecordChanged,
    RecordTooLarge,
    StoreUnavailable,
    UnsupportedRecord,
)
from notwice.model import (
    IN_PROGRESS,
    Get,
    InProgress,
    Insert,
    Mismatch,
    Op,
    Record,
    RecordView,
    Replay,
    Reply,
    Swap,
    Unreadable,
    Unresolved,
    make_insert,
    make_swap,
)

NewEtag = Callable[[], bytes]
Change = Callable[[Record, bytes], Record]
OperatorChange = Callable[[RecordView, bytes], Record]
Sent = dict[bytes, Claim]

NOTHING: Final[frozenset[bytes]] = frozenset()
CREATED: Final = Claim(created=True)


class Orphans(Protocol):
    """The process's list of begins that ended without an answer, as a begin sees it."""

    def of(self, namespace: str, operation: str) -> Container[bytes]:
        """The etags that are on the list for this operation."""
        ...

    def take(self, namespace: str, operation: str, etag: bytes) -> Claim | None:
        """Take one etag off the list: for one caller only, ``None`` for all others."""
        ...

    def put(self, namespace: str, operation: str, claims: Mapping[bytes, Claim]) -> None:
        """Put etags on the list."""
        ...


class _NoOrphans:
    """The list of a begin that puts nothing on it."""

    def of(self, namespace: str, operation: str) -> Container[bytes]:  # noqa: ARG002 - as Orphans has it
        """Nothing."""
        return NOTHING

    def take(self, namespace: str, operation: str, etag: bytes) -> Claim | None:  # noqa: ARG002 - as Orphans has it
        """Nothing."""
        return None

    def put(self, namespace: str, operation: str, claims: Mapping[bytes, Claim]) -> None:
        """Keep nothing."""


NO_ORPHANS: Final[Orphans] = _NoOrphans()


class Ownership:
    """What an owner knows of its operation: the record as last confirmed, and the writes that nobody confirmed.

    Not thread-safe: the owner's moves run one at a time.
    """

    __slots__ = ("change", "claim", "ended", "freeing", "lost", "pending", "record", "touched", "unconfirmed")

    def __init__(self, record: Record, claim: Claim) -> None:
        self.record = record
        self.claim = claim
        self.unconfirmed: dict[bytes, Record] = {}
        self.touched = False
        """Whether a downstream key, a step or a checkpoint was begun under this claim: to abandon it frees no key."""
        self.freeing = False
        """Whether an abandon that frees the key has begun, or is done. Each side sets its own first, then looks."""
        self.ended = False
        self.lost = False
        self.pending: Record | None = None
        """A write that ends the operation and that nobody confirmed: nothing but its repetition may follow."""
        self.change: Change | None = None
        """What made `pending`."""

    def confirm(self, record: Record) -> None:
        """Take `record` for what is stored."""
        self.record = record
        if self.unconfirmed:
            self.unconfirmed.clear()

    def end(self, record: Record) -> None:
        """Take `record` for the last one that this owner writes."""
        self.ended = True  # first: what interrupts this must not have the move made again
        self.record = record
        self.unconfirmed.clear()
        self.pending = None


def begin(
    ask: Ask, sent: Sent, *, orphans: Orphans, new_etag: NewEtag
) -> Generator[Op, Reply, Ownership | Replay | InProgress | Unresolved | Mismatch | None]:
    """Claim the operation, or say why not; ``None``: there is nothing to take over, and the ask begins nothing.

    `sent` holds every claim that was sent and that nobody confirmed or refused, and the one that is owned: whoever
    drives this puts what is left of it on the process's list, but for the one that he can hand on.
    Raises `StoreUnavailable`, `ContentionError`, `UnsupportedRecord`; then nothing may run.
    """
    op: Insert | Swap | Get = make_insert((core.fresh(ask, new_etag()),)) if ask.creates else Get(ask.namespace, ask.id)
    claim = CREATED
    failures = reads = 0
    while reads < core.READS_MAX:
        if not isinstance(op, Get):
            sent[op.record.etag] = claim
        try:
            reply = yield op
        except StoreUnavailable:
            failures += 1
            if failures == core.SENDS_MAX:
                raise
            op = _again(op, new_etag)
            continue
        reads += 1
        if reply.won and isinstance(landed := reply.record, Record) and core.owns(landed, reply, sent):  # as a rule
            return Ownership(landed, _confirmed(landed, op, sent))
        decision = _judged(ask, reply, sent=sent, orphans=orphans)
        if isinstance(decision, core.Own):
            return Ownership(decision.record, _confirmed(decision.record, op, sent))
        _answered(op, reply, sent)
        match decision:
            case core.Replace() | core.Reclaim(anew=True) if not ask.creates:
                return None  # a worker begins nothing, and what an operator has freed waits for its next retry
            case core.Replace(prior):
                record, claim = core.fresh(ask, new_etag()), CREATED
                op = Swap(record, prior.etag) if prior else Insert(record)
            case core.Reclaim(view, _, asks):
                op = Swap(core.reclaimed(ask, decision, new_etag()), view.record.etag)
                claim = Claim(created=False, prior=view.record, asks=asks)
            case core.Adopt(record):
                claim = sent[record.etag]  # safe as an etag of this begin's own only because a swap from it follows
                op = Swap(core.adopted(ask, record, new_etag(), claim=claim), record.etag)
            case core.Refuse(reason):
                message = f"the record of operation {ask.id} can not be judged: {reason}. Nothing ran."
                raise UnsupportedRecord(message)
            case _:
                return decision
    message = f"operation {ask.id} changed {core.READS_MAX} times while it was begun. Nothing ran; try again."
    raise ContentionError(message)


def _again(op: Insert | Swap | Get, new_etag: NewEtag) -> Insert | Swap | Get:
    """The same once more. An insert is never sent twice under one etag; an identical swap may be."""
    return Insert(op.record._replace(etag=new_etag())) if isinstance(op, Insert) else op


def _judged(ask: Ask, reply: Reply, *, sent: Sent, orphans: Orphans) -> core.Decision:
    """Decide, and take an orphaned etag off the process's list; who comes too late for that decides again."""
    decision = core.settle(ask, reply, sent, orphaned=orphans.of(ask.namespace, ask.id))
    if not isinstance(decision, core.Adopt):
        return decision
    claim = orphans.take(ask.namespace, ask.id, decision.record.etag)
    if claim is None:
        return core.settle(ask, reply, sent)
    sent[decision.record.etag] = claim
    return decision


def _answered(op: Insert | Swap | Get, reply: Reply, sent: Sent) -> None:
    """Forget what the reply to `op` settles: a refused write, and whatever a carried-out one has replaced."""
    if isinstance(op, Get):
        return
    sent.pop(op.record.etag, None)
    if reply.won and isinstance(op, Swap):
        sent.pop(op.expected_etag, None)


def _confirmed(record: Record, op: Insert | Swap | Get, sent: Sent) -> Claim:
    """Give the claim that was carried out, and take from `sent` what its record rules out.

    What else is left may still be carried out once this operation is over and gone, so it goes on the process's list.
    The claim itself stays in `sent` until somebody has the operation: with nobody, it is to be settled like the others.
    """
    claim = sent[record.etag]
    if len(sent) > 1 and not isinstance(op, Get):  # as a rule there was but one
        for etag in {op.record.etag, op.expected_etag if isinstance(op, Swap) else b""} - {record.etag}:
            sent.pop(etag, None)
    return claim


def move(
    own: Ownership,
    change: Change,
    *,
    ends: bool,
    forgiving: bool,
    new_etag: NewEtag,
    sends_max: int = core.SENDS_MAX,
) -> Generator[Op, Reply, Record]:
    """Carry out one owner's move: write what `change` makes of the record, on top of whatever of ours has landed.

    `ends`: this is the last move. `forgiving`: with a lost acknowledgement, another's record means "done".
    A result that is too large for the store is left out, for its key must not stay open for that.
    Raises `OwnershipLost` (nothing changed), `StoreUnavailable` (it may have landed) or `ContentionError`.
    """
    failures = 0
    target = own.pending
    if own.change is not None:  # the repetition of a last move: another process may have seen it land
        change, failures = own.change, 1
    if target is None:
        target = change(own.record, new_etag())
    for _ in range(core.READS_MAX):
        assert target.state in core.NEXT[own.record.state], (own.record.state, target.state)
        own.unconfirmed[target.etag] = target
        if ends:
            own.pending, own.change = target, change
        try:
            reply = yield make_swap((target, own.record.etag))
        except RecordTooLarge:  # surely not written, as often as it is sent
            own.unconfirmed.pop(target.etag, None)
            if not core.has_body(target):
                own.pending = own.change = None
                raise
            change = partial(_without_body, change)
            target = change(own.record, new_etag())
            continue
        except StoreUnavailable:
            failures += 1
            sends_max -= 1
            if not sends_max:
                raise
            continue  # an identical swap may be sent again under its own etag
        landed = target if reply.won else _landed(own, reply)
        if landed is None and forgiving and failures:
            landed = target
        if landed is None:
            raise _lost(own, reply)
        if landed is target or landed.state is not IN_PROGRESS:
            own.end(landed) if ends or landed.state is not IN_PROGRESS else own.confirm(landed)
            return landed
        own.confirm(landed)
        target = change(landed, new_etag())
    message = f"operation {own.record.id} changed {core.READS_MAX} times during one move; try it again."
    raise ContentionError(message)


def move_within(
    own: Ownership, change: Change, *, begun_there: bool, new_etag: NewEtag
) -> Generator[Op, Reply, Record]:
    """Carry out one owner's move on the caller's own transaction, on top of what the owner wrote there before.

    Nothing counts before that transaction is committed, which only the caller sees: so the owner goes on from the
    record that it knows, and finds what was committed when it is refused. Raises `OwnershipLost`, and `OperationEnded`
    if it was finished before: by an earlier transaction, whose commit this owner may not have heard of, so that the
    rows of this one must not be committed, too. So is one that was `begun_there`, and undone with a savepoint; where
    the record is too new for the transaction to see it, `ContentionError` says to begin that again.
    """
    base = own.record
    for _ in range(core.READS_MAX):
        target = change(base, new_etag())
        own.unconfirmed[target.etag] = target
        reply = yield make_swap((target, base.etag))
        if begun_there and _is_undone(own, reply):
            raise _undone(own)
        if reply.record is None:
            yield from _check_seen(own)
        landed = target if reply.won else _landed(own, reply)
        if landed is None:
            raise _lost(own, reply)
        if landed is target:
            return target
        if landed.state is not IN_PROGRESS:
            yield from _check_repeated(own, landed, target)
            return landed
        base = landed
    message = f"operation {own.record.id} changed {core.READS_MAX} times during one move; roll back and try it again."
    raise ContentionError(message)


def look_for_end(own: Ownership) -> Generator[Op, Reply, None]:
    """Look whether the caller's transaction has finished the operation, and was committed. Changes nothing there."""
    landed = _landed(own, (yield Get(own.record.namespace, own.record.id)))
    if landed is not None and landed.terminal:
        own.end(landed)


def after_a_transaction(own: Ownership, move: Generator[Op, Reply, Record]) -> Generator[Op, Reply, Record]:
    """Look whether the caller's transaction has finished the operation, before `move` is tried."""
    with suppress(StoreUnavailable):
        yield from look_for_end(own)
        if own.ended:
            return own.record
    return (yield from move)


def _without_body(change: Change, record: Record, etag: bytes) -> Record:
    """What `change` makes of a record, its result marked as omitted."""
    return core.omitting(change(record, etag))


def _check_repeated(own: Ownership, landed: Record, target: Record) -> Generator[Op, Reply, None]:
    """Let a last move be repeated within its own transaction, and nowhere and by nothing else."""
    committed = yield Get(landed.namespace, landed.id)
    if isinstance(committed.record, Record) and committed.record.etag == landed.etag:
        own.end(landed)
        message = (
            f"operation {landed.id} is over: it was {landed.state} by an earlier transaction, which was committed. "
            "Roll this one back; begin the operation again to get its result"
        )
        raise OperationEnded(message)
    if (landed.state, landed.result) != (target.state, target.result):
        message = f"operation {landed.id} is over: it is {landed.state} in this transaction already"
        raise OperationEnded(message)


def _is_undone(own: Ownership, reply: Reply) -> bool:
    """Whether a claim that was made in the caller's transaction is not there: what was before it is."""
    prior, found = own.claim.prior, reply.record
    return found is None if prior is None else isinstance(found, Record) and found.etag == prior.etag


def _undone(own: Ownership) -> OperationEnded:
    message = (
        f"operation {own.record.id} is over: what it was begun in was rolled back, to a savepoint. Nothing of it is "
        "there; begin the operation again"
    )
    return OperationEnded(message)


def _check_seen(own: Ownership) -> Generator[Op, Reply, None]:
    """Raise if it is not there for the caller's transaction alone: then it is nobody else's."""
    committed = (yield Get(own.record.namespace, own.record.id)).record
    if isinstance(committed, Record) and committed.etag == own.record.etag:
        message = (
            f"operation {own.record.id} was begun after this transaction, which does not see it; roll back and try it "
            "again."
        )
        raise ContentionError(message)


def _lost(own: Ownership, reply: Reply) -> OwnershipLost:
    """Note that the operation is another's now, and give the error that says so."""
    own.lost = own.ended = True
    readable = isinstance(reply.record, Record) and not reply.record.sealed
    return OwnershipLost(own.record.id, view_of(reply) if readable else None)


def _landed(own: Ownership, reply: Reply) -> Record | None:
    """Which of the owner's unconfirmed writes is stored, if any."""
    return (
        None if reply.record is None or isinstance(reply.record, Unreadable) else own.unconfirmed.get(reply.record.etag)
    )


def disown(namespace: str, operation: str, *, orphans: Orphans, new_etag: NewEtag) -> Generator[Op, Reply, bool]:
    """Free the record of a begin that ended without an answer. Gives whether it was found, and so is settled."""
    reply = yield Get(namespace, operation)
    record = reply.record
    if record is None or isinstance(record, Unreadable):
        return False  # the write may still be under way
    claim = orphans.take(namespace, operation, record.etag)
    if claim is None:
        return False
    try:
        yield Swap(core.disowned(record, new_etag(), claim=claim), record.etag)
    except StoreUnavailable:
        orphans.put(namespace, operation, {record.etag: claim})
        raise
    return True


def operate(
    view: RecordView, change: OperatorChange, *, force: bool, new_etag: NewEtag
) -> Generator[Op, Reply, RecordView]:
    """Carry out an operator's move on exactly the record that the person was shown, judged by the time it is now.

    Raises `ForceRequired`, `RecordChanged` (nothing changed) or `StoreUnavailable` (it may have landed: look again).
    """
    shown = view_of((yield Get(view.record.namespace, view.record.id)))
    if shown is None or shown.record.etag != view.record.etag:
        raise _changed(view)
    if core.needs_force(shown) and not force:
        state = "finished" if shown.record.terminal else "free already" if shown.record.released else "running"
        message = f"operation {view.record.id} is {state}; only force=True changes it. Nothing changed."
        raise ForceRequired(message)
    target = change(shown, new_etag())
    assert target.state in core.NEXT[shown.record.state], (shown.record.state, target.state)
    found = view_of((yield from _resent(Swap(target, view.record.etag))))
    if found is None or found.record.etag != target.etag:
        raise _changed(view)
    return found


def _resent(swap: Swap) -> Generator[Op, Reply, Reply]:
    """Send one swap until it is answered, within `SENDS_MAX`: an identical one does no harm."""
    for _ in range(core.SENDS_MAX - 1):
        try:
            return (yield swap)
        except StoreUnavailable:
            continue
    return (yield swap)


def _changed(view: RecordView) -> RecordChanged:
    message = f"operation {view.record.id} has changed since it was shown. Nothing changed; look it up again."
    return RecordChanged(message)


def is_new(ask: Ask) -> Generator[Op, Reply, bool]:
    """Say whether a begin would create a record now: nothing that counts is there. Raises `StoreUnavailable`."""
    reply = yield Get(ask.namespace, ask.id)
    return isinstance(core.settle(ask, reply, ()), core.Replace)


def look(namespace: str, operation: str) -> Generator[Op, Reply, RecordView | None]:
    """Give what is stored, ``None`` if nothing is. Raises `StoreUnavailable` or `UnsupportedRecord`."""
    return view_of((yield Get(namespace, operation)))


def view_of(reply: Reply) -> RecordView | None:
    """What a reply shows, ``None`` if nothing is there. Raises `UnsupportedRecord` for what can't be decoded."""
    record = reply.record
    if record is None:
        return None
    if isinstance(record, Unreadable):
        message = f"the record of operation {record.id} can not be read: {record.reason}"
        raise UnsupportedRecord(message)
    if record.sealed:
        message = f"the record of operation {record.id} can not be read: {closed_reason(record)}"
        raise UnsupportedRecord(message)
    return RecordView(record, reply.written_ms, reply.now_ms, reply.age_ms)
