"""A store in front of another one: what is private in a record is sealed on its way in, and opened on its way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, Record, RecordView, Reply, Swap, Unreadable
from notwice.stores.port import (
    AsyncJoined,
    AsyncStore,
    Fate,
    Joined,
    PartlyDone,
    Store,
    Unlisted,
    joined,
    joined_async,
    loading,
)


class Sealing(Protocol):
    """How records are sealed and opened."""

    def seal(self, record: Record) -> Record:
        """The record with what is private in it sealed."""
        ...

    def unseal(self, record: Record) -> Record | Unreadable:
        """The record opened; still sealed without its key, `Unreadable` if it does not open."""
        ...


class SealedStore:
    """A `Store` whose records lie sealed in the one behind it; the rules see them open.

    What it can't open for lack of a key it gives as it lies there: a guard refuses to judge it. Records that another
    store's records are loaded from stay as they are, and so does what is loaded.
    """

    def __init__(self, store: Store, sealing: Sealing) -> None:
        self._store = store
        self._sealing = sealing

    @property
    def behind(self) -> Store:
        """The store that this one stands before."""
        return self._store

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        try:
            return _opened(ops, self._store.apply(_sealed(ops, self._sealing)), self._sealing)
        except PartlyDone as error:
            raise _opened_in_part(ops, error, self._sealing) from error

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes."""
        return _opened_page(self._store.scan(query), self._sealing)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records."""
        return self._store.purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store, as they lie there."""
        return loading(self._store).load(views)

    def unlisted(self) -> int:
        """How many entries can't be decoded without its being known whose they are."""
        return self._store.unlisted() if isinstance(self._store, Unlisted) else 0

    def join(self, transaction: object) -> Joined:
        """The same records on the caller's open transaction. Raises `TypeError` if the store behind can't."""
        return _SealedJoined(joined(self._store, transaction), self._sealing)

    def close(self) -> None:
        """Close the store behind."""
        self._store.close()


class AsyncSealedStore:
    """`SealedStore` for an event loop."""

    def __init__(self, store: AsyncStore, sealing: Sealing) -> None:
        self._store = store
        self._sealing = sealing

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return SealedStore(self._store.blocking, self._sealing)

    @property
    def behind(self) -> AsyncStore:
        """The store that this one stands before."""
        return self._store

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        try:
            return _opened(ops, await self._store.apply(_sealed(ops, self._sealing)), self._sealing)
        except PartlyDone as error:
            raise _opened_in_part(ops, error, self._sealing) from error

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes."""
        return _opened_page(await self._store.scan(query), self._sealing)

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records."""
        return await self._store.purge(limit)

    async def join(self, transaction: object) -> AsyncJoined:
        """The same records on the caller's open transaction. Raises `TypeError` if the store behind can't."""
        return _AsyncSealedJoined(await joined_async(self._store, transaction), self._sealing)

    async def close(self) -> None:
        """Close the store behind."""
        await self._store.close()


class _SealedJoined:
    """`SealedStore` on a caller's transaction."""

    def __init__(self, joined: Joined, sealing: Sealing) -> None:
        self._joined = joined
        self._sealing = sealing

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        return _opened(ops, self._joined.apply(_sealed(ops, self._sealing)), self._sealing)

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return self._joined.is_open()

    def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        return self._joined.fate(record)


class _AsyncSealedJoined:
    """`AsyncSealedStore` on a caller's transaction."""

    def __init__(self, joined: AsyncJoined, sealing: Sealing) -> None:
        self._joined = joined
        self._sealing = sealing

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        return _opened(ops, await self._joined.apply(_sealed(ops, self._sealing)), self._sealing)

    def is_open(self) -> bool:
        """Whether the caller's transaction still goes on."""
        return self._joined.is_open()

    async def fate(self, record: Record) -> Fate:
        """What became of `record`, which was written here and is not committed."""
        return await self._joined.fate(record)


def _opened_in_part(ops: Sequence[Op], error: PartlyDone, sealing: Sealing) -> PartlyDone:
    def opened(op: Op, outcome: Reply | StoreUnavailable) -> Reply | StoreUnavailable:
        return outcome if isinstance(outcome, StoreUnavailable) else _opened([op], [outcome], sealing)[0]

    return PartlyDone([opened(op, outcome) for op, outcome in zip(ops, error.outcomes, strict=True)])


def _sealed(ops: Sequence[Op], sealing: Sealing) -> Sequence[Op]:
    return [_sealed_op(op, sealing) for op in ops]


def _sealed_op(op: Op, sealing: Sealing) -> Op:
    match op:
        case Insert(record):
            return Insert(sealing.seal(record))
        case Swap(record, expected_etag):
            return Swap(sealing.seal(record), expected_etag)
        case Get():
            return op


def _opened(ops: Sequence[Op], replies: Sequence[Reply], sealing: Sealing) -> Sequence[Reply]:
    return [_opened_reply(op, reply, sealing) for op, reply in zip(ops, replies, strict=True)]


def _opened_reply(op: Op, reply: Reply, sealing: Sealing) -> Reply:
    record = reply.record
    if not isinstance(record, Record) or not record.sealed:
        return reply
    if reply.won and not isinstance(op, Get):  # it is what was given, and the store has stamped it
        return reply._replace(record=op.record._replace(created_ms=record.created_ms))
    return reply._replace(record=sealing.unseal(record))


def _opened_page(page: Page, sealing: Sealing) -> Page:
    return page._replace(items=tuple(_opened_item(item, sealing) for item in page.items))


def _opened_item(item: RecordView | Unreadable, sealing: Sealing) -> RecordView | Unreadable:
    if isinstance(item, Unreadable) or not item.record.sealed:
        return item
    found = sealing.unseal(item.record)
    return found if isinstance(found, Unreadable) else item._replace(record=found)
