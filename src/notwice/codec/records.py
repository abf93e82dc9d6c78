"""Records as bytes: the durable format of every store that keeps a record whole.

::

    1 byte   RECORD_FORMAT
    4 bytes  CRC-32 of all that follows
    4 bytes  length of the head
    head     JSON in ASCII: what every record has as an array, and by name whatever differs from its default
    blobs    the data of the progress, the result's body, what is sealed and the request, as the head names them

A later release may add fields: a field that is not there has its default, so older records stay readable, and no new
format is needed. The other way round a reader that meets a name it does not know gives `Unreadable`: were the field
ignored, the next swap would drop it. So would a reader that guesses at damage; hence the checksum.

The etag and the fingerprint's digest stand in the head in hexadecimal. Text may hold anything, unpaired surrogates too.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress, product
from operator import ne
from types import NoneType
from typing import Any, Final
from zlib import crc32

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
    make_record,
    maker,
)
from notwice.plain import writer

RECORD_FORMAT: Final = 1

_FIRST = bytes([RECORD_FORMAT])
_HEAD_AT = 9
_written = writer(ascii_only=True)
_quoted = json.encoder.encode_basestring_ascii
_DECODER = json.JSONDecoder()
_BASE: Final = 11  # so many fields stand in the array; the rest is named, if it differs from these defaults
_NAMES: Final = Record._fields[_BASE:]
_DEFAULT_OF: Final = {name: Record._field_defaults[name] for name in _NAMES}
_DEFAULTS: Final = tuple(_DEFAULT_OF.values())
_NEWER = "it was written by a newer release; upgrade this process"
_DAMAGED = "it is damaged; look the effect up where it happened"


def encode_record(record: Record) -> bytes:
    """Give the bytes of a record, from which `decode_record` makes an equal one."""
    blobs: list[bytes] = []
    named = "{}" if record[_BASE:] == _DEFAULTS else _written(_named(record, blobs))
    namespace, operation, scope, key, state, etag, fingerprint, terms, attempt, generation, created_ms = record[:_BASE]
    names = f"{_quoted(namespace)},{_quoted(operation)},{_quoted(scope)},{_quoted(key)}"
    claim = f'"{state._value_}","{etag.hex()}",{_digest(fingerprint)},{_terms_written(terms)}'
    head = f"[{names},{claim},{attempt},{generation},{created_ms},{named}]".encode()
    rest = b"".join((len(head).to_bytes(4, "big"), head, *blobs))
    return _FIRST + crc32(rest).to_bytes(4, "big") + rest


def decode_record(data: bytes, namespace: str, operation: str) -> Record | Unreadable:
    """Give the record that a store keeps under a namespace and an operation id; `Unreadable` if it can't be decoded.

    Never raises: damaged bytes, a newer format, a field that is not known and a record of another operation are all
    `Unreadable`, with the reason.
    """
    if data[:1] != _FIRST:
        return Unreadable(namespace, operation, _NEWER if data else _DAMAGED)
    if crc32(data[5:]) != int.from_bytes(data[1:5], "big"):
        return Unreadable(namespace, operation, _DAMAGED)
    try:
        record = _read(data)
    except _NewerField:
        return Unreadable(namespace, operation, _NEWER)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return Unreadable(namespace, operation, _DAMAGED)
    if record.namespace != namespace or record.id != operation:
        return Unreadable(namespace, operation, _DAMAGED)
    return record


class _NewerField(Exception):
    """The record has a field that this release does not know."""


# --- writing ----------------------------------------------------------------------------------------------------------


def _digest(fingerprint: Fingerprint | None) -> str:
    return f'[{_quoted(fingerprint.recipe)},"{fingerprint.digest.hex()}"]' if fingerprint else "null"


@lru_cache(maxsize=64)
def _terms_written(terms: Terms) -> str:
    return _written(terms)


def _named(record: Record, blobs: list[bytes]) -> dict[str, object]:
    """Give the fields that differ from their defaults; bytes in them go to `blobs`."""
    rest = record[_BASE:]
    differing = compress(zip(_NAMES, rest, strict=True), map(ne, rest, _DEFAULTS))
    return {name: _PARTED[name](value, blobs) if name in _PARTED else value for name, value in differing}


def _part_progress(progress: Sequence[tuple[str, bytes]], blobs: list[bytes]) -> object:
    blobs += [data for _, data in progress]
    return [(point, len(data)) for point, data in progress]


def _part_result(result: Result, blobs: list[bytes]) -> object:
    if result.body is not None:
        blobs.append(result.body)
    return result.kind, None if result.body is None else len(result.body), result.status, result.headers


def _part_bytes(data: bytes, blobs: list[bytes]) -> object:
    blobs.append(data)
    return len(data)


_PARTED: dict[str, Callable[[Any, list[bytes]], object]] = {
    "progress": _part_progress,
    "result": _part_result,
    "sealed": _part_bytes,
    "request": _part_bytes,
}


class _Blobs:
    """Takes the blobs off the bytes in their order."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.place = start

    def take(self, size: int) -> bytes:
        start, self.place = self.place, self.place + _typed(size, int)
        if size < 0 or self.place > len(self.data):
            raise ValueError("a blob ends after the bytes")
        return self.data[start : self.place]


# --- reading ----------------------------------------------------------------------------------------------------------


def _read(data: bytes) -> Record:
    blobs = _Blobs(data, _HEAD_AT + int.from_bytes(data[5:_HEAD_AT], "big"))
    head = data[_HEAD_AT : blobs.place].decode("ascii")
    (*base, named), end = _DECODER.raw_decode(head)
    if tuple(map(type, base)) not in _BASE_SHAPES or type(named) is not dict or end != len(head):
        raise TypeError("the head has other parts")
    namespace, operation, scope, key, state, etag, fingerprint, terms, *counts = base
    fields = {name: _reader(name)(value, blobs) for name, value in named.items()}
    if blobs.place != len(data):
        raise ValueError("bytes follow the record")
    state, etag = _STATES[state], bytes.fromhex(etag)
    fingerprint = None if fingerprint is None else _fingerprint(*fingerprint)
    rest = {**_DEFAULT_OF, **fields}.values() if fields else _DEFAULTS
    return make_record((namespace, operation, scope, key, state, etag, fingerprint, _terms(terms), *counts, *rest))


def _reader(name: str) -> Callable[[Any, _Blobs], Any]:
    if name not in _READERS:
        raise _NewerField
    return _READERS[name]


def _typed(value: Any, *kinds: type) -> Any:  # noqa: ANN401 - the value that is given back
    if type(value) not in kinds:
        raise TypeError("a field is of another type")
    return value


def _fingerprint(recipe: object, digest: str) -> Fingerprint:
    return Fingerprint(_typed(recipe, str), bytes.fromhex(digest))


def _terms(parts: list[Any]) -> Terms:
    if tuple(map(type, parts)) not in _TERMS_SHAPES:
        raise TypeError("the terms have other parts")
    return _made_terms((*parts[:2], _RECOVERIES[parts[2]], *parts[3:]))


def _result(parts: Sequence[Any], blobs: _Blobs) -> Result:
    kind, size, status, headers = parts
    pairs = tuple((_typed(name, str), _typed(value, str)) for name, value in headers)
    return Result(_RESULTS[kind], None if size is None else blobs.take(size), _typed(status, int), pairs)


def _note(parts: list[Any]) -> Note:
    if list(map(type, parts)) != [str, int, str, str]:
        raise TypeError("a note has other parts")
    return Note(*parts)


def _of(*kinds: type) -> Callable[[Any, _Blobs], Any]:
    return lambda value, _blobs: _typed(value, *kinds)


_made_terms = maker(Terms)
_BASE_SHAPES = {(str,) * 6 + (fingerprint, list, int, int, int) for fingerprint in (list, NoneType)}
_TERMS_SHAPES = set(product([int], [int, NoneType], [str], [int, NoneType], [int, NoneType], [int], [bool], [bool]))
_STATES: dict[object, State] = {state.value: state for state in State}
_RECOVERIES: dict[object, RecoveryKind] = {kind.value: kind for kind in RecoveryKind}
_RESULTS: dict[object, ResultKind] = {kind.value: kind for kind in ResultKind}
_READERS: dict[str, Callable[[Any, _Blobs], Any]] = {
    "rerun_from_ms": _of(int),
    "rerun_from_attempt": _of(int),
    "pause_ms": _of(int),
    "silent_ms": _of(int, NoneType),
    "released": lambda value, _blobs: Released(value),
    "recovery_point": _of(str),
    "progress": lambda value, blobs: tuple((_typed(point, str), blobs.take(size)) for point, size in value),
    "result": _result,
    "error": _of(str),
    "audit": lambda value, _blobs: tuple(_note(note) for note in value),
    "sealed": lambda value, blobs: blobs.take(value),
    "request": lambda value, blobs: blobs.take(value),
}
