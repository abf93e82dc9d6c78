"""Serves a WSGI app on a socket that is handed over: ``wsgiref`` or ``werkzeug``, the app, the descriptor."""

from __future__ import annotations

import importlib
import socket
import sys
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer


class ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def serve_wsgiref(app: Any, fd: int) -> None:
    server = ThreadingServer(("127.0.0.1", 0), WSGIRequestHandler, bind_and_activate=False)
    server.socket = socket.socket(fileno=fd)
    server.server_name, server.server_port = "127.0.0.1", server.socket.getsockname()[1]
    server.setup_environ()
    server.set_app(app)
    server.serve_forever()


def serve_werkzeug(app: Any, fd: int) -> None:
    from werkzeug.serving import make_server  # noqa: PLC0415 - wsgiref is served without it

    make_server("127.0.0.1", 0, app, threaded=True, fd=fd).serve_forever()


if __name__ == "__main__":
    kind, name, descriptor = sys.argv[1:]
    module, _, attribute = name.partition(":")
    {"wsgiref": serve_wsgiref, "werkzeug": serve_werkzeug}[kind](
        getattr(importlib.import_module(module), attribute), int(descriptor)
    )
