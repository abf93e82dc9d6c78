"""A service that knows nothing of notwice, of the standard library alone: ``python upstream.py PORT JOURNAL``.

It notes each request that it begins, so that a test can count effects, and behaves as its path says.
"""

import http.server
import json
import os
import signal
import sys
import threading

RELEASED = threading.Event()
FLAKED = threading.Event()


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        name = self.path.partition("?")[0].strip("/").partition("/")[0] or "echo"
        note(f"{self.command} {self.path}")
        getattr(self, f"on_{name}", self.on_echo)()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = handle_any  # noqa: N815 - as http.server calls them

    def on_echo(self) -> None:
        """Tell what came, byte for byte."""
        body = self.body()
        document = {
            "line": self.requestline,
            "headers": [list(item) for item in self.headers.items()],
            "body": body.decode("latin-1"),
        }
        self.answer(200, json.dumps(document).encode(), {"content-type": "application/json"})

    def on_charge(self) -> None:
        """Make an effect, and say so."""
        self.body()
        self.answer(201, b'{"charged": true}', {"content-type": "application/json", "location": "/charges/1"})

    def on_slow(self) -> None:
        """Make an effect, and say so once somebody asks for /go."""
        self.body()
        RELEASED.wait(20)
        self.answer(201, b"slow")

    def on_go(self) -> None:
        RELEASED.set()
        self.answer(200, b"")

    def on_die(self) -> None:
        """Die in the middle, after the effect."""
        self.body()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_half(self) -> None:
        """Die in the middle of the answer."""
        self.body()
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b"half")
        self.wfile.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_silent(self) -> None:
        """Never answer."""
        self.body()
        RELEASED.wait(30)

    def on_close(self) -> None:
        """Close the connection instead of answering."""
        self.body()
        self.close_connection = True

    def on_flaky(self) -> None:
        """Close the connection instead of answering the first time, and then tell what came."""
        if FLAKED.is_set():
            self.on_echo()
        else:
            FLAKED.set()
            self.on_close()

    def on_nonsense(self) -> None:
        self.body()
        self.wfile.write(b"this is no HTTP\r\n\r\n")
        self.close_connection = True

    def on_raw(self) -> None:
        """Answer with the bytes that the query spells in hexadecimal, whatever they are."""
        self.body()
        self.wfile.write(bytes.fromhex(self.path.partition("?")[2]))
        self.close_connection = True

    def on_status(self) -> None:
        """Answer with the status at the end of the path, and with what the query says about the outcome."""
        self.body()
        path, _, outcome = self.path.partition("?")
        headers = {"idempotency-outcome": outcome} if outcome else {}
        status = int(path.rpartition("/")[2])
        self.answer(status, b"" if status in (204, 304) else path.encode(), headers)

    def on_cookies(self) -> None:
        self.body()
        self.send_response(200)
        for name, value in (("set-cookie", "a=1"), ("x-order", "1"), ("set-cookie", "b=2"), ("x-order", "2")):
            self.send_header(name, value)
        self.send_header("connection", "x-private")
        self.send_header("x-private", "of this hop")
        self.send_header("content-length", "0")
        self.end_headers()

    def on_digest(self) -> None:
        """Give the length of what came and its sum."""
        body = self.body()
        self.answer(200, json.dumps([len(body), sum(body)]).encode())

    def on_large(self) -> None:
        """Give 10 MB in chunks."""
        self.chunked_head()
        for _ in range(160):
            self.chunk(b"x" * 65536)
        self.chunk(b"")

    def on_events(self) -> None:
        """Give an event at once, and another once somebody asks for /go."""
        self.chunked_head("text/event-stream")
        self.chunk(b"data: first\n\n")
        RELEASED.wait(20)
        self.chunk(b"data: second\n\n")
        self.chunk(b"")

    def on_watch(self) -> None:
        """Stream until the caller is gone, and note that."""
        self.chunked_head()
        try:
            while True:
                self.chunk(b"tick")
                RELEASED.wait(0.02)
        except OSError:
            note("caller gone")
            self.close_connection = True

    def chunked_head(self, kind: str = "application/octet-stream") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        pass


def note(line: str) -> None:
    descriptor = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service)
    server.daemon_threads = True
    print(f"listening: {server.server_port}", flush=True)
    server.serve_forever()
