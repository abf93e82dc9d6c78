"""Steps behind both faces: an answer that speaks of another way than the steps went is not given."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, Policy, current_operation, rerun
from notwice.http import SHARED, asgi, wsgi
from notwice.stores.memory import MemoryStore

AGAIN = Policy(recovery=rerun)
STEPS = [["charge", "ship"], ["charge"]]
"""What each attempt asks for: the second one has forgotten a step that is done."""


class Attempts:
    """Handlers that take one step after the other; the first attempt fails after them."""

    def __init__(self) -> None:
        self.count = 0

    def steps(self) -> list[str]:
        self.count += 1
        return STEPS[self.count - 1]

    def end(self) -> None:
        if self.count == 1:
            raise ConnectionError

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        operation: Any = current_operation()
        for name in self.steps():
            await operation.step(name, lambda: "done")
        self.end()
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"all done", "more_body": False})

    def wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        operation: Any = current_operation()
        for name in self.steps():
            operation.step(name, lambda: "done")
        self.end()
        start_response("201 Created", [("Content-Length", "8")])
        return [b"all done"]


def asked_by_asgi(middleware: Any) -> tuple[int, bytes]:
    """Send one request; gives status and body of the answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b"k-1")]
    scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}
    asyncio.run(middleware(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def asked_by_wsgi(middleware: Any) -> tuple[int, bytes]:
    """Send one request; gives status and body of the answer."""
    statuses: list[str] = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "SCRIPT_NAME": "", "QUERY_STRING": ""}
    environ |= {"wsgi.input": io.BytesIO(b"{}"), "CONTENT_LENGTH": "2", "HTTP_IDEMPOTENCY_KEY": "k-1"}  # type: ignore[dict-item]  # as servers give it

    def start_response(status: str, *_: Any) -> Any:
        statuses.append(status)

    answer = middleware(environ, start_response)
    body = b"".join(answer)
    answer.close()
    return int(statuses[-1][:3]), body


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
def test_a_handler_that_forgot_a_step_is_not_believed(face: str) -> None:
    """T08: its answer is neither stored nor given: the caller, and the record, are told that the steps have changed."""
    store, attempts = MemoryStore(), Attempts()
    middleware: Any
    if face == "asgi":
        middleware = asgi.IdempotencyMiddleware(attempts.asgi, guard=AsyncGuard(store, policy=AGAIN), principal=SHARED)
        ask = asked_by_asgi
    else:
        middleware = wsgi.IdempotencyMiddleware(attempts.wsgi, guard=Guard(store, policy=AGAIN), principal=SHARED)
        ask = asked_by_wsgi
    with pytest.raises(ConnectionError):
        ask(middleware)
    status, body = ask(middleware)
    assert (status, json.loads(body)["code"]) == (500, "steps_changed")
    view: Any = next(Guard(store).operations())
    assert view.unresolved
    assert view.record.error.startswith("StepsChanged")
