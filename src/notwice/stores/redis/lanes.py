"""Shared trips on a cluster: callers share those to one node, and one that is gone holds up only its own keys."""

from __future__ import annotations

from collections.abc import Sequence

from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.async_batching import SharedTrips
from notwice.stores.batching import Batching
from notwice.stores.findings import Finding
from notwice.stores.port import Store
from notwice.stores.redis.routes import Address
from notwice.stores.redis.store import AsyncRedisStore, RedisStore
from notwice.stores.shared import name_of


class _Trips:
    """The store as one lane has it: other lanes may still have something to do there when this one is closed."""

    def __init__(self, store: RedisStore) -> None:
        self.apply = store.apply
        self.scan = store.scan
        self.purge = store.purge

    def close(self) -> None:
        """Leave it open."""


class _AsyncTrips:
    """The same for event loops."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self.blocking = store.blocking
        self.apply = store.apply
        self.scan = store.scan
        self.purge = store.purge

    async def close(self) -> None:
        """Leave it open."""


class Lanes:
    """A `Store` in front of a cluster that lets threads share trips, node by node."""

    def __init__(self, store: RedisStore, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._lanes: dict[Address, Batching] = {}

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice: one operation in company, more of them at once."""
        if len(ops) != 1:
            return self._store.apply(ops)
        return self._lane(ops[0]).apply(ops)

    def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return self._store.scan(query)

    def purge(self, limit: int) -> int:
        """Purge the store."""
        return self._store.purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store."""
        return self._store.load(views)

    def findings(self) -> list[Finding]:
        """What the servers' settings mean for a guard."""
        return self._store.findings()

    def close(self) -> None:
        """Carry out what is pending, then close the store."""
        for lane in list(self._lanes.values()):
            lane.close()
        self._store.close()

    def _lane(self, op: Op) -> Batching:
        """What is shared with others that ask the same node, as far as its owner is known."""
        address = self._store.plan.owner_of(name_of(op))
        lane = self._lanes.get(address)
        return lane or self._lanes.setdefault(address, Batching(_Trips(self._store), timeout=self._timeout))


class AsyncLanes:
    """`Lanes` for event loops."""

    def __init__(self, store: AsyncRedisStore, timeout: float) -> None:
        self._store = store
        self._timeout = timeout
        self._lanes: dict[Address, SharedTrips] = {}

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return self._store.blocking

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice: one operation in company, more of them at once."""
        if len(ops) != 1:
            return await self._store.apply(ops)
        return await self._lane(ops[0]).apply(ops)

    async def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        return await self._store.scan(query)

    async def purge(self, limit: int) -> int:
        """Purge the store."""
        return await self._store.purge(limit)

    async def close(self) -> None:
        """Carry out what is pending, then close the store."""
        for lane in list(self._lanes.values()):
            await lane.close()
        await self._store.close()

    def _lane(self, op: Op) -> SharedTrips:
        """What is shared with others that ask the same node, as far as its owner is known."""
        address = self._store.plan.owner_of(name_of(op))
        lane = self._lanes.get(address)
        return lane or self._lanes.setdefault(address, SharedTrips(_AsyncTrips(self._store), timeout=self._timeout))
