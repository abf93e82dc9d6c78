"""Real processes for the tests of the gateway: upstreams that know nothing of notwice, and the gateway itself."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

HERE = Path(__file__).parent
START_S = 20
ANSWER_S = 20


class Process:
    """A child that says on its standard output where it listens."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._file = log.open("ab")
        self._child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._file, env={**os.environ, **environment}, text=True
        )
        self.port = self._announced()

    @property
    def pid(self) -> int:
        return self._child.pid

    def _announced(self) -> int:
        assert self._child.stdout is not None
        timer = threading.Timer(START_S, self._child.kill)
        timer.start()
        line = self._child.stdout.readline()
        timer.cancel()
        assert line, f"it did not start: {self.log.read_text()}"
        return int(line.strip().rpartition(":")[2])

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait(START_S)

    def terminate(self) -> None:
        self._child.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._child.wait(START_S)

    def pause(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait(START_S)
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._file.close()


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        values = [value for header, value in self.headers if header.lower() == name.lower()]
        return values[0] if values else None

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(  # every part of a request can be said
    port: int,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    chunked: bool = False,
) -> Answer:
    """Send one request on a connection of its own; `key` makes it a guarded one of the account a1."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    sent = {**({"Idempotency-Key": key, "X-Account-Id": "a1"} if key else {}), **(headers or {})}
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=sent, encode_chunked=chunked)
        response = connection.getresponse()
        return Answer(response.status, response.getheaders(), response.read())


def keyed(line: str, key: str) -> bytes:
    """A request of the account a1 without a body, as bytes."""
    headers = f"Host: h\r\nIdempotency-Key: {key}\r\nX-Account-Id: a1\r\nContent-Length: 0"
    return f"{line} HTTP/1.1\r\n{headers}\r\n\r\n".encode()


class Raw:
    """A connection on which bytes are said and heard as they are."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def some(self) -> bytes:
        """Give what comes next, or nothing at the end."""
        return self._socket.recv(65536)

    def hear(self, until: bytes) -> bytes:
        """Read up to and including `until`, or to the end."""
        heard = b""
        while until not in heard and (part := self._socket.recv(65536)):
            heard += part
        return heard

    def rest(self) -> bytes:
        heard = b""
        while part := self._socket.recv(65536):
            heard += part
        return heard

    def reset(self) -> None:
        """Hang up without a goodbye."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def upstream(folder: Path, *, port: int = 0, language: str = "python") -> Iterator[Process]:
    """A service that knows nothing of notwice, and notes each request that it begins in a file."""
    journal = str(folder / "journal")
    if language == "node":
        node = shutil.which("node")
        if node is None:
            pytest.skip("node is not installed, so there is no upstream in another language")
        command = [node, str(HERE / "upstream.js"), str(port), journal]
    else:
        command = [sys.executable, "-I", str(HERE / "upstream.py"), str(port), journal]
    process = Process(command, {}, folder / "upstream.log")
    try:
        yield process
    finally:
        process.close()


@contextlib.contextmanager
def gateway(folder: Path, upstream_port: int, *options: str, **environment: str) -> Iterator[Process]:
    """A gateway before a service, with its records in `folder`."""
    command = [sys.executable, "-m", "notwice", "serve", "--upstream", f"http://127.0.0.1:{upstream_port}"]
    command += ["--listen", "127.0.0.1:0", "--principal", "header:X-Account-Id", "--store", store_url(folder), *options]
    process = Process(command, environment, folder / "gateway.log")
    try:
        yield process
    finally:
        process.close()


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'notwice.db'}"


def begun(folder: Path) -> list[str]:
    """What the service has begun, one line a request: method and target."""
    journal = folder / "journal"
    return journal.read_text().splitlines() if journal.exists() else []


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """A port that accepts no further connection: its queue is full."""
    with socket.socket() as listener, contextlib.ExitStack() as callers:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


def until(condition: Callable[[], bool]) -> bool:
    """Wait, bounded, until something has happened in another process."""
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return True
        pause.wait(0.01)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
