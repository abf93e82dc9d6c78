"""Stored bytes at their edges: what says nothing, what says less than it holds, and what is very long."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest

from notwice.codec.records import decode_record, encode_record
from notwice.codec.sealing import seal, unseal
from notwice.model import COMPLETED, Record, RecoveryKind, Result, ResultKind, Terms, Unreadable

TERMS = Terms(60_000, None, RecoveryKind.HOLD, None, None, 60_000, deduplicated=False)


def record_of(body: bytes) -> Record:
    record = Record("n", "idem_1", "s", "k", COMPLETED, b"etag", None, TERMS, created_ms=5)
    return record._replace(result=Result(ResultKind.VALUE, body))


@pytest.mark.parametrize(("data", "says"), [(b"", "it is damaged"), (b"\xff", "by a newer release"), (b"e", "damaged")])
def test_bytes_that_are_no_record_say_why(data: bytes, says: str) -> None:
    """P14: nothing at all is damage; a first byte that is not known is of a newer release, which can read it."""
    first = encode_record(record_of(b""))[:1]
    found = decode_record(first if data == b"e" else data, "n", "idem_1")
    assert isinstance(found, Unreadable)
    assert says in found.reason
    damaged = decode_record(first + bytes(40), "n", "idem_1")
    assert isinstance(damaged, Unreadable)
    assert "damaged" in damaged.reason


def test_a_record_of_many_mebibytes_is_compressed_and_read_again() -> None:
    """P2: its length needs all of the four bytes that it has."""
    record = record_of(bytes(17 << 20))
    sealed = seal(record, None, compress_above_bytes=1000)
    assert len(sealed.sealed) < 1 << 20
    assert unseal(sealed, {}) == record


def test_no_more_is_inflated_than_is_said() -> None:
    """P14: whoever writes to the store can't make a reader use memory by a few bytes that swell."""
    sealed = seal(record_of(bytes(10_000)), None, compress_above_bytes=1000)
    swelling = zlib.compress(bytes(64 << 20))
    box = sealed.sealed[:2] + (10).to_bytes(4, "big") + swelling
    tracemalloc.start()
    try:
        found = unseal(sealed._replace(sealed=box), {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, Unreadable)
    assert "damaged" in found.reason
    assert peak < 1 << 20
