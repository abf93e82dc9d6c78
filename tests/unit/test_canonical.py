"""Canonical forms of Python values and of JSON documents."""

import itertools
import json
import math
import sys
import unicodedata
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, HttpUrl, SecretStr
from pydantic.v1 import BaseModel as OldBaseModel
from pydantic.v1 import HttpUrl as OldHttpUrl

from notwice import canonical
from notwice.canonical import canonical_facts, canonical_value, fields_of
from notwice.canonical_json import NESTING_MAX, canonical_json, nesting_exceeds, number_text
from notwice.errors import EncodingError

# --- JSON -----------------------------------------------------------------------------------------------------------

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def same(*documents: str | bytes) -> bool:
    """Whether all documents have one canonical form."""
    forms = [canonical_json(d if isinstance(d, bytes) else d.encode()) for d in documents]
    assert None not in forms
    return len(set(forms)) == 1


@pytest.mark.parametrize(
    "documents",
    [
        ('{"a":1,"b":{"x":1,"y":2}}', '{ "b":{"y":2,"x":1},"a":1 }', '\r\n\t{"b": {"x":1,\n"y":2},"a":1}'),
        ("1", "1.0", "1e0", "100e-2", "1.000", "10E-1", "0.01e+2"),
        ("0", "-0", "0.0", "-0.0e5", "0e-999", "0e999"),
        ("100", "1e2", "1E+2", "100.0"),
        ("19.9", "19.90", "1990e-2"),
        ("1e400", "10e399", "1" + "0" * 400, "1" + "0" * 400 + ".0"),
        ("1e-400", "10e-401"),
        ('"\\u00e9"', '"\u00e9"'),
        ('"\\ud83d\\ude00"', '"\U0001f600"'),
        ('"\\/"', '"/"'),
        ('{"\\u0061":1}', '{"a":1}'),
    ],
)
def test_documents_that_say_the_same_have_one_form(documents: tuple[str, ...]) -> None:
    """C17: members in any order, spacing, spelling of numbers and escapes do not make another request."""
    assert same(*documents)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("[1,2]", "[2,1]"),
        ("1", '"1"'),
        ("1", "true"),
        ('{"a":null}', "{}"),
        ("null", '"null"'),
        ("[]", "{}"),
        ("[[]]", "[]"),
        ('"\u00e9"', json.dumps(unicodedata.normalize("NFD", "\u00e9"))),
        ("9007199254740992", "9007199254740993"),
        ("0.1", "0.10000000000000001"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1e400", "1e401"),
        ("1e-400", "0"),
        ("1.23456789012345e-320", "1.23456789012346e-320"),
        ("1e999999999", "1e999999998"),
        ("1" * 5000, "1" * 4999 + "2"),
        ("1" * 400, "-" + "1" * 400),
        ("1e400", '[NaN,"1e400"]'.replace("NaN", "null")),
        ("1e400", '"1e400"'),
        ('{"a":{"b":1}}', '{"a":{"c":1}}'),
    ],
)
def test_documents_that_say_something_else_have_two_forms(left: str, right: str) -> None:
    """C17: array order, kinds, null against absent, normal forms of Unicode and every digit count."""
    assert not same(left, right)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"{'a':1}",
        b"1 2",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"01",
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'[{"b":{"a":1,"a":2}}]',
        b'"\\ud800"',
        b'"\\ude00\\ud83d"',
        b'{"\\udfff":1}',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'"\n"',
        b"1e1000000000000000",
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
        b'["' + b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_a_document_without_a_canonical_form_is_no_error(body: bytes) -> None:
    """C17: malformed, ambiguous, too deep and too large documents have no form, and nothing is raised."""
    assert canonical_json(body) is None


def test_nesting_up_to_the_limit_has_a_form() -> None:
    """64 levels are read, whatever brackets stand inside texts."""
    for inner in [b"1", b'"' + b"[" * 100 + b'\\"{{{{"', b'"\\\\"']:
        assert canonical_json(b"[" * NESTING_MAX + inner + b"]" * NESTING_MAX) is not None
    wide = b"[" + b",".join([b'{"a":[1]}'] * 1000) + b"]"
    assert canonical_json(wide) == wide


@given(DOCUMENTS)
def test_the_nesting_is_measured_exactly(value: object) -> None:
    """The measure agrees with the depth of what was written, and needs no recursion."""
    body = json.dumps(value).encode()
    assert not nesting_exceeds(body, depth(value))
    if depth(value):
        assert nesting_exceeds(body, depth(value) - 1)


def depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
        case _:
            return 0


@given(DOCUMENTS)
def test_a_document_and_its_form_say_the_same(value: object) -> None:
    """The form of a document reads back as the same decimals, and is its own form."""
    document = json.dumps(value).encode()
    form = canonical_json(document)
    assert form is not None
    if b"NaN" not in form:
        assert exactly(form) == exactly(document)
        assert canonical_json(form) == form


def exactly(document: bytes) -> object:
    return json.loads(document, parse_int=Decimal, parse_float=Decimal)


@given(DOCUMENTS, DOCUMENTS)
def test_two_values_have_two_forms(left: object, right: object) -> None:
    """Equal forms mean equal values, with booleans told from numbers."""
    documents = [json.dumps(value).encode() for value in (left, right)]
    if canonical_json(documents[0]) == canonical_json(documents[1]):
        assert exactly(documents[0]) == exactly(documents[1])


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(-3, 3))
def test_a_number_has_one_text_however_it_is_written(number: Decimal, shift: int) -> None:
    """The text of a number depends on its value alone, and gives it back exactly."""
    text = number_text(str(number))
    assert Decimal(text) == number
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    written = f"{'-' if sign else ''}{''.join(map(str, digits))}{'0' * 3}e{exponent - 3}"
    assert number_text(written) == text
    assert number_text(f"{written.partition('e')[0]}e{exponent - 3 + shift}") == text or shift or not number


def test_reading_integers_does_not_depend_on_the_interpreter_s_limit() -> None:
    """A process with another limit for integers gives the same form."""
    before = sys.get_int_max_str_digits()
    body = b"[" + b"7" * 1000 + b"]"
    form = canonical_json(body)
    sys.set_int_max_str_digits(640)
    try:
        assert canonical_json(body) == form
    finally:
        sys.set_int_max_str_digits(before)


# --- values ---------------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Refund:
    order: str
    amount: Decimal


@dataclass
class Charge:
    order: str
    amount: Decimal


class Text(str):
    __slots__ = ()


SCALARS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**200,
    0.5,
    math.inf,
    -math.inf,
    math.nan,
    "",
    "1",
    "None",
    b"",
    b"1",
    UUID(int=1),
    str(UUID(int=1)),
    date(2024, 1, 1),
    "2024-01-01",
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1),  # noqa: DTZ001 - a naive one, to be told from the aware one
    time(1, 2, 3, 4),
    timedelta(days=1, microseconds=1),
    [],
    {},
    set(),
    [[]],
    [None],
    ["", ""],
    [""],
    {"a": 1},
    {"a": "1"},
    {1: "a"},
    {"a": {"b": None}},
    {"a": {}},
    {1, 2},
    [1, 2],
    [2, 1],
    [12],
    Refund("a", Decimal(1)),
    Charge("a", Decimal(1)),
    {"order": "a", "amount": 1},
    [math.nan, "u", UUID(int=1).hex],
    {1: "a", "b": 2},
    [[1, "a"], ["b", 2]],
    Decimal("sNaN"),
    Decimal("NaN12"),
    10**30,
    10**30 - 1,
    "1e30",
]


def test_different_values_have_different_forms() -> None:
    """Every kind of value is told from every other one."""
    for left, right in itertools.combinations(SCALARS, 2):
        assert canonical_value(left) != canonical_value(right), (left, right)


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, Decimal("1.00"), Size.BIG - 2),
        (0, -0.0, Decimal("-0E+5")),
        (100, 1e2, Decimal("1E+2")),
        (10**30, 1e30, Decimal("1E+30")),
        (10**40, Decimal("1E+40")),
        (0.1, Decimal("0.1"), Decimal("0.10")),
        (math.nan, Decimal("NaN")),
        (math.inf, Decimal("Infinity")),
        ([1, 2], (1, 2), Point(1, 2)),
        ({1, 2}, frozenset({2, 1})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, OrderedDict(b=2, a=1), defaultdict(int, a=1, b=2)),
        (Colour.RED, "red", Text("red")),
        (Size.BIG, 3),
        (b"x", bytearray(b"x")),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
        (Refund("a", Decimal(1)), Refund("a", Decimal("1.0"))),
    ],
)
def test_equal_values_have_one_form(values: tuple[object, ...]) -> None:
    """Numbers by value, mappings and sets in any order, Enum members and subclasses by what they stand for."""
    assert len({canonical_value(value) for value in values}) == 1


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def kinded(value: object) -> object:
    """A value in which booleans differ from numbers, so that == asks what the form asks."""
    match value:
        case bool() | bytes():
            return (type(value).__name__, value)
        case list():
            return [kinded(item) for item in value]
        case dict():
            return {name: kinded(item) for name, item in value.items()}
        case _:
            return value


class Number(int):
    __slots__ = ()


def disguised(value: object) -> object:
    """An equal value of other classes."""
    match value:
        case bool():
            return value
        case int():
            return Number(value)
        case float():
            return Decimal(repr(value))
        case str():
            return Text(value)
        case list():
            return tuple(map(disguised, value))
        case dict():
            return OrderedDict((disguised(name), disguised(item)) for name, item in reversed(value.items()))
        case _:
            return value


@given(VALUES)
def test_a_plain_value_has_the_form_of_its_equals(value: object) -> None:
    """What is written at once, because JSON has all of it, is written as if it had been looked at part by part."""
    assert canonical_value(value) == canonical_value(disguised(value))


def test_limits_are_those_of_the_longer_look() -> None:
    """Depth, digits and size decide alike whether a value is plain or not."""
    deep: object = 1
    for _ in range(canonical.DEPTH_MAX):
        deep = [deep]
    wide = [[1]] * 60_000
    for value in (deep, wide, 10**31, ["1" * 40], [10**31 + 1, "x"], "x" * 100):
        assert canonical_value(value) == canonical_value(disguised(value))
    for refused in ([deep], {"a": deep}, [10**4000]):
        for value in (refused, disguised(refused)):
            with pytest.raises(EncodingError):
                canonical_value(value)


def has_float(value: object) -> bool:
    match value:
        case float():
            return True
        case list():
            return any(map(has_float, value))
        case dict():
            return any(map(has_float, value.values()))
        case _:
            return False


@given(VALUES, VALUES)
def test_forms_are_equal_exactly_if_values_are(left: object, right: object) -> None:
    """The form is one to one; a float counts as the decimal that it prints as."""
    equal = canonical_value(left) == canonical_value(right)
    if has_float(left) or has_float(right):
        assert not equal or kinded(left) == kinded(right)
    else:
        assert equal == (kinded(left) == kinded(right))


@pytest.mark.parametrize(
    "value", [object(), object, print, 1j, iter([]), {1: object()}, [{2: {3: lambda: 0}}], [10**5000]]
)
def test_a_value_without_a_stable_form_is_refused(value: object) -> None:
    """C29, T15: nothing is taken from a default repr, at any depth."""
    for form in (canonical_value, canonical_facts):
        with pytest.raises(EncodingError, match="; give"):
            form(value)


@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud800": 1}])
def test_text_with_an_unpaired_surrogate_is_refused(value: object) -> None:
    """C27: text that has no bytes has no form."""
    with pytest.raises(EncodingError, match="surrogate"):
        canonical_value(value)


def test_values_that_hold_themselves_end_in_an_error() -> None:
    """Cycles, towers and values that hold one another many times are bounded."""
    loop: dict[str, object] = {}
    loop["self"] = loop
    tower: object = None
    for _ in range(100_000):
        tower = [tower]
    hydra: object = ["x" * 10_000]
    for _ in range(50):
        hydra = [hydra, hydra]
    for value in (loop, tower, hydra):
        with pytest.raises(EncodingError, match="give its stable parts"):
            canonical_value(value)
    while isinstance(tower, list):  # taken apart by hand: freeing it at once would recurse
        tower = tower.pop()


class Order(BaseModel):
    id: UUID
    link: HttpUrl
    tags: set[str]


class OldOrder(OldBaseModel):
    id: UUID
    link: OldHttpUrl
    tags: set[str]


class Login(BaseModel):
    user: str
    password: SecretStr


@pytest.mark.parametrize("model", [Order, OldOrder])
def test_a_model_s_own_types_are_written_as_in_its_json(model: type[Any]) -> None:
    """C30: a field that only the model can write is no obstacle, and still counts."""
    one, other = (model(id=UUID(int=1), link=f"https://example.org/{path}", tags={"a", "b"}) for path in "xy")
    again = model(tags={"b", "a"}, link="https://example.org/x", id=str(UUID(int=1)))
    assert canonical_value(one) == canonical_value(again) != canonical_value(other)


def test_a_masked_secret_is_refused() -> None:
    """P15: all secrets look alike in a model's JSON, so they can't tell two requests apart."""
    with pytest.raises(EncodingError, match=r"password .* secret"):
        canonical_value(Login(user="u", password=SecretStr("p")))


def test_an_instant_outside_the_calendar_is_refused() -> None:
    """An aware datetime whose instant has no year is refused with a sentence."""
    with pytest.raises(EncodingError, match="instant"):
        canonical_value(datetime.min.replace(tzinfo=timezone(timedelta(hours=2))))


def test_fields_are_found_without_importing_anything() -> None:
    """Mappings with text keys, dataclasses and models have fields; classes and other values have none."""
    assert fields_of({"a": 1}) == {"a": 1}
    assert fields_of(Refund("a", Decimal(1))) == {"order": "a", "amount": Decimal(1)}
    assert fields_of(Login(user="u", password=SecretStr("p"))) is not None
    assert fields_of({1: 1}) is None
    assert fields_of(Refund) is None
    assert fields_of([]) is None


def test_the_forms_never_change() -> None:
    """P14: keys and fingerprints made by earlier releases stay valid."""
    value = {"b": [1, 0.5, None, True], "a": Refund("x", Decimal("1.50")), "c": {b"\xff", UUID(int=1)}}
    assert canonical_value(value) == (
        b'{"a":[NaN,"o","Refund",{"amount":[NaN,"n","15e-1"],"order":"x"}],"b":[1,[NaN,"n","5e-1"],null,true],'
        b'"c":[NaN,"e",[NaN,"b","ff"],[NaN,"u","00000000000000000000000000000001"]]}'
    )
    assert canonical_facts(["charge", 7, Decimal("1.50"), {"a": True}]) == b'["charge","7","1.5",{"a":"true"}]'
    assert canonical.SIZE_MAX == 64 * 1024 * 1024
