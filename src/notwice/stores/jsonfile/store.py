"""One JSON file, for one process at a time.

Why a claim is safe: a lock file, held from the opening to the closing, keeps every other process of ours out, and a
lock of this process lets one batch at a time look and write. A batch changes the entries in memory, and is told only
once the whole document is on the disk under its name; if that fails, the entries are taken back to how they were.
The older cache does not know the lock. If the file is another one than was left there, it wrote it: then nothing is
answered any more.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, Record, RecordView, Reply, Swap, Unreadable
from notwice.stores.clocks import Moment, SystemStoreClock, TrustedClock
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.jsonfile import document, files
from notwice.stores.jsonfile.contents import Contents, as_meant
from notwice.stores.jsonfile.entries import Entry, Meaning, Reading, name_in_document, outlived, read, written
from notwice.stores.port import StoreClock
from notwice.stores.shared import (
    Place,
    closed,
    cursor_after,
    matches,
    name_of,
    place_after,
    refuse_repeated_names,
    reply_of,
    stamped,
)
from notwice.stores.sqlite.mounts import network_file_system

SWEPT_PER_INSERT = 2
"""How many expired entries leave for each new one, with the same write."""

TIMEOUT_MAX = 3_600
HELD = "another operation has this name in the document: their scopes and keys, joined by a colon, are one text"


class JsonFileStore:
    """A `Store` in the JSON file of the older API cache.

    Arguments:
        path: the file, made with the first write if it is not there; so is its folder.
        records_max: how many entries to keep. To make room for a new one, the finished one leaves that was written the
            longest time ago; while none is finished, there are more. 0 or less: no limit.
        retention: how long finished entries of the older cache are kept, in seconds. 0 or less: for ever. What this
            store writes is kept as its policy says.
        namespace: whose the entries of the older cache are.
        timeout: seconds to wait for another process to let go of the file, and for other threads.
        access: ``"read"`` looks at the file as it is, while another process may have it open, and writes nothing.
        clock: wall and boot clock; the host's by default.
        network: ``"allow"`` opens a file on a network file system, too. Only do so if one host alone ever opens it.

    Raises `StoreUnavailable` if another process has the file open, or it is no such document; then it is left alone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        records_max: int = 0,
        retention: float = 0,
        namespace: str = "",
        timeout: float = 2.0,
        access: Literal["write", "read"] = "write",
        clock: StoreClock | None = None,
        network: Literal["refuse", "allow"] = "refuse",
    ) -> None:
        if not 0 < timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout must be more than 0 and at most {TIMEOUT_MAX} seconds; it is {timeout}")
        if not math.isfinite(retention):
            raise ValueError(f"retention must be a number of seconds, 0 for ever; it is {retention}")
        self._path = Path(path).resolve()
        self._records_max = records_max
        self._reading = Reading(namespace, round(retention * 1000) if retention > 0 else None)
        self._timeout = timeout
        self._writes = access == "write"
        self._network = network
        self._clock = TrustedClock(clock or SystemStoreClock())
        self._turns = threading.Lock()
        self._closed = False
        self._contents: Contents | None = None
        self._others: Sequence[document.Member] = ()
        self._seen: files.Identity | None = None
        self._lock: int | None = None
        self._resting = True
        with self._turn():
            pass
        stand_still_at_forks(self)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, with one write of the file, or none if it only finds."""
        refuse_repeated_names(ops)
        with self._turn() as contents, self._change(contents):
            moment = self._clock.read()
            replies = [self._carry_out(contents, op, moment) for op in ops]
            inserted = sum(reply.won and isinstance(op, Insert) for op, reply in zip(ops, replies, strict=True))
            self._sweep(contents, moment, SWEPT_PER_INSERT * inserted)
        return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first."""
        with self._turn() as contents:
            moment = self._clock.read()
            after = place_after(query.cursor) if query.cursor else None
            found: list[tuple[Place, RecordView | Unreadable]] = []
            limit = max(query.limit, 0)
            for place, entry in contents.listed(query.operation):
                item = self._item(entry, query, moment) if after is None or place > after else None
                if item is not None:
                    found.append((place, item))
                if len(found) > limit:
                    break
        more = limit > 0 and len(found) > limit
        return Page(tuple(item for _, item in found[:limit]), cursor_after(found[limit - 1][0]) if more else None)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired entries with one write, and say how many went."""
        with self._turn() as contents, self._change(contents):
            return self._sweep(contents, self._clock.read(), limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, with one write of the file."""
        with self._turn() as contents, self._change(contents):
            moment = self._clock.read()
            return [self._take_in(contents, view, moment) for view in views]

    def unlisted(self) -> int:
        """How many entries no scan gives, for they can't be decoded and nobody knows whose they are."""
        with self._turn() as contents:
            return len(contents) - sum(1 for _ in contents.listed())

    def close(self) -> None:
        """Let go of the file. Raises `StoreUnavailable` if a call hangs."""
        self._closed = True
        if not self._turns.acquire(timeout=self._timeout):
            raise StoreUnavailable(f"{self._path}: a call hangs, so the file stays open as long as this process lives")
        try:
            self._let_go()
        finally:
            self._turns.release()

    def before_fork(self) -> None:
        """Let no write be under way while the process is copied."""
        self._resting = self._turns.acquire(timeout=self._timeout)

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._resting:
            self._turns.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: the file is the parent's, and this process may have it once the parent has let go of it."""
        self._turns = threading.Lock()
        self._let_go()

    # --- what a batch does with the entries --------------------------------------------------------------------------

    def _carry_out(self, contents: Contents, op: Op, moment: Moment) -> Reply:
        name, found = self._look(contents, op)
        entry = None if name is None else contents.at(name)
        if isinstance(op, Get) or not _due(op, found):
            return _reply(entry, found, moment)
        record = stamped(op.record, moment.stamp_ms)
        target = name_in_document(record.scope, record.key)
        if target != name and contents.at(target) is not None:
            return _reply(entry, Unreadable(*name_of(op), HELD), moment)
        if name is None:
            self._make_room(contents)
        elif name != target:
            contents.drop(name)
        contents.put(target, written(record, moment))
        return reply_of((True, record, moment.stamp_ms, moment.now_ms, 0))

    def _look(self, contents: Contents, op: Op) -> tuple[str | None, Record | Unreadable | None]:
        """Which entry an operation is about, and what that entry is to it."""
        namespace, operation = name_of(op)
        name = contents.owned((namespace, operation))
        entry = None if name is None else contents.at(name)
        if entry is not None:
            return name, entry.found
        located = _located(op) or (contents.meant(operation) if namespace == self._reading.namespace else None)
        if located is None or (entry := contents.at(located[0])) is None:
            return None, None
        return located[0], self._asked(entry, namespace, located[1])

    def _asked(self, entry: Entry, namespace: str, meaning: Meaning) -> Record | Unreadable:
        """What an entry is to an operation whose name in the document it has, and which it does not carry."""
        found = entry.found
        if isinstance(found, Unreadable) and not entry.owned:
            return Unreadable(namespace, meaning.operation, found.reason)
        if isinstance(found, Unreadable) or entry.owned or namespace != self._reading.namespace:
            return Unreadable(namespace, meaning.operation, HELD)
        return as_meant(found, meaning)

    def _take_in(self, contents: Contents, view: RecordView, moment: Moment) -> bool:
        record = view.record
        name, _ = self._look(contents, Insert(record))
        if name is None:
            contents.put(name_in_document(record.scope, record.key), written(record, moment.at(view.written_ms)))
        return name is None

    def _make_room(self, contents: Contents) -> None:
        excess = len(contents) - self._records_max + 1
        if self._records_max > 0 and excess > 0:
            for _, name in contents.leaving()[:excess]:
                contents.drop(name)

    def _sweep(self, contents: Contents, moment: Moment, limit: int) -> int:
        names = contents.expired(moment.now_ms, limit) if limit > 0 else []
        for name in names:
            contents.drop(name)
        return len(names)

    def _item(self, entry: Entry, query: Query, moment: Moment) -> RecordView | Unreadable | None:
        """What a scan gives of an entry; ``None`` if it is not asked for."""
        found = entry.found
        if isinstance(found, Unreadable):
            asked = query.namespace in {None, found.namespace} and query.operation in {None, found.id}
            return found if asked else None
        view = RecordView(found, entry.written_ms, moment.now_ms, moment.since_ms(entry.boot_ms, entry.boot_id))
        return view if matches(view, query) else None

    # --- one call at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Generator[Contents, None, None]:
        if not self._turns.acquire(timeout=self._timeout):
            raise StoreUnavailable(f"{self._path}: other threads kept it busy for {self._timeout:g} s")
        try:
            if self._closed:
                raise closed()
            yield self._opened()
        except OSError as error:
            raise files.explained(error, self._path) from error
        finally:
            self._turns.release()

    @contextmanager
    def _change(self, contents: Contents) -> Generator[None, None, None]:
        """Write what is changed within, or take it back."""
        try:
            yield
            if contents.changed:
                self._save(contents)
        finally:
            contents.undo()

    def _save(self, contents: Contents) -> None:
        if not self._writes:
            raise StoreUnavailable(f"{self._path} was opened for reading alone; nothing was written")
        try:
            files.replace(self._path, document.write(contents.texts(), self._others))
            contents.settle()
        finally:
            self._seen = files.identity(self._path)

    def _opened(self) -> Contents:
        if self._contents is None:
            self._open()
        elif self._writes:
            self._check_alone()
        else:
            self._read()
        assert self._contents is not None
        return self._contents

    def _open(self) -> None:
        if self._network == "refuse" and (kind := network_file_system(self._path.parent)) is not None:
            raise StoreUnavailable(
                f"{self._path} is on a network file system ({kind}), where locks can't be relied on; put it on a local "
                "disk, or pass network=allow if one host alone ever opens it"
            )
        if self._writes:
            files.make_folder(self._path.parent)
            self._lock = files.take_lock(self._lock_path, self._timeout)
        try:
            self._read()
        except BaseException:
            self._let_go()
            raise

    def _read(self) -> None:
        """Read the file, unless it is the one that was read before."""
        seen = files.identity(self._path)
        if self._contents is not None and seen == self._seen:
            return
        data = self._path.read_bytes() if seen is not None else b"{}"
        try:
            found = document.parse(data)
        except ValueError as error:
            raise StoreUnavailable(
                f"{self._path} is not the JSON document of an API cache, and is left as it is: {error}"
            ) from error
        alone = self._writes or not files.is_held(self._lock_path)
        entries = [(member.name, read(member, self._reading)) for member in found.entries]
        self._contents = Contents((name, outlived(entry) if alone else entry) for name, entry in entries)
        self._others = found.others
        self._seen = seen

    def _check_alone(self) -> None:
        """Raise if another program changes the file, or may."""
        if files.identity(self._path) != self._seen:
            raise StoreUnavailable(
                f"{self._path} was changed by another program while this process had it open, and answers are refused; "
                "stop one of the two, then open the file anew"
            )
        if self._lock is None or not files.holds(self._lock, self._lock_path):
            raise StoreUnavailable(f"{self._lock_path} was removed, so others may open the file; open it anew")

    def _let_go(self) -> None:
        self._contents = None
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def _lock_path(self) -> Path:
        return self._path.with_name(f"{self._path.name}.lock")


def _located(op: Op) -> tuple[str, Meaning] | None:
    """Where an operation's record stands in a document, as far as the operation says that."""
    if isinstance(op, Get):
        return None
    record = op.record
    return name_in_document(record.scope, record.key), Meaning(record.scope, record.key, record.id)


def _due(op: Insert | Swap, found: Record | Unreadable | None) -> bool:
    if isinstance(op, Insert):
        return found is None
    return isinstance(found, Record) and found.etag == op.expected_etag


def _reply(entry: Entry | None, found: Record | Unreadable | None, moment: Moment) -> Reply:
    if entry is None:
        return reply_of((False, found, 0, moment.now_ms, 0))
    age_ms = moment.since_ms(entry.boot_ms, entry.boot_id)
    return reply_of((False, found, entry.written_ms, moment.now_ms, age_ms))
