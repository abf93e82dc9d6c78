"""Real servers on free loopback ports: started once, stopped by their own process."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.http.apps import shared
from tests.http.harness import Answered, Lines

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 20
UVICORN = ["uvicorn", "--fd", "{fd}", "--ws", "wsproto", "--lifespan", "on", "--timeout-graceful-shutdown", "1"]
HYPERCORN = ["hypercorn", "--bind", "fd://{fd}", "--graceful-timeout", "1"]
GUNICORN = ["gunicorn", "--bind", "fd://{fd}", "--preload", "--graceful-timeout", "1", "--no-control-socket"]
THREADS = ["--worker-class", "gthread", "--threads", "12"]

ASGI = {
    "uvicorn-h11-fastapi": [*UVICORN, "--http", "h11", "{apps}.fastapi_app:app"],
    "uvicorn-httptools-starlette": [*UVICORN, "--http", "httptools", "{apps}.starlette_app:app"],
    "hypercorn-starlette": [*HYPERCORN, "{apps}.starlette_app:app"],
    "hypercorn-fastapi": [*HYPERCORN, "{apps}.fastapi_app:app"],
}
WSGI = {
    "wsgiref-flask": ["{apps}.small_servers", "wsgiref", "{apps}.flask_app:app", "{fd}"],
    "werkzeug-django": ["{apps}.small_servers", "werkzeug", "{apps}.django_app:app", "{fd}"],
    "gunicorn-flask": [*GUNICORN, *THREADS, "{apps}.flask_app:app"],
    "gunicorn-django": [*GUNICORN, *THREADS, "{apps}.django_app:app"],
}
PROCESSES = {"gunicorn-3-flask": [*GUNICORN, "--workers", "3", "--timeout", "30", "{apps}.flask_app:app"]}


class Running:
    """A server in a process of its own. Its socket is made here, so that it takes connections from the start."""

    def __init__(self, command: Iterable[str], folder: Path, *, store: str = "memory://") -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self.listener.getsockname()[1]
        fd = self.listener.fileno()
        arguments = [part.format(fd=fd, apps="tests.http.apps") for part in command]
        environment = {
            **os.environ,
            "NOTWICE_TEST_FOLDER": str(folder),
            "NOTWICE_TEST_STORE": store,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log, pass_fds=[fd]
            )

    def stop(self) -> None:
        """Stop this very process, and give its socket back."""
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
        self.listener.close()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def request(
        self,
        path: str,
        key: str | None = None,
        *,
        method: str = "POST",
        headers: Lines = (),
        body: bytes | Iterator[bytes] = b"",
        connection: http.client.HTTPConnection | None = None,
    ) -> Answered:
        """One request; on a connection of its own, if none is given."""
        lines = {"X-Account": "a", **dict(headers), **({"Idempotency-Key": key} if key else {})}
        with contextlib.ExitStack() as stack:
            used = stack.enter_context(contextlib.closing(self.connection())) if connection is None else connection
            used.request(method, path, body=body, headers=lines, encode_chunked=not isinstance(body, bytes))
            response = used.getresponse()
            return Answered(response.status, response.getheaders(), response.read())

    def raw(
        self, path: str, key: str, *, length: int | None = 0, body: bytes = b"", headers: Lines = ()
    ) -> socket.socket:
        """Send a request by hand and give its socket, for clients that hang up; a length of ``None``: in chunks."""
        client = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
        lines = ["Host: a", "X-Account: a", f"Idempotency-Key: {key}"]
        lines += ["Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in headers]
        client.sendall("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode() + body)
        return client

    def runs(self, name: str) -> int:
        path = self.folder / f"{name}.runs"
        return path.stat().st_size if path.exists() else 0

    def gate(self, name: str) -> None:
        shared.make_gate(name, self.folder)

    def wait_until_entered(self, name: str) -> int:
        return shared.wait_until_entered(name, self.folder)

    def let_go(self, name: str) -> None:
        shared.let_go(name, self.folder)


def hang_up(client: socket.socket) -> None:
    """Close a connection so that the other side is told at once."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    client.close()
