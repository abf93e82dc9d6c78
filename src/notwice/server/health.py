"""Health, for whoever starts, stops and routes to the gateway: never forwarded, never guarded."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from notwice.errors import NotwiceError
from notwice.server.forwarding import Scope
from notwice.server.proxy import App, Receive
from notwice.server.refusals import Send
from notwice.server.upstream import Upstream

if TYPE_CHECKING:
    from notwice import AsyncGuard

UPSTREAM_SECONDS: Final = 1.0
PROBE: Final = ("notwice", "readiness")  # a scope and a key to look up; nothing is ever stored under them

logger = logging.getLogger("notwice.server")


class Health:
    """Answers below one path: ``/live`` while the process runs, ``/ready`` while its store answers.

    Without its store the gateway refuses, so then it is not ready. An upstream that can't be reached is told of but
    does not make it so: the gateway answers duplicates without it.
    """

    def __init__(self, app: App, *, path: str, guard: AsyncGuard, upstream: Upstream) -> None:
        self._app = app
        self._path = path
        self._guard = guard
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on what is not about health."""
        path = scope["path"]
        if path != self._path and not path.startswith(self._path + "/"):
            await self._app(scope, receive, send)
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"detail": "Ask with GET."})
        else:
            await self._report(path.removeprefix(self._path), send)

    async def _report(self, what: str, send: Send) -> None:
        match what:
            case "/live":
                await _answer(send, 200, {"status": "live"})
            case "/ready":
                store = await self._store_answers()
                upstream = await self._upstream.reachable(UPSTREAM_SECONDS)
                report = {
                    "status": "ready" if store else "not ready",
                    "store": "ok" if store else "unavailable",
                    "upstream": "reachable" if upstream else "unreachable",
                }
                await _answer(send, 200 if store else 503, report)
            case _:
                await _answer(send, 404, {"detail": "Ask for /live or /ready."})

    async def _store_answers(self) -> bool:
        try:
            await self._guard.lookup(*PROBE)
        except NotwiceError as error:
            logger.error("Not ready: %s", error)  # noqa: TRY400 - the reason is in the message
            return False
        return True


async def _answer(send: Send, status: int, document: dict[str, str]) -> None:
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
