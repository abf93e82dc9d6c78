"""What the engines with tables do alike: rows as records and pages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from notwice.codec import decode_record
from notwice.model import Get, Insert, Op, Page, Query, Record, RecordView, Reply, State, Swap, Unreadable
from notwice.stores.shared import KeyLocked, Name, cursor_after, name_of, reply_of, stamped

_LOCKED_ETAG: Final = b"locked"

HELD_S: Final = 1.0
"""How long a key that was found to be held is not waited for again. It is still asked for."""


class HeldKeys:
    """Keys that somebody's open transaction was found to hold a moment ago, or may hold.

    Who claims one of them by a new record waits for it no longer, so that of many duplicates one waits, not each in
    its turn. Of a batch that met a lock nobody knows whose key that was: all of its keys may be held, and the batch has
    waited for them.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[Name, float] = {}

    def __bool__(self) -> bool:
        """Whether any key may be held."""
        return bool(self._until)

    def note(self, ops: Iterable[Op]) -> None:
        """A key of theirs is held; what was noted long ago is forgotten."""
        now = time.monotonic()
        noted = {name_of(op): now + HELD_S for op in ops if isinstance(op, Insert)}
        self._until = {name: until for name, until in self._until.items() if until > now} | noted

    def has(self, op: Op) -> bool:
        """Whether `op` is a new record under such a key."""
        return bool(self._until) and isinstance(op, Insert) and self._until.get(name_of(op), 0) > time.monotonic()


def decoded(name: Name, column: bytes | None, created_ms: int | None) -> Record | Unreadable:
    """The record in a row, or why it can't be read."""
    record = decode_record(column or b"", *name)
    return record if isinstance(record, Unreadable) else stamped(record, created_ms or 0)


def page_of(rows: Sequence[Sequence[Any]], query: Query) -> Page:
    """The page that a scan's rows make: (id, namespace, now, created, written, record), one more than asked for."""
    shown = rows[: max(query.limit, 0)]
    items = tuple(map(_item, shown))
    if len(rows) <= query.limit or not shown:
        return Page(items, None)
    identifier, namespace, _, created_ms, *_ = shown[-1]
    return Page(items, cursor_after((created_ms, _text(namespace), _text(identifier))))


def answer_while_locked(op: Op, seen: Reply) -> Reply:
    """The answer to an operation on a row, or on a key that nobody sees yet, that somebody's open transaction holds.

    `seen` is what a get shows meanwhile. What can be read is read. A claim that would have to wait is told that
    somebody is at work, which is so: it gets its own record as a stranger's that has just begun. Every other write
    raises `KeyLocked`: nothing was done.
    """
    if isinstance(op, Get) or (isinstance(op, Insert) and seen.record is not None):
        return seen
    if isinstance(op, Swap) and not (isinstance(seen.record, Record) and seen.record.etag == op.expected_etag):
        return seen
    if op.record.state is not State.IN_PROGRESS or not _is_claim(op, seen.record):
        raise KeyLocked("an open transaction holds this record; nothing was done")
    stand_in = stamped(op.record._replace(etag=_LOCKED_ETAG), seen.now_ms)
    return reply_of((False, stand_in, seen.now_ms, seen.now_ms, 0))


def _is_claim(op: Insert | Swap, seen: object) -> bool:
    """Whether the write would make a new owner, not carry an owner's work on."""
    return not isinstance(seen, Record) or op.record.created_ms == 0 or op.record.attempt != seen.attempt


def _item(row: Sequence[Any]) -> RecordView | Unreadable:
    identifier, namespace, now_ms, created_ms, written_ms, column = row
    record = decoded((_text(namespace), _text(identifier)), column, created_ms)
    if isinstance(record, Unreadable):
        return record
    return RecordView(record, written_ms, now_ms, max(now_ms - written_ms, 0))


def _text(column: str | bytes) -> str:
    return column if isinstance(column, str) else column.decode("utf-8", "surrogatepass")
