"""How operations are shown: for a person as text, for a program as JSON; keys and bodies only when they are asked for.

Scopes, keys and errors come from elsewhere. What can't be printed in them is shown escaped, so that no record can
move the cursor, recolour or retitle the terminal of whoever looks at it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from notwice import identity
from notwice.codec import decode_value
from notwice.errors import NotwiceError
from notwice.model import Note, Record, RecordView, RecoveryKind, Released, Result, ResultKind, Unreadable
from notwice.server.durations import in_words

HEADINGS = ("OPERATION", "NAMESPACE", "SCOPE", "STATE", "ATTEMPT", "LAST WRITTEN")
REDACTED = "(not shown; --reveal shows it)"


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
    return ", ".join(words)


def ago(view: RecordView, time_ms: int) -> str:
    """Say how long ago something was, by the store's clock."""
    return f"{in_words(max(0, view.now_ms - time_ms))} ago"


def table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Give the lines of a table, headings first."""
    lines = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def row(item: RecordView | Unreadable) -> tuple[str, ...]:
    """Give one row of the table."""
    if isinstance(item, Unreadable):
        return (printable(item.id), printable(item.namespace), "", f"unreadable: {printable(item.reason)}", "", "")
    record = item.record
    cells = (printable(record.namespace), printable(record.scope), standing(item), str(record.attempt))
    return (record.id, *cells, ago(item, item.written_ms))


def downstream_keys(record: Record, names: Iterable[str]) -> dict[str, str]:
    """Give the downstream keys of these names: by them, the next system can be asked what happened."""
    named = {"namespace": record.namespace, "scope": record.scope, "key": record.key}
    return {name: identity.downstream_key(**named, generation=record.generation, name=name) for name in names}


def described(view: RecordView, *, reveal: bool, downstream_keys: Mapping[str, str]) -> Iterator[str]:
    """Give the lines that tell a person all about one operation."""
    record = view.record
    bound = record.terms.attempts_max if record.terms.recovery is RecoveryKind.RERUN else None
    recovery = f"{record.terms.recovery}, attempt {record.attempt}{f' of {bound}' if bound else ''}"
    yield _line("operation", record.id)
    yield _line("namespace", printable(record.namespace) or "(the default)")
    yield _line("scope", printable(record.scope))
    yield _line("key", printable(record.key) if reveal else REDACTED)
    yield _line("state", standing(view))
    yield _line("created", f"{_time(record.created_ms)}, {ago(view, record.created_ms)}")
    yield _line("last written", f"{_time(view.written_ms)}, {ago(view, view.written_ms)}")
    yield _line("lease", in_words(record.terms.lease_ms))
    yield _line("recovery", recovery)
    for name, key in downstream_keys.items():
        yield _line("downstream key", f"{key}  {printable(name) or '(without a name)'}")
    if record.recovery_point or record.progress:
        yield _line("steps done", ", ".join(printable(name) for name, _ in record.progress) or "none")
        yield _line("recovery point", printable(record.recovery_point) or "none")
    for name, data in record.progress if reveal else ():
        yield _line("step", printable(f"{name}: {_value(data)}"))
    if record.error:
        yield _line("error", printable(record.error))
    if record.result is not None:
        yield _line("answer", _answer(record.result))
        yield _line("body", printable(_body(record.result)) if reveal else REDACTED)
    yield _line("etag", record.etag.hex())
    for note in record.audit:
        yield _line("audit", printable(f"{_time(note.when_ms)} {note.who} {note.action}: {note.why}"))


def document(item: RecordView | Unreadable, *, reveal: bool) -> dict[str, Any]:
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
        "released": record.released is not Released.NO,
        "attempt": record.attempt,
        "created_at": _time(record.created_ms),
        "written_at": _time(item.written_ms),
        "age_ms": max(0, item.now_ms - item.written_ms),
        "lease_ms": record.terms.lease_ms,
        "recovery": str(record.terms.recovery),
        "recovery_point": record.recovery_point,
        "steps": [name for name, _ in record.progress],
        "error": record.error,
        "answer": None if record.result is None else _answer_document(record.result, reveal=reveal),
        "etag": record.etag.hex(),
        "audit": [_note(note) for note in record.audit],
    }
    if reveal:
        shown |= {"key": record.key, "progress": {name: _value(data) for name, data in record.progress}}
    return shown


def _line(name: str, value: str) -> str:
    return f"{name + ':':<16}{value}"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _note(note: Note) -> dict[str, str]:
    return {"who": note.who, "when": _time(note.when_ms), "action": note.action, "why": note.why}


def _answer(result: Result) -> str:
    size = "body omitted" if result.body is None else f"{len(result.body)} bytes"
    if result.kind is ResultKind.HTTP:
        return f"HTTP {result.status}, {size}"
    return f"{result.kind}, {size}"


def _answer_document(result: Result, *, reveal: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": str(result.kind),
        "omitted": result.body is None,
        "body_bytes": None if result.body is None else len(result.body),
    }
    if result.kind is ResultKind.HTTP:
        shown["status"] = result.status
    if reveal:
        shown["headers"] = [list(header) for header in result.headers]
        shown["body"] = _body(result)
    return shown


def _body(result: Result) -> str:
    if result.body is None:
        return ""
    return _escaped(result.body) if result.kind is ResultKind.HTTP else _value(result.body)


def _value(data: bytes) -> str:
    """Give a stored value as JSON if it is that, else as Python writes it.

    A value whose type is in another program is given by its bytes: nothing is imported to read it.
    """
    try:
        value = decode_value(data)
    except NotwiceError:
        return _escaped(data)
    try:
        text = json.dumps(value, ensure_ascii=False)
        return text if json.loads(text) == value else repr(value)
    except (TypeError, ValueError):
        return repr(value)


def _escaped(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
