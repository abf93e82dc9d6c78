"""One run of a WSGI handler: its request goes in, its answer comes out, and its operation ends by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication

from notwice.errors import NotwiceError, OwnershipLost, StepsChanged
from notwice.http.exchange import Answer, Ending, Exchange, Headers, RequestView, offered
from notwice.http.spool import Spool
from notwice.operation import Operation

Environment = dict[str, Any]
Lines = list[tuple[str, str]]
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
Guards = frozenset[tuple[str, str]]

DRAIN_SECONDS_MAX: Final = 30.0  # how long a worker reads on for a client that is gone


class Run:
    """One run of the handler: gives it the request, takes its answer, ends the operation, sends the answer on."""

    def __init__(
        self, exchange: Exchange, operation: Operation, *, body: Spool, request: RequestView, guards: Guards
    ) -> None:
        self._exchange = exchange
        self._operation = operation
        self._request = request
        self._body = body
        self._guards = guards
        self._capture = exchange.capture(request)
        self._start: tuple[str, Headers] = ("", ())
        self._opened = False  # the server has status and headers
        self._settled = False  # the answer was whole, and the operation was ended by it
        self._raised = False  # the app raised
        self._gone = False  # the server could not send, which is no word of the app
        self._kept_back = False  # the answer says that nothing happened, and the key could not be freed by it
        self._held: list[bytes] = []

    def serve(self, app: WSGIApplication, start_response: StartResponse) -> Iterable[bytes]:
        """Call the app, and give its answer to iterate over and to close."""
        self._server_start = start_response
        rest = self._run(app)
        return _Sending(next(rest, None), rest)

    def _run(self, app: WSGIApplication) -> Generator[bytes, None, None]:
        try:
            with self._body, self._operation:
                yield from self._handle(app)
        except Exception as error:
            answer = self._excuse(error)
            if answer is not None:
                yield from give(answer, self._server_start)
            elif self._raised:
                raise

    def _handle(self, app: WSGIApplication) -> Generator[bytes, None, None]:
        try:
            chunks = app(self._environment(), self._take_start)
            try:
                yield from self._answer(iter(chunks))
            finally:
                _close(chunks)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._raised = True
            self._break_off(error)
            raise

    def _answer(self, chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
        try:
            for chunk in chunks:
                ready = self._take(chunk)
                if ready:
                    yield ready
            yield from self._finish()
        except GeneratorExit:
            if not self._settled:
                self._drain(chunks)
            raise

    def _excuse(self, error: Exception) -> Answer | None:
        """The answer in place of one that an exception prevented; ``None`` if it is the server's to tell."""
        if self._opened or self._settled or not self._raised:
            return None
        return self._exchange.excuse(error, self._operation, self._request)

    def _environment(self) -> Environment:
        """The environment that the app sees: with its operation and its whole body, without ways around the capture."""
        environ = {name: value for name, value in self._request.scope.items() if not name.endswith(".socket")}
        environ.pop("wsgi.file_wrapper", None)
        environ.update(
            {
                "notwice.operation": self._operation,
                "notwice.guards": self._guards,
                "wsgi.input": self._body.file(),
                "wsgi.input_terminated": True,
                "CONTENT_LENGTH": str(self._body.size),
            }
        )
        codings = offered(self._request.headers.lines("accept-encoding"))
        if codings is not None:
            environ["HTTP_ACCEPT_ENCODING"] = codings
        return environ

    def _take_start(
        self, status: str, headers: Lines, exc_info: ExceptionInfo | None = None, /
    ) -> Callable[[bytes], object]:
        if exc_info is not None:
            try:
                if self._opened and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # or this frame would hold itself through the traceback
            self._capture = self._exchange.capture(self._request)
            self._held.clear()
        elif self._capture.started:
            raise AssertionError("start_response was called twice, and the second time without exc_info")
        self._start = status, self._capture.start(int(status[:3]), headers)
        return self._write

    def _write(self, chunk: bytes) -> None:
        """The old way to answer: kept until the app's next chunk, unless it is too much to keep."""
        self._capture.add(chunk)
        self._held.append(chunk)
        if self._capture.breakable and not self._capture.whole:
            self._gone = True
            self._open()(b"".join(self._held))
            self._gone = False
            self._held.clear()

    def _take(self, chunk: bytes) -> bytes:
        """Note a chunk, and give what may go out now."""
        self._capture.add(chunk)
        self._held.append(chunk)
        if self._waits or not any(self._held):
            return b""
        return self._flushed()

    @property
    def _waits(self) -> bool:
        """Whether what is held may not go out yet: the last bytes, and all of an answer that may be replaced."""
        replaceable = self._operation.ended and not self._opened and not self._capture.breakable
        return self._capture.whole or replaceable

    def _finish(self) -> Iterator[bytes]:
        """The answer is whole: end the operation by it, then send the rest."""
        if not self._capture.started:
            self._break_off(None)
            return iter(())
        instead = self._settle()
        if instead is not None and not self._opened:
            return iter(give(instead, self._server_start))
        rest = self._flushed()
        return iter([rest] if rest else [])  # an empty chunk would end the answer on some servers

    def _settle(self) -> Answer | None:
        """End the operation by the whole answer. Gives what is to go out in its place, if anything."""
        self._settled = True
        if self._operation.ended and not self._operation.lost:
            return self._ended_before()
        lost = self._end(self._capture.ending if self._capture.sound else None)
        return None if lost is None else self._exchange.error(lost, self._request)

    def _ended_before(self) -> Answer | None:
        """The answer that the handler has finished the operation with, if the whole one is another."""
        with suppress(NotwiceError):
            self._operation._look_for_end()
        finished, answer = self._operation._finished, self._capture.result
        instead = None if finished is None else self._exchange.instead(finished, answer, self._request)
        if instead is not None:
            self._operation._tell_replaced(answer)
        return instead

    def _drain(self, chunks: Iterator[bytes]) -> None:
        """The client is gone: read the rest of the answer for the retry. A stream that may be cut short is not read."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while not self._capture.breakable and time.monotonic() < deadline:
            chunk = next(chunks, None)
            if chunk is None:
                self._settle()
                return
            self._capture.add(chunk)
        self._break_off(None)

    def _break_off(self, error: BaseException | None) -> None:
        """The app ended. If its answer is not whole, end the operation, unless the exception says how."""
        if self._settled or self._operation.ended:
            return
        ending = self._capture.break_off()
        if ending is not None or error is None or self._gone:
            self._end(ending)

    def _end(self, ending: Ending | None) -> OwnershipLost | StepsChanged | None:
        """Make the operation's last move. What the store could not confirm is repeated by the guard, not here."""
        operation = self._operation
        result = self._capture.result
        try:
            match ending:
                case Ending.COMPLETED:
                    operation.complete(result)
                case Ending.FAILED:
                    operation.fail(result)
                case Ending.ABANDONED:
                    operation.abandon()
                case Ending.UNKNOWN:
                    operation.suspend(f"the handler answered with status {result.status}", answer=result)
                case None:
                    operation.suspend("the handler ended without a whole answer")
        except OwnershipLost as error:
            return None if ending is Ending.ABANDONED else error
        except StepsChanged as error:  # the answer speaks of another way than the steps went
            with suppress(NotwiceError):
                operation.suspend(error)
            return error
        except NotwiceError:
            pass
        finally:
            self._kept_back = ending is Ending.ABANDONED and not operation.freed
        return None

    def _flushed(self) -> bytes:
        self._open()
        body = b"".join(self._held)
        self._held.clear()
        return body

    def _open(self) -> Callable[[bytes], object]:
        if not self._opened:
            self._opened = True
            status, headers = self._start
            ending, kept_back = self._capture.ending, self._kept_back
            opened = self._exchange.opened(headers, self._operation, ending, kept_back=kept_back)
            self._server_write = self._server_start(status, list(opened))
        return self._server_write


class _Sending:
    """An answer on its way to the server."""

    def __init__(self, first: bytes | None, rest: Generator[bytes, None, None]) -> None:
        self._first = first
        self._rest = rest

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        first, self._first = self._first, None
        return next(self._rest) if first is None else first

    def close(self) -> None:
        """The server is done, or the client is gone."""
        self._rest.close()


def give(answer: Answer, start_response: StartResponse) -> list[bytes]:
    """Start an answer of the guard's own, and give its body."""
    phrase = "Status"
    with suppress(ValueError):
        phrase = HTTPStatus(answer.status).phrase
    start_response(f"{int(answer.status)} {phrase}", list(answer.headers))
    return [answer.body]


def _close(chunks: Iterable[bytes]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
