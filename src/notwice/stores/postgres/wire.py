"""Parameters and columns in PostgreSQL's binary format: the few types that the statements have.

The blocking face sends its statements through libpq with these, and without the driver's cursors: what those do for
any type in any order takes longer than the rest of a call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_BOOL, _BYTEA, _INT8, _INT4, _TEXT = 16, 17, 20, 23, 25
_NULL: Final = b"\xff\xff\xff\xff"

_pack_int8 = struct.Struct("!q").pack
_pack_array = struct.Struct("!iiIii").pack
_length_of = struct.Struct("!i").pack
_EIGHT = _length_of(8)


def encoded(value: Any) -> bytes | None:  # noqa: ANN401 - a parameter of any of the types
    """A parameter: text, bytes, a number of 64 bits, ``None``, or a list of one of them.

    A list without a value but ``None`` is one of bytes.
    """
    return _ENCODERS[type(value)](value)


def decoded_rows(columns: Sequence[int], values: Sequence[Sequence[bytes | None]]) -> list[tuple[Any, ...]]:
    """Rows of binary values, by the types of their columns."""
    decoders = [_DECODERS[column] for column in columns]
    return [
        tuple(None if value is None else decode(value) for decode, value in zip(decoders, row, strict=True))
        for row in values
    ]


def _encoded_list(values: list[Any]) -> bytes:
    kind = next((type(value) for value in values if value is not None), bytes)
    header = _pack_array(1 if values else 0, 1, _ELEMENTS[kind], len(values), 1)
    return (header if values else header[:12]) + b"".join(map(_LISTED[kind], values))


def _listed_int8(value: int) -> bytes:
    return _EIGHT + _pack_int8(value)


def _listed_text(value: str) -> bytes:
    data = value.encode()
    return _length_of(len(data)) + data


def _listed_bytes(value: bytes | None) -> bytes:
    return _NULL if value is None else _length_of(len(value)) + value


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_ENCODERS: Final[Mapping[type, Callable[[Any], bytes | None]]] = {
    str: str.encode,
    int: _pack_int8,
    bytes: lambda value: value,
    list: _encoded_list,
    type(None): lambda _: None,
}
_ELEMENTS: Final[Mapping[type, int]] = {str: _TEXT, int: _INT8, bytes: _BYTEA}
_LISTED: Final[Mapping[type, Callable[[Any], bytes]]] = {str: _listed_text, int: _listed_int8, bytes: _listed_bytes}
_DECODERS: Final[Mapping[int, Callable[[bytes], Any]]] = {
    _BOOL: lambda data: data == b"\x01",
    _BYTEA: lambda data: data,
    _INT8: _integer,
    _INT4: _integer,
    _TEXT: bytes.decode,
}
