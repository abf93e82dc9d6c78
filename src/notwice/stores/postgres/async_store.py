"""The face for event loops, on asyncpg."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it ships none

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, Reply
from notwice.stores.findings import heed
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.pool import all_busy
from notwice.stores.port import AsyncJoined, Store
from notwice.stores.postgres.flows import Rows, applying, asking, opening
from notwice.stores.postgres.place import (
    Opened,
    Place,
    in_doubt,
    is_harmless,
    session_settings,
    too_slow,
    translated,
)
from notwice.stores.postgres.rows import Statement, scan_of
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.shared import closed, refuse_repeated_names
from notwice.stores.sweeping import SWEPT_MAX, Sweeping
from notwice.stores.tables import HeldKeys, page_of

_T = TypeVar("_T")


class AsyncSession:
    """One connection of one event loop, with what it was warned of."""

    def __init__(self, place: Place, connection: Any) -> None:  # noqa: ANN401 - asyncpg's, through its own proxy
        self.place = place
        self.warning: str | None = None
        self.connection = connection
        connection.add_log_listener(self._warned)

    @classmethod
    async def connected(cls, place: Place) -> AsyncSession:
        """Connect. Raises `StoreUnavailable`."""
        try:
            connect: Any = asyncpg.connect  # without annotations, its time-outs are taken for whole numbers
            connection = await connect(
                place.address,
                timeout=place.timeout,
                target_session_attrs="read-write",
                max_cached_statement_lifetime=0,
                server_settings={
                    name: value for name, value in session_settings(place).items() if name != "client_encoding"
                },
            )
        except TimeoutError as error:
            raise too_slow(place, connected=False) from error
        except Exception as error:
            raise translated(error, place, connected=False) from error
        return cls(place, connection)

    async def run(self, flow: Generator[Statement, Rows, _T], deadline: float) -> _T:
        """Carry a conversation out."""
        try:
            statement = next(flow)
            while True:
                try:
                    rows = await self._rows(statement, deadline)
                except Exception as error:  # noqa: BLE001 - the flow knows what it can deal with
                    statement = flow.throw(self._told(error))
                else:
                    statement = flow.send(rows)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    def is_dead(self) -> bool:
        """Whether the server has ended it."""
        return bool(self.connection.is_closed())

    def close(self) -> None:
        """End it at once, whatever it is doing."""
        with suppress(Exception):
            self.connection.terminate()

    async def _rows(self, statement: Statement, deadline: float) -> Rows:
        remaining = max(deadline - time.monotonic(), 0.001)
        rows: Rows = await self.connection.fetch(statement.text, *statement.parameters, timeout=remaining)
        if self.warning is not None:
            raise in_doubt(self.warning, self.place)
        return rows

    def _told(self, error: Exception) -> Exception:
        return too_slow(self.place) if isinstance(error, TimeoutError) else translated(error, self.place)

    def _warned(self, _: object, message: Any) -> None:  # noqa: ANN401 - asyncpg's log message, of many classes
        if message.severity_en == "WARNING":
            self.warning = message.message


class _Pool:
    """The connections of one event loop."""

    def __init__(self, size: int) -> None:
        self.idle: deque[AsyncSession] = deque()
        self.free = asyncio.Semaphore(size)

    def drop_idle(self) -> None:
        """End those that nobody uses."""
        while self.idle:
            self.idle.pop().close()


class AsyncPostgresStore:
    """An `AsyncStore` in tables of a PostgreSQL database. What `PostgresStore` says of itself is so here, too.

    Any number of event loops may use it, each with connections of its own.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._opened = Opened()
        self._sweeping = Sweeping()
        self._held = HeldKeys()
        self._closed = False
        self._blocking = PostgresStore(place, self._opened)
        self._stranded: list[object] = []
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()

    @property
    def blocking(self) -> Store:
        """The same records, for callers outside a loop."""
        return self._blocking

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one statement and one commit."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
            if not ops:
                return []
        async with self._turn() as (session, deadline):
            replies = await session.run(applying(ops, self._place.dialect, self._held), deadline)
        if self._sweeping.is_due(ops, replies):
            with suppress(StoreUnavailable):  # what was asked for is done
                await self.purge(SWEPT_MAX)
        return replies

    async def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return page_of(await self._ask(scan_of(query, self._place.dialect)), query)

    async def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records in one commit. Goes round those that it can't decode, or that are busy."""
        ((count,),) = await self._ask(Statement(self._place.dialect.purge, (max(limit, 0),)))
        return int(count)

    async def join(self, transaction: object) -> AsyncJoined:
        """The same records on a transaction of asyncpg's, or of psycopg's for event loops, in this database."""
        from notwice.stores.postgres.joined import join_async  # noqa: PLC0415 - it uses this module

        return await join_async(self, transaction)

    async def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        with self._lock:
            self._closed = True
            pools, self._pools = list(self._pools.items()), weakref.WeakKeyDictionary()
        here = asyncio.get_running_loop()
        for loop, pool in pools:
            if loop is here:
                await _closed_in_order(pool, self._place.timeout)
            elif not loop.is_closed():
                with suppress(RuntimeError):  # it was closed just now
                    loop.call_soon_threadsafe(pool.drop_idle)
        self._blocking.close()

    def before_fork(self) -> None:
        """Let nobody change the pools while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew. The parent's connections are kept, never to be used: closed here, they would end there."""
        self._stranded.append(self._pools)
        self._start_anew()

    # --- connections --------------------------------------------------------------------------------------------------

    async def _ask(self, statement: Statement) -> Rows:
        async with self._turn() as (session, deadline):
            return await session.run(asking(statement), deadline)

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise closed()
            if loop not in self._pools:
                for gone in [each for each in self._pools if each.is_closed()]:  # a connection keeps its loop
                    del self._pools[gone]
                self._pools[loop] = _Pool(self._place.pool)
            return self._pools[loop]

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[tuple[AsyncSession, float]]:
        """A connection for one call, until its deadline."""
        pool = self._pool()
        deadline = time.monotonic() + self._place.timeout
        try:
            async with asyncio.timeout(self._place.timeout):
                await pool.free.acquire()
        except TimeoutError:
            raise all_busy(self._place.shown, self._place.pool, self._place.timeout) from None
        try:
            session = await self._session(pool, deadline)
            try:
                yield session, deadline
            except BaseException as error:
                if is_harmless(error):
                    self._give_back(session, pool)
                else:
                    session.close()
                    pool.drop_idle()  # what ended one connection may have ended all of them
                raise
            self._give_back(session, pool)
        finally:
            pool.free.release()

    async def _session(self, pool: _Pool, deadline: float) -> AsyncSession:
        session = pool.idle.pop() if pool.idle else None
        if session is not None and session.is_dead():
            pool.drop_idle()
            session = None
        return session or await self._connected(deadline)

    async def _connected(self, deadline: float) -> AsyncSession:
        place = self._place
        session = await AsyncSession.connected(place)
        try:
            makes, first = place.tables == "make", not self._opened.yet
            flow = opening(place.names, first=first, makes=makes, timeout_ms=place.timeout_ms)
            heed(await session.run(flow, deadline), safe=place.safe, shown=place.shown)
        except BaseException:
            session.close()
            raise
        self._opened.yet = True
        return session

    def _give_back(self, session: AsyncSession, pool: _Pool) -> None:
        if self._closed:
            session.close()
        else:
            pool.idle.append(session)


async def _closed_in_order(pool: _Pool, timeout: float) -> None:  # noqa: ASYNC109 - asyncpg measures it
    while pool.idle:
        session = pool.idle.pop()
        try:
            await session.connection.close(timeout=timeout)
        except Exception:  # noqa: BLE001 - it is given up either way
            session.close()
