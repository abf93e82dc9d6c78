"""Records as bytes and back: the durable format."""

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notwice.codec import RECORD_FORMAT, decode_record, encode_record
from notwice.model import (
    Fingerprint,
    Note,
    Record,
    RecoveryKind,
    Released,
    Result,
    ResultKind,
    State,
    Terms,
    Unreadable,
)

TERMS = Terms(300_000, 2_592_000_000, RecoveryKind.HOLD, 72_000_000, 5, 300_000, False)
PLAIN = Record("", "idem_1", "refund:ord_1", "k", State.IN_PROGRESS, b"\0" * 16, None, TERMS)
FULL = Record(
    namespace="tenant\ud800",
    id="idem_2",
    scope="stra\u00dfe",
    key="k\u20ac",
    state=State.COMPLETED,
    etag=bytes(range(16)),
    fingerprint=Fingerprint("http-1", b"\xff" * 32),
    terms=Terms(1, None, RecoveryKind.RECONCILE, None, None, 0, deduplicated=True),
    attempt=3,
    generation=2,
    created_ms=1_700_000_000_000,
    rerun_from_ms=1_700_000_000_001,
    rerun_from_attempt=2,
    pause_ms=4000,
    silent_ms=0,
    released=Released.OPERATOR,
    recovery_point="mail",
    progress=(("charge", b"jnull"), ("mail", b""), ("charge", b"\0\xff")),
    result=Result(ResultKind.HTTP, b"\0body\xff", 201, (("location", "/r/1"), ("link", "a"), ("link", "b"))),
    error="boom \udfff",
    audit=(Note("ops@example.org", 1, "release", "paid by hand"), Note("", 0, "", "")),
    sealed=b"e\x01k\0\xff",
    request=b"",
)


def decoded(data: bytes, record: Record) -> Record | Unreadable:
    return decode_record(data, record.namespace, record.id)


def sealed(rest: bytes) -> bytes:
    """Bytes of the present format with a right checksum, whatever they hold."""
    return bytes([RECORD_FORMAT]) + crc32(rest).to_bytes(4, "big") + rest


def with_head(head: bytes, blobs: bytes = b"") -> bytes:
    return sealed(len(head).to_bytes(4, "big") + head + blobs)


TEXT = st.text(st.characters(), max_size=8)
COUNT = st.integers(0, 2**53)
MAYBE = st.none() | COUNT
RECORDS = st.builds(
    Record,
    namespace=TEXT,
    id=TEXT,
    scope=TEXT,
    key=TEXT,
    state=st.sampled_from(State),
    etag=st.binary(max_size=16),
    fingerprint=st.none() | st.builds(Fingerprint, TEXT, st.binary(max_size=32)),
    terms=st.builds(Terms, COUNT, MAYBE, st.sampled_from(RecoveryKind), MAYBE, MAYBE, COUNT, st.booleans()),
    attempt=COUNT,
    generation=COUNT,
    created_ms=COUNT,
    rerun_from_ms=COUNT,
    rerun_from_attempt=COUNT,
    pause_ms=COUNT,
    silent_ms=MAYBE,
    released=st.sampled_from(Released),
    recovery_point=TEXT,
    progress=st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple),
    result=st.none()
    | st.builds(
        Result,
        st.sampled_from(ResultKind),
        st.none() | st.binary(),
        st.integers(0, 999),
        st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    ),
    error=TEXT,
    audit=st.lists(st.builds(Note, TEXT, COUNT, TEXT, TEXT), max_size=2).map(tuple),
    request=st.none() | st.binary(max_size=9),
)


@given(RECORDS)
def test_every_field_comes_back(record: Record) -> None:
    """T19: a record read back equals the one that was written, field by field and type by type."""
    back = decoded(encode_record(record), record)
    assert back == record
    assert isinstance(back, Record)
    assert [type(field) for field in back] == [type(field) for field in record]
    assert type(back.terms.recovery) is RecoveryKind


def test_every_field_of_the_model_is_generated_and_set_here() -> None:
    """A field that is added to the model is added to these tests, too."""
    assert all(value != default for value, default in zip(FULL[11:], PLAIN[11:], strict=True))
    assert decoded(encode_record(FULL), FULL) == FULL


def test_the_format_never_changes() -> None:
    """P14: records written by this release stay readable; the bytes are pinned here."""
    plain = (
        b'\x01(\x86v4\0\0\0\x98["","idem_1","refund:ord_1","k","in_progress","00000000000000000000000000000000",'
        b'null,[300000,2592000000,"hold",72000000,5,300000,false,false],1,0,0,{}]'
    )
    assert decode_record(with_head(plain[9:]), "", "idem_1") == PLAIN
    assert encode_record(PLAIN) == plain
    data = encode_record(FULL)
    assert data[:1] == b"\x01"
    assert data.endswith(b"jnull\0\xff\0body\xff" + FULL.sealed)
    assert b'"released":"operator"' in data


def test_a_record_of_a_later_release_with_a_field_more_is_refused() -> None:
    """P14: an unknown field is never ignored, since the next swap would drop it."""
    head = encode_record(PLAIN)[9:].replace(b"{}", b'{"later":1}')
    found = decode_record(with_head(head), "", "idem_1")
    assert found == Unreadable("", "idem_1", "it was written by a newer release; upgrade this process")


def test_a_record_of_a_newer_format_is_refused() -> None:
    """P14: a first byte that is not known is a newer release's, and never "absent"."""
    found = decode_record(b"\x02" + encode_record(PLAIN)[1:], "", "idem_1")
    assert isinstance(found, Unreadable)
    assert "newer release" in found.reason


@pytest.mark.parametrize(("namespace", "operation"), [("other", "idem_1"), ("", "idem_2")])
def test_a_record_in_another_s_place_is_refused(namespace: str, operation: str) -> None:
    """P11: bytes that were copied from one operation to another are damage."""
    found = decode_record(encode_record(PLAIN), namespace, operation)
    assert isinstance(found, Unreadable)
    assert (found.namespace, found.id) == (namespace, operation)


@settings(max_examples=200)
@given(RECORDS, st.data())
def test_every_changed_byte_is_noticed(record: Record, data: st.DataObject) -> None:
    """P14: damage is unreadable, never another record: any byte changed, any length cut."""
    whole = encode_record(record)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert isinstance(decoded(bytes(damaged), record), Unreadable)
    assert isinstance(decoded(whole[: data.draw(st.integers(0, len(whole) - 1))], record), Unreadable)
    assert isinstance(decoded(whole + b"\0", record), Unreadable)


HEAD = b'["","idem_1","s","k","in_progress","00",null,[1,null,"hold",null,null,1,false,false],1,0,0,{}]'


def test_the_head_that_is_changed_below_is_right() -> None:
    """Without a change the head of the next test decodes."""
    assert isinstance(decode_record(with_head(HEAD), "", "idem_1"), Record)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HEAD, b""),
        (HEAD, b"{}"),
        (HEAD, b"null"),
        (HEAD, b"[]"),
        (HEAD, b"[{}]"),
        (HEAD, b"[" * 100_000),
        (HEAD, b'["\xff"'),
        (b"{}]", b"{}"),
        (b"{}]", b"{}] "),
        (b"{}]", b"[]]"),
        (b"{}]", b"null]"),
        (b"{}]", b"{},1]"),
        (b"in_progress", b"paused"),
        (b'"s"', b"1"),
        (b'"00"', b'"0"'),
        (b'"00"', b'"zz"'),
        (b'"00"', b"null"),
        (b"],1,0", b"],true,0"),
        (b"],1,0", b"],1.5,0"),
        (b"],1,0", b'],"1",0'),
        (b"],1,0", b"],1" + b"0" * 5000 + b",0"),
        (b'"00",null', b'"00",["r"]'),
        (b'"00",null', b'"00",[1,"00"]'),
        (b'"00",null', b'"00",["r",1]'),
        (b'"00",null', b'"00",["r","0g"]'),
        (b'"00",null', b'"00","r"'),
        (b'"hold"', b'"never"'),
        (b"[1,null", b"[null,null"),
        (b"false]", b"0]"),
        (b"1,false,false]", b"false,false]"),
        (b"{}]", b'{"pause_ms":"1"}]'),
        (b"{}]", b'{"silent_ms":true}]'),
        (b"{}]", b'{"released":"x"}]'),
        (b"{}]", b'{"released":[]}]'),
        (b"{}]", b'{"progress":1}]'),
        (b"{}]", b'{"progress":[["a"]]}]'),
        (b"{}]", b'{"progress":[["a",1]]}]'),
        (b"{}]", b'{"progress":[["a",-1]]}]'),
        (b"{}]", b'{"progress":[["a",true]]}]'),
        (b"{}]", b'{"progress":[["a",-1],["b",1]]}]'),
        (b"{}]", b'{"progress":[[1,0]]}]'),
        (b"{}]", b'{"result":null}]'),
        (b"{}]", b'{"result":["value",0,0,[["a"]]]}]'),
        (b"{}]", b'{"result":["value",0,"0",[]]}]'),
        (b"{}]", b'{"result":["other",0,0,[]]}]'),
        (b"{}]", b'{"result":["value",1,0,[]]}]'),
        (b"{}]", b'{"audit":[["a",1,"b"]]}]'),
        (b"{}]", b'{"audit":[["a","1","b","c"]]}]'),
        (b"{}]", b'{"error":null}]'),
    ],
    ids=lambda part: repr(part[:24]),
)
def test_a_head_that_makes_no_sense_is_unreadable(old: bytes, new: bytes) -> None:
    """P14: bytes with a right checksum that are no record raise nothing, and give no half record."""
    assert old in HEAD
    found = decode_record(with_head(HEAD.replace(old, new, 1)), "", "idem_1")
    assert isinstance(found, Unreadable)
    assert found.reason


def test_bytes_after_the_record_are_damage() -> None:
    """What no field names is no part of a record."""
    assert isinstance(decode_record(with_head(HEAD, b"x"), "", "idem_1"), Unreadable)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_record_or_unreadable(data: bytes, seal: Any) -> None:
    """Bytes from anywhere raise nothing."""
    assert isinstance(decode_record(sealed(data) if seal else data, "", ""), Unreadable)
