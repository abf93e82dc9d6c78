"""The results of steps as bytes: where a step was called, and what it gave."""

import pytest

from notwice import UnsupportedRecord
from notwice.codec import decode_value, encode_step, encode_value, is_step_at_home

DAMAGED = (
    "the stored value does not decode: it is damaged, or its class has changed; look the effect up where it happened"
)


@pytest.mark.parametrize(
    ("at_home", "value", "data"),
    [(True, {"id": 1}, b'shj{"id":1}'), (False, None, b"sajnull"), (True, b"\0", b"shtb\0\0\0\x01\0")],
)
def test_a_step_byte_for_byte(at_home: bool, value: object, data: bytes) -> None:
    """P14: results of steps that this release stored stay readable, and say where their step was called."""
    assert encode_step(value, at_home=at_home) == data
    assert is_step_at_home(data) is at_home
    assert decode_value(data) == value


@pytest.mark.parametrize("data", [b"", b"jnull", b"j", b"hs", b"tN", encode_value("sh")])
def test_what_is_no_step(data: bytes) -> None:
    """A checkpoint's data is not taken for a step's result."""
    assert is_step_at_home(data) is None


@pytest.mark.parametrize(
    "data", [b"s", b"sh", b"sx", b"sxjnull", b"sjnull", b"shshjnull", b"sasajnull", b"shs", b"shjnul", b"sajNaN"]
)
def test_damaged_steps_are_refused(data: bytes) -> None:
    """P14: a step's result whose place is not known, a step within a step, and damage are errors, never a value."""
    with pytest.raises(UnsupportedRecord):
        decode_value(data)


@pytest.mark.parametrize("data", [b"sxjnull", b"shshjnull", b"jNaN", b"j[Infinity]", b"jnull ", b"j{", b"tl\0\0\0\x01"])
def test_damage_is_told_in_one_sentence(data: bytes) -> None:
    """The operator is told where to look, whatever is wrong with the bytes."""
    with pytest.raises(UnsupportedRecord) as caught:
        decode_value(data)
    assert str(caught.value) == DAMAGED


@pytest.mark.parametrize("data", [b"", b"?", b"sh?null"])
def test_a_value_of_a_newer_format_asks_for_an_upgrade(data: bytes) -> None:
    """P14: a first byte that is not known, of a value or within a step, is a newer release's."""
    with pytest.raises(UnsupportedRecord) as caught:
        decode_value(data)
    assert str(caught.value) == "the stored value is of a format that this release does not know; upgrade this process"
