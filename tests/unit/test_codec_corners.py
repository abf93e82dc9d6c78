"""Values at the corners: zones without rules, classes that look like kept ones, and each refusal word for word."""

import ast
import enum
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from notwice import EncodingError, UnsupportedRecord
from notwice.codec import check_encodable, decode_value, encode_value

NOT_KEPT = (
    "can't be stored without loss; return built-in values, dates, Decimals, UUIDs, Enum members, dataclasses, named "
    "tuples or pydantic models made of these"
)
GONE = f"the stored value is of the class {__name__}:Gone, which is not there; import {__name__} before reading it"


class Silent(tzinfo):
    """A zone of a third party whose name can't be asked for without an instant."""

    def utcoffset(self, _at: datetime | None) -> timedelta:
        return timedelta(hours=3)

    def tzname(self, at: datetime | None) -> str:
        return f"at {at:%H}"  # raises without one

    def dst(self, _at: datetime | None) -> None:
        return None


class Lost(tzinfo):
    """A zone that knows no offset."""

    def utcoffset(self, _at: datetime | None) -> None:
        return None

    def tzname(self, _at: datetime | None) -> None:
        return None

    def dst(self, _at: datetime | None) -> None:
        return None


class Bare(tuple[int, ...]):
    """A tuple of another type, whose parts have no names."""

    __slots__ = ()


class Handmade(tuple[int, ...]):
    """A named tuple that was made by hand, without defaults."""

    __slots__ = ()
    _fields = ("left", "right")


class Kind(enum.Enum):
    A = 1


class Pair(NamedTuple):
    left: int
    right: int = 2


@dataclass
class Line:
    sku: str
    price: int


def refusal(value: object) -> str:
    with pytest.raises(EncodingError) as caught:
        encode_value(value)
    return str(caught.value)


def loss(data: bytes) -> str:
    with pytest.raises((EncodingError, UnsupportedRecord)) as caught:
        decode_value(data)
    return str(caught.value)


def asking(tag: bytes, name: str, state: object) -> bytes:
    """Bytes that ask for an object of a class of this module."""
    return b"t" + tag + encode_value((f"{__name__}:{name}", state))[2:]


def moment(data: bytes) -> datetime:
    value = decode_value(data)
    assert isinstance(value, datetime)
    return value


def test_a_foreign_zone_has_the_name_of_its_offset() -> None:
    """C36: of a zone that is neither a `timezone` nor a `ZoneInfo` only the offset is asked, and its name is that."""
    back = moment(encode_value(datetime(2024, 1, 1, 12, tzinfo=Silent())))
    assert (back.utcoffset(), back.tzname()) == (timedelta(hours=3), "UTC+03:00")


def test_a_zone_that_is_not_installed_has_the_name_of_its_offset() -> None:
    """A zone that this machine lacks comes back as its offset at that instant, and no other name."""
    data = encode_value(datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))).replace(b"/Berlin", b"/Berlon")
    back = moment(data)
    assert (back.utcoffset(), back.tzname()) == (timedelta(hours=2), "UTC+02:00")


def test_utc_is_the_one_utc() -> None:
    """An offset of nothing without a name is UTC itself, of datetimes and times."""
    assert moment(encode_value(datetime(2024, 1, 1, tzinfo=UTC))).tzinfo is UTC
    clock = decode_value(encode_value(time(1, tzinfo=UTC)))
    assert isinstance(clock, time)
    assert clock.tzinfo is UTC
    assert moment(encode_value(datetime(2024, 1, 1, tzinfo=timezone(timedelta(0), "UTC")))).tzname() == "UTC"


def test_the_second_of_two_hours_byte_for_byte() -> None:
    """P14: which of two equal wall times is meant stands beside the wall time, not in it."""
    for fold in (0, 1):
        data = encode_value(datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold))
        assert data.startswith(
            b"tM\0\0\0\x05s\0\0\0\x132024-10-27T02:30:00i\0\0\0\x01" + bytes([fold]) + b"s\0\0\0\x0d"
        )
        assert moment(data).fold == fold


def test_text_that_is_no_unicode_byte_for_byte() -> None:
    """P14: an unpaired surrogate within a tagged value is three bytes, as within JSON, and comes back."""
    for value, data in (("\ud800", b'j"\xed\xa0\x80"'), (("\ud800",), b"tt\0\0\0\x01s\0\0\0\x03\xed\xa0\x80")):
        assert encode_value(value) == data
        assert decode_value(data) == value


def test_a_zone_without_an_offset_is_refused() -> None:
    """T12: an instant that nobody can tell is no value; the sentence says what to return."""
    assert refusal(datetime(2024, 1, 1, tzinfo=Lost())) == (
        "a zone of type Lost gives no offset; return a datetime with a timezone or a ZoneInfo"
    )


def test_a_member_that_is_none_is_refused() -> None:
    """T12: an object that was made to look like a member of an Enum is named."""
    stranger = object.__new__(Kind)
    stranger._name_, stranger._value_ = "B", 2
    assert refusal(stranger) == "a value of Kind is no member of that Enum; return one of its members"


@pytest.mark.parametrize("value", [ast.Name("a"), Bare((1,)), [Bare()]], ids=lambda value: type(value).__name__)
def test_what_only_looks_like_a_named_tuple_is_refused(value: object) -> None:
    """C36, T12: neither names of fields nor being a tuple is enough, before the handler runs and after it."""
    item = value[0] if isinstance(value, list) else value
    name = f"{type(item).__module__}.{type(item).__qualname__}"
    assert refusal(value) == f"a value of type {name} {NOT_KEPT}"
    with pytest.raises(EncodingError) as caught:
        check_encodable(type(item))
    assert str(caught.value) == f"a value of type {name} {NOT_KEPT}"


def test_a_named_tuple_that_was_made_by_hand_is_kept() -> None:
    """A tuple with names is kept by them, also one without defaults."""
    back = decode_value(encode_value(Handmade((1, 2))))
    assert (type(back), back) == (Handmade, (1, 2))
    sentence = "the stored Handmade has other fields than the class; give new ones a default"
    assert loss(asking(b"K", "Handmade", {"left": 1})) == sentence


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            asking(b"C", "Line", {"sku": "a", "price": 1, "colour": 2, "age": (3,)}),
            "the stored Line has the fields ['age', 'colour'], which the class has lost; give them back",
        ),
        (
            asking(b"C", "Line", {"sku": ("a",)}),
            "the stored Line has no price, which the class asks for; give it a default",
        ),
        (
            asking(b"K", "Pair", {"right": (1,)}),
            "the stored Pair has other fields than the class; give new ones a default",
        ),
        (
            asking(b"K", "Pair", {"left": 1, "more": (1,)}),
            "the stored Pair has other fields than the class; give new ones a default",
        ),
        (
            asking(b"C", "Gone", {"a": (1,)}),
            GONE,
        ),
        (
            b"tQ",
            "the stored value has a part that this release does not know; upgrade this process",
        ),
    ],
    ids=lambda part: part[-24:] if isinstance(part, str) else "",
)
def test_a_class_that_has_changed_is_told(data: bytes, sentence: str) -> None:
    """P14: whoever changed a class since is told which one, which field, and what to do."""
    assert loss(data) == sentence


def test_a_class_without_a_name_is_told() -> None:
    """T12: a class that could not be found again is refused when it is stored."""

    @dataclass
    class Local:
        value: int

    name = f"{__name__}:{Local.__qualname__}"
    assert (
        refusal(Local(1))
        == f"the class {name} can't be found again by its name; define it at the top level of a module"
    )


def test_a_named_tuple_s_parts_are_checked_before_anything_runs() -> None:
    """C36: the annotations of a named tuple's fields count like those of a dataclass."""

    def local() -> type:
        class Local(NamedTuple):
            value: complex

        return Local

    Parted = NamedTuple("Parted", [("whole", int), ("odd", complex)])  # noqa: UP014 - made where it can be found
    Parted.__module__, Parted.__qualname__ = __name__, "Parted"
    globals()["Parted"] = Parted
    try:
        with pytest.raises(EncodingError, match=r"builtins\.complex"):
            check_encodable(Parted)
    finally:
        del globals()["Parted"]
    with pytest.raises(EncodingError, match="top level"):
        check_encodable(local())


def test_what_would_be_too_much_is_told() -> None:
    """T12: the sentence has the limits, and says what to return."""
    tower: Any = None
    for _ in range(129):
        tower = [tower]
    assert refusal(tower) == (
        "a value is nested deeper than 128 levels, holds itself, or has more than 1000000 items; "
        "return the parts of it that are needed again"
    )
