"""The port between notwice and whatever keeps its records: one batch in, one batch out.

A store judges nothing: it knows no policy and keeps no telemetry. What it promises is listed in `Store`, one bullet a
promise, and each bullet is a named case of `notwice.testing.conformance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from inspect import iscoroutinefunction
from typing import Final, Protocol, runtime_checkable

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, Record, RecordView, Reply


class KeyLocked(StoreUnavailable):
    """Somebody's open transaction holds a record that a call is about. Nothing was done, for none of its operations.

    What shares trips then carries out each call of the batch by itself, so that only those it is about have to wait.
    """


class PartlyDone(StoreUnavailable):
    """Some operations of a batch have their replies, others were refused, or nobody knows what became of them.

    What shares trips tells each caller of its own operations alone.

    Arguments:
        outcomes: for each operation its reply, or its error.
    """

    def __init__(self, outcomes: Sequence[Reply | StoreUnavailable]) -> None:
        first = next(outcome for outcome in outcomes if isinstance(outcome, StoreUnavailable))
        super().__init__(f"{first}; what became of other operations of this batch is another matter")
        self.outcomes = outcomes


class Store(Protocol):
    """A blocking store. Any number of threads may call it at once, and it may be made before a fork.

    - An insert stores the record if nothing is there, else changes nothing and gives what is there.
    - A swap acts only on a record with exactly the expected etag, else changes nothing and gives what is there.
    - A get gives what is there, as the last acknowledged write left it.
    - Of any number of rivals for one write, one wins.
    - A reply is given only once the write is as durable as the store can make it.
    - A write that fails raises, and may or may not have been applied; a refusal is no failure.
    - Each operation of a batch succeeds or fails alone, and replies come in the order of the batch.
    - A batch that names an id twice is refused with `ValueError` before anything is written.
    - Each write is stamped with the store's time; a ``created_ms`` of 0 is replaced by that time.
    - Each write sets or clears the engine's own expiry, by ``Record.expires_after_ms``.
    - Only records whose ``expires_after_ms`` has passed are purged, each by a condition in its own statement.
    - A record that can't be decoded is given as `Unreadable`, never as absent, and never overwritten or purged.
    - A record that is too large for the engine is refused with `RecordTooLarge`, and nothing is written.
    - Namespaces, ids, scopes, keys and bodies are kept byte for byte, whatever their case, blanks or alphabet.
    """

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Raises on failure: then each write may or may not be there."""
        ...

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        ...

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records in one bounded step, and say how many went."""
        ...

    def close(self) -> None:
        """Give back connections, files and threads. Closing twice is harmless; using it afterwards raises."""
        ...


class AsyncStore(Protocol):
    """The same promises as `Store`, for an event loop. ``blocking`` is its blocking face, for the heartbeat thread."""

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        ...

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. A cancelled call may still be carried out."""
        ...

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        ...

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records in one bounded step, and say how many went."""
        ...

    async def close(self) -> None:
        """Give back connections, files and threads. Closing twice is harmless; using it afterwards raises."""
        ...


@runtime_checkable
class Loads(Store, Protocol):
    """What a blocking store is besides, if records of another store can be moved into it: ``notwice import``.

    An engine does this with the statement of its inserts, and gives it each view's ``written_ms`` in the place of its
    own time. That is all there is to it: own expiries, scans and deadlines follow from the time of the write.
    """

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records as another store kept them, and say for each whether it was stored.

        - A record is stored if nothing is there under its name, else nothing changes; what can't be decoded is there.
        - It is stored whole, its etag and ``created_ms`` too, and counts as written at the view's ``written_ms``.
        - Its age goes on from that time, by the store's wall clock if there is no better one: who held a lease in the
          other store keeps it that long. The view's own ``now_ms`` and ``age_ms`` say nothing here.
        - Nothing has to leave to make room, whatever a store's limit is.
        - It is as durable as any other write before this returns.

        No name is given twice. Raises on failure: then each record may or may not be there, and loading the same ones
        again is harmless.
        """
        ...


@runtime_checkable
class Unlisted(Protocol):
    """What a blocking store has besides, if it may hold what no scan gives."""

    def unlisted(self) -> int:
        """How many entries can't be decoded without its being known whose they are."""
        ...


_NOTHING_TO_JOIN: Final = "this store keeps its records in no database that a caller's transaction could take in"


class Fate(Enum):
    """What became of a write on a caller's transaction that is not committed."""

    OPEN = "open"
    """The transaction goes on, and the write is part of it."""
    UNDONE = "undone"
    """The transaction is over, and as far as is known nothing of it was committed."""
    PARTED = "parted"
    """The write was rolled back, and what else was done on the connection was not, or not yet: by a savepoint."""
    NESTED = "nested"
    """The transaction is over, and there was a savepoint: which of the last two became of it can't be found out."""


class Joined(Protocol):
    """A store's records on a caller's open transaction."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Writes wait for the caller's commit; a get shows commits only."""
        ...

    def is_open(self) -> bool:
        """Whether the caller's transaction goes on, as far as its connection knows. Nobody is asked, nothing raised."""
        ...

    def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed. Raises nothing.

        The caller's connection is asked only while it is the caller's: a pool may have given it to somebody else.
        """
        ...


class AsyncJoined(Protocol):
    """The same promises as `Joined`, for an event loop."""

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice. Writes wait for the caller's commit; a get shows commits only."""
        ...

    def is_open(self) -> bool:
        """Whether the caller's transaction goes on, as far as its connection knows. Nobody is asked, nothing raised."""
        ...

    async def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed. Raises nothing.

        The caller's connection is asked only while it is the caller's: a pool may have given it to somebody else.
        """
        ...


@runtime_checkable
class Joins(Protocol):
    """A store in a database of the caller's: its records can be written in the caller's own transaction."""

    def join(self, transaction: object) -> Joined:
        """The same records on the caller's open transaction: each write is committed, or not, with the caller's rows.

        Its calls raise what the database raises, repeat nothing and leave the transaction usable; a rival's record is
        read on a connection of the store's own. Raises `ValueError` for a connection in autocommit, or of another
        database or schema, and `TypeError` for what is no connection of this engine.
        """
        ...


@runtime_checkable
class AsyncJoins(Protocol):
    """The same promises as `Joins`, for an event loop."""

    async def join(self, transaction: object) -> AsyncJoined:
        """The same records on the caller's open transaction: each write is committed, or not, with the caller's rows.

        Its calls raise what the database raises, repeat nothing and leave the transaction usable; a rival's record is
        read on a connection of the store's own. Raises `ValueError` for a connection in autocommit, or of another
        database or schema, and `TypeError` for what is no connection of this engine.
        """
        ...


def can_join(store: object) -> bool:
    """Whether records can be written in a caller's own transaction: by the store, and by those that it stands before.

    A store that stands before another one gives that as ``behind``.
    """
    behind: object = getattr(store, "behind", None)
    return hasattr(store, "join") and (behind is None or can_join(behind))


def check_atomic(store: object) -> None:
    """Raise `TypeError` for a store that an atomic operation could never be completed in."""
    if not can_join(store):
        message = (
            f"Policy(atomic=True) completes an operation together with rows of yours, and {_NOTHING_TO_JOIN}. Use "
            "SQLite, PostgreSQL, MariaDB or MySQL, or leave atomic out"
        )
        raise TypeError(message)


_METHODS: Final = ("apply", "scan", "purge", "close")


def check_store(store: object, guard: str) -> None:
    """Raise `TypeError` for what is no store: a URL, a class, or an object that has not all of a store's methods."""
    if isinstance(store, str):  # not shown: it may hold a password
        raise TypeError(f"{guard} takes a store, not its URL: use {guard}.open(url)")
    if isinstance(store, type):
        raise TypeError(f"{guard} takes a store, not its class: make one, by {store.__name__}()")
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        kind = type(store).__name__
        raise TypeError(f"{guard} takes a store, and this {kind} has no {', '.join(missing)}: use {guard}.open(url)")


def is_asynchronous(store: AsyncStore | Store) -> bool:
    """Whether a store is for event loops: its calls are awaited, and it has a blocking face beside it."""
    return iscoroutinefunction(store.apply) or hasattr(store, "blocking")


def loading(store: Store) -> Loads:
    """The store, as one that takes in records of another one. Raises `NotImplementedError` if it can't."""
    if not isinstance(store, Loads):
        raise NotImplementedError("this store takes in no records of another one")
    return store


def joined(store: Store, transaction: object) -> Joined:
    """The same records on the caller's transaction. Raises `TypeError` for a store that has none."""
    if not isinstance(store, Joins):
        raise TypeError(_NOTHING_TO_JOIN)
    return store.join(transaction)


async def joined_async(store: AsyncStore | None, transaction: object) -> AsyncJoined:
    """The same records on the caller's transaction. Raises `TypeError` for a store that has none."""
    found: object = store
    if not isinstance(found, AsyncJoins):
        raise TypeError(_NOTHING_TO_JOIN)
    return await found.join(transaction)


class StoreClock(Protocol):
    """The clock of an embedded store: wall time for retention, and one that no step of the wall clock moves."""

    def wall_ms(self) -> int:
        """Unix time in milliseconds."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since this host was started, counting sleep."""
        ...

    def boot_id(self) -> str:
        """The name of this run of the host: two times of one boot can be compared, two of different ones can't."""
        ...
