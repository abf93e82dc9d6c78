"""Starlette and FastAPI in process: compression, origins, test clients, and answers of every kind."""

from __future__ import annotations

import gzip
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import flask
import pytest
from fastapi import FastAPI, HTTPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import notwice
from notwice import AsyncGuard, Guard, NotApplied, Operation
from notwice.http import SHARED
from notwice.http.asgi import IdempotencyMiddleware
from notwice.http.wsgi import IdempotencyMiddleware as WsgiMiddleware
from notwice.observe import LogObserver
from notwice.stores.memory import MemoryStore
from tests.http.harness import FACES, KEY, Face, Handler, InLoop, Says, Serve, asgi_request, says, wsgi_request

TEXT = "a payment of 7 euros; " * 100


def service(middleware: Sequence[Middleware], runs: list[int]) -> Starlette:
    async def pay(_: Any) -> PlainTextResponse:
        runs.append(1)
        return PlainTextResponse(TEXT, 201, headers={"x-run": str(len(runs))})

    return Starlette(routes=[Route("/pay", pay, methods=["POST"])], middleware=middleware)


def guard_middleware() -> Middleware:
    return Middleware(IdempotencyMiddleware, guard=AsyncGuard(InLoop(MemoryStore())), principal=SHARED)


def client_of(app: FastAPI) -> Any:
    with warnings.catch_warnings(action="ignore"):  # it warns of the client library that it will ask for some day
        from fastapi.testclient import TestClient  # noqa: PLC0415 - within the warning's context
    return TestClient(app)


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("first", ["gzip", "br, gzip", "identity", None])
@pytest.mark.parametrize("retry", ["gzip", "br", None])
async def test_in_front_of_and_behind_a_compressor(outside: bool, first: str | None, retry: str | None) -> None:
    """C33: With Starlette's own compression inside or outside of the guard, first and retry decode to equal bytes."""
    runs: list[int] = []
    guard, compressor = guard_middleware(), Middleware(GZipMiddleware, minimum_size=100)
    app = service([guard, compressor] if outside else [compressor, guard], runs)
    for accepts, replayed in ((first, None), (retry, "true")):
        answer = await asgi_request(app, "/pay", [KEY, *([("Accept-Encoding", accepts)] if accepts else [])])
        coded = answer.header("content-encoding") == "gzip"
        assert not coded or "gzip" in (accepts or "")
        assert (gzip.decompress(answer.body) if coded else answer.body).decode() == TEXT
        assert (answer.status, answer.replayed, len(runs)) == (201, replayed, 1)
        assert answer.header("content-length") == str(len(answer.body))
        assert "accept-encoding" in (answer.header("vary") or "").lower() or not outside


@pytest.mark.parametrize("outside", [True, False])
async def test_other_origins(outside: bool) -> None:
    """C37: A preflight is answered by the app, and a replay may be read by scripts of the origin that was allowed."""
    runs: list[int] = []
    origins = Middleware(
        CORSMiddleware, allow_origins=["https://shop.example"], allow_methods=["*"], allow_headers=["idempotency-key"]
    )
    app = service([guard_middleware(), origins] if outside else [origins, guard_middleware()], runs)
    origin = ("Origin", "https://shop.example")
    asked = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "idempotency-key")]
    preflight = await asgi_request(app, "/pay", [origin, *asked], method="OPTIONS")
    assert (preflight.status, runs) == (200, [])
    for replayed in (None, "true"):
        answer = await asgi_request(app, "/pay", [KEY, origin])
        assert answer.lines("access-control-allow-origin") == ["https://shop.example"]
        assert answer.replayed == replayed
    assert answer.header("access-control-expose-headers") == "Idempotency-Replayed"


def test_a_test_client() -> None:
    """FastAPI's test client, with an event loop for each request, sees the guard as any client does."""
    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, guard=AsyncGuard.open("memory://"), principal=SHARED, required=True)
    runs: list[str] = []

    @app.post("/pay/{order}", status_code=201)
    async def pay(order: str) -> dict[str, str]:
        runs.append(order)
        if order == "no":
            raise HTTPException(404)
        return {"operation": notwice.current_operation().operation}

    client = client_of(app)
    assert client.post("/pay/7").status_code == 400
    headers = {"Idempotency-Key": "k"}
    first, second = client.post("/pay/7", headers=headers), client.post("/pay/7", headers=headers)
    assert first.json() == second.json()
    assert (second.status_code, second.headers["idempotency-replayed"], runs) == (201, "true", ["7"])
    refused = [client.post("/pay/no", headers={"Idempotency-Key": "n"}) for _ in "12"]
    assert [answer.status_code for answer in refused] == [404, 404]
    assert refused[0].content == refused[1].content
    assert runs == ["7", "no"]


@pytest.mark.parametrize(("order", "free"), [("abandon", True), ("header", True), ("raise", False)])
def test_flask_and_what_did_not_happen(order: str, free: bool) -> None:
    """C11: Flask hides exceptions: there, an abandon or the outcome header frees the key, and an exception is
    unknown.
    """
    app = flask.Flask(__name__)
    runs: list[str] = []

    @app.post("/pay/<order>")
    def pay(order: str) -> Any:
        runs.append(order)
        if len(runs) > 1:
            return "done", 201
        if order == "raise":
            raise NotApplied
        if order == "abandon":
            operation = notwice.current_operation()
            assert isinstance(operation, Operation)
            operation.abandon()
        return "busy", 503, {"Idempotency-Outcome": "not-applied"} if order == "header" else {}

    guarded = WsgiMiddleware(app.wsgi_app, guard=Guard.open("memory://"), principal=SHARED)
    first, second = (wsgi_request(guarded, f"/pay/{order}", [KEY]) for _ in "12")
    assert first.status == (500 if order == "raise" else 503)
    assert (second.status, len(runs)) == ((201, 2) if free else (500, 1))


def test_nothing_secret_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """P15: Keys, bodies and credentials of a request and its answer stand in no log line, however much is logged."""
    caplog.set_level(logging.DEBUG)
    face = serve(says(201, b"secret-answer"), RuntimeError("broken"), says(500, b"secret-answer"))
    face.guard._runtime.observer = LogObserver()
    credentials = ("Authorization", "secret-token")
    for body in (b"secret-body", b"secret-body", b"secret-other"):
        face.request(headers=[("Idempotency-Key", "secret-key"), credentials], body=body)
    with pytest.raises(RuntimeError):
        face.request(headers=[("Idempotency-Key", "secret-key-2"), credentials], body=b"secret-body")
    assert "claimed" in caplog.text
    assert "secret" not in caplog.text


answers = st.builds(
    lambda status, parts, declared, kind: Says(
        status,
        [
            ("content-type", kind),
            *([("content-length", str(sum(map(len, parts))))] if declared and status not in (204, 304) else []),
        ],
        [] if status in (204, 304) else parts,
    ),
    st.integers(200, 599),
    st.lists(st.binary(max_size=40), max_size=5),
    st.booleans(),
    st.sampled_from(["text/plain", "application/json", "text/event-stream"]),
)
QUICKLY = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("make", FACES, ids=lambda face: face.name)
@QUICKLY
@given(answers)
def test_any_answer_is_replayed_or_run_again_by_its_status(make: type[Face], answer: Says) -> None:
    """P2, C32, C34: Whatever the handler answers, the first client gets it, and the retry gets it again or runs
    anew.
    """
    face = make(Handler([answer]), response_bytes_max=64)
    try:
        body = b"".join(answer.body)
        first, second = face.request(), face.request()
        assert (first.status, first.body, second.status) == (answer.status, body, answer.status)
        if answer.status in (401, 403, 425, 429):
            assert (face.handler.count, second.replayed, second.body) == (2, None, body)
        elif len(body) > 64:
            assert (face.handler.count, second.replayed, second.body) == (1, "omitted", b"")
        else:
            assert (face.handler.count, second.replayed, second.body) == (1, "true", body)
    finally:
        face.close()
