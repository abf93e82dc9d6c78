"""Looking at a server that was connected to, and making its tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from notwice.errors import StoreUnavailable, UnsupportedRecord
from notwice.stores.migrations import ABSENT, Migration, Version, none_yet, pending, refuse_newer
from notwice.stores.mysql.dialect import literal
from notwice.stores.mysql.migrations import Names, steps_of
from notwice.stores.mysql.place import Place
from notwice.stores.mysql.session import Session

MIGRATION_S: Final = 600
"""How long making tables may take."""

_THERE = """
SELECT COUNT(*) FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name IN ('{table}', '{table}_schema')
"""
_VERSION = "SELECT COALESCE(MAX(number), 0), COALESCE(MAX(reader_min), 0) FROM {versions}"


def found_version(session: Session, names: Names) -> Version:
    """The version of the tables. Raises `UnsupportedRecord` for those that only a newer release may use."""
    ((count,),) = session.ask(_THERE.format(table=names.table))
    if count < len(("records", "versions")):
        return ABSENT
    ((number, reader_min),) = session.ask(_VERSION.format(versions=names.versions))
    found = Version(int(number), int(reader_min))
    refuse_newer(steps_of(names), found, f"the table {names.table}")
    return found


def opened(session: Session, names: Names, *, first: bool, makes: bool) -> None:
    """Make the tables if there are none, the `first` time and if that is meant; else raise `StoreUnavailable`.

    Tables that go later don't come back by themselves: what was in them would count as absent. All that is wrong is a
    `StoreUnavailable` here: a guard knows no other error of a call.
    """
    try:
        found = found_version(session, names)
    except UnsupportedRecord as error:
        raise StoreUnavailable(str(error)) from error
    if found != ABSENT:
        return
    if not first:
        raise StoreUnavailable(f"the table {names.table} is gone; restart this process if that is meant")
    if not makes:
        raise none_yet(f"the table {names.table}")
    migrate(session, names)


def migrate_place(place: Place, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables lack; or only say which they are.

    Raises `StoreUnavailable` or, for tables that only a newer release may use, `UnsupportedRecord`.
    """
    session = Session(place._replace(timeout=MIGRATION_S), time.monotonic() + MIGRATION_S)
    try:
        if dry_run:
            return pending(steps_of(place.names), found_version(session, place.names))
        return migrate(session, place.names)
    finally:
        session.close()


def migrate(session: Session, names: Names) -> Sequence[Migration]:
    """Carry out what is pending, one process at a time, and give the steps that were done."""
    lock = f"GET_LOCK(CONCAT('notwice ', SHA1(CONCAT(DATABASE(), {literal(names.table)}))), {session.timeout:g})"
    ((mine,),) = session.ask(f"SELECT {lock}")
    if not mine:
        raise StoreUnavailable("another process makes the tables; try again")
    try:
        steps = pending(steps_of(names), found_version(session, names))
        for step in steps:
            for statement in step.statements:
                session.ask(statement)
    finally:
        session.ask(f"SELECT {lock.replace('GET_LOCK', 'RELEASE_LOCK').rpartition(',')[0]})")
    return steps
