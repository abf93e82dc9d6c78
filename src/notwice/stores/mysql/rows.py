"""Operations as statements, rows as replies, queries as conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from notwice.codec import encode_record
from notwice.errors import RecordTooLarge
from notwice.model import AGE_UNKNOWN_MS, Get, Insert, Op, Query, Record, RecordView, Reply, State, Swap
from notwice.stores.mysql.dialect import (
    CLAIM,
    ETAGS,
    GIVEN,
    INSERT,
    INSERT_ALL,
    LOOK,
    NOW,
    ROW_BYTES_MAX,
    SCAN,
    UNRESOLVED,
    UPDATE,
    UPDATE_ALL,
    literal,
    rows_of,
    transaction,
)
from notwice.stores.shared import FAR_MS, Name, name_of, place_after, reply_of, stamped
from notwice.stores.tables import decoded

OPEN: Final = frozenset({State.IN_PROGRESS, State.ACCEPTED})

_MAX_AFTER_MS: Final = FAR_MS // 2
_SLACK_BYTES: Final = 2_048
_ETAG: Final = GIVEN.index("etag")


def digest_of(name: Name) -> bytes:
    """What a record's row is called."""
    namespace, identifier = (text.encode("utf-8", "surrogatepass") for text in name)
    return sha256(len(namespace).to_bytes(4, "big") + namespace + identifier).digest()[:16]


class Asked(NamedTuple):
    """One operation with its place in the batch, and what it writes as literals. Asked in the order of their names."""

    digest: bytes
    place: int
    op: Op
    given: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many bytes of a packet it takes at most."""
        return _SLACK_BYTES + sum(map(len, self.given))


def asked_of(ops: Sequence[Op]) -> list[Asked]:
    """The operations in the order in which they are carried out."""
    return sorted(_asked(place, op) for place, op in enumerate(ops))


def _asked(place: int, op: Op) -> Asked:
    digest = digest_of(name_of(op))
    match op:
        case Get():
            return Asked(digest, place, op)
        case Insert(record):
            return Asked(digest, place, op, given_of(digest, record))
        case Swap(record, expected_etag):
            return Asked(digest, place, op, given_of(digest, record, expected_etag=expected_etag))


def given_of(
    digest: bytes, record: Record, *, expected_etag: bytes | None = None, written_ms: int | None = None
) -> tuple[str, ...]:
    """What is given for a write; see `GIVEN`."""
    after_ms = record.expires_after_ms
    values = (
        *(digest, record.namespace, record.id, record.etag, record.scope, record.state.value, record.released.value),
        *(min(record.terms.lease_ms, AGE_UNKNOWN_MS), record.created_ms or None, record.state in OPEN),
        *(written_ms, None if after_ms is None else min(after_ms, _MAX_AFTER_MS), encode_record(record)),
        expected_etag,
    )
    return tuple(map(literal, values))


def packets_of(asked: Sequence[Asked], bytes_max: int) -> Iterator[Sequence[Asked]]:
    """The operations in parts, each of which fits into a packet, in their order; one of some size goes by itself."""
    part: list[Asked] = []
    size = 0  # of the part
    for each in asked:
        if part and (max(part[-1].size, each.size) > ROW_BYTES_MAX or size + each.size > bytes_max):
            yield part
            part, size = [], 0
        part.append(each)
        size += each.size
    yield part


def refuse_too_large(asked: Sequence[Asked], bytes_max: int) -> None:
    """Raise `RecordTooLarge` if an operation fits into no packet that the server takes, before anything is sent."""
    for each in asked:
        if each.size > bytes_max:
            raise RecordTooLarge(
                f"a record takes {each.size} bytes, and the server's max_allowed_packet is {bytes_max}; nothing was "
                "written. Raise that setting, or keep smaller results"
            )


def text_of(asked: Sequence[Asked], table: str, *, compound: bool) -> str:
    """The SQL that carries out some operations, in one packet."""
    inserts = [each.given for each in asked if isinstance(each.op, Insert)]
    swaps = [each.given for each in asked if isinstance(each.op, Swap)]
    if compound and len(asked) == len(inserts) == 1:
        return CLAIM.format(table=table, **named(inserts[0]))
    etags = ", ".join(given[_ETAG] for given in (*inserts, *swaps))
    names = ", ".join(literal(each.digest) for each in asked)
    look = LOOK.format(table=table, names=names, etags=etags or "NULL")
    writes = [*_writes(swaps, table, UPDATE, UPDATE_ALL), *_writes(inserts, table, INSERT, INSERT_ALL)]
    return transaction([*writes, look], compound=compound) if writes else look


def _writes(given: Sequence[Sequence[str]], table: str, *statements: str) -> Iterator[str]:
    """The statement that writes what is given: the first for one, the second for many, none for nothing."""
    one, many = statements
    if len(given) == 1:
        yield one.format(table=table, **named(given[0]))
    elif given:
        yield many.format(table=table, rows=rows_of(given))


def named(given: Sequence[str]) -> Mapping[str, str]:
    """What is given for one write, by name."""
    return dict(zip(GIVEN, given, strict=True))


def loading_of(views: Sequence[RecordView]) -> list[Asked]:
    """Records of another store as inserts, in the order in which they are carried out."""
    return sorted(
        Asked(
            digest := digest_of((view.record.namespace, view.record.id)),
            place,
            Insert(view.record),
            given_of(digest, view.record, written_ms=view.written_ms),
        )
        for place, view in enumerate(views)
    )


def load_of(asked: Sequence[Asked], table: str, *, compound: bool) -> str:
    """The SQL that takes in records of another store. Gives the (name, etag) that were there before, and then."""
    etags = ETAGS.format(table=table, names=", ".join(literal(each.digest) for each in asked))
    writes = _writes([each.given for each in asked], table, INSERT, INSERT_ALL)
    return transaction([etags, *writes, etags], compound=compound)


# --- replies ----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What is stored under a name. ``record`` is ``None`` if it is what the operation has written."""

    now_ms: int
    digest: bytes | None
    etag: bytes
    created_ms: int
    written_ms: int
    record: bytes | None


def replies_to(asked: Sequence[Asked], rows: Sequence[Sequence[Any]]) -> dict[int, Reply]:
    """The replies by place. An operation that was raced has none: it is to be asked again."""
    found = [Found(*row) for row in rows]
    there = {each.digest: each for each in found}
    return {
        each.place: _reply(each.op, there.get(each.digest), found[-1].now_ms)
        for each in asked
        if not (isinstance(each.op, Insert) and each.digest not in there)
    }


def _reply(op: Op, found: Found | None, now_ms: int) -> Reply:
    if found is None:
        return reply_of((False, None, 0, now_ms, 0))
    if found.record is None and not isinstance(op, Get):
        return reply_of((True, stamped(op.record, found.created_ms), found.written_ms, found.written_ms, 0))
    record = decoded(name_of(op), found.record, found.created_ms)
    return reply_of((False, record, found.written_ms, found.now_ms, max(found.now_ms - found.written_ms, 0)))


# --- scans ------------------------------------------------------------------------------------------------------------


def scan_of(query: Query, table: str) -> str:
    """The SQL that gives the rows of one page and one more."""
    only_open = query.unresolved is True or (query.states is not None and query.states <= OPEN)
    created = "open_ms" if only_open else "created_ms"
    index = "notwice_open" if only_open else "notwice_order"
    conditions = [f"{created} IS NOT NULL"]
    if query.namespace is not None:
        conditions.append(f"namespace = {literal(query.namespace)}")
    if query.operation is not None:
        index = "notwice_id"
        conditions.append(f"id = {literal(query.operation)}")
    if query.states is not None:
        states = ", ".join(literal(state.value) for state in sorted(query.states))
        conditions.append(f"state IN ({states or 'NULL'})")
    if query.scope_prefix is not None:
        prefix = query.scope_prefix.encode("utf-8", "surrogatepass")
        conditions.append(f"SUBSTR(scope, 1, {len(prefix)}) = {literal(prefix)}")
    if query.older_than_ms is not None:
        conditions.append(f"written_ms <= {NOW} - {literal(query.older_than_ms)}")
    if query.unresolved is not None:
        conditions.append(UNRESOLVED if query.unresolved else f"NOT {UNRESOLVED}")
    if query.cursor is not None:
        created_ms, namespace, identifier = place_after(query.cursor)
        after = f"{literal(created_ms)}, {literal(namespace)}, {literal(identifier)}"
        conditions.append(f"{created} >= {literal(created_ms)} AND ({created}, namespace, id) > ({after})")
    return SCAN.format(
        table=table,
        index=index,
        conditions=" AND ".join(conditions),
        created=created,
        limit=max(query.limit, 0) + 1,
    )
