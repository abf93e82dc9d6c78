"""Connections to nodes, for the tasks of event loops: each loop has its own."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from notwice.errors import StoreUnavailable
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.redis.flows import Answers, Exchange, Flow, Lost, Pause
from notwice.stores.redis.links import LINKS_MAX, LOOKED_AT_AFTER_S, is_in_doubt, within
from notwice.stores.redis.routes import Address
from notwice.stores.redis.rows import Command, packed
from notwice.stores.redis.settings import Login
from notwice.stores.shared import closed

T = TypeVar("T")

_of_parents: list[object] = []
"""Connections that a forked child has copies of, and never touches: their loop runs in the parent."""


class _Pool:
    """The connections of one loop."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(LINKS_MAX)
        self.idle: dict[Address, list[tuple[Connection, float]]] = {}


class AsyncLinks:
    """`Links` for event loops; any number of loops may use it."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._closed = False
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()
        stand_still_at_forks(self)

    async def run(self, flow: Callable[[], Flow[T]], *, patient: bool = False) -> T:
        """Carry out a flow. Raises `StoreUnavailable` if it takes too long, or the store is closed.

        A `patient` caller has that time for each exchange anew.
        """
        if self._closed:
            raise closed()
        deadline = None if patient else time.monotonic() + self._login.timeout
        pool = self._pool()
        try:
            async with asyncio.timeout(self._login.timeout):
                await pool.turns.acquire()
        except TimeoutError:
            raise StoreUnavailable(
                f"{LINKS_MAX} calls were under way for {self._login.timeout:g} s; nothing was done"
            ) from None
        try:
            return await self._drive(flow(), pool, deadline)
        finally:
            pool.turns.release()

    async def close(self) -> None:
        """Close the connections of this loop; those of others end with their loops."""
        self._closed = True
        idle, self._pool().idle = self._pool().idle, {}
        for link, _ in (each for links in idle.values() for each in links):
            with suppress(RedisError, OSError):
                await link.disconnect()

    def before_fork(self) -> None:
        """Nothing is shared between threads here."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew: the loops and their connections are the parent's."""
        _of_parents.extend(self._pools.values())
        self._pools = weakref.WeakKeyDictionary()

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = _Pool()
        return pool

    async def _drive(self, flow: Flow[T], pool: _Pool, deadline: float | None) -> T:
        try:
            request = next(flow)
            while True:
                until = deadline or time.monotonic() + self._login.timeout
                if isinstance(request, Pause):
                    await asyncio.sleep(within(until, request.seconds))
                    request = flow.send({})
                else:
                    request = flow.send(await self._exchange(request, pool, until))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    async def _exchange(self, request: Exchange, pool: _Pool, deadline: float) -> Answers:
        """Talk to all nodes at once."""
        if request.timeout is not None:
            deadline = min(deadline, time.monotonic() + request.timeout)
        talks = [
            self._talk(address, commands, pool, deadline=deadline) for address, commands in request.commands.items()
        ]
        answers = [await talks[0]] if len(talks) == 1 else await asyncio.gather(*talks)
        return dict(zip(request.commands, answers, strict=True))

    async def _talk(
        self, address: Address, commands: Sequence[Command], pool: _Pool, *, deadline: float
    ) -> Sequence[Any] | Lost:
        """Send to one node and hear it; a call that is cancelled meanwhile leaves no connection behind."""
        link: Connection | None = None
        answers: Sequence[Any] | Lost = Lost(TimeoutError("it took too long"), sent=False)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                link = await self._taken(address, pool)
                answers = Lost(TimeoutError("it took too long"), sent=True)
                await link.send_packed_command([packed(commands)], check_health=False)
                answers = await _heard(link, len(commands))
        except (RedisError, OSError) as error:
            answers = Lost(error if str(error) else TimeoutError("it took too long"), sent=link is not None)
        finally:
            if link is not None:
                await self._give_back(address, link, pool, answers=answers)
        return answers

    async def _taken(self, address: Address, pool: _Pool) -> Connection:
        """A connection that is open, of the idle ones or a new one."""
        idle = pool.idle.get(address)
        while idle:
            link, used_at = idle.pop()
            if time.monotonic() - used_at < LOOKED_AT_AFTER_S or await _is_quiet(link):
                return link
            await link.disconnect(nowait=True)
        kind = SSLConnection if self._login.encrypted else Connection
        host, port = address
        link = kind(
            host=host,
            port=port,
            socket_timeout=None,
            socket_connect_timeout=self._login.timeout,
            retry=Retry(NoBackoff(), 0),
            **self._login.options,
        )
        try:
            await link.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it out
        except BaseException:
            await link.disconnect(nowait=True)
            raise
        return link

    async def _give_back(
        self, address: Address, link: Connection, pool: _Pool, *, answers: Sequence[Any] | Lost
    ) -> None:
        if is_in_doubt(answers) or self._closed:
            await link.disconnect(nowait=True)
        else:
            pool.idle.setdefault(address, []).append((link, time.monotonic()))


async def _heard(link: Connection, count: int) -> Sequence[Any]:
    answers: list[Any] = []
    while len(answers) < count:
        try:
            answers.append(await link.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers


async def _is_quiet(link: Connection) -> bool:
    """Whether the server has neither closed the connection nor said anything that nobody asked for."""
    with suppress(RedisError, OSError):
        return not await link.can_read()
    return False
