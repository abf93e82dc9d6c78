"""What goes through the gateway: bytes, headers and streams, in both directions."""

import contextlib
import datetime as dt
import http.server
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.server import processes
from tests.server.processes import Process, Raw, ask, begun, until

DAY = dt.timedelta(days=1)
TEN_MB = 10 * 1024 * 1024


def echoed(gateway: Process, request: bytes) -> dict[str, Any]:
    raw = Raw(gateway.port)
    raw.say(request)
    answer = raw.rest()
    raw.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    found: dict[str, Any] = json.loads(body)
    return found


def values(echo: dict[str, Any], name: str) -> list[str]:
    return [value for header, value in echo["headers"] if header.lower() == name]


@pytest.mark.parametrize(
    "target", ["/echo/a%2Fb//c/../d;x=1?q=%20&&r=a+b", "/echo//", "/echo/%C3%A9?%00", "/echo/*?a=b?c=d", "//echo/x"]
)
def test_path_and_query_go_on_as_they_came(gateway: Process, target: str) -> None:
    """Nothing is decoded, joined or sorted on the way, whatever the path looks like."""
    echo = echoed(gateway, f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    assert echo["line"] == f"GET {target} HTTP/1.1"


def test_headers_keep_their_order_and_their_duplicates(gateway: Process) -> None:
    """T10: no header is lost or folded in either direction."""
    request = (
        b"GET /echo HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nX-B: 2\r\nX-A: 3\r\nCookie: a=\xe9\r\nConnection: close\r\n\r\n"
    )
    echo = echoed(gateway, request)
    names = [name.lower() for name, _ in echo["headers"]]
    assert values(echo, "x-a") == ["1", "3"]
    assert names.index("x-b") == names.index("x-a") + 1
    assert values(echo, "cookie") == ["a=\xe9"]

    answer = ask(gateway.port, "GET", "/cookies")
    kept = [(name, value) for name, value in answer.headers if name in ("set-cookie", "x-order")]
    assert kept == [("set-cookie", "a=1"), ("x-order", "1"), ("set-cookie", "b=2"), ("x-order", "2")]


def test_what_belongs_to_one_hop_stays_on_it(gateway: Process) -> None:
    """Hop-by-hop headers are not sent on, in either direction, nor are those that an answer's Connection names."""
    request = (
        b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close, Keep-Alive\r\nKeep-Alive: timeout=5\r\n"
        b"HTTP2-Settings: AA\r\nTE: trailers\r\nProxy-Authorization: Basic eA==\r\nX-Public: 2\r\n\r\n"
    )
    echo = echoed(gateway, request)
    names = {name.lower() for name, _ in echo["headers"]}
    assert "x-public" in names
    assert not names & {"connection", "http2-settings", "keep-alive", "te", "proxy-authorization"}
    assert ask(gateway.port, "GET", "/cookies").header("x-private") is None


def test_the_upstream_learns_who_called_and_how(gateway: Process) -> None:
    """Host stays the caller's; the forwarding headers are appended, and kept where a proxy in front has set them."""
    request = b"GET /echo HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 9.9.9.9\r\nConnection: close\r\n\r\n"
    echo = echoed(gateway, request)
    assert values(echo, "host") == ["shop.example"]
    assert values(echo, "x-forwarded-for") == ["9.9.9.9, 127.0.0.1"]
    assert values(echo, "x-forwarded-proto") == ["http"]
    assert values(echo, "x-forwarded-host") == ["shop.example"]
    assert values(echo, "via")[0].startswith("1.1 notwice-")
    proto = b"GET /echo HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"
    assert values(echoed(gateway, proto), "x-forwarded-proto") == ["https"]


def test_forwarding_headers_and_host_can_be_replaced(folder: Path, service: Process) -> None:
    """At the outer edge a caller's own X-Forwarded headers are dropped; a service may see its own name."""
    options = ("--forwarded", "replace", "--upstream-host", "upstream")
    with processes.gateway(folder, service.port, *options) as gateway:
        request = (
            b"GET /echo HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\n"
            b"X-Forwarded-Host: evil\r\nConnection: close\r\n\r\n"
        )
        echo = echoed(gateway, request)
    assert values(echo, "host") == [f"127.0.0.1:{service.port}"]
    assert values(echo, "x-forwarded-for") == ["127.0.0.1"]
    assert values(echo, "x-forwarded-proto") == ["http"]
    assert values(echo, "x-forwarded-host") == ["h"]


@pytest.mark.parametrize("key", [None, "upload"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_goes_up_whole(gateway: Process, key: str | None, chunked: bool) -> None:
    """10 MB arrive byte for byte, with a length or in chunks, guarded or not."""
    body = bytes(range(256)) * (TEN_MB // 256)
    parts: Any = iter([body[start : start + 100_000] for start in range(0, TEN_MB, 100_000)]) if chunked else body
    name = key and f"{key}-{chunked}"
    headers = {"Transfer-Encoding": "chunked"} if chunked else {}
    answer = ask(gateway.port, "POST", "/digest", parts, key=name, headers=headers, chunked=chunked)
    assert answer.document == [TEN_MB, sum(range(256)) * (TEN_MB // 256)]


@pytest.mark.parametrize("key", [None, "download"])
def test_a_large_answer_comes_down_whole(gateway: Process, key: str | None) -> None:
    """10 MB in chunks arrive byte for byte, guarded or not."""
    answer = ask(gateway.port, "POST", "/large", key=key)
    assert (answer.status, answer.body) == (200, b"x" * TEN_MB)


def test_a_body_and_its_answer_may_be_under_way_at_once(tmp_path: Path) -> None:
    """A service that answers while it reads, as a pipe does, gets neither side stuck."""
    body = bytes(range(256)) * (TEN_MB // 256)
    with (
        processes.upstream(tmp_path, language="node") as service,
        processes.gateway(tmp_path, service.port) as gateway,
    ):
        assert ask(gateway.port, "POST", "/pipe", body).body == body


def test_parts_of_an_upload_go_on_as_they_come(gateway: Process, folder: Path) -> None:
    """The gateway sends on what it has; it does not wait for the whole body of an unguarded request."""
    raw = Raw(gateway.port)
    raw.say(b"PUT /echo/early HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc")
    assert until(lambda: "PUT /echo/early" in begun(folder))
    raw.say(b"def")
    assert b'"abcdef"' in raw.hear(b"abcdef")
    raw.close()


def test_events_come_down_one_by_one(gateway: Process) -> None:
    """A stream of events is not held back: the first is here before the second exists."""
    raw = Raw(gateway.port)
    raw.say(b"GET /events HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert b"data: second" not in raw.hear(b"data: first\n\n")
    ask(gateway.port, "GET", "/go")
    assert b"data: second" in raw.rest()
    raw.close()


def test_the_gateway_asks_for_the_body_where_the_caller_waits_for_that(gateway: Process) -> None:
    """``Expect: 100-continue`` is answered by the gateway and not sent on."""
    raw = Raw(gateway.port)
    raw.say(b"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n")
    assert raw.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.say(b"hi")
    head, _, body = raw.rest().partition(b"\r\n\r\n")
    raw.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert values(json.loads(body), "expect") == []


@pytest.mark.parametrize("status", [200, 204, 301, 304, 404, 500, 503])
def test_a_status_goes_through_and_its_connection_stays_usable(gateway: Process, status: int) -> None:
    """Answers with and without a body are framed right, so that the next request on the connection works."""
    raw = Raw(gateway.port)
    for method in ("GET", "HEAD"):
        raw.say(f"{method} /status/{status} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        assert raw.hear(b"\r\n\r\n").startswith(f"HTTP/1.1 {status} ".encode())
        if method == "GET" and status not in (204, 304):
            break
    raw.close()


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_tunnels_and_websockets_are_refused_in_plain_words(gateway: Process, request_head: bytes) -> None:
    """What can't be forwarded is refused with 501, and nothing reaches the service."""
    raw = Raw(gateway.port)
    raw.say(request_head)
    answer = raw.hear(b"}")
    raw.close()
    assert answer.startswith((b"HTTP/1.1 501", b"HTTP/1.1 400"))  # the server below may know no such request at all


def test_other_upgrades_are_passed_over(gateway: Process) -> None:
    """Whoever offers HTTP/2 over an upgrade is answered in HTTP/1.1, as the protocol allows."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    request = b"GET /echo HTTP/1.1\r\nHost: h\r\n" + upgrade + b"\r\n"
    assert values(echoed(gateway, request), "upgrade") == []


def test_the_exchange_ends_when_the_caller_hangs_up(gateway: Process, folder: Path) -> None:
    """A caller who leaves a stream takes the request to the service with him."""
    raw = Raw(gateway.port)
    raw.say(b"GET /watch HTTP/1.1\r\nHost: h\r\n\r\n")
    raw.hear(b"tick")
    raw.reset()
    assert until(lambda: "caller gone" in begun(folder))


def test_what_comes_back_to_the_gateway_is_refused(tmp_path: Path) -> None:
    """A gateway that is its own upstream, by whatever way, notices at the first round, and takes no key for it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as service,
        processes.gateway(tmp_path, service.getsockname()[1]) as gateway,
        Raw(gateway.port) as caller,
    ):
        caller.say(b"GET /round HTTP/1.1\r\nHost: h\r\nVia: 1.0 other\r\n\r\n")
        connection, _ = service.accept()
        with connection:
            sent = connection.recv(65536).decode("latin-1")
        [own] = [line.partition(": ")[2] for line in sent.splitlines() if line.startswith("via: 1.1 notwice-")]
        for key in (None, "k1", "k1"):
            refused = ask(gateway.port, "POST", "/round", key=key, headers={"Via": f"1.0 other, {own}"})
            assert (refused.status, refused.document["code"]) == (508, "loop_detected")
            assert refused.header("idempotency-outcome") == "not-applied"


class Counting(http.server.ThreadingHTTPServer):
    """A service that counts connections, and may close each after its answer without a word."""

    daemon_threads = True

    def __init__(self, *, closes: bool) -> None:
        self.connections = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
                self.close_connection = closes

            do_POST = do_DELETE = do_GET  # noqa: N815 - the names that http.server calls

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@contextlib.contextmanager
def counting(*, closes: bool = False) -> Iterator[Counting]:
    with Counting(closes=closes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_only_what_changes_nothing_travels_on_a_used_connection(tmp_path: Path) -> None:
    """A kept connection may be gone in the moment of its use, so a request that may have an effect gets a new one."""
    with counting() as service, processes.gateway(tmp_path, service.server_port) as gateway:
        for _ in range(3):
            ask(gateway.port, "GET", "/")
        assert service.connections == 1
        for number in range(3):
            assert ask(gateway.port, "POST", "/", key=f"k{number}").status == 200
            assert ask(gateway.port, "DELETE", "/").status == 200
        assert service.connections == 7


def test_a_connection_that_the_service_has_closed_is_not_used_again(tmp_path: Path) -> None:
    """A service may close an idle connection without a word; the next request does not fall into that hole."""
    with counting(closes=True) as service, processes.gateway(tmp_path, service.server_port) as gateway:
        assert [ask(gateway.port, "GET", "/").status for _ in range(5)] == [200] * 5
        assert service.connections == 5


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that vouches for itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    file = tmp_path / "certificate.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    return file


def test_an_upstream_over_tls_is_verified(tmp_path: Path, certificate: Path) -> None:
    """A service that can't prove who it is gets no byte of a request; one that can is used like any other."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with counting() as service:
        service.socket = context.wrap_socket(service.socket, server_side=True)
        option = ("--upstream", f"https://127.0.0.1:{service.server_port}")
        with processes.gateway(tmp_path, 1, *option) as gateway:
            refused = ask(gateway.port, "POST", "/", key="k1")
            assert refused.document["code"] == "upstream_unreachable"
        with processes.gateway(tmp_path, 1, *option, SSL_CERT_FILE=str(certificate)) as gateway:
            assert ask(gateway.port, "POST", "/", key="k1").body == b"ok"
            assert ask(gateway.port, "GET", "/").body == b"ok"


HUNDRED_MB = 100 * 1024 * 1024
IN_BUFFERS_MAX = 60 * 1024 * 1024  # what four kernel buffers of two connections may hold at the very most


def pour(into: socket.socket) -> int:
    """Send as much as is taken, up to 100 MB, and say how much that was."""
    into.settimeout(0.5)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < HUNDRED_MB:
            sent += into.send(b"x" * 65536)
    return sent


def test_nobody_who_is_slow_fills_the_memory_of_the_gateway(tmp_path: Path) -> None:
    """A caller who does not read stops the service from sending, and a service that does not read stops the caller."""
    with (
        socket.create_server(("127.0.0.1", 0)) as service,
        processes.gateway(tmp_path, service.getsockname()[1]) as gateway,
    ):
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            connection, _ = service.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % HUNDRED_MB)
                assert pour(connection) < IN_BUFFERS_MAX
        with socket.create_connection(("127.0.0.1", gateway.port)) as caller:
            caller.sendall(b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % HUNDRED_MB)
            connection, _ = service.accept()
            with connection:
                assert pour(caller) < IN_BUFFERS_MAX


def test_an_answer_has_a_date_and_no_name_of_the_server(gateway: Process) -> None:
    """Every answer has exactly one Date, the upstream's where it gave one."""
    for path in ("/echo", "/-/notwice/health/live"):
        answer = ask(gateway.port, "GET", path)
        assert [name.lower() for name, _ in answer.headers].count("date") == 1
