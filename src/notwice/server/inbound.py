"""The server's side of a connection: uvicorn's, with three things closed that it leaves open.

- It adds the trailers of a chunked body to the headers, while the request is already looked at. A caller could say in
  them who it is, behind the back of the proxy that checks that. Here they are dropped (RFC 9110, section 6.5.1).
- It gathers the head of a request, however long it grows. Here whatever grows without getting anywhere is refused: a
  head, trailers, the extensions of a chunk.
- It answers what can't be read with 400 at once, which a caller would take for the answer to the request before it, if
  that still runs. Here the connection is closed instead.
"""

from __future__ import annotations

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX: Final = 64 * 1024  # beside what comes with one read from the socket


class Inbound(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - whatever uvicorn gives
        super().__init__(*args, **options)
        self._unfinished_bytes = 0

    def data_received(self, data: bytes) -> None:  # noqa: D102 - called by the loop
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")

    def send_400_response(self, msg: str) -> None:  # noqa: D102 - called where something can't be read
        if getattr(self.cycle, "response_complete", True):  # there is none before the first request
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_headers_complete(self) -> None:  # noqa: D102 - called by the parser
        self._unfinished_bytes = 0
        super().on_headers_complete()
        self.headers = []  # what the parser gives from now on are trailers, and the request has its own list

    def on_body(self, body: bytes) -> None:  # noqa: D102 - called by the parser
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:  # noqa: D102 - called by the parser
        self._unfinished_bytes = 0
        super().on_message_complete()
