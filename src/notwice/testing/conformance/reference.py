"""What `notwice.stores.port` says, done as naively as possible: the store that all others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from notwice.model import AGE_UNKNOWN_MS, Get, Insert, Op, Page, Query, Record, RecordView, Reply
from notwice.stores.port import StoreClock

Name = tuple[str, str]
"""A namespace and an operation id."""


class Kept(NamedTuple):
    """One record with the times of its write."""

    record: Record
    written_ms: int
    boot_id: str
    boot_ms: int


class ReferenceStore:
    """A dictionary of records, for one thread. It has no eviction, no commit and no file."""

    def __init__(self, clock: StoreClock) -> None:
        self._clock = clock
        self._kept: dict[Name, Kept] = {}

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        if len({_name(op) for op in ops}) < len(ops):
            raise ValueError("a batch names each id once")
        return [self._one(op) for op in ops]

    def scan(self, query: Query) -> Page:
        """Give all that `query` describes, up to its limit. Cursors are not needed here."""
        views = [self._view(kept) for kept in self._kept.values()]
        found = sorted((view for view in views if matches(view, query)), key=place)
        return Page(tuple(found[: query.limit]), None)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records."""
        expired = self.expired()[:limit]
        for name in expired:
            self.drop(name)
        return len(expired)

    def expired(self) -> list[Name]:
        """The names of the records that any engine may drop whenever it likes."""
        return [name for name, kept in self._kept.items() if self._view(kept).expired]

    def drop(self, name: Name) -> None:
        """Take a record out."""
        del self._kept[name]

    def close(self) -> None:
        """Nothing to give back."""

    def _one(self, op: Op) -> Reply:
        name = _name(op)
        kept = self._kept.get(name)
        if isinstance(op, Get):
            return self._reply(kept, won=False)
        due = kept is None if isinstance(op, Insert) else kept is not None and kept.record.etag == op.expected_etag
        if not due:
            return self._reply(kept, won=False)
        now_ms = self._clock.wall_ms()
        record = op.record._replace(created_ms=op.record.created_ms or now_ms)
        self._kept[name] = Kept(record, now_ms, self._clock.boot_id(), self._clock.boot_ms())
        return self._reply(self._kept[name], won=True)

    def _reply(self, kept: Kept | None, *, won: bool) -> Reply:
        if kept is None:
            return Reply(won, None, 0, self._clock.wall_ms(), 0)
        view = self._view(kept)
        return Reply(won, *view)

    def _view(self, kept: Kept) -> RecordView:
        same_boot = kept.boot_id == self._clock.boot_id()
        age_ms = self._clock.boot_ms() - kept.boot_ms if same_boot else AGE_UNKNOWN_MS
        return RecordView(kept.record, kept.written_ms, self._clock.wall_ms(), age_ms)


def matches(view: RecordView, query: Query) -> bool:
    """Whether a scan for `query` gives this record."""
    record = view.record
    return (
        (query.namespace is None or record.namespace == query.namespace)
        and (query.states is None or record.state in query.states)
        and (query.unresolved is None or view.unresolved is query.unresolved)
        and (query.scope_prefix is None or record.scope.startswith(query.scope_prefix))
        and (query.older_than_ms is None or view.now_ms - view.written_ms >= query.older_than_ms)
        and (query.operation is None or record.id == query.operation)
    )


def place(view: RecordView) -> tuple[int, str, str]:
    """Where a record stands in the order of a scan."""
    return view.record.created_ms, view.record.namespace, view.record.id


def _name(op: Op) -> Name:
    return (op.namespace, op.id) if isinstance(op, Get) else (op.record.namespace, op.record.id)
