"""Values as bytes and back: what comes back has the same type and is equal.

Kept are ``None``, booleans, integers, floats, text, bytes, lists, tuples, dicts, sets, frozensets, Decimals,
datetimes, dates, times, timedeltas, UUIDs, and Enum members, dataclasses, named tuples and pydantic models made of
these. A subclass of a built-in type is refused, since it would come back as another type. Text may hold unpaired
surrogates.

The first byte names the format. ``j`` is JSON, for a value that JSON alone can carry: dicts with text names, lists,
text, integers, finite floats, booleans, ``None``. ``t`` is a tag, a length and bytes for each part. A new format is a
new first byte; the old ones stay readable for ever. ``s`` is the result of a step: a byte on where it was called, and
then a value in one of the other formats.

Of a class the bytes hold the name. Reading never imports a module and never calls what a name leads to: the class
must be there already, must be of the kind that the bytes say, and its object is made without its initialiser, from
its fields. So a dataclass or a model comes back with its fields, and with nothing else that was hung on it. A field
that was added to a dataclass since gets its default; a field that has gone is an error.

An aware datetime keeps a `timezone` or a `ZoneInfo`; another kind of zone comes back as its offset at that instant.

Bytes that were tampered with end in `UnsupportedRecord`: lengths are checked before anything is made, the depth is
counted, and the work is linear in the number of bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

from notwice.canonical_json import nesting_exceeds
from notwice.codec import classes
from notwice.errors import EncodingError, NotwiceError, UnsupportedRecord
from notwice.plain import SCALARS, is_plain, writer

DEPTH_MAX: Final = 128
ITEMS_MAX: Final = 1_000_000  # a value that holds itself in many places would be written out for ever

_STEP, _AT_HOME, _ASIDE = b"s", b"h", b"a"
_DIGITS_MAX = 600  # the lowest limit on reading integers that an interpreter can be given is 640
_LONG_DIGITS = re.compile(rf"[0-9]{{{_DIGITS_MAX}}}")
_SCALARS: Final[frozenset[type]] = SCALARS | {float}
_written = writer()
_DAMAGED = (
    "the stored value does not decode: it is damaged, or its class has changed; look the effect up where it happened"
)


def encode_value(value: object) -> bytes:
    """Give the bytes of a value, from which `decode_value` makes an equal value of the same type.

    Raises `EncodingError` if a part of it is of another kind than those above, if its class can't be found by its
    name, if it is nested deeper than `DEPTH_MAX`, holds itself, or has more than `ITEMS_MAX` items.
    """
    try:
        text = _written(value) if is_plain(value, _SCALARS, [ITEMS_MAX], depth=DEPTH_MAX) else ""
    except ValueError:  # an infinite float or NaN, or an integer of more digits than the interpreter writes
        text = ""
    if text and not (len(text) > _DIGITS_MAX and _LONG_DIGITS.search(text)):
        return b"j" + text.encode("utf-8", "surrogatepass")
    writer = _Writer()
    try:
        writer.write(value, 0)
    except RecursionError as error:
        raise EncodingError("the stack is too full to store a value; return it from a shallower call") from error
    return b"".join(writer.out)


def encode_step(value: object, *, at_home: bool) -> bytes:
    """Give the bytes of a step's result; `at_home`: whether the task or thread that runs the handler called the step.

    Raises what `encode_value` raises. `decode_value` gives the value back.
    """
    return _STEP + (_AT_HOME if at_home else _ASIDE) + encode_value(value)


def is_step_at_home(data: bytes) -> bool | None:
    """Whether a step was called by the task or thread that runs the handler; ``None``: this is no step's result."""
    return data[1:2] == _AT_HOME if data[:1] == _STEP else None


def decode_value(data: bytes) -> object:
    """Give the value that `encode_value` was given.

    Raises `UnsupportedRecord` if the bytes are damaged or of a newer format, and `EncodingError` if a class that they
    name is not there: the message says which module to import first. Nothing is imported or called for what they say.
    """
    reader = _FORMATS.get(data[:1])
    if reader is None:
        raise UnsupportedRecord("the stored value is of a format that this release does not know; upgrade this process")
    try:
        return reader(data)
    except NotwiceError:
        raise
    except Exception as error:  # a stored class's own methods may raise anything
        raise UnsupportedRecord(_DAMAGED) from error


# --- JSON -----------------------------------------------------------------------------------------------------------


def _refuse_constant(_name: str) -> object:
    raise UnsupportedRecord(_DAMAGED)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _from_json(data: bytes) -> object:
    if nesting_exceeds(data, DEPTH_MAX):
        raise UnsupportedRecord(_DAMAGED)
    text = data[1:].decode("utf-8", "surrogatepass")
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise UnsupportedRecord(_DAMAGED)
    return cast("object", value)


# --- tags -----------------------------------------------------------------------------------------------------------

_FLOAT = struct.Struct(">d")
_MICROSECOND = timedelta(microseconds=1)


class _Writer:
    """Writes a value as tagged parts. Each method writes one kind of value."""

    __slots__ = ("out", "room")

    def __init__(self) -> None:
        self.out: list[bytes] = [b"t"]
        self.room = ITEMS_MAX

    def write(self, value: object, depth: int) -> None:
        method = _WRITERS.get(type(value)) or _writer_for(value)
        method(self, value, depth)

    def frame(self, tag: bytes, payload: bytes) -> None:
        self.out += (tag, len(payload).to_bytes(4, "big"), payload)

    def text(self, tag: bytes, text: str) -> None:
        self.frame(tag, text.encode("utf-8", "surrogatepass"))

    def items(self, tag: bytes, items: Sequence[object], depth: int) -> None:
        self.room -= len(items) + 1
        if depth >= DEPTH_MAX or self.room < 0:
            raise EncodingError(
                f"a value is nested deeper than {DEPTH_MAX} levels, holds itself, or has more than {ITEMS_MAX} items; "
                "return the parts of it that are needed again"
            )
        self.out += (tag, len(items).to_bytes(4, "big"))
        for item in items:
            self.write(item, depth + 1)

    def integer(self, value: int, _depth: int) -> None:
        self.frame(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))

    def pairs(self, value: dict[object, object], depth: int) -> None:
        self.items(b"d", [part for pair in value.items() for part in pair], depth)

    def enum(self, value: Enum, depth: int) -> None:
        """Write a member by its name, a combination of flags by its number."""
        named = type(value).__members__.get(value.name) is value  # the name of a combination may be None
        if not named and not isinstance(value, Flag):
            raise EncodingError(
                f"a value of {type(value).__qualname__} is no member of that Enum; return one of its members"
            )
        self.items(b"E", [classes.name_of(type(value)), value.name if named else value.value], depth)

    def moment(self, tag: bytes, value: datetime | time, depth: int) -> None:
        wall = value.replace(tzinfo=None).isoformat()
        self.items(tag, [wall, value.fold, *_zone_parts(value)], depth)


def _zone_parts(value: datetime | time) -> list[object]:
    """Give a zone's name or ``None``, its offset in microseconds, and the offset's own name or ``None``."""
    zone, offset = value.tzinfo, value.utcoffset()
    if zone is None:
        return []
    shift = None if offset is None else offset // _MICROSECOND
    if isinstance(zone, ZoneInfo) and zone.key:
        return [zone.key, shift, None]
    if offset is None:
        kind = type(zone).__qualname__
        raise EncodingError(f"a zone of type {kind} gives no offset; return a datetime with a timezone or a ZoneInfo")
    name = zone.tzname(None) if isinstance(zone, timezone) else None
    return [None, shift, None if name == timezone(offset).tzname(None) else name]


def _zone(parts: Sequence[Any]) -> tzinfo | None:
    if not parts:
        return None
    key, shift, name = parts
    if key is not None:
        try:
            return ZoneInfo(key)
        except LookupError:  # this machine lacks the zone: its offset is the same instant
            name = None
    offset = timedelta(microseconds=shift)
    if name is not None:
        return timezone(offset, name)
    return timezone(offset)  # of no offset at all the one UTC


def _writer_for(value: object) -> _Write:
    """Find how to write an object of a class that is none of the built-in ones."""
    cls = type(value)
    for kind, write in _OBJECT_WRITERS:
        if kind(cls):
            return write
    raise classes.refusal_of(cls)


def _write_object(tag: bytes, state_of: Callable[[Any], object]) -> _Write:
    def write(writer: _Writer, value: object, depth: int) -> None:
        writer.items(tag, [classes.name_of(type(value)), state_of(value)], depth)

    return write


_Write = Callable[[_Writer, Any, int], None]
_WRITERS: dict[type, _Write] = {
    NoneType: lambda writer, _value, _depth: writer.out.append(b"N"),
    bool: lambda writer, value, _depth: writer.out.append(b"T" if value else b"F"),
    int: _Writer.integer,
    float: lambda writer, value, _depth: writer.frame(b"f", _FLOAT.pack(value)),
    str: lambda writer, value, _depth: writer.text(b"s", value),
    bytes: lambda writer, value, _depth: writer.frame(b"b", value),
    list: lambda writer, value, depth: writer.items(b"l", value, depth),
    tuple: lambda writer, value, depth: writer.items(b"t", value, depth),
    dict: _Writer.pairs,
    set: lambda writer, value, depth: writer.items(b"e", list(value), depth),
    frozenset: lambda writer, value, depth: writer.items(b"z", list(value), depth),
    Decimal: lambda writer, value, _depth: writer.text(b"D", str(value)),
    datetime: lambda writer, value, depth: writer.moment(b"M", value, depth),
    date: lambda writer, value, _depth: writer.text(b"A", value.isoformat()),
    time: lambda writer, value, depth: writer.moment(b"O", value, depth),
    timedelta: lambda writer, value, _depth: writer.text(b"P", str(value // _MICROSECOND)),
    UUID: lambda writer, value, _depth: writer.frame(b"U", value.bytes),
}
BUILT_IN: Final = frozenset(_WRITERS)
_OBJECT_WRITERS: list[tuple[Callable[[type], bool], _Write]] = [
    (classes.is_enum, _Writer.enum),
    (classes.is_stateful_model, _write_object(b"Y", classes.model_state)),
    (classes.is_record, _write_object(b"C", classes.record_fields)),
    (classes.is_named_tuple, _write_object(b"K", lambda value: dict(zip(value._fields, value, strict=True)))),
]


class _Reader:
    """Reads tagged parts. Every length is held against what is left before anything is made of it."""

    __slots__ = ("data", "place")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 1

    def whole(self) -> object:
        value = self.read(0)
        if self.place != len(self.data):
            raise UnsupportedRecord(_DAMAGED)
        return value

    def read(self, depth: int) -> Any:  # noqa: ANN401 - whatever was stored
        tag = self.take(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _FRAMES:
            return _FRAMES[tag](self.take(self.length()))
        if tag in _COMPOSITES:
            return _COMPOSITES[tag](self.items(depth))
        raise UnsupportedRecord("the stored value has a part that this release does not know; upgrade this process")

    def take(self, size: int) -> bytes:
        piece = self.data[self.place : self.place + size]
        if len(piece) != size:
            raise UnsupportedRecord(_DAMAGED)
        self.place += size
        return piece

    def length(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def items(self, depth: int) -> list[Any]:
        count = self.length()
        if depth >= DEPTH_MAX or count > len(self.data) - self.place:
            raise UnsupportedRecord(_DAMAGED)
        return [self.read(depth + 1) for _ in range(count)]


def _text(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


def _dict(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _member(items: list[Any]) -> object:
    name, member = items
    cls = classes.class_named(name, classes.is_enum)
    return cls(member) if type(member) is int and issubclass(cls, Flag) else cls.__members__[member]


def _object(kind: Callable[[type], bool], make: Callable[[type[Any], Any], object]) -> Callable[[list[Any]], object]:
    def read(items: list[Any]) -> object:
        name, state = items
        return make(classes.class_named(name, kind), state)

    return read


_CONSTANTS: dict[bytes, object] = {b"N": None, b"T": True, b"F": False}
_FRAMES: dict[bytes, Callable[[bytes], object]] = {
    b"i": lambda payload: int.from_bytes(payload, "big", signed=True),
    b"f": lambda payload: _FLOAT.unpack(payload)[0],
    b"s": _text,
    b"b": bytes,
    b"D": lambda payload: Decimal(_text(payload)),
    b"A": lambda payload: date.fromisoformat(_text(payload)),
    b"P": lambda payload: timedelta(microseconds=int(payload)),
    b"U": lambda payload: UUID(bytes=payload),
}
_COMPOSITES: dict[bytes, Callable[[list[Any]], object]] = {
    b"l": list,
    b"t": tuple,
    b"d": _dict,
    b"e": set,
    b"z": frozenset,
    b"M": lambda items: datetime.fromisoformat(items[0]).replace(fold=items[1], tzinfo=_zone(items[2:])),
    b"O": lambda items: time.fromisoformat(items[0]).replace(fold=items[1], tzinfo=_zone(items[2:])),
    b"E": _member,
    b"C": _object(classes.is_record, classes.record_of),
    b"K": _object(classes.is_named_tuple, classes.named_tuple_of),
    b"Y": _object(classes.is_stateful_model, classes.model_of),
}


def _from_step(data: bytes) -> object:
    if data[1:2] not in {_AT_HOME, _ASIDE} or data[2:3] == _STEP:
        raise UnsupportedRecord(_DAMAGED)
    return decode_value(data[2:])


_FORMATS: dict[bytes, Callable[[bytes], object]] = {
    b"j": _from_json,
    b"t": lambda data: _Reader(data).whole(),
    _STEP: _from_step,
}
