"""The service in FastAPI, with blocking handlers and a middleware of its own inside of the guard."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import BackgroundTasks, Body, FastAPI, Request, WebSocket
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

import notwice
from notwice.http.asgi import IdempotencyMiddleware
from tests.http.apps import shared


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    yield {"started": "yes"}


def make(guard: Any = None, **fields: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.middleware("http")
    async def inner(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["x-inner"] = "seen"
        return response

    app.add_middleware(
        IdempotencyMiddleware,
        guard=guard or shared.async_guard(),
        **{**shared.options(), "kept_headers": ["location", "vary", "x-inner"], **fields},
    )
    routes(app)
    return app


def routes(app: FastAPI) -> None:
    @app.post("/pay")
    def pay(request: Request, order: Annotated[str, Body(embed=True)]) -> JSONResponse:
        notwice.current_operation().downstream_key()
        return JSONResponse({"run": shared.ran(order), "state": request.state.started}, 201)

    @app.post("/upload")
    async def upload(request: Request, order: str) -> dict[str, int]:
        return {"size": len(await request.body()), "run": shared.ran(order)}

    @app.post("/slow")
    def slow(order: str) -> PlainTextResponse:
        shared.ran(order)
        shared.pass_gate(order)
        return PlainTextResponse("done")

    @app.api_route("/stream", methods=["GET", "POST"])
    def stream(order: str, gate: str | None = None) -> StreamingResponse:
        shared.ran(order)
        parts = iter(shared.PARTS) if gate is None else shared.gated_parts(order)
        return StreamingResponse(parts, media_type="text/plain")

    @app.api_route("/events", methods=["GET", "POST"])
    def events(order: str, count: int = 0) -> StreamingResponse:
        shared.ran(order)
        return StreamingResponse(shared.events(count), media_type="text/event-stream")

    @app.api_route("/file", methods=["GET", "POST"])
    def file(order: str, size: int) -> FileResponse:
        shared.ran(order)
        return FileResponse(Path(shared.path_of_file(size)))

    @app.post("/background", status_code=202)
    def background(order: str, tasks: BackgroundTasks) -> PlainTextResponse:
        def work() -> None:
            shared.ran(f"{order}-background")
            shared.enter(order)
            raise RuntimeError("background work failed, as this test wants it")

        tasks.add_task(work)
        return PlainTextResponse("done", 202, background=tasks)

    @app.post("/answer/{status}")
    def answer(status: int, order: str) -> Response:
        shared.ran(order)
        body = b"" if status in (204, 304) else b"body"
        return Response(body, status, headers={"location": "/7", "set-cookie": "session=secret"})

    @app.websocket("/socket")
    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("echo " + await websocket.receive_text())
        await websocket.close()


app = make()
