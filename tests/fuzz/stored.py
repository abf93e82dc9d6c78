"""Targets: stored bytes. Whoever damaged or forged them, they decode, or the error that was promised says so."""

from __future__ import annotations

import json
import struct
from base64 import urlsafe_b64encode
from datetime import datetime, time
from enum import Enum
from typing import Any
from zlib import crc32

from notwice import canonical, codec, fingerprint
from notwice.codec import RECORD_FORMAT, records
from notwice.errors import EncodingError, UnsupportedRecord
from notwice.model import Get, Query, Record, RecordView, RecoveryKind, Result, State, Terms, Unreadable
from notwice.stores import shared, tables
from notwice.stores.clocks import Moment
from notwice.stores.dynamodb import items
from notwice.stores.jsonfile import contents, document, entries
from notwice.stores.redis import rows as redis_rows
from notwice.stores.redis import script
from notwice.stores.sqlite import rows as sqlite_rows
from tests.fuzz.target import Target, check_says, refused

NAME = ("n", "idem_00000000000000000000000000000000")
RECORD = Record(
    namespace=NAME[0],
    id=NAME[1],
    scope="refund:1",
    key="k",
    state=State.COMPLETED,
    etag=b"0123456789abcdef",
    fingerprint=None,
    terms=Terms(300_000, None, RecoveryKind.HOLD, None, None, 300_000, deduplicated=False),
    created_ms=1,
)
MOMENT = Moment(2_000, 2_000, 1_000, "this boot")


# --- values -----------------------------------------------------------------------------------------------------------


def shape(value: Any) -> object:
    """A value with its types, comparable where equality is not: NaN is itself, -0.0 is not 0.0, 1 is not 1.0."""
    match value:
        case float():
            return ("float", struct.pack(">d", value))
        case dict():
            return ("dict", [(shape(name), shape(item)) for name, item in value.items()])
        case list() | tuple():
            return (type(value).__qualname__, [shape(item) for item in value])
        case set() | frozenset():
            return (type(value).__qualname__, sorted(repr(shape(item)) for item in value))
        case datetime() | time():
            return (type(value), value.isoformat(), value.fold, repr(value.tzinfo))
        case Enum():
            return (type(value), value.name, shape(value.value))
        case _:
            return (type(value), repr(value))


def stored_value(data: bytes) -> None:
    """The bytes of a value: an error of ours, or a value that is written and read again as it is."""
    try:
        value = codec.decode_value(data)
    except (UnsupportedRecord, EncodingError) as error:
        check_says(error)
        return
    again = codec.decode_value(codec.encode_value(value))
    assert shape(again) == shape(value)
    if not refused(lambda: canonical.canonical_value(value), EncodingError):
        assert canonical.canonical_value(value) == canonical.canonical_value(again)
        assert fingerprint.fingerprint_value(value).recipe == fingerprint.VALUE
    refused(lambda: canonical.canonical_facts(value), EncodingError)


# --- records ----------------------------------------------------------------------------------------------------------


def sealed(head: bytes, blobs: bytes) -> bytes:
    """The bytes of a record with this head, their checksum right."""
    rest = len(head).to_bytes(4, "big") + head + blobs
    return bytes([RECORD_FORMAT]) + crc32(rest).to_bytes(4, "big") + rest


def _name_in(head: bytes) -> tuple[str, str]:
    try:
        namespace, identifier, *_ = json.loads(head)
    except (ValueError, TypeError, RecursionError):
        return NAME
    return (namespace, identifier) if isinstance(namespace, str) and isinstance(identifier, str) else NAME


def record_of(data: bytes) -> tuple[tuple[str, str], bytes]:
    """Take a head in the first line and blobs after it for a record with a right checksum, and the name that it says.

    What begins with a tilde is taken as it is, without the tilde.
    """
    if data.startswith(b"~"):
        return NAME, data[1:]
    head, _, blobs = data.partition(b"\n")
    return _name_in(head), sealed(head, blobs)


def check_record(found: Record | Unreadable, name: tuple[str, str]) -> None:
    """It is under its name, each field is of its type, and it is written and read again as it is."""
    assert (found.namespace, found.id) == name
    if isinstance(found, Unreadable):
        assert found.reason
        return
    assert isinstance(found.state, State)
    for number in (found.attempt, found.generation, found.created_ms, found.rerun_from_ms, found.pause_ms):
        assert type(number) is int
    assert all(isinstance(text, str) for text in (found.scope, found.key, found.recovery_point, found.error))
    assert isinstance(found.etag, bytes)
    assert isinstance(found.terms, Terms)
    assert found.result is None or isinstance(found.result, Result)
    assert records.decode_record(records.encode_record(found), *name) == found
    view = RecordView(found, 1, 2, 1)
    for judged in (view.lapsed, view.unresolved, view.answered, view.expired, found.terminal):
        assert isinstance(judged, bool)


def stored_record(data: bytes) -> None:
    """The bytes of a record: a record, or unreadable; nothing is ever raised."""
    name, encoded = record_of(data)
    check_record(records.decode_record(encoded, *name), name)
    other = records.decode_record(encoded, "another", name[1])
    assert isinstance(other, Unreadable) or name[0] == "another"


# --- engines ----------------------------------------------------------------------------------------------------------


def sqlite_row(data: bytes) -> None:
    """A row of SQLite: a record only under its own checksum."""
    name, encoded = record_of(data)
    row = sqlite_rows.Row(b"etag", 1, 1, 1, "this boot", crc32(encoded), encoded)
    check_record(row.decoded(name), name)
    check_record(row._replace(record=encoded.decode("latin-1")).decoded(name), name)
    assert isinstance(row._replace(checksum=row.checksum ^ 1).decoded(name), Unreadable)
    assert row.reply(name, MOMENT).age_ms == 999
    assert sqlite_rows.is_readable(*name, encoded) == isinstance(row.decoded(name), Record)
    item = row.item(name, MOMENT)
    assert isinstance(item, Unreadable) or item.age_ms == 999


def sql_row(data: bytes) -> None:
    """A row of a server with tables: on a page it is a view or unreadable."""
    name, encoded = record_of(data)
    names = (name[1], name[0]) if b"\\u" in data else tuple(text.encode() for text in reversed(name))
    page = tables.page_of([(*names, 2_000, 1, 1_000, encoded), (*names, 0, 1, 1_000, None)], Query(limit=1))
    (item,) = page.items
    check_record(item.record if isinstance(item, RecordView) else item, name)
    assert page.cursor
    assert shared.place_after(page.cursor) == (1, *name)
    check_record(tables.decoded(name, encoded, None), name)


def redis_string(data: bytes) -> None:
    """A string of Redis: taken apart or not, a look-up gives an answer, and never another's record.

    What begins with a tilde is the string. Else it is a record's, in a whole string.
    """
    name, encoded = record_of(data)
    if data.startswith(b"~"):
        value = data[1:]
    else:
        found = records.decode_record(encoded, *name)
        etag = found.etag[:255] if isinstance(found, Record) else b"0123456789abcdef"
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in _encoded(name))
        value = struct.pack(">BQQ", script.FORMAT, 3, 2) + bytes(16) + bytes([len(etag)]) + etag + framed + encoded
        assert redis_rows.kept(value) is not None
    kept = redis_rows.kept(value)
    if kept is not None:
        check_record(kept.decoded(), kept.name)
        item = kept.item(5)
        assert isinstance(item, Unreadable) or item.age_ms >= 0
    reply = redis_rows.reply_to(Get(*name), [0, 5, value])
    assert not reply.won
    assert reply.record is not None
    check_record(reply.record, name)
    check_record(redis_rows.unreadable(value, name), name)


def _encoded(name: tuple[str, str]) -> list[bytes]:
    return [text.encode("utf-8", "surrogatepass") for text in name]


def redis_member(data: bytes) -> None:
    """A member of the set of open records: its place, which gives the same member; or it is passed over."""
    place = redis_rows.place_in(data)
    if place is not None:
        assert redis_rows.index_member(place) == data


def dynamodb_item(data: bytes) -> None:
    """An item of DynamoDB: unreadable at worst. A JSON object of attributes, bytes as text, beside a record."""
    first, _, rest = data.partition(b"\n")
    name, encoded = record_of(rest)
    item: dict[str, Any] = {**items.key_of(name), "record": {"B": encoded}, "etag": {"B": b"0123456789abcdef"}}
    item |= {"namespace": {"S": name[0]}, "id": {"S": name[1]}, "written_ms": {"N": "3"}, "created_ms": {"N": "2"}}
    try:
        given = json.loads(first)
    except (ValueError, RecursionError):
        given = {}
    item |= given if isinstance(given, dict) else {}
    kept = items.Kept.of(item, name)
    check_record(kept.record, name)
    named = items.name_in(item)
    if named is not None:
        place = items.place_in(item, named)
        assert place[1:] == named
        assert len(items.place_bytes(place)) <= items.PLACE_BYTES_MAX


def json_file(data: bytes) -> None:
    """The JSON file: refused with a reason as a whole, or each entry is kept as it is written, readable or not."""
    try:
        found = document.parse(data)
    except ValueError as error:
        check_says(error)
        return
    reading = entries.Reading("n", None)
    read = [(member.name, entries.read(member, reading)) for member in found.entries]
    kept = contents.Contents(read)
    for member, (_, entry) in zip(found.entries, read, strict=True):
        assert entry.text == member.text
        check_record(entry.found, (entry.found.namespace, entry.found.id))
        entries.outlived(entry)
    for _place, entry in kept.listed():
        assert entry.listed
    kept.leaving()
    kept.expired(MOMENT.now_ms, 10)
    again = document.parse(document.write([(member.name, member.text) for member in found.entries], found.others))
    assert again == document.Document(list(found.entries), list(found.others)) or not found.entries


def json_entry(data: bytes) -> None:
    """A record as an entry of the JSON file is read as that record, and as another's by nobody."""
    name, encoded = record_of(data)
    record = records.decode_record(encoded, *name)
    if isinstance(record, Unreadable) or not (0 <= record.created_ms < 253_402_300_800_000):
        return
    entry = entries.written(record, MOMENT)
    member = document.Member(entries.name_in_document(record.scope, record.key), entry.text, json.loads(entry.text))
    read = entries.read(member, entries.Reading("other", None))
    unnamed = refused(member.name.encode, UnicodeEncodeError)
    assert read.found == record or (unnamed and isinstance(read.found, Unreadable))


def cursor(data: bytes) -> None:
    """A cursor of a scan: the place that it was made of, or `ValueError`. After a tilde it is taken as it is."""
    text = data[1:].decode("utf-8", "surrogateescape") if data.startswith(b"~") else urlsafe_b64encode(data).decode()
    if refused(lambda: shared.place_after(text), ValueError):
        return
    place = shared.place_after(text)
    assert list(map(type, place)) == [int, str, str]
    assert -(2**63) <= place[0] < 2**63  # no engine counts further
    assert shared.place_after(shared.cursor_after(place)) == place


TARGETS = (
    Target("stored_value", stored_value),
    Target("stored_record", stored_record, bytes_max=1024),
    Target("sqlite_row", sqlite_row, bytes_max=1024),
    Target("sql_row", sql_row, bytes_max=1024),
    Target("redis_string", redis_string, bytes_max=1024),
    Target("redis_member", redis_member),
    Target("dynamodb_item", dynamodb_item, bytes_max=1024),
    Target("json_file", json_file, bytes_max=1024),
    Target("json_entry", json_entry, bytes_max=1024),
    Target("cursor", cursor),
)
