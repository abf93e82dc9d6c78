"""Stored bytes that were damaged or tampered with."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notwice.codec import decode_value, encode_value
from notwice.codec.values import DEPTH_MAX
from notwice.errors import EncodingError, UnsupportedRecord
from tests.unit.test_codec import KEPT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"j",
        b"j{",
        b"jNaN",
        b"j" + b"[" * 1_000_000,
        b"j" + b"[" * 200 + b"]" * 200,
        b"j\xff",
        b"j" + b"9" * 10_000,
        b"t",
        b"tq",
        b"tN ",
        b"tl\xff\xff\xff\xff",
        b"tl\0\0\0\x02N",
        b"ts\xff\xff\xff\xff",
        b"ts\0\0\0\x05ab",
        b"t" + b"l\0\0\0\x01" * 100_000 + b"N",
        b"t" + b"l\0\0\0\x01" * (DEPTH_MAX + 1) + b"N",
        b"ts\0\0\0\x01\xff",
        b"td\0\0\0\x01N",
        b"td\0\0\0\x02l\0\0\0\0N",
        b"te\0\0\0\x01l\0\0\0\0",
        b"tD\0\0\0\x01x",
        b"tA\0\0\0\x01x",
        b"tP\0\0\0\x01x",
        b"tP\0\0\x27\x10" + b"9" * 10_000,
        b"tU\0\0\0\x01x",
        b"tf\0\0\0\x01x",
        b"tM\0\0\0\0",
        b"tM\0\0\0\x02NN",
        b"tE\0\0\0\0",
        b"tE\0\0\0\x02NN",
        b"tC\0\0\0\x02NN",
        b"tC" + encode_value(("tests.unit.test_codec:Line", 3))[2:],
        b"tY" + encode_value(("tests.unit.test_codec:Money", 3))[2:],
        b"tE" + encode_value(("tests.unit.test_codec:Right", b"x"))[2:],
        b"tE" + encode_value(("tests.unit.test_codec:Colour", "GREEN"))[2:],
        b"tE" + encode_value(("tests.unit.test_codec:Level", 3, ()))[2:],
        b"tE" + encode_value(("tests.unit.test_codec:Level", 3))[2:],
    ],
    ids=lambda data: repr(data[:24]),
)
def test_damaged_bytes_are_an_error_of_ours(data: bytes) -> None:
    """P14: what does not decode is unsupported, whatever it holds, in linear time and without a full stack."""
    with pytest.raises(UnsupportedRecord):
        decode_value(data)


@settings(max_examples=300)
@given(KEPT, st.data())
def test_bytes_with_a_flipped_bit_decode_or_are_refused(value: Any, data: st.DataObject) -> None:
    """No change of the bytes raises anything but an error of ours."""
    damaged = bytearray(encode_value(value))
    place = data.draw(st.integers(0, len(damaged) - 1))
    damaged[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(UnsupportedRecord, EncodingError):
        decode_value(bytes(damaged))


@given(st.binary(max_size=60), st.sampled_from([b"j", b"t", b"tl\0\0\0\x02", b"tM\0\0\0\x05", b"tC\0\0\0\x02", b""]))
def test_any_bytes_decode_or_are_refused(tail: bytes, head: bytes) -> None:
    """Bytes from anywhere raise nothing but an error of ours."""
    with contextlib.suppress(UnsupportedRecord, EncodingError):
        decode_value(head + tail)
