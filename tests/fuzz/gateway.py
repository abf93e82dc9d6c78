"""The gateway in this process, between hostile callers and a service that answers as it is told: no sockets."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import h11

from notwice.server import upstream
from notwice.server.app import Gateway, compose
from notwice.server.kinds import PrincipalSource, Target
from notwice.server.settings import Settings

TARGET = Target("http", "service.example", 80, "/v1", "service.example")
SETTINGS = Settings(
    upstream=TARGET, principal=PrincipalSource("header", "X-Account"), store="memory://", status_path="/status"
)
PATH = "/pay"

Lines = Sequence[tuple[bytes, bytes]]


class Sent(NamedTuple):
    """A request as a server gives it to the gateway. ``hangs_up``: the caller goes before it is whole."""

    method: str
    path: bytes
    query: bytes
    headers: Lines
    body: Sequence[bytes] = ()
    hangs_up: bool = False


class Told(NamedTuple):
    """What the service answers: whole bytes of HTTP/1.1, right or wrong, and whether the connection then ends."""

    answer: bytes
    ends: bool = True


class Got(NamedTuple):
    """An answer as the caller gets it; ``whole``: the server was told where it ends."""

    status: int
    headers: Lines
    body: bytes
    whole: bool

    def values(self, name: bytes) -> list[bytes]:
        """The values of all lines of a name."""
        return [value for each, value in self.headers if each == name]

    @property
    def code(self) -> str | None:
        """The code of a refusal of notwice's; `None`: it is the service's answer."""
        if self.values(b"content-type") != [b"application/problem+json"]:
            return None
        return str(json.loads(self.body).get("code"))


class Service:
    """The service behind: it answers a request once its head is whole, and keeps what came."""

    def __init__(self) -> None:
        self.told = Told(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        self.requests: list[h11.Request] = []

    async def connect(self, *_: object) -> Connection:
        """What the gateway calls in place of the network."""
        return Connection(self)


class Connection:
    """One connection to the service, in the form of `notwice.server.wire.Wire`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._protocol = h11.Connection(h11.SERVER)
        self._unread = b""
        self._answered = asyncio.Event()
        self.quiet = True

    def write(self, data: bytes) -> None:
        """Take bytes of a request: what the gateway sends is HTTP, whatever the caller sent."""
        self._protocol.receive_data(data)
        while (event := self._protocol.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Request):
                self._service.requests.append(event)
            elif isinstance(event, h11.EndOfMessage):
                self._unread = self._service.told.answer
                self._answered.set()
                return

    async def drain(self) -> None:
        """Nothing is held back."""

    async def read(self) -> bytes:
        """Give the answer, and then the end."""
        await self._answered.wait()
        data, self._unread = self._unread, b""
        self.quiet = False
        if not data and not self._service.told.ends:
            raise ConnectionResetError("reset by the service")
        return data

    def abort(self) -> None:
        """Whoever reads gets the end."""
        self.quiet = False
        self._answered.set()

    close = abort


class Keeper(logging.Handler):
    """Keeps the text of all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.texts.append(record.getMessage())


class Front:
    """A gateway over an empty store."""

    def __init__(self, monkeypatch: Any, settings: Settings = SETTINGS) -> None:
        self.service = Service()
        monkeypatch.setattr(upstream, "connect", self.service.connect)
        self.runner = asyncio.Runner()
        self.log = Keeper()
        for name in ("notwice.server", "notwice.access", "notwice"):
            logger = logging.getLogger(name)
            logger.addHandler(self.log)
            logger.setLevel(logging.DEBUG)
        self.gateway: Gateway = compose(settings)
        self.numbers = itertools.count()

    def close(self) -> None:
        """Close all that is open."""
        self.gateway.upstream.close()
        self.runner.run(self.gateway.guard.close())
        self.runner.close()
        for name in ("notwice.server", "notwice.access", "notwice"):
            logging.getLogger(name).removeHandler(self.log)
            logging.getLogger(name).setLevel(logging.NOTSET)

    def ask(self, sent: Sent) -> Got | None:
        """Send one request; `None`: nothing was answered."""
        return self.runner.run(asked(self.gateway.app, sent))


async def asked(app: Any, sent: Sent) -> Got | None:
    """One request through an ASGI app, held to what a server expects of it."""
    parts = [*sent.body, b""]
    messages: list[Any] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if not sent.hangs_up:
        messages[-1]["more_body"] = False
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": sent.method,
        "path": sent.path.decode("utf-8", "replace"),
        "raw_path": sent.path,
        "query_string": sent.query,
        "headers": list(sent.headers),
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
    }
    said: list[Any] = []
    gone = asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        if not sent.hangs_up:
            await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            gone.set()

    async with asyncio.timeout(20):
        await app(scope, receive, send)
    return _got(said)


def _got(said: Sequence[Any]) -> Got | None:
    if not said:
        return None
    start, *bodies = said
    assert start["type"] == "http.response.start"
    assert all(message["type"] == "http.response.body" for message in bodies)
    assert all(message.get("more_body", False) for message in bodies[:-1])
    whole = bool(bodies) and not bodies[-1].get("more_body", False)
    body = b"".join(message.get("body", b"") for message in bodies)
    headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
    return Got(start["status"], headers, body, whole)
