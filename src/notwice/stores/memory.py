"""The records of one process, in a dictionary: the semantics that every other engine is compared with.

Nothing survives the process. A forked child goes on with a copy of its own. No operation looks at more than the records
that it names and, for each new one, at a few whose time is over, so that records which nobody asks for leave, too.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, Literal

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, Record, RecordView, Reply, Swap
from notwice.stores.clocks import Moment, SystemStoreClock, TrustedClock
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.interrupts import take_lock
from notwice.stores.port import Store, StoreClock
from notwice.stores.shared import (
    Name,
    Place,
    closed,
    cursor_after,
    matches,
    place_after,
    refuse_repeated_names,
    reply_of,
    stamped,
)
from notwice.stores.urls import StoreUrl, one_of, whole_number

SWEPT_PER_INSERT = 2
"""How many expired records leave for each new one: more than one, so that they can't pile up."""

OPTIONS: Final = {"records_max": whole_number, "when_full": one_of("evict", "refuse")}
"""The options of a URL, with what reads them."""

_DEADLINES_SPARE = 64


_Kept = tuple[Record, int, int, str]
"""A record with the times of its write: (record, wall, boot clock, boot). A bare tuple, for it is on the hot path."""


class MemoryStore:
    """A `Store` in the memory of this process.

    Arguments:
        clock: wall and boot clock; the host's by default.
        records_max: how many records to keep. To make room for a new one, the one that was finished, or released as
            new, the longest time ago leaves, expired or not. No other record ever leaves.
        when_full: what to do with a new record when `records_max` are kept and none of them may leave:
            ``"evict"`` keeps it beyond the limit, ``"refuse"`` raises `StoreUnavailable`.
    """

    def __init__(
        self,
        clock: StoreClock | None = None,
        records_max: int | None = None,
        when_full: Literal["evict", "refuse"] = "evict",
    ) -> None:
        if records_max is not None and records_max < 1:
            raise ValueError(f"records_max must be at least 1, or None for no limit; it is {records_max}")
        if when_full not in {"evict", "refuse"}:
            raise ValueError(f'when_full must be "evict" or "refuse"; it is {when_full!r}')
        self._clock = TrustedClock(clock or SystemStoreClock())
        self._records_max = records_max
        self._refuses = when_full == "refuse"
        self._lock = threading.Lock()
        self._resting: list[bool] = []
        self._closed = False
        self._kept: dict[Name, _Kept] = {}
        self._deadlines: list[tuple[int, Name]] = []  # a heap; may hold some that are no longer right
        self._droppable: OrderedDict[Name, None] = OrderedDict()  # kept only with records_max, oldest first
        self._order: list[Place] | None = None  # made by a scan, until a record comes or goes
        stand_still_at_forks(self)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice.

        Raises `StoreUnavailable` when closed, or full and refusing. Then nothing was done, for none of the operations.
        """
        with self._lock:
            if self._closed:
                raise closed()
            moment = self._clock.read()
            if len(ops) == 1:
                replies = [self._carry_out(ops[0], moment)]
            else:
                refuse_repeated_names(ops)
                if self._refuses:
                    self._refuse_without_room(ops)
                replies = [self._carry_out(op, moment) for op in ops]
            if self._deadlines and self._deadlines[0][0] < moment.now_ms:
                self._sweep(moment, SWEPT_PER_INSERT * _inserted(ops, replies))
            return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first."""
        with self._lock:
            moment = self._now()
            limit = max(query.limit, 0)
            found = tuple(islice(self._matching(query, moment), limit + 1))
        items = found[:limit]
        more = bool(items) and len(found) > limit
        return Page(items, cursor_after(_place(items[-1].record)) if more else None)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records and say how many went."""
        with self._lock:
            return self._sweep(self._now(), limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, beyond `records_max` if need be."""
        with self._lock:
            moment = self._now()
            return [self._take_in(view, moment) for view in views]

    def close(self) -> None:
        """Forget all records. Using the store afterwards raises `StoreUnavailable`."""
        with self._lock:
            self._closed = True
            self._kept.clear()
            self._deadlines.clear()
            self._droppable.clear()
            self._order = None

    def before_fork(self) -> None:
        """Let no change be under way while the process is copied."""
        take_lock(self._lock, -1, self._resting)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        resting, self._resting = self._resting, []
        if True in resting:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on with a copy: what either process writes from now on, the other one does not see."""
        self._lock = threading.Lock()
        self._resting = []

    def _now(self) -> Moment:
        if self._closed:
            raise closed()
        return self._clock.read()

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        if isinstance(op, Get):
            return _found(self._kept.get((op.namespace, op.id)), moment)
        record = op.record
        name: Name = record[:2]
        kept = self._kept.get(name)
        if isinstance(op, Insert):
            if kept is not None:
                return _found(kept, moment)
            if self._records_max is not None:
                self._make_room(self._records_max)
            self._order = None
        elif kept is None or kept[0].etag != op.expected_etag:
            return _found(kept, moment)
        elif self._order is not None and kept[0].created_ms != record.created_ms:
            self._order = None
        return self._write(name, record, moment)

    def _take_in(self, view: RecordView, moment: Moment) -> bool:
        name = (view.record.namespace, view.record.id)
        if name in self._kept:
            return False
        self._order = None
        self._write(name, view.record, moment.at(view.written_ms))
        return True

    def _write(self, name: Name, record: Record, moment: Moment) -> Reply:
        now_ms, stamp_ms, boot_ms, boot_id = moment
        if not record.created_ms:
            record = stamped(record, stamp_ms)
        after_ms = record.expires_after_ms
        if self._records_max is not None:  # first: if this is interrupted, no open record is among those
            self._droppable.pop(name, None)
        self._kept[name] = (record, stamp_ms, boot_ms, boot_id)
        if after_ms is not None:
            heappush(self._deadlines, (stamp_ms + after_ms, name))
            if len(self._deadlines) > 2 * len(self._kept) + _DEADLINES_SPARE:
                self._forget_old_deadlines()
        if self._records_max is not None and _may_leave(record):
            self._droppable[name] = None
        return reply_of((True, record, stamp_ms, now_ms, 0))

    def _forget_old_deadlines(self) -> None:
        deadlines = [(due, name) for name, kept in self._kept.items() if (due := _deadline_ms(kept)) is not None]
        heapify(deadlines)
        self._deadlines = deadlines

    def _sweep(self, moment: Moment, limit: int) -> int:
        gone = 0
        while gone < limit and self._deadlines and self._deadlines[0][0] < moment.now_ms:
            _, name = heappop(self._deadlines)
            kept = self._kept.get(name)
            due_ms = None if kept is None else _deadline_ms(kept)
            if due_ms is not None and due_ms < moment.now_ms:
                self._drop(name)
                gone += 1
        return gone

    def _make_room(self, records_max: int) -> None:
        while len(self._kept) >= records_max and self._droppable:
            self._drop(next(iter(self._droppable)))
        if self._refuses and len(self._kept) >= records_max:
            raise _full(records_max)

    def _refuse_without_room(self, ops: Sequence[Op]) -> None:
        """Raise before anything of a batch is done if there may be no room for one of its new records.

        There is room for a new record as long as fewer than `records_max` are open, for all others may leave. A record
        that the batch names, and that may leave to make room for one before it, is counted as new.
        """
        if self._records_max is None:
            return
        open_ones = len(self._kept) - len(self._droppable)
        spare = self._records_max - len(self._kept)
        evicts = False
        for op in ops:
            if isinstance(op, Get):
                continue
            name = (op.record.namespace, op.record.id)
            kept = self._kept.get(name)
            leaves = name in self._droppable
            if isinstance(op, Swap):
                if kept is not None and kept[0].etag == op.expected_etag:
                    open_ones += leaves - _may_leave(op.record)
            elif kept is None or (leaves and evicts):
                if open_ones >= self._records_max:
                    raise _full(self._records_max)
                open_ones += not _may_leave(op.record)
                spare -= 1
                evicts = spare < 0

    def _drop(self, name: Name) -> None:
        self._order = None
        self._kept.pop(name, None)  # it is gone already if this was interrupted before
        self._droppable.pop(name, None)

    def _matching(self, query: Query, moment: Moment) -> Iterator[RecordView]:
        if self._order is None:
            self._order = sorted(_place(record) for record, *_ in self._kept.values())
        start = bisect_right(self._order, place_after(query.cursor)) if query.cursor else 0
        for _, *name in islice(self._order, start, None):
            view = _view(self._kept[name[0], name[1]], moment)
            if matches(view, query):
                yield view


class AsyncMemoryStore:
    """`MemoryStore` for an event loop: nothing in it waits, so there is no thread in between."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return self._store

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        return self._store.apply(ops)

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first."""
        return self._store.scan(query)

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records and say how many went."""
        return self._store.purge(limit)

    async def close(self) -> None:
        """Forget all records."""
        self._store.close()


def open_url(url: StoreUrl) -> MemoryStore:
    """Make the store of ``memory://``."""
    if url.host or url.path.strip("/"):
        raise ValueError("a store in memory has no name: memory://, with options after a ?")
    return MemoryStore(**url.read_options(OPTIONS))  # type: ignore[arg-type]  # each option's reader gives its type


def open_async_url(url: StoreUrl) -> AsyncMemoryStore:
    """Make the store of ``memory://`` for event loops."""
    return AsyncMemoryStore(open_url(url))


def _may_leave(record: Record) -> bool:
    return record.terminal or record.expires_after_ms is not None


def _full(records_max: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"all of the {records_max} records that this store may keep are open operations; "
        "finish some, raise records_max, or use a store on disk"
    )


def _found(kept: _Kept | None, moment: Moment) -> Reply:
    if kept is None:
        return reply_of((False, None, 0, moment.now_ms, 0))
    record, written_ms, boot_ms, boot_id = kept
    return reply_of((False, record, written_ms, moment.now_ms, moment.since_ms(boot_ms, boot_id)))


def _view(kept: _Kept, moment: Moment) -> RecordView:
    record, written_ms, boot_ms, boot_id = kept
    return RecordView(record, written_ms, moment.now_ms, moment.since_ms(boot_ms, boot_id))


def _inserted(ops: Sequence[Op], replies: Sequence[Reply]) -> int:
    return sum(reply.won and isinstance(op, Insert) for op, reply in zip(ops, replies, strict=True))


def _deadline_ms(kept: _Kept) -> int | None:
    record, written_ms, *_ = kept
    after_ms = record.expires_after_ms
    return None if after_ms is None else written_ms + after_ms


def _place(record: Record) -> Place:
    return record.created_ms, record.namespace, record.id
