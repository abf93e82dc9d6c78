"""Callers that offer another protocol: the offer is passed over, and what follows the head stays the request's body."""

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server.processes import Process, Raw, begun

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
OFFERS = {
    "h2c": H2C,
    "tls": "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
    "two": "Connection: keep-alive\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nUpgrade: IRC/6.9\r\n",
}
INNER = (
    "POST /charge HTTP/1.1\r\nHost: h\r\nX-Account-Id: victim\r\nIdempotency-Key: inner\r\nContent-Length: 1\r\n\r\nz"
)
PAUSE = threading.Event()
FRAMINGS = pytest.mark.parametrize(
    ("chunked", "later"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["length", "length later", "chunked", "chunked later"],
)


def request(path: str, body: str, *, chunked: bool, lines: str = "") -> tuple[str, str]:
    """A head and its body as they are sent."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    sent = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n" if chunked else body
    return f"POST {path} HTTP/1.1\r\nHost: h\r\nX-Account-Id: a1\r\n{lines}{length}\r\n\r\n", sent


class Caller(Raw):
    """A connection whose answers are read one by one."""

    unread = b""

    def more(self) -> bytes:
        part = self.some()
        assert part, "the connection ended before the answer was whole"
        return part

    def told(self) -> Any:
        """The document of the next answer, and its status."""
        while b"\r\n\r\n" not in self.unread:
            self.unread += self.more()
        head, _, body = self.unread.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        while len(body) < length:
            body += self.more()
        self.unread = body[length:]
        return json.loads(body[:length]) | {"status": int(head.split(b" ", 2)[1])}


def ended(raw: Raw) -> bytes:
    """All that comes until the connection ends, however it does."""
    heard = b""
    try:
        while part := raw.some():
            heard += part
    except ConnectionResetError:
        pass
    return heard


@pytest.mark.parametrize("offer", OFFERS)
@FRAMINGS
@pytest.mark.parametrize("guarded", [False, True], ids=["open", "guarded"])
def test_the_body_of_a_request_that_offers_a_protocol_stays_its_body(  # noqa: PLR0917 - every framing meets every offer
    gateway: Process, folder: Path, offer: str, later: bool, chunked: bool, guarded: bool
) -> None:
    """P11: what follows such a head is the body, however it is framed and cut; it never runs as another's request."""
    key = f"Idempotency-Key: {offer}-{later}-{chunked}\r\n" if guarded else ""
    head, body = request("/echo", INNER, chunked=chunked, lines=OFFERS[offer] + key)
    before = len(begun(folder))
    with Caller(gateway.port) as raw:
        raw.say((head if later else head + body).encode())
        if later:
            PAUSE.wait(0.05)
            raw.say(body.encode())
        answer = raw.told()
        assert answer["body"] == INNER
        assert not {"upgrade", "http2-settings"} & {name.lower() for name, _ in answer["headers"]}
        raw.say(b"GET /echo?after HTTP/1.1\r\nHost: h\r\n\r\n")
        assert raw.told()["line"] == "GET /echo?after HTTP/1.1"
    assert begun(folder)[before:] == ["POST /echo", "GET /echo?after"]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_another_body_under_the_same_key_is_told_so(gateway: Process, chunked: bool) -> None:
    """P3: the fingerprint is that of the body which the caller sent, whatever protocol he offered with it."""
    key = f"Idempotency-Key: other-body-{chunked}\r\n"
    for amount, status in (("1", 200), ("9", 422), ("1", 200)):
        with Caller(gateway.port) as raw:
            raw.say("".join(request("/echo", f"amount={amount}", chunked=chunked, lines=H2C + key)).encode())
            assert raw.told()["status"] == status


def test_requests_that_come_at_once_are_answered_in_their_order(gateway: Process) -> None:
    """Offers, with bodies and without, among other requests in one segment cost none of them its answer."""
    sent = ""
    for number in range(4):
        sent += "".join(request(f"/echo?{number}", f"body {number}", chunked=number % 2 == 1, lines=H2C))
        sent += f"GET /echo?get{number} HTTP/1.1\r\nHost: h\r\n{H2C if number % 2 else ''}\r\n"
    with Caller(gateway.port) as raw:
        raw.say(sent.encode())
        for number in range(4):
            answer = raw.told()
            assert (answer["line"], answer["body"]) == (f"POST /echo?{number} HTTP/1.1", f"body {number}")
            assert raw.told()["line"] == f"GET /echo?get{number} HTTP/1.1"


def test_a_head_in_single_bytes_is_the_same_head(gateway: Process) -> None:
    """However a head with an offer is cut, its body is read."""
    with Caller(gateway.port) as raw:
        for byte in "".join(request("/echo", "abc", chunked=False, lines=H2C)).encode():
            raw.say(bytes([byte]))
        assert raw.told()["body"] == "abc"


def test_an_offer_waits_for_its_continue(gateway: Process) -> None:
    """RFC 9110, section 10.1.1: a caller that waits to be asked for the body is asked."""
    head, body = request("/echo", "abc", chunked=False, lines=H2C + "Expect: 100-continue\r\n")
    with Caller(gateway.port) as raw:
        raw.say(head.encode())
        assert raw.hear(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.say(body.encode())
        assert raw.told()["body"] == "abc"


@FRAMINGS
@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("POST", "Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        ("POST", "Connection: Upgrade\r\nUpgrade: h2c, WebSocket\r\n"),
        ("CONNECT", ""),
        ("CONNECT", H2C),
    ],
)
def test_what_follows_a_refused_offer_is_never_a_request(  # noqa: PLR0917 - every framing meets every offer
    gateway: Process, folder: Path, method: str, lines: str, chunked: bool, later: bool
) -> None:
    """P11: a websocket or a tunnel is refused with 501 and the connection closed; nothing after it reaches anybody."""
    key = "Idempotency-Key: refused\r\n"
    head, body = request("/charge", INNER, chunked=chunked, lines=lines + key)
    if method == "CONNECT":
        head = head.replace("POST /charge", "CONNECT h:80")
    before = begun(folder)
    with Caller(gateway.port) as raw:
        raw.say((head if later else head + body).encode())
        if later:
            PAUSE.wait(0.05)
            with contextlib.suppress(OSError):
                raw.say(body.encode())
        answer = ended(raw)
    assert answer.startswith(b"HTTP/1.1 501 ") or (later and not answer)  # bytes left unread may cost the answer
    assert b"protocol_unsupported" in answer or not answer
    assert begun(folder) == before


@pytest.mark.parametrize(
    ("coding", "status", "code"),
    [
        *((coding, 501, "protocol_unsupported") for coding in ("xchunked", "gzip", "gzip, chunked", "identity")),
        ("chunked, gzip", 400, "request_malformed"),
    ],
)
def test_another_coding_is_refused_in_plain_words(
    gateway: Process, folder: Path, coding: str, status: int, code: str
) -> None:
    """RFC 9112, section 6.1: a transfer coding that is not known is 501, no end of the body 400; none is a request."""
    before = begun(folder)
    with Caller(gateway.port) as raw:
        raw.say(f"POST /charge HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: {coding}\r\n\r\n".encode())
        answer = ended(raw)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert code.encode() in answer
    assert b"idempotency-outcome: not-applied" in answer
    assert begun(folder) == before


def test_the_preface_of_another_version_is_refused(gateway: Process, folder: Path) -> None:
    """Whoever begins with HTTP/2 without asking is told 400, and what he goes on with is no request."""
    before = begun(folder)
    with Caller(gateway.port) as raw:
        raw.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER.encode())
        answer = ended(raw)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert b"request_malformed" in answer or not answer
    assert begun(folder) == before


@pytest.mark.parametrize("line", ["X: a\r\n b: c", "X: a\rInjected: 1", "X: a\nInjected: 1", "X: a\0"])
def test_a_head_that_is_parsed_twice_says_the_same_twice(gateway: Process, line: str) -> None:
    """P11: what could be read in two ways is refused, or read as it is without the offer."""
    seen = []
    for offer in ("", H2C):
        with Caller(gateway.port) as raw:
            lines = offer + line + "\r\nConnection: close\r\n"
            raw.say("".join(request("/echo", "", chunked=False, lines=lines)).encode())
            seen.append(ended(raw).split(b"\r\n")[0])
    assert seen[0] == seen[1]
