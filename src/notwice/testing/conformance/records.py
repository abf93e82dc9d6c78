"""Records, and what the cases do with a store again and again."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from notwice.model import (
    Fingerprint,
    Get,
    Insert,
    Note,
    Op,
    Record,
    RecoveryKind,
    Released,
    Reply,
    Result,
    ResultKind,
    State,
    Swap,
    Terms,
)
from notwice.stores.port import Store

T = TypeVar("T")

NAMESPACE = "tenant-7"
TERMS = Terms(
    lease_ms=300_000,
    retention_ms=3_600_000,
    recovery=RecoveryKind.HOLD,
    rerun_within_ms=72_000_000,
    attempts_max=5,
    settle_ms=300_000,
    deduplicated=False,
)
ANSWER = Result(ResultKind.VALUE, b'{"ok":true}')


def new_etag() -> bytes:
    """An etag that nothing else has."""
    return secrets.token_bytes(16)


def new_record(name: str = "a", **changes: Any) -> Record:  # noqa: ANN401 - the fields of a record, checked at run time
    """A record in progress whose id and key are made of `name`, with the fields in `changes`."""
    plain = Record(
        namespace=NAMESPACE,
        id=f"idem_{name}",
        scope="refund",
        key=name,
        state=State.IN_PROGRESS,
        etag=new_etag(),
        fingerprint=Fingerprint("r1", b"\x01" * 32),
        terms=TERMS,
    )
    return plain._replace(**changes)


def finished(name: str = "a", *, retention_ms: int | None = 3_600_000, **changes: Any) -> Record:  # noqa: ANN401 - as above
    """A completed record."""
    terms = TERMS._replace(retention_ms=retention_ms)
    return new_record(name, state=State.COMPLETED, result=ANSWER, terms=terms, **changes)


def followed(record: Record, **changes: Any) -> Record:  # noqa: ANN401 - as above
    """The same record under a fresh etag, with the fields in `changes`."""
    return record._replace(etag=new_etag(), **changes)


def full_record(name: str = "full") -> Record:
    """A record in which no field has the value that it would have if it were left out."""
    return Record(
        namespace=NAMESPACE,
        id=f"idem_{name}",
        scope="refund:ord_1",
        key="key 1",
        state=State.ACCEPTED,
        etag=new_etag(),
        fingerprint=Fingerprint("r2", bytes(range(32))),
        terms=Terms(1_001, 2_002, RecoveryKind.RECONCILE, 3_003, 7, 4_004, deduplicated=True),
        attempt=3,
        generation=2,
        created_ms=1_799_999_000_001,
        rerun_from_ms=1_799_999_000_002,
        rerun_from_attempt=2,
        pause_ms=8_000,
        silent_ms=9_000,
        released=Released.OPERATOR,
        recovery_point="charged",
        progress=(("charge", b"\x00\xff"), ("mail", b"")),
        result=Result(ResultKind.HTTP, b"{}", 201, (("location", "/1"), ("link", "a"), ("link", "b"))),
        error="TimeoutError: 30 s",
        audit=(Note("ana", 1_799_999_000_003, "release", "looked it up"), Note("ben", 4, "resolve", "")),
        request=b"j[1]",
        sealed=b"e\x01k\x00\xff",
    )


def sparse_record(name: str = "sparse") -> Record:
    """A record in which everything that may be absent is absent, and its body is empty but there."""
    terms = Terms(1, None, RecoveryKind.RERUN, None, None, 0, deduplicated=False)
    return new_record(name, fingerprint=None, terms=terms, created_ms=1, scope="", result=Result(ResultKind.VALUE, b""))


def one(store: Store, op: Op) -> Reply:
    """Carry out a single operation."""
    (reply,) = store.apply([op])
    return reply


def insert(store: Store, record: Record) -> Reply:
    """Insert a record that is not there yet and give the reply."""
    reply = one(store, Insert(record))
    assert reply.won, "an insert where nothing is stored wins"
    return reply


def swap(store: Store, record: Record, etag: bytes) -> Reply:
    """Swap and give the reply."""
    return one(store, Swap(record, etag))


def get(store: Store, record: Record) -> Reply:
    """What is stored under a record's name."""
    return one(store, Get(record.namespace, record.id))


def stored(store: Store, record: Record) -> Record:
    """The record that is stored under a record's name; it must be there and readable."""
    found = get(store, record).record
    assert isinstance(found, Record), f"nothing readable under {record.id}: {found}"
    return found


def unstamped(record: Record) -> Record:
    """A record without the time that the store may have put in."""
    return record._replace(created_ms=0)


def at_once(count: int, act: Callable[[int], T]) -> Sequence[T]:
    """Run `act` with the numbers below `count`, each in a thread of its own, all set off at the same moment."""
    barrier = threading.Barrier(count)

    def start(number: int) -> T:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))
