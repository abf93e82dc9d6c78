"""What the engines do alike: names, stamps, deadlines, cursors."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from notwice.errors import StoreUnavailable, not_installed
from notwice.model import Get, Op, Query, Record, RecordView, Reply, Unreadable, make_record
from notwice.stores.port import KeyLocked as KeyLocked  # noqa: PLC0414 - so it is exported
from notwice.stores.port import PartlyDone as PartlyDone  # noqa: PLC0414 - so it is exported

Name = tuple[str, str]
"""What a record is stored under: (namespace, id)."""

Place = tuple[int, str, str]
"""Where a record stands in a scan: (created, namespace, id)."""

FAR_MS = 2**62
"""A time that never comes, and that every engine can store."""

_CREATED = Record._fields.index("created_ms")
_NO_CURSOR = "this is not the cursor of a page; scan from the beginning"


reply_of: Callable[[tuple[bool, Record | Unreadable | None, int, int, int]], Reply] = partial(tuple.__new__, Reply)
"""Makes a reply of its fields, at half the price."""


def name_of(op: Op) -> Name:
    """The name of the record that `op` is about."""
    return op[:2] if isinstance(op, Get) else op.record[:2]


def refuse_repeated_names(ops: Sequence[Op]) -> None:
    """Raise `ValueError` if a batch names an id twice."""
    if len({name_of(op) for op in ops}) < len(ops):
        raise ValueError("a batch may name each (namespace, id) only once; split it")


def stamped(record: Record, stamp_ms: int) -> Record:
    """The record with its ``created_ms`` set, if it was 0."""
    if record.created_ms:
        return record
    fields: list[Any] = [*record]
    fields[_CREATED] = stamp_ms
    return make_record(fields)


def deadline_ms(record: Record, written_ms: int) -> int | None:
    """The wall time after which a record that was written at `written_ms` is expired; ``None``: never."""
    after_ms = record.expires_after_ms
    return None if after_ms is None else min(written_ms + after_ms, FAR_MS)


def cursor_after(place: Place) -> str:
    """The cursor of a page that ended with the record at `place`."""
    return base64.urlsafe_b64encode(json.dumps(place).encode("ascii")).decode("ascii")


def place_after(cursor: str) -> Place:
    """Where the page before `cursor` ended. Raises `ValueError` for anything but a page's cursor."""
    try:
        created_ms, namespace, identifier = json.loads(base64.urlsafe_b64decode(cursor))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(_NO_CURSOR) from error
    if (type(created_ms), type(namespace), type(identifier)) != (int, str, str) or abs(created_ms) > FAR_MS:
        raise ValueError(_NO_CURSOR)
    return created_ms, namespace, identifier


def matches(view: RecordView, query: Query) -> bool:
    """Whether a scan for `query` gives this record."""
    record = view.record
    return (
        (query.namespace is None or record.namespace == query.namespace)
        and (query.states is None or record.state in query.states)
        and (query.operation is None or record.id == query.operation)
        and (query.scope_prefix is None or record.scope.startswith(query.scope_prefix))
        and (query.older_than_ms is None or view.now_ms - view.written_ms >= query.older_than_ms)
        and (query.unresolved is None or view.unresolved is query.unresolved)
    )


@contextmanager
def needs_extra(extra: str) -> Generator[None]:
    """Where a driver is imported: one that is missing raises `ImportError` with the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "notwice":
            raise
        raise ImportError(not_installed(f"this store needs {error.name}", extra), name=error.name) from error


def closed() -> StoreUnavailable:
    """The error of a store that is used after it was closed."""
    return StoreUnavailable("this store is closed; open another one")


def no_thread(error: RuntimeError) -> StoreUnavailable:
    """The error of a call for which the system gave no thread."""
    return StoreUnavailable(f"no thread can be started ({error}); nothing was done")


def replies_or_raise(outcomes: Sequence[Reply | StoreUnavailable]) -> list[Reply]:
    """The replies to a batch. Raises `PartlyDone` if any is missing; but the error itself of a single operation.

    Each was carried out by itself, or can't be told from that. So nothing that met a lock here is asked for once more.
    """
    replies = [outcome for outcome in outcomes if not isinstance(outcome, StoreUnavailable)]
    if len(replies) == len(outcomes):
        return replies
    if len(outcomes) == 1 and isinstance(outcomes[0], StoreUnavailable):
        raise outcomes[0]
    raise PartlyDone(outcomes)
