"""Stores on a SQLite file with one bug each, and sound stores under a guard with one: what torture must find.

Each function opens one for a client process of a torture run, as ``tests.stores.seeded:name``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from notwice import core, runtime
from notwice.model import Get, Insert, Op, Page, Query, Record, Released, Reply, Swap
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.stores.sqlite.connection import SETTINGS
from notwice.testing.torture.payments import LEASE_MS

TIMEOUT_S = 60


class Sound:
    """A store in a file that carries out each operation by itself. Broken ones override a part."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "records.db"
        self.inner = SqliteStore(self.path, timeout=TIMEOUT_S)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        return [self.carry_out(op) for op in ops]

    def carry_out(self, op: Op) -> Reply:
        (reply,) = self.inner.apply([op])
        return reply

    def there(self, op: Op) -> Record | None:
        name = (op.namespace, op.id) if isinstance(op, Get) else (op.record.namespace, op.record.id)
        found = Sound.carry_out(self, Get(*name)).record
        return found if isinstance(found, Record) else None

    def overwrite(self, record: Record) -> Reply:
        """Write it whatever is there."""
        while True:
            there = self.there(Insert(record))
            reply = Sound.carry_out(self, Swap(record, there.etag) if there else Insert(record))
            if reply.won:
                return reply

    def scan(self, query: Query) -> Page:
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)

    def close(self) -> None:
        self.inner.close()


class NoFence(Sound):
    """Swaps whatever is there, if anything is."""

    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Swap) and self.there(op):
            return self.overwrite(op.record)
        return super().carry_out(op)


class ReadThenWrite(Sound):
    """Looks, and then writes what it decided upon."""

    def carry_out(self, op: Op) -> Reply:
        there = self.there(op)
        if isinstance(op, Get) or (there.etag if there else None) != (
            op.expected_etag if isinstance(op, Swap) else None
        ):
            return super().carry_out(op)
        threading.Event().wait(0.001)  # a statement's way to a server
        return self.overwrite(op.record)


class OverwritesFinished(Sound):
    """Lets any swap replace a finished record."""

    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Swap) and (there := self.there(op)) and there.terminal:
            return self.overwrite(op.record)
        return super().carry_out(op)


class KeepsTheEtag(Sound):
    """A swap writes all but a new etag."""

    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Swap):
            op = op._replace(record=op.record._replace(etag=op.expected_etag))
        return super().carry_out(op)


class PurgesOpenRecords(Sound):
    """Drops records, finished or not."""

    def purge(self, limit: int) -> int:
        with closing(sqlite3.connect(self.path, timeout=TIMEOUT_S)) as connection, connection:
            chosen = "SELECT place FROM notwice_record ORDER BY place DESC LIMIT ?"
            dropped = connection.execute(f"DELETE FROM notwice_record WHERE place IN ({chosen})", (limit,))
        return dropped.rowcount


class WinnerByAffectedRows(Sound):
    """Takes an insert that found another's record for one that wrote, as a count of matched rows does."""

    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        return reply._replace(won=True, record=op.record) if isinstance(op, Insert) else reply


class CutsBodies(Sound):
    """Keeps the first kilobyte."""

    def carry_out(self, op: Op) -> Reply:
        if not isinstance(op, Get):
            progress = tuple((point, data[:1_000]) for point, data in op.record.progress)
            op = op._replace(record=op.record._replace(progress=progress))
        return super().carry_out(op)


class AcknowledgesBeforeTheCommit(Sound):
    """Says what each write will do, and does it with the next call."""

    batches_only = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.owed: list[Op] = []

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        while self.owed:
            Sound.carry_out(self, self.owed.pop(0))
        if self.batches_only and len(ops) == 1:
            return super().apply(ops)
        return [self.promised(op) for op in ops]

    def promised(self, op: Op) -> Reply:
        there, expected = self.there(op), op.expected_etag if isinstance(op, Swap) else None
        if isinstance(op, Get) or (there.etag if there else None) != expected:
            return Sound.carry_out(self, op)
        self.owed.append(op)
        return Reply(True, op.record)


class AcknowledgesABatchBeforeItsCommit(AcknowledgesBeforeTheCommit):
    """The same for batches of several."""

    batches_only = True


class ForgetsFingerprints(Sound):
    """Gives records without the fingerprint of their request, so that none differs."""

    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        there = reply.record
        return reply._replace(record=there._replace(fingerprint=None)) if isinstance(there, Record) else reply


class EndsLeasesEarly(Sound):
    """Says that each record is older than it is."""

    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        return reply._replace(age_ms=reply.age_ms + LEASE_MS - 10) if reply.age_ms else reply


def put_in_place(module: ModuleType, name: str, value: object) -> None:
    """The bug is that a module has another part than it should."""
    setattr(module, name, value)


def the_same_etags(folder: Path) -> Store:
    """A sound store, and guards that use one etag for all that they send."""
    put_in_place(runtime, "new_etag", partial(bytes, 16))
    return SqliteStore(folder / "records.db", timeout=TIMEOUT_S)


def abandons_all(folder: Path) -> Store:
    """A sound store, and guards whose abandon frees the key whatever attempt it ends."""
    abandoned = core.abandoned

    def frees(record: Record, etag: bytes, **_: Any) -> Record:
        return abandoned(record, etag, claim=core.Claim(created=True), touched=False)._replace(released=Released.AS_NEW)

    put_in_place(core, "abandoned", frees)
    return SqliteStore(folder / "records.db", timeout=TIMEOUT_S)


def unsynced(folder: Path) -> Store:
    """A store that leaves the syncing to the system."""
    SETTINGS["synchronous"] = ("OFF", 0)
    return SqliteStore(folder / "records.db", timeout=TIMEOUT_S)
