"""Boxes, byte for byte: what of a record is put into one, how it is bound, and what is refused when it is opened."""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from notwice.codec import encode_record, seal, sealing, unseal
from notwice.codec.sealing import closed_reason
from notwice.model import Record, RecoveryKind, Result, ResultKind, State, Terms, Unreadable

TERMS = Terms(300_000, 2_592_000_000, RecoveryKind.HOLD, 72_000_000, 5, 300_000, False)
PLAIN = Record("tenant", "idem_1", "refund:ord_1", "k", State.IN_PROGRESS, b"\0" * 16, None, TERMS)
PRIVATE = PLAIN._replace(error="CardError: 4111")
LONG = PLAIN._replace(result=Result(ResultKind.VALUE, b"j" + b"1" * 300))
WHOLE = encode_record(LONG)
DEFLATED = zlib.compress(WHOLE)
DAMAGED = (
    "it does not open: it is damaged, was moved from another record, or its key is another one than the one it was "
    "sealed with; look the effect up where it happened"
)
NEWER_BOX = "it was sealed by a newer release; upgrade this process"
NOT_GIVEN = "and this process was not given what opens it; see Privacy"
NEWER_RECORD = "it was written by a newer release; upgrade this process"


class Open(NamedTuple):
    """A cipher that hides nothing, so that the bytes can be read; what it was bound to stands in front."""

    name: str = "key"

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        return b"<" + bound + b">" + content

    def decrypt(self, sealed: bytes, bound: bytes) -> bytes:
        start = b"<" + bound + b">"
        if not sealed.startswith(start):
            raise ValueError("bound to something else")
        return sealed.removeprefix(start)


CIPHERS: Mapping[str, Open] = {"key": Open()}
BOUND = b"notwice sealed record 1;3:key6:tenant6:idem_1"


def opened(content: bytes, record: Record = PLAIN) -> Record | Unreadable:
    """What comes of a box that the right key sealed, whatever it holds."""
    return unseal(record._replace(sealed=b"e\x03key<" + BOUND + b">" + content), CIPHERS)


def refused(reason: str) -> Unreadable:
    return Unreadable("tenant", "idem_1", reason)


def test_an_encrypted_box_byte_for_byte() -> None:
    """P14: the letter, the length of the key's id, the id, and what the cipher gave for the record and its binding."""
    box = b"e\x03key<" + BOUND + b">\0" + encode_record(PRIVATE)
    assert seal(PRIVATE, Open(), compress_above_bytes=None) == PLAIN._replace(sealed=box)
    assert unseal(PLAIN._replace(sealed=box), CIPHERS) == PRIVATE


def test_names_are_bound_as_they_are_stored() -> None:
    """P15: lengths are counted in bytes of UTF-8, and a name with an unpaired surrogate is sealed like any other."""
    record = PRIVATE._replace(namespace="stra\u00dfe", id="k\ud800")
    sealed = seal(record, Open(), compress_above_bytes=None)
    bound = b"notwice sealed record 1;3:key7:stra\xc3\x9fe4:k\xed\xa0\x80"
    assert sealed.sealed == b"e\x03key<" + bound + b">\0" + encode_record(record)
    assert unseal(sealed, CIPHERS) == record
    other = PRIVATE._replace(namespace="\udfff", id="stra\u00dfe")
    assert unseal(seal(other, Open(), compress_above_bytes=None), CIPHERS) == other


def test_a_compressed_box_byte_for_byte() -> None:
    """P14: the letter, the way of compression, four bytes of length, and the record by RFC 1950."""
    box = b"c\x01" + len(WHOLE).to_bytes(4, "big") + DEFLATED
    assert seal(LONG, None, compress_above_bytes=0) == PLAIN._replace(sealed=box)
    assert unseal(PLAIN._replace(sealed=box), {}) == LONG


def test_what_is_compressed_is_encrypted_afterwards() -> None:
    """P14: both together are one box: the cipher is given the compressed bytes."""
    box = b"e\x03key<" + BOUND + b">\x01" + len(WHOLE).to_bytes(4, "big") + DEFLATED
    assert seal(LONG, Open(), compress_above_bytes=100) == PLAIN._replace(sealed=box)
    assert unseal(PLAIN._replace(sealed=box), CIPHERS) == LONG


def test_the_recovery_point_is_private() -> None:
    """P15: it is the name of a step, and lies in the box; a box that left it in the open opens, another's does not."""
    record = PRIVATE._replace(recovery_point="charge 4111", progress=(("charge 4111", b"done"),))
    sealed = seal(record, Open(), compress_above_bytes=None)
    assert (sealed.recovery_point, sealed.progress) == ("", ())
    assert unseal(sealed, CIPHERS) == record
    assert unseal(sealed._replace(recovery_point="charge 4111"), CIPHERS) == record
    assert unseal(sealed._replace(recovery_point="another"), CIPHERS) == refused(DAMAGED)


@pytest.mark.parametrize("record", [PRIVATE, LONG, PLAIN._replace(request=b""), PLAIN._replace(progress=(("a", b""),))])
def test_without_a_key_and_without_compression_nothing_is_sealed(record: Record) -> None:
    """What was not asked for is not done."""
    assert seal(record, None, compress_above_bytes=None) == record


@pytest.mark.parametrize("cipher", [None, Open()])
def test_a_record_without_private_fields_stays_in_the_open(cipher: Open | None) -> None:
    """There is nothing to seal in a claim, with keys or without: the store's hot way stays short."""
    assert seal(PLAIN, cipher, compress_above_bytes=0) is PLAIN
    assert unseal(PLAIN, CIPHERS) is PLAIN


def test_the_limit_of_compression_is_the_longest_record_that_is_not_compressed() -> None:
    """Only a record that is longer than `compress_above_bytes` is compressed."""
    assert seal(LONG, None, compress_above_bytes=len(WHOLE)) == LONG
    assert seal(LONG, None, compress_above_bytes=len(WHOLE) - 1).sealed[:2] == b"c\x01"


@pytest.mark.parametrize(("saved", "seals"), [(4, False), (5, True)])
def test_a_record_is_compressed_only_if_that_saves_a_byte(
    saved: int, seals: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The four bytes of length count: a box is never longer than what it stands for."""

    def compress(whole: bytes) -> bytes:
        return whole[saved:]

    monkeypatch.setattr(zlib, "compress", compress)
    assert bool(seal(LONG, None, compress_above_bytes=0).sealed) is seals


def test_the_largest_record_that_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record as long as the bound is compressed and opened again; a byte more is stored as it is."""
    monkeypatch.setattr(sealing, "INFLATED_BYTES_MAX", len(WHOLE))
    sealed = seal(LONG, None, compress_above_bytes=0)
    assert unseal(sealed, {}) == LONG
    monkeypatch.setattr(sealing, "INFLATED_BYTES_MAX", len(WHOLE) - 1)
    assert seal(LONG, None, compress_above_bytes=0) == LONG
    assert unseal(sealed, {}) == refused(DAMAGED)


def test_a_box_of_a_key_that_is_not_here_stays_closed() -> None:
    """It is neither damaged nor newer: another process may have the key."""
    sealed = PLAIN._replace(sealed=b"e\x05other...")
    assert unseal(sealed, CIPHERS) is sealed
    assert unseal(sealed, {}) is sealed


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (b"e\x05other\xff", f"it is sealed with the key 'other', {NOT_GIVEN}"),
        (b"c\x01", f"it is sealed by compression, {NOT_GIVEN}"),
        (b"e", DAMAGED),
        (b"e\x05other", DAMAGED),
        (b"e\x00other", DAMAGED),
        (b"e\x01\xffother", DAMAGED),
    ],
)
def test_why_a_record_stays_closed(box: bytes, reason: str) -> None:
    """P15: the sentence names the key that is missing, and nothing of what is sealed."""
    assert closed_reason(PLAIN._replace(sealed=box)) == reason


@pytest.mark.parametrize(
    "box",
    [
        b"c",
        b"c\x02" + len(WHOLE).to_bytes(4, "big") + DEFLATED,
        b"c\x01" + (len(WHOLE) - 1).to_bytes(4, "big") + DEFLATED,
        b"c\x01" + (len(WHOLE) + 1).to_bytes(4, "big") + DEFLATED,
        b"c\x01" + len(WHOLE).to_bytes(4, "big") + DEFLATED[:-1],
        b"c\x01" + len(WHOLE).to_bytes(4, "big") + DEFLATED + b"\0",
        b"c\x01" + len(WHOLE).to_bytes(4, "big") + b"not deflated",
        b"e\x00<",
        b"e\x01\xff<",
        b"e\x03key",
        b"e\x03key<" + BOUND + b">",
        b"e\x03key<" + BOUND.replace(b"idem_1", b"idem_2") + b">\0" + encode_record(PRIVATE),
    ],
    ids=lambda box: repr(box[:12]),
)
def test_damaged_boxes_are_unreadable_and_say_so(box: bytes) -> None:
    """P14: whatever is wrong with a box, the operator is told where to look; nothing is raised and nothing guessed."""
    assert unseal(PLAIN._replace(sealed=box), CIPHERS) == refused(DAMAGED)


def test_what_a_newer_release_sealed_is_refused_as_newer() -> None:
    """P14: a box of a form that is not known, and a known one that holds a newer record, ask for an upgrade."""
    assert unseal(PLAIN._replace(sealed=b"?" + WHOLE), CIPHERS) == refused(NEWER_BOX)
    assert opened(b"\0\x02" + encode_record(PRIVATE)[1:]) == refused(NEWER_RECORD)


@pytest.mark.parametrize(
    "changes",
    [{"attempt": 2}, {"generation": 2}, {"etag": b"\x01" * 16}, {"key": "other"}, {"error": "put in the open"}],
    ids=str,
)
def test_a_record_that_was_changed_around_its_box_is_refused(changes: dict[str, object]) -> None:
    """P15: what stands in the open is compared with what was sealed, field by field."""
    assert opened(b"\0" + encode_record(PRIVATE), PLAIN._replace(**changes)) == refused(DAMAGED)  # type: ignore[arg-type] # any field


def test_the_time_that_the_store_stamps_is_its_own() -> None:
    """A store writes `created_ms` on what was sealed before: its time is the one that counts."""
    stamped = PLAIN._replace(created_ms=1_700_000_000_000)
    assert opened(b"\0" + encode_record(PRIVATE), stamped) == PRIVATE._replace(created_ms=1_700_000_000_000)
