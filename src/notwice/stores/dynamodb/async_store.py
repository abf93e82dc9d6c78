"""The face for event loops: the blocking one in threads, as many requests at once as the store may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from notwice.model import Op, Page, Query, Reply
from notwice.stores.dynamodb.store import DynamoStore, replies_of
from notwice.stores.port import Store
from notwice.stores.shared import refuse_repeated_names

_T = TypeVar("_T")


class AsyncDynamoStore:
    """`DynamoStore` for an event loop; any number of loops may use it at once."""

    def __init__(self, store: DynamoStore) -> None:
        self._store = store

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return self._store

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        if len(ops) == 1:
            return [await self._in_thread(partial(self._store.carry_out, ops[0]))]
        refuse_repeated_names(ops)
        calls = (self._in_thread(partial(self._store.carry_out, op)) for op in ops)
        return replies_of(await asyncio.gather(*calls, return_exceptions=True))

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return await self._in_thread(partial(self._store.scan, query))

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records, going on where the last purge stopped."""
        return await self._in_thread(partial(self._store.purge, limit))

    async def close(self) -> None:
        """Close the connections and let the threads end."""
        self._store.close()

    async def _in_thread(self, job: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._store.threads.submit(job))
