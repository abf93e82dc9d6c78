"""The outermost layer: it tells callers what the guard has not told, dates every answer, and logs a line for each.

A request that has come through this gateway before is refused here, in front of the guard: further in it would be taken
for a duplicate of itself.

The line has no query, no header and no body, so that no key and no credential gets into a log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from email.utils import formatdate
from typing import Any

from notwice.server import refusals
from notwice.server.forwarding import Scope, is_looped
from notwice.server.proxy import App, Receive
from notwice.server.refusals import Send, refuse
from notwice.server.upstream import NotSent, UpstreamLost

logger = logging.getLogger("notwice.server")
access = logging.getLogger("notwice.access")


class _Answer:
    """What went to the caller."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.body_bytes = 0
        self.replayed = ""
        self.whole = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = self._dated(message)
        elif message["type"] == "http.response.body":
            self.body_bytes += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        await self._send(message)

    def _dated(self, message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Add ``Date`` where it is missing (RFC 9110, section 6.6.1): a replay never has the first answer's."""
        self.status = message["status"]
        headers = [(bytes(name).lower(), value) for name, value in message.get("headers", [])]
        named = dict(headers)
        self.replayed = named.get(b"idempotency-replayed", b"").decode("latin-1")
        if b"date" not in named:
            headers.append((b"date", formatdate(usegmt=True).encode()))
        return {**message, "headers": headers}


class Edge:
    """Wraps all other layers."""

    def __init__(self, app: App, *, access_log: bool) -> None:
        self._app = app
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = _Answer(send)
        started = time.monotonic()
        try:
            if is_looped(scope):
                logger.error("A request came back to the gateway that sent it: is --upstream its own address?")
                await refuse(answer.send, refusals.LOOPED)
            else:
                await self._app(scope, receive, answer.send)
        except NotSent as error:
            await refuse(answer.send, error.code)
        except UpstreamLost as error:
            await _tell(answer, error)
        except asyncio.CancelledError:  # only a stop does that
            if answer.status:
                raise
            await refuse(answer.send, refusals.STOPPED)
        finally:
            if self._access_log:
                _log(scope, answer, time.monotonic() - started)


async def _tell(answer: _Answer, error: UpstreamLost) -> None:
    """Tell the caller, if nothing went to it yet; else the server breaks the connection off."""
    logger.warning("The outcome of a request is unknown: %s. operation=%s", error, error.operation or "-")
    if not answer.status:
        code = refusals.TIMEOUT if error.status == refusals.KINDS[refusals.TIMEOUT].status else refusals.LOST
        await refuse(answer.send, code, error.operation)


def _log(scope: Scope, answer: _Answer, seconds: float) -> None:
    client = scope.get("client")
    path = scope.get("raw_path", b"").decode("latin-1")
    access.info(
        '%s "%s %s" %s %d bytes %.1f ms%s%s',
        client[0] if client else "-",
        scope["method"],
        path.encode("unicode_escape").decode(),
        answer.status or "-",
        answer.body_bytes,
        seconds * 1000,
        "" if answer.whole else " (not whole)",
        f" replayed={answer.replayed}" if answer.replayed else "",
    )
