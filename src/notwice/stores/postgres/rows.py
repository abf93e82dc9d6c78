"""Operations as parameters, rows as replies, queries as conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from notwice.codec import encode_record
from notwice.model import AGE_UNKNOWN_MS, Get, Insert, Op, Query, Record, RecordView, Reply, Swap
from notwice.stores.postgres.dialect import NEVER, UNRESOLVED, Dialect
from notwice.stores.shared import FAR_MS, name_of, place_after, reply_of, stamped
from notwice.stores.tables import decoded

_GET_COLUMNS = (b"", "", "", "", 0, 0, NEVER, b"", None, None)
_MAX_AFTER_MS = FAR_MS // 2


class Statement(NamedTuple):
    """One statement with its parameters. It is prepared once a connection if it is asked for often."""

    text: str
    parameters: Sequence[Any] = ()
    often: bool = True


class Found(NamedTuple):
    """What a statement says of one operation."""

    won: bool
    due: bool
    now_ms: int
    created_ms: int | None
    written_ms: int | None
    record: bytes | None

    def raced(self, op: Op) -> bool:
        """Whether a rival's commit came between the reading and the writing, so that this says nothing."""
        if self.won or isinstance(op, Get):
            return False
        return self.due if isinstance(op, Swap) else self.written_ms is None

    def reply(self, op: Op) -> Reply:
        """The reply to the operation."""
        now_ms = self.now_ms
        if self.won and not isinstance(op, Get):
            return reply_of((True, stamped(op.record, now_ms), now_ms, now_ms, 0))
        if self.written_ms is None:
            return reply_of((False, None, 0, now_ms, 0))
        record = decoded(name_of(op), self.record, self.created_ms)
        return reply_of((False, record, self.written_ms, now_ms, max(now_ms - self.written_ms, 0)))


found_of: Callable[[Iterable[Any]], Found] = partial(tuple.__new__, Found)
"""Makes it of a row, at half the price."""


def statement_of(ops: Sequence[Op], dialect: Dialect) -> Statement:
    """The one statement that carries out `ops`, sorted by their names."""
    if len(ops) > 1:
        return Statement(dialect.batch, tuple(map(list, zip(*map(_batch_row, ops), strict=True))))
    match ops[0]:
        case Get(namespace, identifier):
            return Statement(dialect.get, (identifier, namespace))
        case Insert(record):
            return Statement(dialect.insert, _columns(record))
        case Swap(record, expected_etag):
            return Statement(dialect.swap, (*_columns(record), expected_etag))


def insert_at_once(op: Insert, dialect: Dialect) -> Statement:
    """The statement of an insert that waits for nobody."""
    return Statement(dialect.insert_at_once, _columns(op.record))


def _batch_row(op: Op) -> tuple[object, ...]:
    if isinstance(op, Get):
        return (op.id, op.namespace, *_GET_COLUMNS)
    return (*_columns(op.record), op.expected_etag if isinstance(op, Swap) else None)


def _columns(record: Record) -> tuple[object, ...]:
    encoded = encode_record(record)
    after_ms = record.expires_after_ms
    return (
        record.id,
        record.namespace,
        record.etag,
        record.scope,
        record.state._value_,
        record.released._value_,
        min(record.terms.lease_ms, AGE_UNKNOWN_MS),
        record.created_ms,
        NEVER if after_ms is None else min(after_ms, _MAX_AFTER_MS),
        sha256(encoded).digest(),
        encoded,
    )


def load_of(views: Sequence[RecordView], dialect: Dialect) -> Statement:
    """The statement that takes in records of another store, and gives (id, namespace) of those that it stored."""
    rows = ((*_columns(view.record), view.written_ms) for view in views)
    return Statement(dialect.load, tuple(map(list, zip(*rows, strict=True))))


# --- scans ------------------------------------------------------------------------------------------------------------


def scan_of(query: Query, dialect: Dialect) -> Statement:
    """The statement that gives the rows of one page and one more."""
    parameters: list[object] = [max(query.limit, 0) + 1]
    conditions = ["true"]

    def require(condition: str, *values: object) -> None:
        numbers = range(len(parameters) + 1, len(parameters) + len(values) + 1)
        conditions.append(condition.format(*(f"${number}" for number in numbers)))
        parameters.extend(values)

    if query.namespace is not None:
        require("namespace = {}::text", query.namespace)
    if query.operation is not None:
        require("id = {}::text", query.operation)
    if query.states is not None:
        states = sorted(state.value for state in query.states)
        require("state = ANY ({}::text[])", states) if states else require("false")
    if query.scope_prefix is not None:
        require("starts_with(scope, {}::text)", query.scope_prefix)
    if query.older_than_ms is not None:
        require("written_ms <= now_ms - {}::bigint", query.older_than_ms)
    if query.unresolved is not None:
        require(UNRESOLVED if query.unresolved else f"NOT {UNRESOLVED}")
    if query.cursor is not None:
        require("(created_ms, namespace, id) > ({}::bigint, {}::text, {}::text)", *place_after(query.cursor))
    return Statement(dialect.scan.format(conditions=" AND ".join(conditions)), parameters, often=False)
