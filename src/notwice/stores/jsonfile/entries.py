"""Entries of the document, read as records and written from them.

::

    "refund:ord_1:key-1": {
        "created_at_unix_nano": …, "updated_at_unix_nano": …, "req_hash_hex": "…",
        "state": "accepted" | "in_progress" | "completed" | "failed", "status": 200, "body_base64": "…",
        "notwice": {"format": 1, "namespace", "scope", "key", "operation", "boot_ms", "boot_id", "record_base64"}
    }

The older cache writes and reads the first six members. Entries of ours have the seventh, which holds the record whole;
the six are made of it, so that the older cache finds the state, the answer and the hash. If they say something else
than the record, a program that does not know the seventh has moved the operation on, and they count.

An entry's name is ``scope + ":" + key``. It is never taken apart to guess which scope and key that was: of all that may
have been meant, the one counts whose operation id is asked for (`meanings`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, cast

from notwice.codec import decode_record, encode_record
from notwice.fingerprint import BODY_SHA256
from notwice.identity import KEY_CHARACTERS_MAX, SCOPE_CHARACTERS_MAX, operation_id
from notwice.model import Fingerprint, Record, RecoveryKind, Result, ResultKind, State, Terms, Unreadable
from notwice.stores.clocks import Moment
from notwice.stores.jsonfile.document import Member
from notwice.stores.shared import deadline_ms

FORMAT: Final = 1
"""Of our member. A higher one was written by a newer release."""

OURS: Final = "notwice"
EARLIER: Final = "earlier"
"""The boot of an entry whose writer is gone: no boot has this name, so no lease of it goes on."""

_NANOS: Final = 1_000_000
_NANOS_MAX: Final = 253_402_300_800 * 10**9  # the year 10000: a later time is none
_STATUSES: Final = range(100, 1000)
_ETAG_BYTES: Final = 16
_LEASE_MS: Final = 300_000
_DAMAGED: Final = "its entry is damaged; look the effect up where it happened"
_NEWER: Final = "its entry was written by a newer release; upgrade this process"


class Meaning(NamedTuple):
    """A scope and a key that an entry's name may stand for, with their operation id."""

    scope: str
    key: str
    operation: str


class Entry(NamedTuple):
    """One entry. ``owned``: it carries namespace, scope and key, else they come from whoever asks for it."""

    text: str
    found: Record | Unreadable
    owned: bool
    created_ms: int = 0
    written_ms: int = 0
    boot_ms: int = 0
    boot_id: str = EARLIER

    @property
    def expires_ms(self) -> int | None:
        """The wall time after which it may leave; ``None``: never."""
        return deadline_ms(self.found, self.written_ms) if isinstance(self.found, Record) else None

    @property
    def listed(self) -> bool:
        """Whether a scan gives it: whose it is must be known for that."""
        return self.owned or isinstance(self.found, Record)


class Reading(NamedTuple):
    """How entries of the older cache are read: whose they are, and how long the finished ones are kept."""

    namespace: str
    retention_ms: int | None


def name_in_document(scope: str, key: str) -> str:
    """The name of an entry."""
    return f"{scope}:{key}"


def meanings(name: str) -> Iterator[Meaning]:
    """All scopes and keys that give this name and that a request may have."""
    at = -1
    while (at := name.find(":", at + 1)) >= 0:
        scope, key = name[:at], name[at + 1 :]
        if 0 < len(scope) <= SCOPE_CHARACTERS_MAX and 0 < len(key) <= KEY_CHARACTERS_MAX:
            yield Meaning(scope, key, operation_id(scope, key))


def read(member: Member, reading: Reading) -> Entry:
    """Read an entry. Never fails: what can't be decoded is kept as it is written, and is `Unreadable`."""
    plain = cast("Mapping[str, object]", member.value)
    try:
        member.name.encode()  # no request has a name with unpaired surrogates
        ours = _of_ours(member, plain) if OURS in plain else None
        return ours or _of_the_older_cache(member, plain, reading)
    except (ValueError, TypeError, LookupError, AttributeError):
        return Entry(member.text, Unreadable("", "", _DAMAGED), owned=False)


def written(record: Record, moment: Moment) -> Entry:
    """The entry of a record that is written at `moment`."""
    document = {
        **_plain(record),
        "updated_at_unix_nano": moment.stamp_ms * _NANOS,
        OURS: {
            "format": FORMAT,
            "namespace": record.namespace,
            "scope": record.scope,
            "key": record.key,
            "operation": record.id,
            "boot_ms": moment.boot_ms,
            "boot_id": moment.boot_id,
            "record_base64": base64.b64encode(encode_record(record)).decode(),
        },
    }
    text = json.dumps(document, separators=(",", ":"))
    return Entry(text, record, True, record.created_ms, moment.stamp_ms, boot_ms=moment.boot_ms, boot_id=moment.boot_id)


def outlived(entry: Entry) -> Entry:
    """The entry as a process finds it that opens the file when nobody else has it open: no owner is at work."""
    at_work = isinstance(entry.found, Record) and entry.found.state is State.IN_PROGRESS
    return entry._replace(boot_id=EARLIER) if at_work or not entry.boot_id else entry


def _of_ours(member: Member, plain: Mapping[str, object]) -> Entry | None:
    """An entry with our member; ``None`` if another program has written it since."""
    ours: Any = plain[OURS]
    if not isinstance(ours["format"], int) or ours["format"] < FORMAT:
        raise ValueError(_DAMAGED)
    namespace, scope, key, operation = (_text(ours, part) for part in ("namespace", "scope", "key", "operation"))
    if member.name != name_in_document(scope, key):
        raise ValueError(_DAMAGED)
    times = _times(plain)
    if ours["format"] > FORMAT:
        return Entry(member.text, Unreadable(namespace, operation, _NEWER), True, *times)
    try:
        found = decode_record(_bytes(ours, "record_base64"), namespace, operation)
    except ValueError:
        found = Unreadable(namespace, operation, _DAMAGED)
    if isinstance(found, Record):
        if (found.scope, found.key) != (scope, key):
            found = Unreadable(namespace, operation, _DAMAGED)
        elif _plain(found) != {part: plain.get(part) for part in _plain(found)}:
            return None
    return Entry(member.text, found, True, *times, boot_ms=_whole(ours, "boot_ms"), boot_id=_text(ours, "boot_id"))


def _of_the_older_cache(member: Member, plain: Mapping[str, object], reading: Reading) -> Entry:
    name, text, _ = member
    created_ms, written_ms = _times(plain)
    status = _whole(plain, "status")
    if status and status not in _STATUSES:
        raise ValueError(_DAMAGED)
    state = _STATES.get(_text(plain, "state"), State.COMPLETED)
    body = _bytes(plain, "body_base64")
    digest = bytes.fromhex(_text(plain, "req_hash_hex"))
    answered = bool(status) or state is not State.ACCEPTED
    known = list(meanings(name))
    meant = known[0] if len(known) == 1 else Meaning("", name, operation_id("", name))
    record = Record(
        namespace=reading.namespace,
        id=meant.operation,
        scope=meant.scope,
        key=meant.key,
        state=state,
        etag=sha256(f"{name}\0{text}".encode()).digest()[:_ETAG_BYTES],
        fingerprint=Fingerprint(BODY_SHA256, digest) if digest else None,
        terms=_terms(reading.retention_ms),
        created_ms=created_ms,
        result=Result(ResultKind.HTTP, body, status or _USUAL[state]) if answered else None,
    )
    return Entry(text, record, False, created_ms, written_ms)


_STATES: Final = {
    "accepted": State.ACCEPTED,
    "in_progress": State.ACCEPTED,  # whoever was at work is gone
    "completed": State.COMPLETED,
    "failed": State.FAILED,
}
_USUAL: Final = {State.ACCEPTED: 202, State.IN_PROGRESS: 202, State.COMPLETED: 200, State.FAILED: 500}
"""The status of an answer that has none: of a result that is no response, or of an entry without one."""


def _terms(retention_ms: int | None) -> Terms:
    return Terms(_LEASE_MS, retention_ms, RecoveryKind.HOLD, None, None, _LEASE_MS, deduplicated=False)


def _plain(record: Record) -> dict[str, object]:
    """What the older cache reads of a record, but for the time of its write."""
    result = record.result
    status = 0 if result is None else result.status or _USUAL[record.state]
    body = b"" if result is None or result.body is None else result.body
    return {
        "created_at_unix_nano": record.created_ms * _NANOS,
        "req_hash_hex": "" if record.fingerprint is None else record.fingerprint.digest.hex(),
        "state": record.state.value,
        "status": status,
        "body_base64": base64.b64encode(body).decode(),
    }


def _times(plain: Mapping[str, object]) -> tuple[int, int]:
    """When it was created and when it was written; one that is missing is the other one."""
    created, updated = (_whole(plain, f"{which}_at_unix_nano") for which in ("created", "updated"))
    if not (0 <= created < _NANOS_MAX and 0 <= updated < _NANOS_MAX):
        raise ValueError(_DAMAGED)
    return (created or updated) // _NANOS or 1, (updated or created) // _NANOS or 1


def _whole(plain: Mapping[str, object], name: str) -> int:
    value = plain.get(name)
    if value is None:
        return 0
    if type(value) is not int:
        raise TypeError(_DAMAGED)
    return value


def _text(plain: Mapping[str, object], name: str) -> str:
    value = plain.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(_DAMAGED)
    return value


def _bytes(plain: Mapping[str, object], name: str) -> bytes:
    return base64.b64decode(_text(plain, name).encode("ascii"), validate=True)
