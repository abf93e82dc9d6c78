"""How operations are shown: for a person as text, for a program as JSON; keys and bodies only when they are asked for.

Scopes, keys and errors come from elsewhere. What can't be printed in them is shown escaped, so that no record can
move the cursor, recolour or retitle the terminal of whoever looks at it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from notwice import core, identity
from notwice.codec import closed_reason, decode_value
from notwice.errors import NotwiceError
from notwice.model import Note, Record, RecordView, RecoveryKind, Released, Result, ResultKind, State, Unreadable
from notwice.redaction import REDACTED as HIDDEN
from notwice.redaction import Redactor, redacting
from notwice.server.durations import in_words

REDACTED: Final = "(not shown; --reveal shows it)"
SEALED: Final = "(sealed)"
NOT_KEPT: Final = "(not kept: keys are hashed)"
REDACT_VARIABLE: Final = "NOTWICE_REDACT"


class Look(NamedTuple):
    """How much is shown: keys and bodies if `reveal`, and of these what `redact` leaves."""

    reveal: bool = False
    redact: Redactor | None = None


def look_of(said: argparse.Namespace, environment: Mapping[str, str]) -> Look:
    """What a command line, or else the variable ``NOTWICE_REDACT``, asks to be shown."""
    names = [name for name in re.split(r"[\s,]+", said.redact or environment.get(REDACT_VARIABLE, "")) if name]
    return Look(said.reveal, redacting(*names) if names else None)


def printable(text: str) -> str:
    """Give `text` with everything escaped that a terminal would not just print."""
    return "".join(part if part.isprintable() else part.encode("unicode_escape").decode() for part in text)


def standing(view: RecordView) -> str:
    """Say where an operation stands, in the words of the rules."""
    words = [str(view.state)]
    if view.lapsed:
        words.append("lapsed")
    if view.record.released is not Released.NO:
        words.append("released")
    elif view.unresolved:
        words.append("unresolved")
    if core.held(view):
        words.append("held")
    return ", ".join(words)


def recovery(view: RecordView) -> str:
    """Say what may become of an operation that nobody works on, and how often that was tried."""
    terms, attempt = view.record.terms, view.record.attempt
    if core.proves_nothing_happened(view.record):
        return f"atomic, attempt {attempt}"
    bound = terms.attempts_max if terms.recovery is RecoveryKind.RERUN else None
    used_up = ", used up" * (terms.recovery is RecoveryKind.RERUN and core.rerun_exhausted(view))
    return f"{terms.recovery}, attempt {attempt}{f' of {bound}' if bound else ''}{used_up}"


def recovery_in_short(view: RecordView) -> str:
    """The same for a cell of a table: ``hold``, ``atomic 2``, ``rerun 2 of 5``, ``rerun 5 of 5, used up``."""
    text = recovery(view).replace(", attempt", "")
    return text.removesuffix(" 1") if " of " not in text else text


def ago(view: RecordView, time_ms: int) -> str:
    """Say how long ago something was, by the store's clock."""
    return f"{in_words(max(0, view.now_ms - time_ms))} ago"


def row(item: RecordView | Unreadable) -> tuple[str, ...]:
    """Give one row of the table."""
    if isinstance(item, Unreadable):
        return (printable(item.id), printable(item.namespace), "", f"unreadable: {printable(item.reason)}", "", "")
    record = item.record
    cells = (printable(record.namespace), printable(record.scope), standing(item), recovery_in_short(item))
    return (record.id, *cells, ago(item, item.written_ms))


def nameless(count: int) -> str:
    """Say that there are entries that no list can give."""
    what = "1 entry can't be read and does not say" if count == 1 else f"{count:,} entries can't be read and do not say"
    return f"{what} whose it is: `notwice show` with --scope and --key tells whether an operation's is among them."


def downstream_keys(record: Record, names: Iterable[str]) -> dict[str, str]:
    """Give the downstream keys of these names: by them, the next system can be asked what happened."""
    named = {"namespace": record.namespace, "scope": record.scope, "key": record.key}
    return {name: identity.downstream_key(**named, generation=record.generation, name=name) for name in names}


def described(view: RecordView, look: Look, downstream_keys: Mapping[str, str]) -> Iterator[str]:
    """Give the lines that tell a person all about one operation."""
    record = view.record
    yield _line("operation", record.id)
    yield _line("namespace", printable(record.namespace) or "(the default)")
    yield _line("scope", printable(record.scope))
    yield _line("key", NOT_KEPT if record.key == record.id else printable(record.key) if look.reveal else REDACTED)
    yield _line("state", standing(view))
    yield _line("created", f"{_time(record.created_ms)}, {ago(view, record.created_ms)}")
    yield _line("last written", f"{_time(view.written_ms)}, {ago(view, view.written_ms)}")
    yield _line("lease", in_words(record.terms.lease_ms))
    yield _line("recovery", recovery(view))
    if view.unresolved and core.proves_nothing_happened(record):
        yield f"{'':<16}Its rows and its end are one commit, which was not made: the next retry runs it."
    for name, key in downstream_keys.items():
        yield _line("downstream key", f"{key}  {printable(name) or '(without a name)'}{_unknown(name, record)}")
    if record.sealed:
        yield _line("steps done", SEALED)
    elif record.recovery_point or record.progress:
        yield _line("steps done", ", ".join(printable(name) for name, _ in record.progress) or "none")
    if not record.sealed and (record.recovery_point or record.progress):
        yield _line("recovery point", printable(record.recovery_point) or "none")
    for name, data in record.progress if look.reveal else ():
        yield _line("step", printable(f"{name}: {_value(data, look)}"))
    if record.error or record.sealed:
        yield _line("error", SEALED if record.sealed else printable(record.error))
    if record.sealed and record.state is not State.IN_PROGRESS:
        yield _line("answer", SEALED)
    elif record.result is not None:
        yield _line("answer", _answer(record.result))
        yield _line("body", printable(_body(record.result, look)) if look.reveal else REDACTED)
    if record.sealed:
        yield _line("sealed", closed_reason(record))
    yield _line("etag", record.etag.hex())
    for note in record.audit:
        yield _line("audit", printable(f"{_time(note.when_ms)} {note.who} {note.action}: {note.why}"))


def document(item: RecordView | Unreadable, look: Look) -> dict[str, Any]:
    """Give the same for a program. Times are RFC 3339, durations whole milliseconds; what is not shown is left out."""
    if isinstance(item, Unreadable):
        return {"operation": item.id, "namespace": item.namespace, "unreadable": item.reason}
    record = item.record
    shown: dict[str, Any] = {
        "operation": record.id,
        "namespace": record.namespace,
        "scope": record.scope,
        "state": str(record.state),
        "unresolved": item.unresolved,
        "lapsed": item.lapsed,
        "held": core.held(item),
        "released": record.released is not Released.NO,
        "attempt": record.attempt,
        "created_at": _time(record.created_ms),
        "written_at": _time(item.written_ms),
        "age_ms": max(0, item.now_ms - item.written_ms),
        "lease_ms": record.terms.lease_ms,
        "recovery": str(record.terms.recovery),
        "atomic": record.terms.atomic,
        "recovery_point": record.recovery_point,
        "steps": [name for name, _ in record.progress],
        "error": record.error,
        "answer": None if record.result is None else _answer_document(record.result, look),
        "etag": record.etag.hex(),
        "audit": [_note(note) for note in record.audit],
    }
    if record.sealed:  # what is not known is no empty list, and no empty text
        shown |= {"sealed": closed_reason(record), **dict.fromkeys(("recovery_point", "steps", "error", "answer"))}
    if look.reveal:
        progress = {name: _value(data, look) for name, data in record.progress}
        shown |= {"key": None if record.key == record.id else record.key}
        shown |= {"progress": None if record.sealed else progress}
    return shown


def _line(name: str, value: str) -> str:
    return f"{name + ':':<16}{value}"


def _unknown(name: str, record: Record) -> str:
    """Say of a name by which a key was made that it may be misspelt: every name gives a key."""
    known = not name or record.sealed or any(name == point for point, _ in record.progress)
    return "" if known else " (the name of no step that is done; any name gives a key, so make sure that it is right)"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _note(note: Note) -> dict[str, str]:
    return {"who": note.who, "when": _time(note.when_ms), "action": note.action, "why": note.why}


def _answer(result: Result) -> str:
    size = "body omitted" if result.body is None else f"{len(result.body)} bytes"
    if result.kind is ResultKind.HTTP:
        return f"HTTP {result.status}, {size}"
    return f"{result.kind}, {size}"


def _answer_document(result: Result, look: Look) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": str(result.kind),
        "omitted": result.body is None,
        "body_bytes": None if result.body is None else len(result.body),
    }
    if result.kind is ResultKind.HTTP:
        shown["status"] = result.status
    if look.reveal:
        shown["headers"] = [list(header) for header in result.headers]
        shown["body"] = _body(result, look)
    return shown


def _body(result: Result, look: Look) -> str:
    if result.body is None:
        return ""
    if result.kind is not ResultKind.HTTP:
        return _value(result.body, look)
    if look.redact is None:
        return _escaped(result.body)
    try:
        return json.dumps(look.redact(json.loads(result.body)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return HIDDEN


def _value(data: bytes, look: Look) -> str:
    """Give a stored value as JSON if it is that, else as Python writes it.

    A value whose type is in another program is given by its bytes: nothing is imported to read it.
    """
    try:
        value = decode_value(data)
    except NotwiceError:
        return _escaped(data) if look.redact is None else HIDDEN
    if look.redact is not None:
        value = look.redact(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
        return text if json.loads(text) == value else repr(value)
    except (TypeError, ValueError):
        return repr(value)


def _escaped(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
