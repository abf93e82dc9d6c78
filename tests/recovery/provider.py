"""A payment provider on loopback that is slow, dead, or lies, as it is told."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Provider:
    """``effects`` is what happened; ``answer`` may answer in the place of the truth."""

    def __init__(self) -> None:
        self.effects: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], bool] = lambda _: False
        self.closing = threading.Event()
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                provider.asked.append((self.command, self.path, dict(self.headers.items()), body))
                with contextlib.suppress(ConnectionError):
                    if not provider.answer(self):
                        say(self, 200, {"data": provider.found(self.path), "has_more": False})

            do_GET = do_POST = do_any  # noqa: N815 - as http.server calls them

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def found(self, path: str) -> list[dict[str, Any]]:
        wanted = parse_qs(urlsplit(path).query).get("reference")
        return [effect for effect in self.effects if not wanted or effect["reference"] == wanted[0]]


def say(request: http.server.BaseHTTPRequestHandler, status: int, document: object, **headers: str) -> bool:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
    return True


@contextlib.contextmanager
def running() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield provider
    finally:
        provider.closing.set()
        provider.server.shutdown()
        thread.join()
        provider.server.server_close()
