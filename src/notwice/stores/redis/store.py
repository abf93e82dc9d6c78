"""The two faces: one server or one cluster, for threads and for tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from notwice.model import Op, Page, Query, RecordView, Reply
from notwice.stores.findings import Finding, heed
from notwice.stores.port import Store
from notwice.stores.redis.async_links import AsyncLinks
from notwice.stores.redis.checks import looked_at
from notwice.stores.redis.flows import Doubts, Flow, Terms, loads, moves
from notwice.stores.redis.links import Links
from notwice.stores.redis.routes import Address, ClusterRoutes, OneServer, Routes
from notwice.stores.redis.rows import Keys
from notwice.stores.redis.scans import page, purged
from notwice.stores.redis.settings import Settings
from notwice.stores.shared import Name, refuse_repeated_names

WAIT_SHARE: Final = 0.4
"""The part of a call's time that replicas have; a call may have to wait for them twice."""


class Plan:
    """What both faces do: flows over the same keys, routes and doubts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix)
        timeout = settings.login.timeout
        self.routes: Routes = (
            ClusterRoutes(settings.addresses, self.keys.shards, timeout)
            if settings.cluster
            else OneServer(settings.addresses[0])
        )
        self._terms = Terms(settings.replicas, round(timeout * WAIT_SHARE * 1_000), Doubts())
        self._looked = settings.safe == "ignore"

    def opened(self) -> Flow[None]:
        """Look at the server's settings, once."""
        if not self._looked:
            found = yield from self.findings(thorough=self.settings.safe == "require")
            heed(found, safe=self.settings.safe, shown=self.settings.shown)
            self._looked = True

    def findings(self, *, thorough: bool = True) -> Flow[list[Finding]]:
        """What the servers' settings mean for a guard."""
        return (yield from looked_at(self.routes, replicas=self.settings.replicas, thorough=thorough))

    def moves(self, ops: Sequence[Op]) -> Flow[list[Reply]]:
        """Carry out a batch."""
        if not self._looked:
            yield from self.opened()
        return (yield from moves(ops, self.keys, self.routes, terms=self._terms))

    def loads(self, views: Sequence[RecordView]) -> Flow[list[bool]]:
        """Take in records of another store."""
        yield from self.opened()
        return (yield from loads(views, self.keys, self.routes, terms=self._terms))

    def page(self, query: Query) -> Flow[Page]:
        """Give one page."""
        yield from self.opened()
        return (yield from page(query, self.keys, self.routes))

    def purged(self, limit: int) -> Flow[int]:
        """Drop expired records."""
        yield from self.opened()
        return (yield from purged(limit, self.keys, self.routes))

    def owner_of(self, name: Name) -> Address:
        """The node that carries out what is asked of a record, as far as is known."""
        return self.routes.owner(self.keys.shard_of(name))


class RedisStore:
    """A `Store` on a server of Redis 6 or Valkey, or later, or on a cluster of them, for threads.

    Each call is one round trip to each node that it concerns. The server's clock judges everything. A call that gets
    no answer in time raises, and its connection is dropped. With ``replicas`` a call also raises if it wrote and too
    few replicas have that: then the write may not outlive a fail-over.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._links = Links(plan.settings.login)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one round trip."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        return self._links.run(partial(self.plan.moves, ops))

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return self._links.run(partial(self.plan.page, query), patient=True)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` of those expired records that the server has not dropped yet."""
        return self._links.run(partial(self.plan.purged, limit), patient=True)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, in one round trip."""
        return self._links.run(partial(self.plan.loads, views), patient=True)

    def findings(self) -> list[Finding]:
        """What the servers' settings mean for a guard."""
        return self._links.run(self.plan.findings, patient=True)

    def close(self) -> None:
        """Close the connections. Using the store afterwards raises `StoreUnavailable`."""
        self._links.close()


class AsyncRedisStore:
    """`RedisStore` for event loops; any number of loops may use it at once.

    `blocking` is its blocking face, on the same plan: what one of them does not know for sure, the other knows as
    little. It is closed with it.
    """

    def __init__(self, plan: Plan, blocking: Store) -> None:
        self.plan = plan
        self.blocking = blocking
        self._links = AsyncLinks(plan.settings.login)

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one round trip."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
        return await self._links.run(partial(self.plan.moves, ops))

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return await self._links.run(partial(self.plan.page, query), patient=True)

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` of those expired records that the server has not dropped yet."""
        return await self._links.run(partial(self.plan.purged, limit), patient=True)

    async def close(self) -> None:
        """Close the connections. Using the store afterwards raises `StoreUnavailable`."""
        self.blocking.close()
        await self._links.close()
