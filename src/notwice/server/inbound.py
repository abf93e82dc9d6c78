"""The server's side of a connection: uvicorn's, with four things closed that it leaves open.

- Its parser ends a message that offers another protocol at the end of its head, and takes the body for the next
  request: one that a caller could write as he likes. Here such an offer is passed over, as RFC 9110, section 7.8,
  allows: the same head is parsed once more without ``Upgrade``, and the body is read by the rules of that head. Who
  wants a tunnel or a websocket is refused, and the connection closed.
- It adds the trailers of a chunked body to the headers, while the request is already looked at. A caller could say in
  them who it is, behind the back of the proxy that checks that. Here they are dropped (RFC 9110, section 6.5.1).
- It gathers the head of a request, however long it grows. Here whatever grows without getting anywhere is refused: a
  head, trailers, the extensions of a chunk.
- It answers what can't be read with 400 at once, which a caller would take for the answer to the request before it, if
  that still runs. Here the connection is closed instead.
"""

from __future__ import annotations

from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from notwice.server import refusals
from notwice.server.forwarding import Headers, is_unsupported

HEAD_BYTES_MAX: Final = 64 * 1024  # beside what comes with one read from the socket


class Inbound(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - whatever uvicorn gives
        super().__init__(*args, **options)
        self._unfinished_bytes = 0

    def data_received(self, data: bytes) -> None:  # noqa: D102 - called by the loop
        self._unset_keepalive_if_required()
        self._unfinished_bytes += len(data)
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.transport.is_closing():
                self.logger.warning("A request can't be read: %s", error)
            self._refuse(refusals.MALFORMED)
        if self._unfinished_bytes > HEAD_BYTES_MAX:
            self._refuse(refusals.MALFORMED)

    def _parse(self, data: bytes) -> None:
        """Parse what came. Each head that offers a protocol is parsed once more, and then what follows it."""
        left = memoryview(data)
        while left:
            try:
                self.parser.feed_data(left)
            except httptools.HttpParserUpgrade as offer:
                left = left[offer.args[0] :]
                head = _without_upgrade(self.parser, self.url, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(head)
            else:
                return

    def _refuse(self, code: str) -> None:
        """Close the connection, with an answer if no caller could take it for that to an earlier request."""
        if self.transport.is_closing():
            return
        if getattr(self.cycle, "response_complete", True):  # there is none before the first request
            status, headers, body = refusals.problem_of(code)
            told = [*headers, ("content-length", str(len(body))), ("connection", "close")]
            lines = "".join(f"{name}: {value}\r\n" for name, value in told)
            self.transport.write(STATUS_LINE[status] + lines.encode() + b"\r\n" + body)
        self.transport.close()

    def on_headers_complete(self) -> None:  # noqa: D102 - called by the parser
        if is_unsupported(self.parser.get_method().decode(), self.headers):
            self.logger.warning("A request wants a tunnel, a websocket or another coding, and was refused")
            self._refuse(refusals.UNSUPPORTED)
            raise httptools.HttpParserError("the gateway does not speak what it asks for")
        if self.parser.should_upgrade():
            return  # this head comes once more
        self._unfinished_bytes = 0
        super().on_headers_complete()
        self.headers = []  # what the parser gives from now on are trailers, and the request has its own list

    def on_body(self, body: bytes) -> None:  # noqa: D102 - called by the parser
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102 - called by the parser
        if self.parser.should_upgrade():
            return
        self._unfinished_bytes = 0
        super().on_message_complete()


def _without_upgrade(parser: httptools.HttpRequestParser, url: bytes, headers: Headers) -> bytes:
    """Give a head as it was parsed, but for ``Upgrade``. Raises `HttpParserError` if it can't be written again."""
    kept = [b"%s: %s" % (name, value) for name, value in headers if name != b"upgrade"]
    if any(b"\r" in line or b"\n" in line for line in kept):
        raise httptools.HttpParserError("a header holds the end of a line")
    first = b"%s %s HTTP/%s" % (parser.get_method(), url, parser.get_http_version().encode())
    return b"\r\n".join([first, *kept, b"", b""])
