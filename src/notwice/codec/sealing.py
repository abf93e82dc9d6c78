"""What is private in a record, as one box: compressed, encrypted, or both.

A record is sealed by writing it whole into its own ``sealed`` field, and by emptying the fields of `PRIVATE`. What
stores look at (names, state, etag, terms, times, the audit trail) stays in the open, and it stands in the box as well:
who opens the box compares the two, so nothing in the open can be changed without the keys and go unnoticed.

::

    "c" content                           compressed only
    "e" length, key id, sealed content    encrypted: what `Cipher.encrypt` gave

    content:  0, record                   the bytes of `notwice.codec.records`
              1, length, deflated record  the same by RFC 1950, if that is smaller; 4 bytes of length

The bytes that are encrypted are bound to the namespace and the operation id, by the associated data of the cipher: a
box that is moved to another record does not open. A reader that meets a first byte that it does not know refuses.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final, NoReturn, Protocol

from notwice.codec.records import decode_record, encode_record
from notwice.model import Record, Unreadable

PRIVATE: Final = ("progress", "recovery_point", "result", "error", "request")
"""The fields that a box stands for. Any field of a record that has a default may be one."""

INFLATED_BYTES_MAX: Final = 64 * 2**20
"""A larger record is not compressed, and a box that claims to be larger is not opened: none may fill the memory."""

_EMPTY: Final[dict[str, Any]] = {name: Record._field_defaults[name] for name in PRIVATE}
_NOTHING: Final = tuple(_EMPTY.values())
_private: Final[Callable[[Record], tuple[object, ...]]] = attrgetter(*PRIVATE)
_COMPRESSED, _ENCRYPTED = b"c", b"e"
_NEWER = "it was sealed by a newer release; upgrade this process"
_DAMAGED = (
    "it does not open: it is damaged, was moved from another record, or its key is another one than the one it was "
    "sealed with; look the effect up where it happened"
)


class Cipher(Protocol):
    """One key, and what it encrypts with."""

    @property
    def name(self) -> str:
        """The key's id, which stands in the open: 1 to 40 characters of ASCII."""
        ...

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        """Give `content` encrypted and authenticated, together with `bound`, which is not part of what it gives."""
        ...

    def decrypt(self, sealed: bytes, bound: bytes) -> bytes:
        """Give what was encrypted. Raises `ValueError` if `sealed` or `bound` is not what it was."""
        ...


def seal(record: Record, cipher: Cipher | None, *, compress_above_bytes: int | None) -> Record:
    """Give the record with what is private in it in a box; as it is, if nothing is, or if it stays in the open.

    With a `cipher` it is encrypted, whatever its size. A record that is longer than `compress_above_bytes` is
    compressed before, if that makes it smaller; ``None``: never.
    """
    if _private(record) == _NOTHING or not (cipher or compress_above_bytes is not None):
        return record
    whole = encode_record(record)
    compresses = compress_above_bytes is not None and len(whole) > compress_above_bytes
    content = _deflated(whole) if compresses else b"\0" + whole
    if cipher is not None:
        name = cipher.name.encode("ascii")
        box = _ENCRYPTED + bytes([len(name)]) + name + cipher.encrypt(content, _bound(record, name))
    elif content[0]:
        box = _COMPRESSED + content
    else:
        return record
    return record._replace(**_EMPTY, sealed=box)


def unseal(record: Record, ciphers: Mapping[str, Cipher]) -> Record | Unreadable:
    """Give the record with its box opened; still sealed if its key is not among `ciphers`.

    `Unreadable` if the box does not open, if what it holds is not this very record, or if it is of a newer release.
    """
    box = record.sealed
    if not box:
        return record
    try:
        if box[:1] == _COMPRESSED:
            content = box[1:]
        elif box[:1] == _ENCRYPTED:
            name, sealed = _named(box)
            if name not in ciphers:
                return record
            content = ciphers[name].decrypt(sealed, _bound(record, name.encode("ascii")))
        else:
            return Unreadable(record.namespace, record.id, _NEWER)
        found = decode_record(_inflated(content), record.namespace, record.id)
    except (ValueError, IndexError, zlib.error):
        return Unreadable(record.namespace, record.id, _DAMAGED)
    if isinstance(found, Unreadable):
        return found
    found = found._replace(created_ms=record.created_ms)  # the store stamps it on what was sealed
    point = record.recovery_point  # earlier boxes left it in the open, too
    same = found._replace(**{**_EMPTY, "recovery_point": point}, sealed=box) == record
    same = same and point in ("", found.recovery_point)
    return found if same else Unreadable(record.namespace, record.id, _DAMAGED)


def closed_reason(record: Record) -> str:
    """Why a record that is still sealed can't be judged."""
    try:
        key = f"with the key {_named(record.sealed)[0]!r}" if record.sealed[:1] == _ENCRYPTED else "by compression"
    except (ValueError, IndexError):
        return _DAMAGED
    return f"it is sealed {key}, and this process was not given what opens it; see Privacy"


def _bound(record: Record, key: bytes) -> bytes:
    """What a box is bound to; each part has its length, so that no two lists of parts are alike."""
    parts = (key, record.namespace.encode("utf-8", "surrogatepass"), record.id.encode("utf-8", "surrogatepass"))
    return b"notwice sealed record 1;" + b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _named(box: bytes) -> tuple[str, bytes]:
    """The id of the key that a box was sealed with, and what was sealed."""
    size = box[1]
    name, sealed = box[2 : 2 + size], box[2 + size :]
    if not name or not sealed:
        _refuse()
    return name.decode("ascii"), sealed


def _deflated(whole: bytes) -> bytes:
    if len(whole) <= INFLATED_BYTES_MAX:
        deflated = zlib.compress(whole)
        if len(deflated) + 4 < len(whole):
            return b"\1" + len(whole).to_bytes(4, "big") + deflated
    return b"\0" + whole


def _inflated(content: bytes) -> bytes:
    """Undo `_deflated`. No more is made of the bytes than they say at their start, and no more than is allowed."""
    if content[0] == 0:
        return content[1:]
    size = int.from_bytes(content[1:5], "big")
    if content[0] != 1 or size > INFLATED_BYTES_MAX:
        _refuse()
    machine = zlib.decompressobj()
    whole = machine.decompress(content[5:], size + 1)
    if len(whole) != size or not machine.eof or machine.unused_data:
        _refuse()
    return whole


def _refuse() -> NoReturn:
    raise ValueError(_DAMAGED)
