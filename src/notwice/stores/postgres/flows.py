"""The conversations with a server, each written once for both faces.

They are generators that yield a statement and are sent its rows, or have the server's refusal thrown in.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from notwice.errors import StoreUnavailable, UnsupportedRecord
from notwice.model import Get, Insert, Op, Reply
from notwice.stores.findings import Finding
from notwice.stores.migrations import ABSENT, Migration, Version, none_yet, pending, refuse_newer
from notwice.stores.postgres.checks import NAMES, SETTINGS, judged
from notwice.stores.postgres.dialect import Dialect
from notwice.stores.postgres.migrations import Names, steps_of
from notwice.stores.postgres.rows import Statement, found_of, insert_at_once, statement_of
from notwice.stores.shared import KeyLocked, name_of, replies_or_raise
from notwice.stores.tables import HeldKeys, answer_while_locked

Rows = Sequence[Sequence[Any]]

ASKED_MAX: Final = 8
"""How often an operation is asked for while rivals commit in between: the second time nearly always tells."""


_Outcomes = Generator[Statement, Rows, dict[int, Reply | KeyLocked]]


class Undone(Exception):
    """The server rolled a statement back, as a whole, because of others: 40001 or 40P01. It may be sent again."""


def applying(ops: Sequence[Op], dialect: Dialect, held: HeldKeys) -> Generator[Statement, Rows, Sequence[Reply]]:
    """Carry out a batch that names no id twice.

    Raises `KeyLocked` if somebody holds a row or a key for longer than the lock time-out: then nothing was done. What
    meets such a lock only when it is asked for again, the others being committed, is carried out one by one, and so
    are claims of keys that are known to be held: if one of them is refused, `PartlyDone`.
    """
    if len(ops) == 1:
        return [(yield from _applying_one(ops[0], dialect, held))]
    together = dict(enumerate(ops))
    apart = {index: together.pop(index) for index, op in enumerate(ops) if held.has(op)} if held else {}
    outcomes = (yield from _together(together, dialect, held)) | (yield from _one_by_one(apart, dialect, held))
    return replies_or_raise([outcomes[index] for index in range(len(ops))])


def _together(ops: Mapping[int, Op], dialect: Dialect, held: HeldKeys) -> _Outcomes:
    order = sorted(ops, key=lambda index: name_of(ops[index])[::-1])
    replies: dict[int, Reply | KeyLocked] = {}
    for _ in range(ASKED_MAX):
        if not order:
            return replies
        asked = [ops[index] for index in order]
        try:
            rows = yield statement_of(asked, dialect)
        except Undone:
            continue
        except KeyLocked:
            held.note(asked)
            if not replies:
                raise
            return replies | (yield from _one_by_one({index: ops[index] for index in order}, dialect, held))
        found = list(map(found_of, rows))
        for index, op, each in zip(order, asked, found, strict=True):
            if each.won or not each.raced(op):
                replies[index] = each.reply(op)
        order = [index for index in order if index not in replies]
    if order:
        raise _too_much_in_between()
    return replies


def _one_by_one(ops: Mapping[int, Op], dialect: Dialect, held: HeldKeys) -> _Outcomes:
    """Carry out a part of a batch, each by itself, when others of it may be committed."""
    outcomes: dict[int, Reply | KeyLocked] = {}
    for index, op in ops.items():
        try:
            outcomes[index] = yield from _applying_one(op, dialect, held)
        except KeyLocked as error:
            outcomes[index] = error
    return outcomes


def _applying_one(op: Op, dialect: Dialect, held: HeldKeys) -> Generator[Statement, Rows, Reply]:
    """Carry out a single operation. If somebody holds its row or its key, it is answered by what can be read."""
    statement = insert_at_once(op, dialect) if isinstance(op, Insert) and held.has(op) else statement_of([op], dialect)
    for _ in range(ASKED_MAX):
        try:
            (row,) = yield statement
        except Undone:
            continue
        except KeyLocked:
            held.note([op])
            return (yield from _locked(op, dialect))
        found = found_of(row)
        if not found.raced(op):
            return found.reply(op)
    raise _too_much_in_between()


def _too_much_in_between() -> StoreUnavailable:
    return StoreUnavailable(f"others changed a record {ASKED_MAX} times while it was asked for; try again")


def _locked(op: Op, dialect: Dialect) -> Generator[Statement, Rows, Reply]:
    """Answer an operation on a row, or on a key that nobody sees yet, that somebody's open transaction holds."""
    (row,) = yield statement_of([Get(*name_of(op))], dialect)
    return answer_while_locked(op, found_of(row).reply(op))


# --- the tables -------------------------------------------------------------------------------------------------------

_SERVER: Final = """
SELECT pg_is_in_recovery(), current_setting('server_version_num')::integer, current_setting('server_encoding'),
    EXISTS (
        SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = $1::text AND relname = $2::text
    ),
    EXISTS (SELECT FROM pg_namespace WHERE nspname = $1::text)
"""

VERSION_MIN: Final = 120_000


def looking(names: Names) -> Generator[Statement, Rows, Version]:
    """Look at a server that was connected to: refuse it if it can't keep records, and give the tables' version.

    Raises `StoreUnavailable` for a standby, an older PostgreSQL, another encoding and a schema that is not there,
    `UnsupportedRecord` for tables that only a newer release may use.
    """
    asked = Statement(_SERVER, (names.schema, names.version_table), often=False)
    ((standby, version, encoding, there, schema_there),) = yield asked
    if standby:
        raise StoreUnavailable("this server is a standby, and what it shows may be old; name the primary")
    if version < VERSION_MIN:
        raise StoreUnavailable(f"PostgreSQL 12 or newer is needed; this server has version number {version}")
    if encoding != "UTF8":
        raise StoreUnavailable(f"the database's encoding is {encoding}; create one with ENCODING 'UTF8' for the store")
    if not schema_there:
        raise StoreUnavailable(
            f"there is no schema {names.schema}; create it, or name another one with ?schema=. Nothing was done"
        )
    if not there:
        return ABSENT
    text = f"SELECT coalesce(max(number), 0), coalesce(max(reader_min), 0) FROM {names.versions}"  # noqa: S608 - checked names
    (row,) = yield Statement(text, often=False)
    found = Version(*row)
    refuse_newer(steps_of(names), found, f"the table {names.records}")
    return found


def migrating(names: Names, timeout_ms: int) -> Generator[Statement, Rows, Sequence[Migration]]:
    """Carry out what is pending in one transaction, one process at a time, and give the steps that were done."""
    yield Statement("BEGIN", often=False)
    yield Statement(f"SET LOCAL lock_timeout = {timeout_ms}", often=False)
    yield Statement("SELECT pg_advisory_xact_lock(hashtext($1::text))::text", (names.versions,), often=False)
    steps = pending(steps_of(names), (yield from looking(names)))
    for step in steps:
        for text in step.statements:
            yield Statement(text, often=False)
    yield Statement("COMMIT", often=False)
    return steps


def opening(names: Names, *, first: bool, makes: bool, timeout_ms: int) -> Generator[Statement, Rows, list[Finding]]:
    """Look at a server that was connected to. The `first` time, check settings, and make the tables if that is meant.

    Tables that go later don't come back by themselves: what was in them would count as absent. All that is wrong is a
    `StoreUnavailable` here: a guard knows no other error of a call.
    """
    try:
        found = yield from looking(names)
    except UnsupportedRecord as error:
        raise StoreUnavailable(str(error)) from error
    if not first:
        if found == ABSENT:
            raise StoreUnavailable(f"the table {names.records} is gone; restart this process if that is meant")
        return []
    if found == ABSENT and not makes:
        raise none_yet(f"the table {names.records}")
    if found == ABSENT:
        yield from migrating(names, timeout_ms)
    return (yield from checking())


def asking(statement: Statement) -> Generator[Statement, Rows, Rows]:
    """Send one statement."""
    return (yield statement)


def checking() -> Generator[Statement, Rows, list[Finding]]:
    """Ask for the settings that break promises."""
    rows = yield Statement(SETTINGS, (NAMES,), often=False)
    return judged(dict(map(tuple, rows)))
