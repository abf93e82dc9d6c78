"""The HTTP faces in front of a bare app, driven within the process: no socket, no server, no framework."""

from __future__ import annotations

import asyncio
import io
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from bench.figures import NONE, Figure, Goal
from bench.measure import Run, Size, computed, paired
from notwice import AsyncGuard, Guard
from notwice.http import asgi, wsgi
from notwice.http.exchange import SHARED
from notwice.stores.memory import AsyncMemoryStore, MemoryStore

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

BODY: Final = b'{"amount":100,"id":"x"}'
ANSWER: Final = b'{"id":"ch_1","paid":true}'
PASSING: Final = 4_000
GUARDED: Final = 500
PASS_RATIO_MAX: Final = 1.4

HEADERS: Final = [
    (b"host", b"example.org"),
    (b"user-agent", b"bench"),
    (b"accept", b"*/*"),
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(BODY)),
]


async def _asgi_app(_scope: Message, receive: Receive, send: Send) -> None:
    """Read the body, then answer."""
    while (await receive()).get("more_body"):
        pass
    head = {"status": 201, "headers": [(b"content-type", b"application/json"), (b"content-length", b"25")]}
    await send({"type": "http.response.start", **head})
    await send({"type": "http.response.body", "body": ANSWER})


def _wsgi_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Read the body, then answer."""
    environ["wsgi.input"].read(len(BODY))
    start_response("201 Created", [("content-type", "application/json"), ("content-length", "25")])
    return [ANSWER]


def _asgi_run(app: AsgiApp, loop: asyncio.AbstractEventLoop, request: Callable[[], Message]) -> Run:
    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def all_requests(operations: int) -> None:
        for _ in range(operations):
            sent.clear()
            await app(request(), receive, send)
            assert sent[0]["status"] == 201  # noqa: PLR2004 - what the app answers

    def run(operations: int) -> float:
        started = time.process_time()
        loop.run_until_complete(all_requests(operations))
        return time.process_time() - started

    return run


def _scopes(method: str, *, keyed: bool) -> Callable[[], Message]:
    numbers = itertools.count()
    head = {"type": "http", "http_version": "1.1", "method": method, "scheme": "http", "root_path": ""}
    where = {"path": "/charges", "raw_path": b"/charges", "query_string": b"", "client": None, "server": None}

    def made() -> Message:
        extra = [(b"idempotency-key", b"key-%d" % next(numbers))] if keyed else []
        return {**head, **where, "headers": [*HEADERS, *extra]}

    return made


def asgi_pass(size: Size) -> Figure:
    """A GET through the middleware, next to the app without it."""
    guard, loop = AsyncGuard(AsyncMemoryStore()), asyncio.new_event_loop()
    guarded = asgi.IdempotencyMiddleware(_asgi_app, guard=guard, principal=SHARED)
    request = _scopes("GET", keyed=False)
    try:
        measured = paired(
            _asgi_run(guarded, loop, request),
            _asgi_run(_asgi_app, loop, request),
            size,
            operations=PASSING,
        )
    finally:
        loop.close()
    return Figure("asgi-pass", "GET through the ASGI face", "the bare app", Goal(ratio_max=PASS_RATIO_MAX), measured)


def asgi_guarded(size: Size) -> Figure:
    """A POST with a key, whose answer is stored in memory, next to the app without a guard."""
    guard, loop = AsyncGuard(AsyncMemoryStore()), asyncio.new_event_loop()
    guarded = asgi.IdempotencyMiddleware(_asgi_app, guard=guard, principal=SHARED)
    request = _scopes("POST", keyed=True)
    try:
        measured = paired(
            _asgi_run(guarded, loop, request),
            _asgi_run(_asgi_app, loop, request),
            size,
            operations=GUARDED,
        )
    finally:
        loop.close()
    return Figure("asgi-guarded", "POST with a key, ASGI, memory", "the bare app", NONE, measured)


def wsgi_pass(size: Size) -> Figure:
    """A GET through the middleware, next to the app without it."""
    guarded = wsgi.IdempotencyMiddleware(_wsgi_app, guard=Guard(MemoryStore()), principal=SHARED)
    request = _environments("GET", keyed=False)
    measured = paired(
        computed(_wsgi_call(guarded, request)),
        computed(_wsgi_call(_wsgi_app, request)),
        size,
        operations=PASSING,
    )
    return Figure("wsgi-pass", "GET through the WSGI face", "the bare app", NONE, measured)


def wsgi_guarded(size: Size) -> Figure:
    """A POST with a key, whose answer is stored in memory, next to the app without a guard."""
    guarded = wsgi.IdempotencyMiddleware(_wsgi_app, guard=Guard(MemoryStore()), principal=SHARED)
    request = _environments("POST", keyed=True)
    measured = paired(
        computed(_wsgi_call(guarded, request)),
        computed(_wsgi_call(_wsgi_app, request)),
        size,
        operations=GUARDED,
    )
    return Figure("wsgi-guarded", "POST with a key, WSGI, memory", "the bare app", NONE, measured)


def _wsgi_call(app: WsgiApp, request: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    def start_response(status: str, _headers: list[tuple[str, str]], _exc_info: object = None) -> Callable[..., Any]:
        assert status == "201 Created"
        return print

    def call() -> None:
        answer = app(request(), start_response)
        assert b"".join(answer) == ANSWER
        close = getattr(answer, "close", None)
        if close is not None:
            close()

    return call


def _environments(method: str, *, keyed: bool) -> Callable[[], dict[str, Any]]:
    numbers = itertools.count()
    head = {"REQUEST_METHOD": method, "PATH_INFO": "/charges", "SCRIPT_NAME": "", "QUERY_STRING": ""}
    body = {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(BODY)), "HTTP_HOST": "example.org"}

    def made() -> dict[str, Any]:
        extra = {"HTTP_IDEMPOTENCY_KEY": f"key-{next(numbers)}"} if keyed else {}
        return {**head, **body, **extra, "wsgi.input": io.BytesIO(BODY), "wsgi.url_scheme": "http"}

    return made
