"""The ASGI application that forwards each request to the upstream and streams both ways.

It runs inside the guard's middleware, and raises what went wrong through it. `NotSent` says that nothing happened: the
guard frees the key and answers with the refusal that it brings; or, if it could not free it, with what a duplicate
gets. `UpstreamLost` leaves the outcome unknown and keeps no answer, so that a duplicate is told so instead of being
given a 502 for ever. `notwice.server.edge`, outside of the guard, tells whoever the guard has not told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import h11

from notwice.server.forwarding import (
    Scope,
    is_unsupported,
    request_headers,
    response_headers,
    target,
)
from notwice.server.refusals import Send
from notwice.server.settings import Settings
from notwice.server.upstream import SAFE_METHODS, Exchange, NotSent, Unsupported, Upstream, UpstreamLost, head

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPERATION = "notwice.operation"
STATUS_MAX = 599

logger = logging.getLogger("notwice.server")


class Proxy:
    """Forwards requests to the upstream, guarded ones on a connection of their own."""

    def __init__(self, settings: Settings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward one request. Raises `NotSent` or `UpstreamLost`."""
        task = asyncio.current_task()
        assert task is not None  # only a task can await
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await self._forward(scope, receive, send)

    async def give_up(self, timeout: float) -> None:  # noqa: ASYNC109 - what still runs after it is left to the process's end
        """Cancel what is under way, and give the guard `timeout` seconds to store that its outcome is unknown."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_unsupported(scope["method"], list(scope["headers"])):
            raise Unsupported("the request wants a tunnel, a websocket or another coding")
        operation = scope.get(OPERATION)
        try:
            exchange = await self._begin(scope, fresh=operation is not None or scope["method"] not in SAFE_METHODS)
        except NotSent as error:
            logger.warning("Nothing was sent to the upstream: %s.", error)
            raise
        try:
            await self._carry(exchange, receive, send)
        except UpstreamLost as error:
            error.operation = getattr(operation, "operation", None)
            raise

    async def _begin(self, scope: Scope, *, fresh: bool) -> Exchange:
        prefix = self._settings.upstream.path
        request = head(scope["method"], target(scope, prefix), request_headers(scope, self._settings))
        exchange = await self._upstream.open(fresh=fresh)
        exchange.begin(request)
        return exchange

    async def _carry(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Carry the body up and the answer down at the same time, until the answer is whole or a side is gone."""
        upload = _Upload(exchange, receive)
        task = asyncio.create_task(upload.run())
        try:
            await _download(exchange, send)
        except UpstreamLost as error:
            if not upload.caller_gone:
                raise upload.failure or error from None
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._upstream.put_back(exchange)


class _Upload:
    """Carries the body of a request up, then watches for the caller to hang up, which breaks the exchange off."""

    def __init__(self, exchange: Exchange, receive: Receive) -> None:
        self._exchange = exchange
        self._receive = receive
        self.caller_gone = False
        self.failure: Exception | None = None

    async def run(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for the answer raises it
            self.failure = error
        self._exchange.abort()

    async def _run(self) -> None:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.caller_gone = True
                return
            await self._exchange.send(message.get("body", b""))
            more = message.get("more_body", False)
        await self._exchange.end()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.caller_gone = True


async def _download(exchange: Exchange, send: Send) -> None:
    async for event in exchange.receive():
        if isinstance(event, h11.Data):
            await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
            continue
        if event.status_code > STATUS_MAX:
            raise UpstreamLost(f"the upstream answered with status {event.status_code}, which means nothing")
        headers = response_headers(event.headers, event.status_code)
        await send({"type": "http.response.start", "status": event.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
