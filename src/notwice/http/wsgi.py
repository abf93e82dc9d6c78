"""The WSGI face (PEP 3333): guards the requests of any WSGI application.

What is not guarded (other methods, requests without a key) passes through untouched. A guarded request's app is called
at once; what it answers goes on as it comes, and the operation is ended before the last byte goes out. When the client
hangs up, the server closes the answer; the rest of it is then read for the retry, within bounds.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, NamedTuple, Unpack
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication

from notwice.errors import NotwiceError, OwnershipLost
from notwice.guard import Guard
from notwice.http.exchange import (
    SHARED,
    Answer,
    Ending,
    Exchange,
    HeaderMissing,
    HttpFields,
    HttpPolicy,
    RequestHeaders,
    RequestView,
    http_policy_of,
    offered,
)
from notwice.http.spool import CHUNK_BYTES, Spool
from notwice.model import Replay
from notwice.operation import Operation

__all__ = ["IdempotencyMiddleware"]

Environment = dict[str, Any]
Lines = list[tuple[str, str]]
ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
Guards = frozenset[tuple[str, str]]

_NOBODY: Final = Answer(HTTPStatus.BAD_REQUEST, (("content-length", "0"),), b"")  # for a client that is gone
DRAIN_SECONDS_MAX: Final = 30.0  # how long a worker reads on for a client that is gone


class _Client(Enum):
    GONE = "gone"


class _Asked(NamedTuple):
    """A request with a key and an owner."""

    request: RequestView
    key: str
    namespace: str


class IdempotencyMiddleware:
    """Guards a WSGI application: ``app = IdempotencyMiddleware(app, guard=guard, principal=...)``.

    `guard` is a `Guard`; the other keywords are the fields of `HttpPolicy`, or one `http_policy`. It may be made before
    the server forks.

    The handler finds its operation by `notwice.current_operation()` and under ``environ["notwice.operation"]``. Its
    answer ends the operation, as `HttpPolicy` says, and is stored before its last byte is sent. After a crash between
    the handler's effect and that write the operation is unresolved, and its recovery policy applies.

    Raises `TypeError` or `ValueError` with a sentence if an option is missing, unknown or wrong.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        guard: Guard,
        http_policy: HttpPolicy | None = None,
        **fields: Unpack[HttpFields],
    ) -> None:
        if not isinstance(guard, Guard):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise TypeError(f"guard must be a Guard under WSGI, not {guard!r}; notwice.http.asgi takes an AsyncGuard")
        policy = http_policy_of(http_policy, fields)
        for name in ("principal", "authorize_replay"):
            if inspect.iscoroutinefunction(getattr(policy, name)):
                raise TypeError(f"{name} is a coroutine function, and WSGI can not wait for it; give a plain function")
        self.app = app
        self._guard = guard
        self._policy = policy
        self._exchange = Exchange(policy)
        self._methods = frozenset(policy.methods)
        self._header = "HTTP_" + policy.header.upper().replace("-", "_")
        self._always = policy.required is not False
        self._status_path = policy.status_path

    def __call__(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        if environ["REQUEST_METHOD"] in self._methods:
            if self._always or self._header in environ:
                return self._serve(environ, start_response)
        elif self._status_path is not None and self._exchange.is_look_up(environ["REQUEST_METHOD"], _path(environ)):
            return _give(self._look_up(_view(environ)), start_response)
        return self.app(environ, start_response)

    def _serve(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        begun = self._admit(_view(environ))
        match begun:
            case Answer():
                return _give(begun, start_response)
            case _Run():
                return begun.serve(self.app, start_response)
            case None:
                return self.app(environ, start_response)
            case _Client.GONE:
                return _give(_NOBODY, start_response)

    def _admit(self, request: RequestView) -> _Run | Answer | _Client | None:
        """Begin the request's operation; ``None``: it is not guarded."""
        key = self._exchange.key(request)
        if key is None or isinstance(key, Answer):
            return key
        namespace = self._namespace(request)
        if isinstance(namespace, Answer):
            return namespace
        body = Spool()
        begun = None
        try:
            begun = self._begin(_Asked(request, key, namespace), body)
        finally:
            if not isinstance(begun, _Run):
                body.close()
        return begun

    def _look_up(self, request: RequestView) -> Answer:
        namespace = self._namespace(request)
        if isinstance(namespace, Answer):
            return namespace
        key = self._exchange.look_up_key(request)
        if isinstance(key, Answer):
            return key
        try:
            view = self._guard.lookup(self._exchange.terms(request).scope, key, namespace=namespace)
        except NotwiceError as error:
            return self._exchange.error(error, request)
        if self._exchange.has_answer(view) and not self._authorized(request):
            return self._exchange.forbidden()
        return self._exchange.look_up(key, view)

    def _namespace(self, request: RequestView) -> str | Answer:
        principal = self._policy.principal
        if principal is SHARED:
            return self._guard.namespace
        try:
            account = principal(request)
        except HeaderMissing:
            account = None
        return self._exchange.account(account, within=self._guard.namespace)

    def _authorized(self, request: RequestView) -> bool:
        ask = self._policy.authorize_replay
        if ask is None:
            return True
        allowed = ask(request)
        if inspect.isawaitable(allowed):
            raise TypeError("authorize_replay gave something to wait for, and WSGI can not wait; give a plain function")
        return bool(allowed)

    def _begin(self, asked: _Asked, body: Spool) -> _Run | Answer | _Client:
        request = asked.request
        refused = self._read(request, body)
        if refused is not None:
            return refused
        exchange = self._exchange
        try:
            terms = exchange.terms(request)
            guards = exchange.guards(request, asked.namespace, terms.scope)
            outcome = self._guard.begin(
                terms.scope,
                asked.key,
                fingerprint=exchange.fingerprint(request, body),
                policy=terms.policy,
                namespace=asked.namespace,
            )
        except NotwiceError as error:
            return exchange.error(error, request)
        if isinstance(outcome, Operation):
            return _Run(exchange, outcome, body=body, request=request, guards=guards)
        if isinstance(outcome, Replay) and not self._authorized(request):
            return exchange.forbidden()
        return exchange.answer(outcome, request)

    def _read(self, request: RequestView, body: Spool) -> Answer | _Client | None:
        """Read the whole body. A client that hangs up before runs nothing."""
        environ = request.scope
        declared = bool(environ.get("CONTENT_LENGTH"))
        if not declared and not environ.get("wsgi.input_terminated"):
            # The server does not say where the body ends: there is none, unless it comes in chunks.
            return self._exchange.too_large(None if "HTTP_TRANSFER_ENCODING" in environ else 0)
        refused = self._exchange.too_large(request.content_length)
        if refused is not None:
            return refused
        try:
            for chunk in _pieces(environ["wsgi.input"], request.content_length if declared else None):
                body.write(chunk)
                refused = self._exchange.too_large(body.size)
                if refused is not None:
                    return refused
        except OSError:
            return _Client.GONE
        return _Client.GONE if declared and body.size < request.content_length else None


class _Run:
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
        self._start: tuple[str, Lines] = ("", [])
        self._opened = False  # the server has status and headers
        self._settled = False  # the answer was whole, and the operation was ended by it
        self._raised = False  # the app raised
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
                yield from _give(answer, self._server_start)
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
        operation = self._operation
        return self._exchange.excuse(error, operation.policy, self._request, operation=operation.operation)

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
        kept = self._capture.start(int(status[:3]), headers)
        self._start = (status, list(self._exchange.marked(kept, guarded=self._operation.guarded)))
        return self._write

    def _write(self, chunk: bytes) -> None:
        """The old way to answer: kept until the app's next chunk, unless it is too much to keep."""
        self._capture.add(chunk)
        self._held.append(chunk)
        if self._capture.breakable and not self._capture.whole:
            self._open()(b"".join(self._held))
            self._held.clear()

    def _take(self, chunk: bytes) -> bytes:
        """Note a chunk, and give what may go out now."""
        self._capture.add(chunk)
        self._held.append(chunk)
        if self._capture.whole or not any(self._held):
            return b""
        return self._flushed()

    def _finish(self) -> Iterator[bytes]:
        """The answer is whole: end the operation by it, then send the rest."""
        if not self._capture.started:
            self._break_off(None)
            return iter(())
        lost = self._settle()
        if lost is not None and not self._opened:
            return iter(_give(self._exchange.error(lost, self._request), self._server_start))
        rest = self._flushed()
        return iter([rest] if rest else [])  # an empty chunk would end the answer on some servers

    def _settle(self) -> OwnershipLost | None:
        self._settled = True
        if self._operation.ended:
            return None
        return self._end(self._capture.ending if self._capture.sound else None)

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
        if ending is not None or error is None:
            self._end(ending)

    def _end(self, ending: Ending | None) -> OwnershipLost | None:
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
        except NotwiceError:
            pass
        return None

    def _flushed(self) -> bytes:
        self._open()
        body = b"".join(self._held)
        self._held.clear()
        return body

    def _open(self) -> Callable[[bytes], object]:
        if not self._opened:
            self._opened = True
            self._server_write = self._server_start(*self._start)
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


def _path(environ: Environment) -> str:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return str(path).encode("latin-1").decode("utf-8", "replace")


def _view(environ: Environment) -> RequestView:
    path = (environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1")
    sent = str(environ.get("RAW_URI") or environ.get("REQUEST_URI") or "")
    return RequestView(
        method=environ["REQUEST_METHOD"],
        path=_path(environ),
        raw_path=sent.partition("?")[0] if sent.startswith("/") else quote(path),
        query=environ.get("QUERY_STRING", ""),
        headers=RequestHeaders(_lines(environ)),
        scope=environ,
    )


def _lines(environ: Environment) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith("HTTP_"):
            yield name[5:].replace("_", "-"), value
        elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
            yield name.replace("_", "-"), value


def _pieces(stream: Any, length: int | None) -> Iterator[bytes]:  # noqa: ANN401 - whatever the server reads from
    """The body in pieces: so many bytes of it, or up to its end."""
    left = length
    while left is None or left > 0:
        piece = stream.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
        if not piece:
            return
        left = None if left is None else left - len(piece)
        yield piece


def _give(answer: Answer, start_response: StartResponse) -> list[bytes]:
    phrase = "Status"
    with suppress(ValueError):
        phrase = HTTPStatus(answer.status).phrase
    start_response(f"{int(answer.status)} {phrase}", list(answer.headers))
    return [answer.body]


def _close(chunks: Iterable[bytes]) -> None:
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
