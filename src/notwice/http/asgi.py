"""The ASGI face: guards the requests of any ASGI 3 application on an asyncio event loop.

What is not guarded (other methods, requests without a key, websockets, lifespan) passes through with the server's own
``receive`` and ``send``, byte for byte as without it. A guarded request runs in a task of its own, so that a client
that hangs up, or a server that gives its request up, cancels nothing half-way: the app goes on to its end, and its
answer is there for the retry.
"""

from __future__ import annotations

import inspect
from typing import Unpack
from urllib.parse import quote

from notwice.async_guard import AsyncGuard
from notwice.core import REQUEST_BYTES_MAX
from notwice.errors import NotwiceError
from notwice.guard_base import ABSENT
from notwice.http.asgi_run import App, Receive, Run, Scope, Send, give
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
    Terms,
    http_policy_of,
    is_cut_short,
    restored,
)
from notwice.http.spool import Spool
from notwice.model import Replay
from notwice.operation import AsyncOperation
from notwice.stores.port import can_join

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Guards an ASGI application: ``app.add_middleware(IdempotencyMiddleware, guard=guard, principal=...)``.

    `guard` is an `AsyncGuard`; the other keywords are the fields of `HttpPolicy`, or one `http_policy`. Put it inside
    of authentication, if `principal` asks what that found out.

    The handler finds its operation by `notwice.current_operation()` and under ``scope["notwice.operation"]``. Its
    answer ends the operation, as `HttpPolicy` says, and is stored before its last byte is sent. After a crash between
    the handler's effect and that write the operation is unresolved, and its recovery policy applies. Where the policy
    is ``atomic`` the handler completes it on its own transaction, with the whole answer, and gives that.

    Raises `TypeError` or `ValueError` with a sentence if an option is missing, unknown or wrong.
    """

    def __init__(
        self,
        app: App,
        *,
        guard: AsyncGuard,
        http_policy: HttpPolicy | None = None,
        **fields: Unpack[HttpFields],
    ) -> None:
        if not isinstance(guard, AsyncGuard):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise TypeError(f"guard must be an AsyncGuard under ASGI, not {guard!r}; notwice.http.wsgi takes a Guard")
        policy = http_policy_of(http_policy, fields)
        check_atomic(can_join(guard._store), guard._policy, policy)
        self.app = app
        self._guard = guard
        self._policy = policy
        self._exchange = Exchange(policy)
        self._methods = frozenset(policy.methods)
        self._header = policy.header.lower().encode("latin-1")
        self._always = policy.required is not False
        self._status_path = policy.status_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection. All requests pay for what is asked here; nothing else."""
        if scope["type"] == "http":
            if scope["method"].upper() in self._methods:  # some clients send "patch", and some frameworks take it
                if self._always or self._has_key(scope):
                    return await self._serve(scope, receive, send)
            elif self._status_path is not None and self._exchange.is_look_up(scope["method"], scope["path"]):
                return await self._serve(scope, receive, send)
        return await self.app(scope, receive, send)

    async def rerun(self, operation: AsyncOperation) -> None:
        """Give the stored request of a recovered operation to the app once more, whose answer ends the operation.

        Register it with ``guard.recovers("http", needs_request=True)(middleware.rerun)``, by the scope of the policy.
        The request comes without what layers outside of this one would have put into its scope, and without its
        credentials, unless ``stored_headers`` names them; where any were left out, only a 2xx finishes the operation,
        or what the app says by the outcome header. Raises what the app raises.
        """
        scope, content, left_out = restored(operation.request)
        request = _view(scope)
        body = Spool()
        body.write(content)
        guards = self._exchange.guards(request, operation.namespace, operation.scope)
        await Run(self._exchange, operation, body=body, request=request, guards=guards).unseen(self.app, left_out)

    def _has_key(self, scope: Scope) -> bool:
        header = self._header
        for name, _ in scope["headers"]:  # noqa: SIM110 - a generator would cost more than the loop
            if name == header:
                return True
        return False

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _view(scope)
        begun: Run | Answer | Gone | None
        if self._exchange.is_look_up(request.method, request.path):
            begun = await self._look_up(request)
        else:
            begun = await self._admit(request, receive)
        match begun:
            case Answer():
                await give(begun, send)
            case Run():
                await begun.serve(self.app, receive, send)
            case None:
                await self.app(scope, receive, send)
            case Gone.GONE:
                pass

    async def _admit(self, request: RequestView, receive: Receive) -> Run | Answer | Gone | None:
        """Begin the request's operation; ``None``: it is not guarded."""
        key = self._exchange.key(request)
        if key is None or isinstance(key, Answer):
            return key
        namespace = await self._namespace(request)
        if isinstance(namespace, Answer):
            return namespace
        body = Spool()
        begun = None
        try:
            begun = await self._begin(Asked(request, key, namespace), body, receive)
        finally:
            if not isinstance(begun, Run):
                body.close()
        return begun

    async def _look_up(self, request: RequestView) -> Answer:
        namespace = await self._namespace(request)
        if isinstance(namespace, Answer):
            return namespace
        key = self._exchange.look_up_key(request)
        if isinstance(key, Answer):
            return key
        try:
            view = await self._guard.lookup(self._exchange.terms(request).scope, key, namespace=namespace)
        except NotwiceError as error:
            return self._exchange.error(error, request)
        if self._exchange.has_answer(view) and not await self._authorized(request):
            return self._exchange.forbidden()
        return self._exchange.look_up(key, view)

    async def _namespace(self, request: RequestView) -> str | Answer:
        principal = self._policy.principal
        if principal is SHARED:
            return self._guard.namespace
        try:
            given = principal(request)
            account = await given if inspect.isawaitable(given) else given
        except HeaderMissing:
            account = None
        return self._exchange.account(account, within=self._guard.namespace)

    async def _authorized(self, request: RequestView) -> bool:
        ask = self._policy.authorize_replay
        if ask is None:
            return True
        allowed = ask(request)
        return bool(await allowed if inspect.isawaitable(allowed) else allowed)

    async def _begin(self, asked: Asked, body: Spool, receive: Receive) -> Run | Answer | Gone:
        request = asked.request
        exchange = self._exchange
        try:
            refused = await self._read(request, body, receive)
            if refused is not None:
                return refused
            terms = exchange.terms(request)
            guards = exchange.guards(request, asked.namespace, terms.scope)
            outcome = await self._guard.begin(
                terms.scope,
                asked.key,
                request=self._stored(request, body, terms),
                fingerprint=exchange.fingerprint(request, body),
                policy=terms.policy,
                namespace=asked.namespace,
            )
        except NotwiceError as error:
            return exchange.error(error, request)
        if isinstance(outcome, AsyncOperation):
            return Run(exchange, outcome, body=body, request=request, guards=guards)
        if isinstance(outcome, Replay):
            if not await self._authorized(request):
                return exchange.forbidden()
            if trouble := exchange.trouble(outcome):
                self._guard._runtime.tell("result_lost", outcome.view.record, detail=trouble)
        return exchange.answer(outcome, request)

    def _stored(self, request: RequestView, body: Spool, terms: Terms) -> object:
        """What the record is to keep of the request, if the policy stores it and it is not too large."""
        if not self._guard._policy_of(terms.policy).store_request or body.size > REQUEST_BYTES_MAX:
            return ABSENT
        stored = self._exchange.storable(request, body)
        return ABSENT if stored is None else stored

    async def _read(self, request: RequestView, body: Spool, receive: Receive) -> Answer | Gone | None:
        """Read the whole body. A client that hangs up before runs nothing, nor does a body that ends too early."""
        refused = self._exchange.too_long(request)
        while refused is None:
            message = await receive()
            if message["type"] == "http.disconnect":
                return Gone.GONE
            body.write(message.get("body", b""))
            refused = self._exchange.too_large(body.size)
            if not message.get("more_body", False):
                break
        if refused is None and is_cut_short(request.headers, body.size):
            return self._exchange.incomplete()
        return refused


def _view(scope: Scope) -> RequestView:
    raw_path = scope.get("raw_path") or quote(scope["path"]).encode("latin-1")
    return RequestView(
        method=scope["method"],
        path=scope["path"],
        raw_path=raw_path.decode("latin-1"),
        query=scope.get("query_string", b"").decode("latin-1"),
        headers=RequestHeaders((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
        scope=scope,
    )
