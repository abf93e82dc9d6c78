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

Each item is framed by its kind and its length or count, so that no two values run into one another.
"""

from __future__ import annotations

import json
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

DEPTH_MAX = 64
SIZE_MAX = 64 * 1024 * 1024
INTEGER_BITS_MAX = 13_000  # 3,914 digits; the interpreter refuses to write more than 4,300
_CONTAINER_SIZE = 64  # what a container counts at least, so that a million empty ones are the most
_WRITTEN_OUT = 10**WRITTEN_OUT_DIGITS_MAX
_MASK = "*" * 10  # how pydantic shows a secret
_SPECIAL = {"Infinity": "inf", "-Infinity": "-inf", "NaN": "nan"}  # as floats write them


def canonical_value(value: object) -> bytes:
    """Give the bytes that stand for a request.

    Raises `EncodingError` if a part of it has no stable form, is nested deeper than `DEPTH_MAX`, refers to itself, or
    takes more than `SIZE_MAX` characters.
    """
    return _utf8(_Form().write(value, 0))


def canonical_facts(facts: object) -> bytes:
    """Give the bytes that stand for business facts: what has a stable text stands for that text.

    Raises `EncodingError` as `canonical_value` does, and for floats.
    """
    return _utf8(_FactForm().write(facts, 0))


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


def _frame(kind: str, payload: str) -> str:
    return f"{kind}{len(payload)}:{payload}"


class _Form:
    """The form of a request. Each method gives the frame of one kind of value.

    ``room`` is how many characters containers may still take; it bounds a value that holds itself many times.
    """

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = SIZE_MAX

    def write(self, value: object, depth: int) -> str:
        method = _METHODS.get(type(value)) or self.method_for(value)
        return method(self, value, depth)

    def method_for(self, value: object) -> _Method:
        """Find how to write a value whose class is none of the built-in ones: by its fields, or by its base."""
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

    def joined(self, kind: str, count: int, parts: Iterable[str]) -> str:
        body = "".join(parts)
        self.room -= len(body) + _CONTAINER_SIZE
        if self.room < 0:
            raise EncodingError(
                f"a value is larger than {SIZE_MAX} characters, or refers to itself; give its stable parts"
            )
        return f"{kind}{count}:{body}"

    def nothing(self, _value: None, _depth: int) -> str:
        return "0;"

    def boolean(self, value: bool, _depth: int) -> str:  # noqa: FBT001 - the value that is written
        return "T;" if value else "F;"

    def text(self, value: str, _depth: int) -> str:
        return _frame("s", str.__str__(value))

    def integer(self, value: int, _depth: int) -> str:
        text = _integer_text(value)
        return f"n{text if -_WRITTEN_OUT < value < _WRITTEN_OUT else number_text(text)};"

    def double(self, value: float, _depth: int) -> str:
        text = float.__repr__(value)
        return f"n{text if text[-1] in 'nf' else number_text(text)};"

    def decimal(self, value: Decimal, _depth: int) -> str:
        text = str(value)
        return f"n{number_text(text) if value.is_finite() else _SPECIAL.get(text, text)};"

    def octets(self, value: bytes | bytearray, _depth: int) -> str:
        return _frame("b", value.hex())

    def uuid(self, value: UUID, _depth: int) -> str:
        return _frame("u", value.hex)

    def instant(self, value: datetime, _depth: int) -> str:
        """Write an aware datetime as its instant, a naive one as it stands on the clock on the wall."""
        if value.utcoffset() is None:
            return _frame("w", value.isoformat())
        return _frame("i", _instant(value))

    def day(self, value: date, _depth: int) -> str:
        return _frame("d", value.isoformat())

    def clock(self, value: time, _depth: int) -> str:
        return _frame("c", value.isoformat())

    def duration(self, value: timedelta, _depth: int) -> str:
        return f"p{value // timedelta(microseconds=1)};"

    def enum(self, value: Enum, depth: int) -> str:
        return self.write(value.value, _deeper(depth))

    def sequence(self, value: Sequence[object], depth: int) -> str:
        inner = _deeper(depth)
        return self.joined("l", len(value), [self.write(item, inner) for item in value])

    def unordered(self, value: AbstractSet[object], depth: int) -> str:
        inner = _deeper(depth)
        return self.sorted("e", [(self.write(item, inner), "") for item in value])

    def mapping(self, value: Mapping[object, object], depth: int) -> str:
        inner = _deeper(depth)
        write = self.write
        return self.sorted("m", [(write(name, inner), write(item, inner)) for name, item in value.items()])

    def sorted(self, kind: str, pairs: list[tuple[str, str]]) -> str:
        pairs.sort()
        if len(dict(pairs)) < len(pairs):
            raise EncodingError("two names or members are one in their stable form, as 7 and '7' are; keep one of them")
        return self.joined(kind, len(pairs), [part for pair in pairs for part in pair])

    def structure(self, value: object, depth: int) -> str:
        """Write an object with fields: its class's name, then its fields by name."""
        return _frame("o", type(value).__name__) + self.named_fields(value, depth)

    def named_fields(self, value: object, depth: int) -> str:
        inner = _deeper(depth)
        named = fields_of(value) or {}
        return self.sorted("m", [(self.text(name, inner), self.field(value, name, inner)) for name in named])

    def field(self, owner: object, name: str, depth: int) -> str:
        """Write one field; what only its model can make stable is written as it stands in the model's JSON."""
        try:
            return self.write(getattr(owner, name), depth)
        except EncodingError:
            if not is_model(type(owner)):
                raise
        return self.write(_in_json(owner, name), depth)


class _FactForm(_Form):
    """The form of business facts: what has a stable text stands for it, and an object for its fields."""

    __slots__ = ()

    def write(self, value: object, depth: int) -> str:
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
        return super().write(value, depth)

    def structure(self, value: object, depth: int) -> str:
        return self.named_fields(value, depth)


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


_Method = Callable[[Any, Any, int], str]
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
