"""A document from somebody else's server, within a time that holds for all of it.

The standard library's client bounds each wait for its socket alone, so that a server which gives a byte now and then
keeps it for ever. Here it works in a thread of its own that no stop waits for, and whose sockets are shut when the time
is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final

BYTES_MAX: Final = 1024 * 1024

Sockets = list[socket.socket]


async def fetch(url: str, *, timeout_s: float) -> bytes:
    """Give what `url` (``http`` or ``https``) serves. Raises `OSError` if that is nothing, too much, or not in time."""
    sockets: Sockets = []
    future: Future[bytes] = Future()
    read = partial(_read, url, timeout_s, sockets)
    threading.Thread(target=_run, args=(read, future), name="notwice-fetch", daemon=True).start()
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)
    except TimeoutError as error:
        raise TimeoutError(f"it was not whole within {timeout_s:g} s") from error
    finally:
        for each in sockets:
            with contextlib.suppress(OSError):  # it was closed in the right way
                each.shutdown(socket.SHUT_RDWR)


def _run(read: Callable[[], bytes], future: Future[bytes]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(read())
    except http.client.HTTPException as error:
        future.set_exception(OSError(f"it is no answer of HTTP: {error!r}"))
    except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits raises it
        future.set_exception(error)


def _read(url: str, timeout_s: float, sockets: Sockets) -> bytes:
    opener = urllib.request.build_opener(_Http(sockets), _Https(sockets))
    try:
        with opener.open(url, timeout=timeout_s) as response:
            content: bytes = response.read(BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    if len(content) > BYTES_MAX:
        raise OSError(f"it is larger than {BYTES_MAX} bytes")
    return content


class _Plain(http.client.HTTPConnection):
    def __init__(self, sockets: Sockets, host: str, **options: Any) -> None:  # noqa: ANN401 - whatever urllib gives
        super().__init__(host, **options)
        self._sockets = sockets

    def connect(self) -> None:
        super().connect()
        self._sockets.append(self.sock)


class _Secure(http.client.HTTPSConnection):
    def __init__(self, sockets: Sockets, host: str, **options: Any) -> None:  # noqa: ANN401 - whatever urllib gives
        super().__init__(host, context=ssl.create_default_context(), **options)
        self._sockets = sockets

    def connect(self) -> None:
        super().connect()
        self._sockets.append(self.sock)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__()
        self._connection = partial(_Plain, sockets)

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__()
        self._connection = partial(_Secure, sockets)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._connection, req)
