"""The WSGI face (PEP 3333): guards the requests of any WSGI application.

What is not guarded (other methods, requests without a key) passes through untouched. A guarded request's app is called
at once; what it answers goes on as it comes, and the operation is ended before the last byte goes out. When the client
hangs up, the server closes the answer; the rest of it is then read for the retry, within bounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, Unpack
from urllib.parse import quote
from wsgiref.types import StartResponse, WSGIApplication

from notwice.errors import NotwiceError
from notwice.guard import Guard
from notwice.http.atomic import check_atomic
from notwice.http.exchange import (
    SHARED,
    Answer,
    Asked,
    Exchange,
    Gone,
    HeaderMissing,
    HttpFields,
    HttpPolicy,
    RequestHeaders,
    RequestView,
    http_policy_of,
)
from notwice.http.spool import CHUNK_BYTES, Spool
from notwice.http.wsgi_run import Environment, Run, give
from notwice.model import Replay
from notwice.operation import Operation
from notwice.stores.port import can_join

__all__ = ["IdempotencyMiddleware"]

_NOBODY: Final = Answer(HTTPStatus.BAD_REQUEST, (("content-length", "0"),), b"")  # for a client that is gone


class IdempotencyMiddleware:
    """Guards a WSGI application: ``app = IdempotencyMiddleware(app, guard=guard, principal=...)``.

    `guard` is a `Guard`; the other keywords are the fields of `HttpPolicy`, or one `http_policy`. It may be made before
    the server forks.

    The handler finds its operation by `notwice.current_operation()` and under ``environ["notwice.operation"]``. Its
    answer ends the operation, as `HttpPolicy` says, and is stored before its last byte is sent. After a crash between
    the handler's effect and that write the operation is unresolved, and its recovery policy applies. Where the policy
    is ``atomic`` the handler completes it on its own transaction, with the whole answer, and gives that.

    A framework that answers every exception with a 500 of its own, as Flask and Django do, hides `NotApplied` from it:
    the outcome then counts as unknown. There a handler answers with ``Idempotency-Outcome: not-applied``, or calls
    ``current_operation().abandon()`` and answers as it likes.

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
        check_atomic(can_join(guard._store), guard._policy, policy)
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
        if environ["REQUEST_METHOD"].upper() in self._methods:  # some clients send "patch", and some frameworks take it
            if self._always or self._header in environ:
                return self._serve(environ, start_response)
        elif self._status_path is not None and self._exchange.is_look_up(environ["REQUEST_METHOD"], _path(environ)):
            return give(self._look_up(_view(environ)), start_response)
        return self.app(environ, start_response)

    def _serve(self, environ: Environment, start_response: StartResponse) -> Iterable[bytes]:
        begun = self._admit(_view(environ))
        match begun:
            case Answer():
                return give(begun, start_response)
            case Run():
                return begun.serve(self.app, start_response)
            case None:
                return self.app(environ, start_response)
            case Gone.GONE:
                return give(_NOBODY, start_response)

    def _admit(self, request: RequestView) -> Run | Answer | Gone | None:
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
            begun = self._begin(Asked(request, key, namespace), body)
        finally:
            if not isinstance(begun, Run):
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

    def _begin(self, asked: Asked, body: Spool) -> Run | Answer | Gone:
        request = asked.request
        exchange = self._exchange
        try:
            refused = self._read(request, body)
            if refused is not None:
                return refused
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
            return Run(exchange, outcome, body=body, request=request, guards=guards)
        if isinstance(outcome, Replay):
            if not self._authorized(request):
                return exchange.forbidden()
            if trouble := exchange.trouble(outcome):
                self._guard._runtime.tell("result_lost", outcome.view.record, detail=trouble)
        return exchange.answer(outcome, request)

    def _read(self, request: RequestView, body: Spool) -> Answer | Gone | None:
        """Read the whole body. A client that hangs up before runs nothing."""
        environ = request.scope
        declared = bool(environ.get("CONTENT_LENGTH"))
        if declared and not request.content_length and environ["CONTENT_LENGTH"].strip("0"):
            return self._exchange.too_large(None)  # no number: to run on an empty body would be to run another request
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
            return Gone.GONE
        return self._exchange.incomplete() if declared and body.size < request.content_length else None


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
