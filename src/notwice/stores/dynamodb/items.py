"""Records as items: what is written under which condition, and what is found.

An item lies under a digest of namespace and id, so nothing that a client chose is a key. It holds the bytes of
`notwice.codec`, and beside them what conditions, look-ups and the service's own expiry need.

Why a condition is enough: the service carries out a write of one item and its condition as one step, on the replica
that leads the item's partition, and answers once a majority has it on disk. A write whose condition does not hold gives
back, in the same answer, the item that the condition was judged by; that is no read that could be old.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from notwice.codec import decode_record, encode_record
from notwice.errors import RecordTooLarge
from notwice.model import IN_PROGRESS, Insert, Record, Swap, Unreadable
from notwice.stores.shared import FAR_MS, Name, Place, deadline_ms, stamped

Item = Mapping[str, Any]
"""An item as the driver gives and takes it: each attribute's name to its type and value."""

KEY: Final = "pk"
OPEN_INDEX: Final = "open"
"""The index that holds the records that are not finished, and no others, in the order of a scan."""
OPEN: Final = "open"
PLACE: Final = "place"
TTL: Final = "expires_at"

ABSENT: Final = "attribute_not_exists(#pk)"
SAME: Final = "#etag = :expected AND size(#record) = #record_bytes"
"""Exactly that etag, and not a record that was cut off: that one would be given as unreadable, and stays."""
SAME_AND_EXPIRED: Final = f"{SAME} AND #expires_ms < :now"

ITEM_BYTES_MAX: Final = 400 * 1024
"""The service takes no larger item; the names of its attributes count, too."""
RESERVE_BYTES: Final = 16 * 1024
"""So much smaller must a running operation's record be, for its end to fit: status, headers and error, if no body."""
NUMBER_BYTES: Final = 21
PLACE_BYTES_MAX: Final = 1_024

TTL_SLACK_S: Final = 3_600
"""The service drops by its own clock what was stamped by a writer's: so much later, lest a wrong clock lose answers."""
EXPIRES_AFTER_MAX_MS: Final = 100 * 366 * 24 * 3_600_000
"""What is kept for a century is kept for ever."""

_NOTHING: Final = b""


def key_of(name: Name) -> dict[str, Any]:
    """The key of a record's item."""
    return {KEY: {"S": _digest(name)}}


def names(*attributes: str) -> dict[str, str]:
    """The names in an expression, each behind a #, for many words are taken."""
    return {f"#{attribute}": attribute for attribute in attributes}


def write_of(op: Insert | Swap, written_ms: int) -> tuple[dict[str, Any], Record]:
    """The request of a write, and the record that it stores. Raises `RecordTooLarge`."""
    record = stamped(op.record, written_ms)
    request: dict[str, Any] = {
        "Item": item_of(record, written_ms),
        "ConditionExpression": ABSENT,
        "ExpressionAttributeNames": names(KEY),
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    if isinstance(op, Swap):
        request |= {
            "ConditionExpression": SAME,
            "ExpressionAttributeNames": names("etag", "record", "record_bytes"),
            "ExpressionAttributeValues": {":expected": {"B": op.expected_etag}},
        }
    return request, record


def item_of(record: Record, written_ms: int) -> Item:
    """A record's item. It replaces the one before as a whole, so each write sets or clears all there is."""
    encoded = encode_record(record)
    name = record.namespace, record.id
    item: dict[str, Any] = {
        **key_of(name),
        "namespace": {"S": record.namespace},
        "id": {"S": record.id},
        "scope": {"S": record.scope},
        "state": {"S": record.state.value},
        "etag": {"B": record.etag},
        "created_ms": _number(record.created_ms),
        "written_ms": _number(written_ms),
        "record": {"B": encoded},
        "record_bytes": _number(len(encoded)),
    }
    if not record.terminal:
        place = place_bytes((record.created_ms, *name))
        item |= {OPEN: {"S": item[KEY]["S"][0]}, PLACE: {"B": place}}
    due_ms = deadline_ms(record, written_ms)
    if due_ms is not None and due_ms - written_ms <= EXPIRES_AFTER_MAX_MS:
        item |= {"expires_ms": _number(due_ms), TTL: _number(due_ms // 1000 + 1 + TTL_SLACK_S)}
    _refuse_too_large(item, ITEM_BYTES_MAX - RESERVE_BYTES * (record.state is IN_PROGRESS))
    return item


class Kept(NamedTuple):
    """An item, taken apart."""

    name: Name
    written_ms: int
    record: Record | Unreadable

    @classmethod
    def of(cls, item: Item, name: Name) -> Kept:
        """Take an item apart; what is damaged is `Unreadable`."""
        try:
            etag, encoded = _bytes(item["etag"]), _bytes(item["record"])
            written_ms = int(item["written_ms"]["N"])
        except (LookupError, TypeError, ValueError):
            return cls(name, 0, decode_record(_NOTHING, *name))
        record = decode_record(encoded, *name)
        if isinstance(record, Record) and record.etag != etag:
            record = decode_record(_NOTHING, *name)
        return cls(name, written_ms, record)


def name_in(item: Item) -> Name | None:
    """Whose item it is; ``None`` if it is none of ours."""
    try:
        name = str(item["namespace"]["S"]), str(item["id"]["S"])
    except (LookupError, TypeError):
        return None
    return name if item.get(KEY) == key_of(name)[KEY] else None


def place_in(item: Item, name: Name) -> Place:
    """Where an item stands in a scan. One whose time is damaged stands first, where a person sees it."""
    try:
        created_ms = int(item["created_ms"]["N"])
    except (LookupError, TypeError, ValueError):
        created_ms = 0
    return created_ms if 0 <= created_ms <= FAR_MS else 0, *name


def place_bytes(place: Place) -> bytes:
    """A place as a key of the index; these sort as the places do.

    Long namespaces of a far alphabet don't fit. They are cut, and a digest stands in for the rest: pages still give
    each record once.
    """
    created_ms, namespace, identifier = place
    made = created_ms.to_bytes(8, "big") + namespace.encode() + b"\0" + identifier.encode()
    if len(made) <= PLACE_BYTES_MAX:
        return made
    digest = _digest((namespace, identifier)).encode()
    return made[: PLACE_BYTES_MAX - len(digest)] + digest


def _digest(name: Name) -> str:
    namespace, identifier = (text.encode("utf-8", "surrogatepass") for text in name)
    return hashlib.sha256(len(namespace).to_bytes(4, "big") + namespace + identifier).hexdigest()


def _number(value: int) -> dict[str, str]:
    return {"N": str(value)}


def _bytes(value: Mapping[str, Any]) -> bytes:
    return bytes(value["B"])


def _refuse_too_large(item: Item, bytes_max: int) -> None:
    size = sum(len(name) + _size(value) for name, value in item.items())
    if size > bytes_max:
        raise RecordTooLarge(
            f"a record of {size} bytes can't be kept: an item may have {bytes_max}. Nothing was done; keep a smaller "
            "result, or a reference to it"
        )


def _size(value: Mapping[str, Any]) -> int:
    ((kind, held),) = value.items()
    return NUMBER_BYTES if kind == "N" else len(held.encode()) if kind == "S" else len(held)
