"""One handler, served through either face in process: what is tested here holds for both."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from notwice import AsyncGuard, Guard, Policy, current_operation
from notwice.http import asgi, wsgi
from notwice.observe import CountingObserver
from notwice.stores.memory import MemoryStore
from notwice.testing import VirtualClock

Lines = Sequence[tuple[str, str]]
DEFAULT_POLICY = Policy()
KEY = ("Idempotency-Key", "k-1")


@dataclass
class Answered:
    """An answer as a client sees it."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = self.lines(name)
        return values[0] if values else None

    def lines(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name.lower()]

    @property
    def replayed(self) -> str | None:
        return self.header("idempotency-replayed")


@dataclass
class Seen:
    """A request as the handler sees it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    operation: Any


@dataclass
class Says:
    """An answer as the handler gives it."""

    status: int = 200
    headers: Lines = (("content-type", "application/json"),)
    body: Sequence[bytes] = (b"{}",)
    background: Callable[[], None] | None = None


@dataclass
class Handler:
    """Counts its runs; each does what `script` says at that place, the last one for all that follow."""

    script: list[Says | BaseException | Callable[[Seen], Says]]
    runs: list[Seen] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.runs)

    def __call__(self, seen: Seen) -> Says:
        what = self.script[min(len(self.runs), len(self.script) - 1)]
        self.runs.append(seen)
        if isinstance(what, BaseException):
            raise what
        return what(seen) if callable(what) else what


def says(status: int = 200, body: bytes | Sequence[bytes] = b"{}", headers: Lines = (), **more: Any) -> Says:
    """An answer with its type and its length, as frameworks give it."""
    chunks = [body] if isinstance(body, bytes) else list(body)
    length = () if status in (204, 304) else (("content-length", str(sum(map(len, chunks)))),)
    kind = () if any(name.lower() == "content-type" for name, _ in headers) else (("content-type", "application/json"),)
    return Says(status, (*kind, *length, *headers), chunks, **more)


class InLoop:
    """A blocking store, called within the loop: what the memory store does takes no time."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    async def apply(self, ops: Any) -> Any:
        return self.blocking.apply(ops)

    async def scan(self, query: Any) -> Any:
        return self.blocking.scan(query)

    async def purge(self, limit: int) -> int:
        return self.blocking.purge(limit)  # type: ignore[no-any-return]  # any store

    async def close(self) -> None:
        self.blocking.close()


class AsgiFace:
    """The handler behind the ASGI middleware."""

    name = "asgi"

    def __init__(self, handler: Handler, *, policy: Policy = DEFAULT_POLICY, store: Any = None, **fields: Any) -> None:
        self.observer = CountingObserver()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock()
        self.store = store or MemoryStore(clock=self.clock)
        self.guard = AsyncGuard(InLoop(self.store), policy=policy, observer=self.observer, clock=self.clock)
        self.handler = handler
        self.app = asgi.IdempotencyMiddleware(self._app, guard=self.guard, **{"principal": by_account, **fields})

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        operation = scope.get("notwice.operation")
        assert operation is None or operation is current_operation()
        answer = self.handler(Seen(scope["method"], scope["path"], headers, body, operation))
        lines = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
        await send({"type": "http.response.start", "status": answer.status, "headers": lines})
        for chunk in answer.body[:-1]:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"".join(answer.body[-1:]), "more_body": False})
        if answer.background:
            answer.background()

    def request(self, path: str = "/pay", headers: Lines = (KEY,), body: bytes = b"", method: str = "POST") -> Answered:
        return self.runner.run(self.send(path, headers, body, method=method))

    async def send(self, path: str, headers: Lines, body: bytes, *, method: str = "POST") -> Answered:
        return await asgi_request(self.app, path, headers, body=body, method=method)

    def records(self) -> list[Any]:
        async def listed() -> list[Any]:
            return [view async for view in self.guard.operations(all_namespaces=True)]

        return self.runner.run(listed())

    def close(self) -> None:
        self.runner.run(self.guard.close())
        self.runner.close()


async def asgi_request(
    app: Any, path: str, headers: Lines, *, body: bytes = b"", method: str = "POST", account: str | None = "a"
) -> Answered:
    """One request through an ASGI app."""
    route, _, query = path.partition("?")
    lines = [*headers, *([("X-Account", account)] if account else [])]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in lines],
    }
    parts = [body[place : place + 65536] for place in range(0, len(body), 65536)] or [b""]
    incoming = iter([{"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(incoming, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1, sent
    assert sent[0] is starts[0]
    assert [message.get("more_body", False) for message in sent[1:]][-1:] == [False]
    found = [(name.decode(), value.decode("latin-1")) for name, value in starts[0]["headers"]]
    return Answered(starts[0]["status"], found, b"".join(message["body"] for message in sent[1:]))


class WsgiFace:
    """The handler behind the WSGI middleware."""

    name = "wsgi"

    def __init__(self, handler: Handler, *, policy: Policy = DEFAULT_POLICY, store: Any = None, **fields: Any) -> None:
        self.observer = CountingObserver()
        self.clock = VirtualClock()
        self.store = store or MemoryStore(clock=self.clock)
        self.guard = Guard(self.store, policy=policy, observer=self.observer, clock=self.clock)
        self.handler = handler
        self.app = wsgi.IdempotencyMiddleware(self._app, guard=self.guard, **{"principal": by_account, **fields})

    def _app(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name[:5] == "HTTP_"}
        operation = environ.get("notwice.operation")
        assert operation is None or operation is current_operation()
        answer = self.handler(Seen(environ["REQUEST_METHOD"], environ["PATH_INFO"], headers, body, operation))
        start_response(f"{answer.status} Status", list(answer.headers))
        yield from answer.body
        if answer.background:
            answer.background()

    def request(self, path: str = "/pay", headers: Lines = (KEY,), body: bytes = b"", method: str = "POST") -> Answered:
        return wsgi_request(self.app, path, headers, body=body, method=method)

    def records(self) -> list[Any]:
        return list(self.guard.operations(all_namespaces=True))

    def close(self) -> None:
        self.guard.close()


def wsgi_environ(path: str, headers: Lines, body: bytes, *, method: str = "POST") -> dict[str, Any]:
    route, _, query = path.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": route,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": "a",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.input": io.BytesIO(body),
        "wsgi.file_wrapper": object(),
    }
    for name, value in headers:
        place = name.upper().replace("-", "_")
        place = place if place in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{place}"
        environ[place] = f"{environ[place]},{value}" if place.startswith("HTTP_") and place in environ else value
    return environ


def wsgi_request(
    app: Any, path: str, headers: Lines, *, body: bytes = b"", method: str = "POST", account: str | None = "a"
) -> Answered:
    """One request through a WSGI app."""
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, lines: Any, exc_info: Any = None) -> Any:
        started[:] = [(status, lines)]
        return written.append

    lines = [*headers, *([("X-Account", account)] if account else [])]
    chunks = app(wsgi_environ(path, lines, body, method=method), start_response)
    try:
        for chunk in chunks:
            assert started, "a chunk before start_response"
            written.append(chunk)
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    status, found = started[0]
    return Answered(int(status[:3]), list(found), b"".join(written))


def state_of(view: Any) -> tuple[str, bytes | None]:
    """A record's state and the body that it keeps."""
    result = view.record.result
    return view.record.state.value, result and result.body


def by_account(request: Any) -> str | None:
    return request.headers.get("x-account")  # type: ignore[no-any-return]  # any request


def finish(face: Any, move: Any) -> None:
    """Carry out a move of an operation from within a handler: the memory store does not keep it waiting."""
    if isinstance(face, AsgiFace):
        with contextlib.suppress(StopIteration):
            move.send(None)
            raise AssertionError("the move has to wait")


Face = AsgiFace | WsgiFace
FACES: list[type[Face]] = [AsgiFace, WsgiFace]


async def astream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def stream(parts: Iterable[bytes]) -> Iterator[bytes]:
    yield from parts


Serve = Callable[..., Face]


def problem(answer: Answered, status: int, code: str) -> dict[str, Any]:
    """The refusal's document, after checking what all refusals share."""
    document: dict[str, Any] = json.loads(answer.body)
    assert (answer.status, document["code"], document["status"]) == (status, code, status)
    assert answer.header("content-type") == "application/problem+json"
    assert answer.header("cache-control") == "no-store"
    assert answer.header("content-length") == str(len(answer.body))
    assert isinstance(document["safe_new_key"], bool)
    return document
