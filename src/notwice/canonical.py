"""Canonical bytes of Python values: equal values have equal bytes, in every process, release and hash seed.

There are two forms, because two questions are asked:

- `canonical_value` asks "is this the same request?". It keeps kinds apart: ``"7"`` is not ``7``. Numbers are compared
  by their exact decimal value (``1``, ``1.0`` and ``Decimal("1.00")`` are one), a list and a tuple are one sequence,
  and an object of a class with fields says the class's name, but not its module: moving a class changes nothing.
- `canonical_facts` asks "is this the same business fact?". Two entry points of one flow hold the same order number as
  ``7``, ``"7"`` or a column of type UUID, so whatever has a stable text (`stable_text`) stands for that text, and an
  object with fields stands for its fields. Floats are refused: ``0.1 + 0.2`` is no fact.

In both, mappings and sets are sorted, an Enum member stands for its value, an aware datetime for its instant, and
values without a stable form are refused with `EncodingError`: nothing is ever taken from a default ``repr``.
Text is compared by its characters; Unicode is not normalised.

The bytes are JSON with sorted names. A value is first reduced to what JSON has: ``None``, booleans, text, integers of
up to `WRITTEN_OUT_DIGITS_MAX` digits, lists, and dicts with text names. What JSON has not becomes a list that begins
with ``NaN`` and the kind, as ``[NaN,"u","..."]`` for a UUID; nothing else gives a ``NaN``, so no two values have one
form. A value that is plain already is its own reduction, and is written at once.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, cast
from uuid import UUID

from notwice.canonical_json import WRITTEN_OUT_DIGITS_MAX, number_text
from notwice.errors import EncodingError
from notwice.plain import SCALARS, is_plain, writer

DEPTH_MAX = 64
SIZE_MAX = 64 * 1024 * 1024
INTEGER_BITS_MAX = 13_000  # 3,914 digits; the interpreter refuses to write more than 4,300
_CONTAINER_SIZE = 64  # what a container counts at least, so that a million empty ones are the most
_WRITTEN_OUT = 10**WRITTEN_OUT_DIGITS_MAX
_PLACE_PARTS_MAX = 8
_NAME_MAX = 40
_MASK = "*" * 10  # how pydantic shows a secret
_PLAIN_ITEMS_MAX = 100_000  # these two keep whatever is written at once within SIZE_MAX as _Form counts it
_PLAIN_CHARACTERS_MAX = SIZE_MAX // 2
_LONG_DIGITS = re.compile(rf"[0-9]{{{WRITTEN_OUT_DIGITS_MAX + 1}}}")
_SPECIAL = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}  # as floats write them

_written = writer(sort_keys=True, allow_nan=True)


def canonical_value(value: object) -> bytes:
    """Give the bytes that stand for a request.

    Raises `EncodingError` if a part of it has no stable form, is nested deeper than `DEPTH_MAX`, refers to itself, or
    takes more than about `SIZE_MAX` characters.
    """
    try:
        if is_plain(value, SCALARS, [_PLAIN_ITEMS_MAX], depth=DEPTH_MAX):
            text = _written(value)
            if len(text) <= WRITTEN_OUT_DIGITS_MAX or (
                len(text) <= _PLAIN_CHARACTERS_MAX and not _LONG_DIGITS.search(text)
            ):
                return text.encode()
    except ValueError:  # an unpaired surrogate, or more digits than the interpreter writes: the longer look tells
        pass
    form = _Form()
    try:
        return _utf8(_written(form.reduce(value, 0)))
    except EncodingError as error:
        place = form.place()
        if not place:
            raise
        raise EncodingError(f"in the request, at {place}: {error}") from error.__cause__


def canonical_facts(facts: object) -> bytes:
    """Give the bytes that stand for business facts: what has a stable text stands for that text.

    Raises `EncodingError` as `canonical_value` does, and for floats.
    """
    return _utf8(_written(_FactForm().reduce(facts, 0)))


def stable_text(value: object) -> str | None:
    """Give the text by which a value is known everywhere; ``None`` if it has none.

    Text, integers, booleans (``true``, ``false``), Decimals (``19.9`` for 19.90), UUIDs, dates and aware datetimes (the
    instant, in UTC) have one, and so has an Enum member whose value has. Floats, naive datetimes and objects have none.
    """
    match value:
        case Enum():
            return stable_text(value.value)
        case str():
            return str.__str__(value)
        case bool():
            return "true" if value else "false"
        case int():
            return _integer_text(value)
        case UUID():
            return str(value)
        case Decimal():
            return _plain_text(value) if value.is_finite() else None
        case datetime():
            return None if value.utcoffset() is None else _instant(value)
        case date():
            return value.isoformat()
        case _:
            return None


def fields_of(value: object) -> Mapping[str, object] | None:
    """Give the fields of a mapping with text keys, a dataclass or a pydantic model; ``None`` for anything else."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[object, object]", value)
        named = {name: item for name, item in mapping.items() if isinstance(name, str)}
        return named if len(named) == len(mapping) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if is_model(type(value)):
        return dict(cast("Iterable[tuple[str, object]]", value))
    return None


def is_model(cls: type) -> bool:
    """Say whether a class looks like a pydantic model, of version 1 or 2. Nothing is imported for it."""
    return (hasattr(cls, "model_fields") and hasattr(cls, "model_dump")) or (
        hasattr(cls, "__fields__") and hasattr(cls, "__fields_set__") and hasattr(cls, "dict")
    )


def _integer_text(value: int) -> str:
    if value.bit_length() > INTEGER_BITS_MAX:
        raise EncodingError("an integer of more than 3,914 digits has no stable form here; give a digest of it")
    return int.__repr__(value)


def _plain_text(value: Decimal) -> str:
    text = number_text(str(value))
    _, _, power = text.partition("e")
    return f"{Decimal(text):f}" if power and -WRITTEN_OUT_DIGITS_MAX <= int(power) < 0 else text


def _instant(value: datetime) -> str:
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError as error:
        raise EncodingError("a datetime has no instant within the years 1 to 9999; give another value") from error


def _utf8(form: str) -> bytes:
    try:
        return form.encode()
    except UnicodeEncodeError as error:
        raise EncodingError("a text holds an unpaired surrogate, which has no bytes; give text without it") from error


def _marked(kind: str, *parts: object) -> list[object]:
    """What stands for a value of a kind that JSON has not."""
    return [math.nan, kind, *parts]


def _number(literal: str) -> object:
    """What stands for a number by its exact value: a short integer, or its one text."""
    text = literal if literal[-1] in "nf" else number_text(literal)
    short = len(text) <= WRITTEN_OUT_DIGITS_MAX + (text[0] == "-") and text.lstrip("-").isdigit()
    return int(text) if short else _marked("n", text)


class _Form:
    """The form of a request. Each method reduces one kind of value to what JSON has.

    ``room`` is how many characters may still be taken; it bounds a value that holds itself many times. ``within`` is
    where a part was that has no stable form, from the inside out.
    """

    __slots__ = ("room", "within")

    def __init__(self) -> None:
        self.room = SIZE_MAX
        self.within: list[str] = []

    def place(self) -> str:
        """Where the part is that has no stable form, as ``items[2].price``; empty for the whole, or for its size."""
        shown = "".join(self.within[: -_PLACE_PARTS_MAX - 1 : -1]).removeprefix(".") if self.room >= 0 else ""
        return f"{shown}..." if shown and len(self.within) > _PLACE_PARTS_MAX else shown

    def reduce(self, value: object, depth: int) -> object:
        method = _METHODS.get(type(value)) or self.method_for(value)
        return method(self, value, depth)

    def method_for(self, value: object) -> _Method:
        """Find how to reduce a value whose class is none of the built-in ones: by its fields, or by its base."""
        if isinstance(value, Enum):
            return _Form.enum
        if is_dataclass(value) or is_model(type(value)):
            return type(self).structure
        for base, method in _METHODS.items():
            if isinstance(value, base):
                return method
        raise EncodingError(
            f"a value of type {type(value).__qualname__} has no stable form; "
            "give its id, or text, numbers, dates, UUIDs, dataclasses or pydantic models made of these"
        )

    def take(self, size: int) -> None:
        """Take the room of one value."""
        self.room -= size
        if self.room < 0:
            raise EncodingError(
                f"a value is larger than {SIZE_MAX} characters, or refers to itself; give its stable parts"
            )

    def nothing(self, value: None, _depth: int) -> object:
        return value

    def boolean(self, value: bool, _depth: int) -> object:  # noqa: FBT001 - the value that is reduced
        return value

    def text(self, value: str, _depth: int) -> str:
        self.take(len(value))
        return str.__str__(value)

    def integer(self, value: int, _depth: int) -> object:
        return int(value) if -_WRITTEN_OUT < value < _WRITTEN_OUT else _number(_integer_text(value))

    def double(self, value: float, _depth: int) -> object:
        return _number(float.__repr__(value))

    def decimal(self, value: Decimal, _depth: int) -> object:
        text = str(value)
        return _number(text) if value.is_finite() else _marked("n", _SPECIAL.get(text, text))

    def octets(self, value: bytes | bytearray, _depth: int) -> object:
        self.take(2 * len(value))
        return _marked("b", value.hex())

    def uuid(self, value: UUID, _depth: int) -> object:
        return _marked("u", value.hex)

    def instant(self, value: datetime, _depth: int) -> object:
        """Write an aware datetime as its instant, a naive one as it stands on the clock on the wall."""
        if value.utcoffset() is None:
            return _marked("w", value.isoformat())
        return _marked("i", _instant(value))

    def day(self, value: date, _depth: int) -> object:
        return _marked("d", value.isoformat())

    def clock(self, value: time, _depth: int) -> object:
        return _marked("c", value.isoformat())

    def duration(self, value: timedelta, _depth: int) -> object:
        return _marked("p", value // timedelta(microseconds=1))

    def enum(self, value: Enum, depth: int) -> object:
        return self.reduce(value.value, _deeper(depth))

    def sequence(self, value: Sequence[object], depth: int) -> object:
        inner = _deeper(depth)
        self.take(len(value) + _CONTAINER_SIZE)
        items: list[object] = []
        try:
            for item in value:
                items.append(self.reduce(item, inner))  # noqa: PERF401 - how many there are says which one was refused
        except EncodingError:
            self.within.append(f"[{len(items)}]")
            raise
        return items

    def unordered(self, value: AbstractSet[object], depth: int) -> object:
        inner = _deeper(depth)
        self.take(len(value) + _CONTAINER_SIZE)
        return _marked("e", *_sorted([(item, item) for item in (self.reduce(member, inner) for member in value)]))

    def mapping(self, value: Mapping[object, object], depth: int) -> object:
        inner = _deeper(depth)
        self.take(len(value) + _CONTAINER_SIZE)
        pairs: list[tuple[object, object]] = []
        name: object = None
        try:
            for name, item in value.items():
                pairs.append((self.reduce(name, inner), self.reduce(item, inner)))
        except EncodingError:
            self.within.append(_part(name))
            raise
        ordered = _sorted([(name, (name, item)) for name, item in pairs])
        return dict(pairs) if all(type(name) is str for name, _ in pairs) else _marked("m", *ordered)

    def structure(self, value: object, depth: int) -> object:
        """Reduce an object with fields: to its class's name, and its fields by name."""
        return _marked("o", type(value).__name__, self.named_fields(value, depth))

    def named_fields(self, value: object, depth: int) -> object:
        inner = _deeper(depth)
        named = fields_of(value) or {}
        self.take(len(named) + _CONTAINER_SIZE)
        reduced: dict[str, object] = {}
        name = ""
        try:
            for name in named:
                reduced[self.text(name, inner)] = self.field(value, name, inner)
        except EncodingError:
            self.within.append(_part(name))
            raise
        return reduced

    def field(self, owner: object, name: str, depth: int) -> object:
        """Reduce one field; what only its model can make stable is taken as it stands in the model's JSON."""
        try:
            return self.reduce(getattr(owner, name), depth)
        except EncodingError:
            if not is_model(type(owner)):
                raise
            self.within.clear()
        return self.reduce(_in_json(owner, name), depth)


class _FactForm(_Form):
    """The form of business facts: what has a stable text stands for it, and an object for its fields."""

    __slots__ = ()

    def reduce(self, value: object, depth: int) -> object:
        if isinstance(value, float):
            raise EncodingError(
                "a float is no business fact: its digits depend on how it was computed; "
                "give an integer in the smallest unit (cents), a Decimal, or text"
            )
        text = stable_text(value)
        if text is not None:
            return self.text(text, depth)
        if isinstance(value, datetime):
            raise EncodingError(
                "a naive datetime is no business fact: it means another instant elsewhere; give it a zone"
            )
        return super().reduce(value, depth)

    def structure(self, value: object, depth: int) -> object:
        return self.named_fields(value, depth)


def _sorted(named: list[tuple[object, object]]) -> list[object]:
    """Put items into the order of the forms of their names, each of which may be there once."""
    by_form = {_written(name): item for name, item in named}
    if len(by_form) < len(named):
        raise EncodingError("two names or members are one in their stable form, as 7 and '7' are; keep one of them")
    return [by_form[form] for form in sorted(by_form)]


def _part(name: object) -> str:
    """A name as a part of a place: only what looks like a field's, for others may be what somebody has sent."""
    return f".{name}" if isinstance(name, str) and name.isidentifier() and len(name) <= _NAME_MAX else "[...]"


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX:
        raise EncodingError(f"a value is nested deeper than {DEPTH_MAX} levels, or holds itself; give its stable parts")
    return depth + 1


def _in_json(model: Any, name: str) -> object:  # noqa: ANN401 - a pydantic model, known by its methods only
    """Give one field as it stands in a pydantic model's JSON.

    Raises `EncodingError` if it stands in none, or is masked there, which would make all secrets one.
    """
    try:
        if hasattr(model, "model_dump"):
            value = model.model_dump(mode="json", include={name})[name]
        else:
            value = json.loads(model.json(include={name}))[name]
    except Exception as error:  # a field's own serialiser may raise anything
        raise EncodingError(f"field {name} of {type(model).__qualname__} has no stable form; leave it out") from error
    if _MASK in str(value):
        raise EncodingError(f"field {name} of {type(model).__qualname__} is a secret, masked in its JSON; leave it out")
    return value


_Method = Callable[[Any, Any, int], object]
_METHODS: dict[type, _Method] = {  # in an order in which the first base that fits is the right one
    str: _Form.text,
    bool: _Form.boolean,
    int: _Form.integer,
    NoneType: _Form.nothing,
    dict: _Form.mapping,
    list: _Form.sequence,
    tuple: _Form.sequence,
    float: _Form.double,
    Decimal: _Form.decimal,
    UUID: _Form.uuid,
    datetime: _Form.instant,
    date: _Form.day,
    bytes: _Form.octets,
    bytearray: _Form.octets,
    time: _Form.clock,
    timedelta: _Form.duration,
    set: _Form.unordered,
    frozenset: _Form.unordered,
    Mapping: _Form.mapping,
}
