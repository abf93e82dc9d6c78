"""Records as strings under keys: what is sent for an operation, and what is found.

A key holds nothing that a client chose: it is a digest of namespace and id. The string begins with a header that the
script writes and reads, then come namespace and id, so that a record that can't be decoded can still be named, and the
bytes of `notwice.codec`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, cast

import hiredis

from notwice.codec import decode_record, encode_record
from notwice.model import Get, Insert, Op, Record, RecordView, Reply, Unreadable
from notwice.stores.redis.script import FORMAT, MOVE_NAME, SHARDS
from notwice.stores.shared import Name, Place, name_of, reply_of, stamped

Command = tuple[bytes | str | int, ...]
"""One command with its arguments, as it is sent."""

DIGEST_CHARACTERS: Final = 32
EXPIRES_AFTER_MAX_MS: Final = 100 * 366 * 24 * 3_600_000
"""Servers can't count beyond 2**63; a record that is kept for a century is kept for ever."""

_HEADER: Final = struct.Struct(">BQQ16sB")
PEEK_BYTES: Final = 1_024
"""So many bytes of a string hold its names, unless somebody's namespace is very long."""

_packed = cast("Callable[[Command], bytes]", hiredis.pack_command)  # it takes tuples of any length

_NOTHING = b""
_OF_A_NEWER_RELEASE = b"\xff"


class Keys:
    """The keys of one store: all begin with its prefix, and those of one shard lie in one slot."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.shards = tuple(f"{number:02x}" for number in range(SHARDS))
        self._open = {shard: f"{prefix}{{{shard}}}open" for shard in self.shards}

    @property
    def pattern(self) -> str:
        """What fits the keys of records and no others."""
        return f"{self._prefix}{{??}}{'?' * (DIGEST_CHARACTERS - 2)}"

    def shard_of(self, name: Name) -> str:
        """The shard of a record."""
        return _digest(name)[:2]

    def of(self, name: Name) -> tuple[str, str, str]:
        """The shard of a record, its key, and the key of the shard's open records."""
        digest = _digest(name)
        shard = digest[:2]
        return shard, f"{self._prefix}{{{shard}}}{digest[2:]}", self._open[shard]

    def open_of(self, shard: str) -> str:
        """The key of a shard's open records."""
        return self._open[shard]


class Kept(NamedTuple):
    """One string, taken apart; what it says of the record is not decoded yet."""

    written_ms: int
    created_ms: int
    etag: bytes
    name: Name
    record: bytes

    @property
    def place(self) -> Place:
        """Where it stands in a scan."""
        return self.created_ms, *self.name

    def decoded(self) -> Record | Unreadable:
        """The record, or why it can't be read."""
        record = decode_record(self.record, *self.name)
        if isinstance(record, Record) and record.etag != self.etag:
            return decode_record(_NOTHING, *self.name)
        return record if isinstance(record, Unreadable) else stamped(record, self.created_ms)

    def item(self, now_ms: int) -> RecordView | Unreadable:
        """What a scan gives."""
        record = self.decoded()
        if isinstance(record, Unreadable):
            return record
        return RecordView(record, self.written_ms, now_ms, max(0, now_ms - self.written_ms))


def kept(value: bytes) -> Kept | None:
    """Take a string apart, or the beginning of one; ``None`` if it is none of ours, or damaged."""
    if len(value) < _HEADER.size or value[0] != FORMAT:
        return None
    _, written_ms, created_ms, _, size = _HEADER.unpack_from(value)
    at = _HEADER.size + size
    try:
        namespace, at_id = _text(value, at)
        identifier, at_record = _text(value, at_id)
    except (struct.error, UnicodeDecodeError):
        return None
    return Kept(written_ms, created_ms, value[_HEADER.size : at], (namespace, identifier), value[at_record:])


def command_of(op: Op, key: str, open_key: str, *, written_ms: int = 0) -> Command:
    """The command that carries out `op`; a record of another store was written at `written_ms`."""
    if isinstance(op, Get):
        return "EVALSHA", MOVE_NAME, 2, key, open_key, "get"
    record = op.record
    after_ms = record.expires_after_ms
    expires = "" if after_ms is None or after_ms > EXPIRES_AFTER_MAX_MS else after_ms
    is_open = 0 if record.terminal or after_ms is not None else 1
    names = (_bytes(record.namespace), _bytes(record.id))
    rest = b"".join((bytes([len(record.etag)]), record.etag, *map(_framed, names), encode_record(record)))
    written = (rest, record.created_ms, expires, is_open, names[0] + b"\0" + names[1], written_ms)
    if isinstance(op, Insert):
        return "EVALSHA", MOVE_NAME, 2, key, open_key, "insert", *written
    return "EVALSHA", MOVE_NAME, 2, key, open_key, "swap", *written, op.expected_etag


def packed(commands: Iterable[Command]) -> bytes:
    """The bytes that are sent for commands."""
    return b"".join(map(_packed, commands))


def reply_to(op: Op, answer: list[Any]) -> Reply:
    """What the script's answer says."""
    won, now_ms, *rest = answer
    if won:
        assert not isinstance(op, Get)  # nothing is written for it
        return reply_of((True, stamped(op.record, now_ms), now_ms, now_ms, 0))
    if not rest or rest[0] is None:
        return reply_of((False, None, 0, now_ms, 0))
    found = kept(rest[0])
    if found is None or found.name != name_of(op):
        return reply_of((False, unreadable(rest[0], name_of(op)), 0, now_ms, 0))
    return reply_of((False, found.decoded(), found.written_ms, now_ms, max(0, now_ms - found.written_ms)))


def unreadable(value: bytes, name: Name) -> Unreadable:
    """What is given for a string that can't be taken apart."""
    newer = len(value) > _HEADER.size and value[0] > FORMAT
    found = decode_record(_OF_A_NEWER_RELEASE if newer else _NOTHING, *name)
    assert isinstance(found, Unreadable)
    return found


def peek_of(key: bytes) -> Command:
    """The command that gives the beginning of a string, enough to know its place."""
    return "GETRANGE", key, 0, PEEK_BYTES - 1


def index_member(place: Place) -> bytes:
    """The name of an open record in its shard's set; these sort as the places do."""
    created_ms, namespace, identifier = place
    return b"%016d%b\0%b" % (created_ms, _bytes(namespace), _bytes(identifier))


def place_in(member: bytes) -> Place | None:
    """The place of the record that a member of a shard's set stands for; ``None`` for a member that is none of ours."""
    namespace, _, identifier = member[16:].rpartition(b"\0")
    try:
        place = (
            int(member[:16]),
            namespace.decode("utf-8", "surrogatepass"),
            identifier.decode("utf-8", "surrogatepass"),
        )
    except ValueError:
        return None
    return place if index_member(place) == member else None


def _digest(name: Name) -> str:
    namespace, identifier = map(_bytes, name)
    return hashlib.sha256(_framed(namespace) + identifier).hexdigest()[:DIGEST_CHARACTERS]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _text(value: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">I", value, at)
    end = at + 4 + size
    if end > len(value):
        raise struct.error("it ends before its name does")
    return value[at + 4 : end].decode("utf-8", "surrogatepass"), end
