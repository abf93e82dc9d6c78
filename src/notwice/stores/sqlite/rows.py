"""Records as rows: what is written, what is found, and how a query becomes conditions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from notwice.codec import decode_record
from notwice.model import AGE_UNKNOWN_MS, Insert, Op, Query, Record, RecordView, Reply, Swap, Unreadable
from notwice.stores.clocks import Moment
from notwice.stores.shared import Name, deadline_ms, name_of, place_after, reply_of, stamped
from notwice.stores.sqlite import schema

DAMAGED = "its bytes are not those that were written; look the effect up where it happened"


class Row(NamedTuple):
    """What is stored under a name, not yet decoded."""

    etag: bytes
    created_ms: int
    written_ms: int
    boot_ms: int
    boot_id: str
    checksum: int
    record: object

    def decoded(self, name: Name) -> Record | Unreadable:
        """The record, or why it can't be read."""
        record = decoded(name, self.record) if crc32_of(self.record) == self.checksum else Unreadable(*name, DAMAGED)
        return record if isinstance(record, Unreadable) else stamped(record, self.created_ms)

    def reply(self, name: Name, moment: Moment) -> Reply:
        """The answer to an operation that changed nothing."""
        age_ms = moment.since_ms(self.boot_ms, self.boot_id)
        return reply_of((False, self.decoded(name), self.written_ms, moment.now_ms, age_ms))

    def item(self, name: Name, moment: Moment) -> RecordView | Unreadable:
        """What a scan gives."""
        record = self.decoded(name)
        if isinstance(record, Unreadable):
            return record
        age_ms = moment.since_ms(self.boot_ms, self.boot_id)
        return RecordView(record, self.written_ms, moment.now_ms, age_ms)


class Write(NamedTuple):
    """One insert or swap whose record is encoded, so that no lock is held meanwhile."""

    op: Insert | Swap
    encoded: bytes

    def carry_out(self, connection: sqlite3.Connection, moment: Moment) -> Row | bool | None:
        """Write it if its condition holds: ``True``. Else the row that is there, or ``None`` for none."""
        op, record = self.op, self.op.record
        values = self.columns(moment)
        if isinstance(op, Insert):
            done = connection.execute(schema.INSERT, values).rowcount
        else:
            expected = (*values, bytearray(op.expected_etag))
            done = connection.execute(schema.REPLACE, expected).rowcount if record.created_ms else 0
            if not done:
                done = connection.execute(schema.REPLACE_ALL, expected).rowcount
        return done == 1 or look(connection, (record.namespace, record.id))

    def columns(self, moment: Moment) -> tuple[object, ...]:
        """What is written, in the order of the statements' parameters.

        For bytes and ``None`` Python's module first looks, in vain, for something that adapts them. So bytes go as
        a bytearray, for which it doesn't, and 0 stands for no deadline.
        """
        record, encoded = self.op.record, self.encoded
        _, stamp_ms, boot_ms, boot_id = moment
        return (
            bytearray(record.etag),
            record.scope,
            record.state._value_,
            record.released._value_,
            min(record.terms.lease_ms, AGE_UNKNOWN_MS),
            stamp_ms,
            boot_ms,
            boot_id,
            deadline_ms(record, stamp_ms) or 0,
            crc32(encoded),
            bytearray(encoded),
            record.namespace,
            record.id,
            record.created_ms or stamp_ms,
        )


def decoded(name: Name, column: object) -> Record | Unreadable:
    """The record in a row, or why it can't be read."""
    return decode_record(column if isinstance(column, bytes) else b"", *name)


def crc32_of(column: object) -> int | None:
    """The CRC-32 of a row's record, if it is bytes: the function ``crc32`` in SQL."""
    return crc32(column) if isinstance(column, bytes) else None


def is_readable(namespace: str, identifier: str, column: object) -> bool:
    """Whether a row's record can be decoded: the function of that name in SQL."""
    return not isinstance(decoded((namespace, identifier), column), Unreadable)


def look(connection: sqlite3.Connection | sqlite3.Cursor, name: Name) -> Row | None:
    """What is stored under `name`. Leaves no read transaction open."""
    rows = connection.execute(schema.LOOK, name).fetchall()
    return Row(*rows[0]) if rows else None


def may_all_be_present(connection: sqlite3.Connection, ops: Sequence[Op]) -> bool:
    """Whether something is there for each insert among `ops`, by one statement. May miss what has an unusual id."""
    first = next((op for op in ops if isinstance(op, Insert)), None)
    if first is not None and look(connection, name_of(first)) is None:  # as a rule a batch of new keys ends here
        return False
    wanted = [name_of(op) for op in ops if isinstance(op, Insert)]
    ids = json.dumps([identifier for _, identifier in wanted])
    return set(wanted) <= set(connection.execute(schema.PRESENT, (ids,)).fetchall())


def scan_of(query: Query, moment: Moment) -> tuple[str, dict[str, object]]:
    """The statement that gives the rows of one page and one more, with its parameters."""
    parameters: dict[str, object] = {
        "limit": max(query.limit, 0) + 1,
        "boot_id": moment.boot_id,
        "boot_ms": moment.boot_ms,
    }
    conditions = ["true"]

    def require(condition: str, **values: object) -> None:
        conditions.append(condition)
        parameters.update(values)

    if query.namespace is not None:
        require("+namespace = :namespace", namespace=query.namespace)  # the + keeps the index that gives the order
    if query.operation is not None:
        require("id = :operation", operation=query.operation)
    if query.states is not None:
        states = {f"state_{number}": state.value for number, state in enumerate(sorted(query.states))}
        require(f"state IN ({', '.join(f':{name}' for name in states)})", **states)
    if query.scope_prefix is not None:  # as bytes: neither case nor wildcards nor NUL mean anything
        prefix = query.scope_prefix.encode()
        require("substr(CAST(scope AS BLOB), 1, :prefix_bytes) = :prefix", prefix=prefix, prefix_bytes=len(prefix))
    if query.older_than_ms is not None:
        require("written_ms <= :written_until_ms", written_until_ms=moment.now_ms - query.older_than_ms)
    if query.unresolved is not None:
        require(schema.UNRESOLVED if query.unresolved else f"NOT {schema.UNRESOLVED}")
    if query.cursor is not None:
        created_ms, namespace, identifier = place_after(query.cursor)
        after: dict[str, object] = {"after_ms": created_ms, "after_namespace": namespace, "after_id": identifier}
        require("(created_ms, namespace, id) > (:after_ms, :after_namespace, :after_id)", **after)
    return schema.SCAN.format(conditions=" AND ".join(conditions)), parameters
