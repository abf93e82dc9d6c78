"""The HTTP client of the gateway: one request on one connection, never sent a second time.

A guard needs to know one thing that no client library tells: whether any byte of a request left this process. So the
protocol is h11's, the socket is `notwice.server.wire`, and what lies between is here, with nothing that sends again.

- Nothing left: `NotSent`. The upstream can't have acted.
- Something left, and no whole answer came: `UpstreamLost`. Nobody knows whether it acted.

A kept connection can be closed by the upstream in the moment in which a request is sent on it, and then nobody knows
either, though most likely nothing happened. So a request that may change something gets a connection of its own;
only GET, HEAD and OPTIONS travel on one that was used before.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import h11

from notwice.errors import NotApplied
from notwice.problems import Problem
from notwice.server import refusals
from notwice.server.kinds import Target
from notwice.server.settings import Settings
from notwice.server.wire import Wire, connect

KEPT_MAX: Final = 32
KEPT_SECONDS: Final = 1.0  # well below what servers wait before they close an idle connection: 2 s and more
HEAD_BYTES_MAX: Final = 64 * 1024
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class NotSent(NotApplied):
    """No byte of the request left this process, so nothing happened: a guard frees the key, and tells it so."""

    code = refusals.UNREACHABLE

    def problem(self) -> Problem:
        """The refusal that the caller gets."""
        return refusals.problem_of(self.code)


class Malformed(NotSent):
    """The request can't be said in HTTP/1.1 as it is."""

    code = refusals.MALFORMED


class Unsupported(NotSent):
    """The request wants what the gateway does not speak."""

    code = refusals.UNSUPPORTED


class UpstreamLost(Exception):
    """Some of the request left, and no whole answer came: nobody knows whether it took effect.

    ``status`` is 504 if the upstream was silent for too long, else 502. ``operation`` is the id of the guarded
    operation, if it was one.
    """

    def __init__(self, reason: str, *, status: int = 502) -> None:
        super().__init__(reason)
        self.status = status
        self.operation: str | None = None


def head(method: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> h11.Request:
    """Make the head of a request. Raises `Malformed`."""
    try:
        return h11.Request(method=method, target=target, headers=headers)
    except h11.LocalProtocolError as error:
        raise Malformed(str(error)) from error


class Exchange:
    """One request and its answer. Sending and receiving may go on at the same time, each in one task."""

    def __init__(self, wire: Wire, silence: float) -> None:
        self._wire = wire
        self._silence = silence
        self._reading: asyncio.Timeout | None = None
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._sent = False

    def begin(self, request: h11.Request) -> None:
        """Send the head. Raises `NotSent` if the connection is gone already."""
        if not self._wire.quiet:
            raise NotSent("the upstream closed the connection")
        self._wire.write(self._protocol.send(request) or b"")

    async def send(self, body: bytes) -> None:
        """Send a part of the body. Raises `UpstreamLost` if the upstream does not take it in time."""
        if body and self._protocol.our_state is h11.SEND_BODY:
            self._say(h11.Data(data=body))
            await self._drain()

    async def end(self) -> None:
        """Say that the request is whole. From now on the upstream may not be silent for too long."""
        if self._protocol.our_state is h11.SEND_BODY:
            self._say(h11.EndOfMessage())
            await self._drain()
        self._sent = True
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time() + self._silence)

    async def receive(self) -> AsyncIterator[h11.Response | h11.Data]:
        """Give the head of the answer, then the parts of its body. Ends only after a whole answer."""
        while True:
            event = await self._next()
            match event:
                case h11.Response() | h11.Data():
                    yield event
                case h11.EndOfMessage():
                    return
                case h11.InformationalResponse():  # of interest to this hop only
                    continue
                case _:
                    raise UpstreamLost("the upstream closed the connection before its answer was whole")

    def abort(self) -> None:
        """Break off: whoever sends or receives is told that the upstream is lost."""
        self._wire.abort()

    @property
    def reusable(self) -> bool:
        """Whether request and answer are whole and the connection may carry another."""
        ours, theirs = self._protocol.our_state, self._protocol.their_state
        return ours is h11.DONE and theirs is h11.DONE and self._wire.quiet and not self._protocol.trailing_data[0]

    def _say(self, event: h11.Data | h11.EndOfMessage) -> None:
        """Send a part of the body, or its end. A body that is not as long as it was said to be is never whole."""
        try:
            self._wire.write(self._protocol.send(event) or b"")
        except h11.LocalProtocolError as error:
            raise UpstreamLost(f"the request could not be sent whole: {error}") from error

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._silence):
                await self._wire.drain()
        except TimeoutError:
            self._wire.abort()
            raise UpstreamLost("the upstream stopped reading the request", status=504) from None

    async def _next(self) -> object:
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                self._protocol.receive_data(await self._read())
        except h11.RemoteProtocolError as error:
            raise UpstreamLost(f"the upstream's answer was broken: {error}") from error
        except OSError as error:
            raise UpstreamLost(f"the connection to the upstream broke: {error}") from error
        return event

    async def _read(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence if self._sent else None) as self._reading:
                return await self._wire.read()
        except TimeoutError:
            raise UpstreamLost("the upstream did not answer in time", status=504) from None
        finally:
            self._reading = None


class Upstream:
    """The service behind the gateway."""

    def __init__(self, settings: Settings) -> None:
        self.target: Target = settings.upstream
        self._connect_timeout = settings.upstream_connect_timeout
        self._silence = settings.upstream_timeout
        self._tls = ssl.create_default_context() if self.target.scheme == "https" else None
        self._kept: deque[tuple[Wire, float]] = deque()

    async def open(self, *, fresh: bool) -> Exchange:
        """Give a connection for one request; a `fresh` one was never used before. Raises `NotSent`."""
        wire = (None if fresh else self._take()) or await self._connect(self._connect_timeout)
        return Exchange(wire, self._silence)

    def put_back(self, exchange: Exchange) -> None:
        """Keep a connection whose exchange is whole for a while, and break any other."""
        if not exchange.reusable:
            exchange.abort()
            return
        self._kept.append((exchange._wire, asyncio.get_running_loop().time()))
        while len(self._kept) > KEPT_MAX:
            self._kept.popleft()[0].close()

    async def reachable(self, timeout: float) -> bool:  # noqa: ASYNC109 - the bound is the point of the question
        """Say whether a connection can be made within `timeout` seconds."""
        try:
            (await self._connect(timeout)).close()
        except NotSent:
            return False
        return True

    def close(self) -> None:
        """Close the kept connections."""
        while self._kept:
            self._kept.pop()[0].close()

    def _take(self) -> Wire | None:
        oldest = asyncio.get_running_loop().time() - KEPT_SECONDS
        while self._kept:
            wire, since = self._kept.pop()
            if wire.quiet and since >= oldest:
                return wire
            wire.close()
        return None

    async def _connect(self, timeout: float) -> Wire:  # noqa: ASYNC109 - two callers, two bounds
        try:
            async with asyncio.timeout(timeout):
                return await connect(self.target.host, self.target.port, self._tls)
        except TimeoutError:
            raise NotSent("the upstream did not accept a connection in time") from None
        except OSError as error:
            raise NotSent(f"no connection to the upstream: {error}") from error
