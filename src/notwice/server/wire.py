"""One connection to the upstream, as exact as the socket is.

`asyncio`'s streams can't say whether a kept connection has been closed, or spoken on, since it was last used. This
protocol can, and it holds both directions back: it stops reading while nobody takes what has come, and `drain` waits
while the other side does not read.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

UNREAD_BYTES_MAX = 256 * 1024


class Wire(asyncio.Protocol):
    """The two directions of one connection. Only one task reads, and only one writes."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._ended = False
        self._lost = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    @property
    def quiet(self) -> bool:
        """Whether the connection is open and the other side has said nothing that was not read."""
        return self._transport is not None and not (self._unread or self._ended or self._lost)

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket. From now on the other side may have seen them."""
        if self._transport is not None and data and not self._lost:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait while too much that was written has not left. Returns on a lost connection: reading tells why."""
        await self._writable.wait()

    async def read(self) -> bytes:
        """Give what has come, ``b""`` after an orderly end. Raises `OSError` if the connection broke."""
        while not (self._unread or self._ended or self._lost):
            self._changed.clear()
            await self._changed.wait()
        if self._unread:
            data = bytes(self._unread)
            self._unread.clear()
            if self._transport is not None:
                self._transport.resume_reading()
            return data
        if self._failure is not None:
            raise ConnectionError(str(self._failure)) from self._failure
        return b""

    def abort(self) -> None:
        """Break the connection at once: both sides are told that what was under way is over."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection in an orderly way."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102 - called by the loop
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: D102 - called by the loop
        self._unread += data
        if len(self._unread) > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> bool:  # noqa: D102 - called by the loop
        self._ended = True
        self._changed.set()
        return False  # nobody goes on writing to a side that has hung up

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102 - called by the loop
        self._lost = True
        if not self._ended:
            self._failure = exc or ConnectionAbortedError("the connection was broken off")
        self._changed.set()
        self._writable.set()

    def pause_writing(self) -> None:  # noqa: D102 - called by the loop
        self._writable.clear()

    def resume_writing(self) -> None:  # noqa: D102 - called by the loop
        self._writable.set()


async def connect(host: str, port: int, tls: ssl.SSLContext | None) -> Wire:
    """Open a connection. Raises `OSError`, which `ssl.SSLError` is one of, before any byte of a request has left."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(
        Wire, host, port, ssl=tls, server_hostname=host if tls else None, happy_eyeballs_delay=0.25
    )
    return wire
