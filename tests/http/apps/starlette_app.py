"""The service in Starlette, with a middleware of its own inside of the guard."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from notwice.http.asgi import IdempotencyMiddleware
from tests.http.apps import shared


async def apace(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Parts from another thread, so that a gate does not stop the loop."""
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        yield part


async def pay(request: Request) -> Response:
    body = await request.json()
    return JSONResponse({"run": shared.ran(body["order"]), "state": request.state.started}, 201)


async def upload(request: Request) -> Response:
    size = 0
    async for piece in request.stream():
        size += len(piece)
    return JSONResponse({"size": size, "run": shared.ran(request.query_params["order"])})


async def slow(request: Request) -> Response:
    order = request.query_params["order"]
    shared.ran(order)
    await asyncio.to_thread(shared.pass_gate, order)
    return PlainTextResponse("done")


async def stream(request: Request) -> Response:
    order = request.query_params["order"]
    shared.ran(order)
    parts = shared.gated_parts(order) if "gate" in request.query_params else iter(shared.PARTS)
    return StreamingResponse(apace(parts), media_type="text/plain")


async def events(request: Request) -> Response:
    shared.ran(request.query_params["order"])
    parts = shared.events(int(request.query_params.get("count", "0")))
    return StreamingResponse(apace(parts), media_type="text/event-stream")


async def file(request: Request) -> Response:
    shared.ran(request.query_params["order"])
    return FileResponse(shared.path_of_file(int(request.query_params["size"])), headers={"x-kind": "file"})


async def background(request: Request) -> Response:
    order = request.query_params["order"]

    def work() -> None:
        shared.ran(f"{order}-background")
        shared.enter(order)
        raise RuntimeError("background work failed, as this test wants it")

    return PlainTextResponse("done", 202, background=BackgroundTask(work))


async def answer(request: Request) -> Response:
    status = int(request.path_params["status"])
    shared.ran(request.query_params["order"])
    body = b"" if status in (204, 304) else b"body"
    return Response(body, status, headers={"location": "/7", "set-cookie": "session=secret"})


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("echo " + await websocket.receive_text())
    await websocket.close()


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[dict[str, Any]]:
    yield {"started": "yes"}


async def inner(request: Request, call_next: Any) -> Response:
    response: Response = await call_next(request)
    response.headers["x-inner"] = "seen"
    return response


ROUTES = [
    Route("/pay", pay, methods=["POST", "PATCH"]),
    Route("/upload", upload, methods=["POST"]),
    Route("/slow", slow, methods=["POST"]),
    Route("/stream", stream, methods=["GET", "POST"]),
    Route("/events", events, methods=["GET", "POST"]),
    Route("/file", file, methods=["GET", "POST"]),
    Route("/background", background, methods=["POST"]),
    Route("/answer/{status}", answer, methods=["POST"]),
    WebSocketRoute("/socket", socket),
]


def make(guard: Any = None, **fields: Any) -> Starlette:
    kept = ["location", "vary", "x-inner"]
    outer = Middleware(
        IdempotencyMiddleware,
        guard=guard or shared.async_guard(),
        **{**shared.options(), "kept_headers": kept, **fields},
    )
    return Starlette(
        routes=ROUTES, lifespan=lifespan, middleware=[outer, Middleware(BaseHTTPMiddleware, dispatch=inner)]
    )


app = make()
