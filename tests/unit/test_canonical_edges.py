"""Canonical forms at their edges: the longest numbers, the deepest values, and what only looks like a model."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, SecretStr, field_serializer
from pydantic.v1 import BaseModel as OldBaseModel

from notwice import canonical
from notwice.canonical import DEPTH_MAX, INTEGER_BITS_MAX, canonical_facts, canonical_value, fields_of
from notwice.canonical_json import NESTING_MAX, WRITTEN_OUT_DIGITS_MAX, canonical_json, nesting_exceeds
from notwice.errors import EncodingError
from notwice.plain import writer

# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [10**WRITTEN_OUT_DIGITS_MAX - 1, 10 ** (WRITTEN_OUT_DIGITS_MAX - 1), 5, 1230])
def test_a_whole_number_has_one_form_whatever_holds_it(number: int, sign: int) -> None:
    """C30: the longest one that is written out, the shortest, and those that end in zeros; above and below zero."""
    number *= sign
    forms = {canonical_value(number), canonical_value(Decimal(number)), canonical_value(Decimal(f"{number}.00"))}
    assert forms == {str(number).encode()}
    assert canonical_value(float(sign * 5)) == str(sign * 5).encode()
    assert canonical_json(f"{number}.0".encode()) == str(number).encode()


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_whole_number_that_is_longer_is_its_digits(sign: str) -> None:
    """P14: digits and a power of ten, which is left out where it is none."""
    for digits, text in (
        (f"1{'0' * WRITTEN_OUT_DIGITS_MAX}", "1e30"),
        ("7" * 31, "7" * 31),
        ("7" * 30 + "0", f"{'7' * 30}e1"),
    ):
        wanted = f'[NaN,"n","{sign}{text}"]'.encode()
        assert canonical_value(int(sign + digits)) == canonical_value(Decimal(sign + digits)) == wanted


def test_the_longest_integer_is_bounded() -> None:
    """One bit more is refused, with what to give in its place."""
    assert canonical_value(2**INTEGER_BITS_MAX - 1) == canonical_value([2**INTEGER_BITS_MAX - 1])[1:-1]
    assert canonical_value(2 ** (INTEGER_BITS_MAX - 1))
    with pytest.raises(EncodingError, match="give a digest of it"):
        canonical_value(2**INTEGER_BITS_MAX)


# -- depth and size ---------------------------------------------------------------------------------------------------


def nested(depth: int) -> object:
    value: object = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("form", [canonical_value, canonical_facts])
def test_the_deepest_value_is_bounded(form: Callable[[object], bytes]) -> None:
    """So many levels have a form, and one more has none."""
    assert form(nested(DEPTH_MAX)).count(b"[") == DEPTH_MAX
    with pytest.raises(EncodingError, match=f"nested deeper than {DEPTH_MAX} levels"):
        form(nested(DEPTH_MAX + 1))


class Route(Enum):
    HOME = ("a", ("b",))


@dataclass(frozen=True)
class Place:
    street: str
    rooms: tuple[object, ...] = ()


class Shelf(BaseModel):
    books: Any

    @field_serializer("books")
    def titles(self, _books: Any) -> Any:
        return [["a"], ["b"]]


def test_containers_may_stand_within_each_kind_of_container() -> None:
    """Sets, names of mappings, members of an Enum and the JSON of a model's field are looked into like lists."""
    assert canonical_value({frozenset({("a", ("b",))})}) == b'[NaN,"e",[NaN,"e",["a",["b"]]]]'
    assert canonical_value({("a", ("b",)): 1}) == b'[NaN,"m",[["a",["b"]],1]]'
    assert canonical_value(Route.HOME) == b'["a",["b"]]'
    assert canonical_value(Shelf(books=object())) == b'[NaN,"o","Shelf",{"books":[["a"],["b"]]}]'


@pytest.mark.parametrize(
    "value",
    [
        [[UUID(int=1)], *[[] for _ in range(20)]],
        [frozenset({number}) for number in range(20)],
        [UUID(int=1), *[{} for _ in range(20)]],
        [Place("") for _ in range(20)],
    ],
    ids=["lists", "sets", "mappings", "fields"],
)
def test_empty_containers_take_room_too(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of a million empty ones is as large as its form is, and ends in an error as any other does."""
    assert canonical_value(value)
    monkeypatch.setattr(canonical, "SIZE_MAX", 500)
    with pytest.raises(EncodingError, match="larger than 500 characters"):
        canonical_value(value)


# -- what it seems to be ----------------------------------------------------------------------------------------------


def shaped(*names: str) -> object:
    """A value whose class has these names."""
    return type("Shaped", (), dict.fromkeys(names))()


@pytest.mark.parametrize(
    "names",
    [["model_fields"], ["model_dump"], ["__fields__", "dict"], ["__fields_set__", "dict"], ["__fields__"], ["dict"]],
)
def test_a_value_that_is_like_a_model_in_one_thing_is_none(names: list[str]) -> None:
    """Nothing is taken for fields but those of a model, so it is refused by the name of its type."""
    assert fields_of(shaped(*names)) is None
    with pytest.raises(EncodingError, match="a value of type Shaped has no stable form; give its id"):
        canonical_value(shaped(*names))


class Login(BaseModel):
    password: SecretStr


def test_a_secret_is_told_by_its_field_and_its_model() -> None:
    """P15: all secrets look alike in JSON; who reads the error knows which field to leave out."""
    with pytest.raises(EncodingError, match="field password of Login is a secret, masked in its JSON; leave it out"):
        canonical_value(Login(password=SecretStr("p")))


def test_an_object_is_a_fact_by_its_fields() -> None:
    """The name of its class counts for a request, and not for a fact."""
    assert canonical_facts(Place("a", (1,))) == canonical_facts({"street": "a", "rooms": ["1"]})
    assert canonical_value(Place("a")) != canonical_value({"street": "a", "rooms": []})


def test_two_names_of_one_form_are_refused_with_what_to_do() -> None:
    """C30: 7 and "7" are one fact, so nobody can tell which of the two was meant."""
    with pytest.raises(EncodingError, match="two names or members are one in their stable form"):
        canonical_facts({7: "a", "7": "b"})


class Wrong(BaseModel):
    secret: Any
    other: Any = None

    @field_serializer("secret")
    def shown(self, secret: Any) -> Any:
        raise ArithmeticError(secret)


class Token:
    """What nothing but a model that was told how can write."""


class OldPlain(OldBaseModel):
    tags: Any
    other: Any = None

    class Config:
        json_encoders = {Token: lambda _: "shown"}  # noqa: RUF012 - it is how that version is told


def test_a_field_is_written_by_its_own_model_and_without_the_others() -> None:
    """C30: only what nothing else can write is asked for, so that no other field is in the way."""
    with pytest.raises(EncodingError, match="field secret of Wrong has no stable form; leave it out"):
        canonical_value(Wrong(secret=object(), other=1))
    shown = canonical_value(OldPlain(tags=Token(), other=b"\xff"))
    assert shown == b'[NaN,"o","OldPlain",{"other":[NaN,"b","ff"],"tags":"shown"}]'


class Mixed(BaseModel):
    link: Any
    picture: bytes

    @field_serializer("link")
    def shown(self, _link: Any) -> str:
        return "here"


def test_what_json_can_not_hold_in_one_field_is_no_obstacle_for_another() -> None:
    """C30: bytes that are no text have a form of their own, though the model's JSON has none for them."""
    assert canonical_value(Mixed(link=object(), picture=b"\xff")) == (
        b'[NaN,"o","Mixed",{"link":"here","picture":[NaN,"b","ff"]}]'
    )


# -- documents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"\x0b1", b"1\x0c", b"\xc2\xa01", b"1\xe2\x80\x83", b"\x1c1", b"X1X", b"\xef\xbb\xbf1"]
)
def test_only_json_s_own_blanks_stand_around_a_document(body: bytes) -> None:
    """RFC 8259, section 2: any other blank makes it something else, which is compared by its bytes."""
    assert canonical_json(body) is None
    assert canonical_json(b" \t\r\n1\n\r\t ") == b"1"


def test_brackets_within_text_are_none() -> None:
    """However they are escaped: a text of many brackets is not deep."""
    body = json.dumps(["[" * 99, '"]{\\', "}" * 99]).encode()
    assert not nesting_exceeds(body, NESTING_MAX)
    assert canonical_json(body) is not None


# -- the writer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sort_keys", "allow_nan", "ascii_only"), list(product([False, True], repeat=3)))
@pytest.mark.parametrize("accelerated", [False, True])
def test_the_writer_writes_what_the_json_module_writes(
    sort_keys: bool, allow_nan: bool, ascii_only: bool, accelerated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each of its options, with the interpreter's own encoder and without it: the same text without blanks."""
    if not accelerated:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    write = writer(sort_keys=sort_keys, allow_nan=allow_nan, ascii_only=ascii_only)
    value = {"b": [1, None, True, '\u00e9\u2028"\\'], "a": {"d": [], "c": {}}, "e": -5}
    for each in (value, "x", 0.5, [], [[1], [2]]):
        assert write(each) == json.dumps(
            each, sort_keys=sort_keys, ensure_ascii=ascii_only, separators=(",", ":"), check_circular=False
        )
    if allow_nan:
        assert write([float("nan"), float("inf")]) == "[NaN,Infinity]"
    else:
        with pytest.raises(ValueError, match="not JSON compliant"):
            write([float("nan")])
    with pytest.raises(TypeError, match="not JSON serializable"):
        write([object()])
    with pytest.raises(TypeError, match="keys must be"):
        write({("a",): 1})
    many = list(range(200_001))
    assert write(many) == json.dumps(many, separators=(",", ":"))


def test_the_writer_leaves_all_out_that_was_not_asked_for() -> None:
    """By itself it keeps the order of names and the letters as they are, and knows of no NaN."""
    write = writer()
    assert write({"b": "\u00e9", "a": 1}) == '{"b":"\u00e9","a":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(float("inf"))
