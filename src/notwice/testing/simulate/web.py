"""The built-in scenario as a web service: the same calls, as requests through the ASGI face."""

from __future__ import annotations

import asyncio
import json
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

from notwice.errors import NotApplied
from notwice.http.asgi import IdempotencyMiddleware
from notwice.http.asgi_run import Message, Receive, Scope, Send
from notwice.http.exchange import Exchange, HttpPolicy, RequestHeaders, RequestView
from notwice.http.spool import Spool
from notwice.model import Result, ResultKind
from notwice.operation import current_operation
from notwice.policy import Policy
from notwice.testing.history import Answer, Name, Outcome, answer_of
from notwice.testing.simulate.faces import AnyOperation, TaskFace
from notwice.testing.simulate.link import CALL
from notwice.testing.simulate.orders import VISIT, Boom
from notwice.testing.simulate.visit import Ending, Visit, bound_ms

if TYPE_CHECKING:
    from notwice.testing.simulate.process import Process

_CODES: Final = {
    "in_progress": Outcome.IN_PROGRESS,
    "unresolved": Outcome.UNRESOLVED,
    "key_reused": Outcome.MISMATCH,
    "ownership_lost": Outcome.LOST,
    "not_applied": Outcome.RAISED,
}
_JSON: Final = "application/json"
LOOKED_UP: Final = Result(ResultKind.HTTP, b'"looked up"', 200, (("content-type", _JSON),))
"""What an operator resolves with."""
_STATUSES: Final = {
    Ending.ABANDON: 429,
    Ending.DECLINED: 402,
    Ending.FAIL: 409,
    Ending.SUSPEND: 500,
    Ending.LEAVE: 408,
}
"""What the handler answers; 201 where nothing stands here."""
_UNKNOWN: Final = frozenset({408, 500})
_CLIENT_ERRORS: Final = range(400, 500)
_SUCCESSES: Final = range(200, 300)


def _account(request: RequestView) -> str:
    return request.headers.get("x-account", "") or ""


def _policy(_: RequestView) -> Policy:
    return cast("WebVisit", VISIT.get()).policy


_HTTP_POLICY: Final = HttpPolicy(principal=_account, scope="charge", policy=_policy)
_EXCHANGE: Final = Exchange(_HTTP_POLICY)


class WebFace(TaskFace):
    """A process that serves requests."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.app: Final = IdempotencyMiddleware(_app, guard=self._guard, http_policy=_HTTP_POLICY)


async def _app(_: Scope, receive: Receive, send: Send) -> None:
    """The guarded application."""
    while (await receive()).get("more_body"):
        pass
    await cast("WebVisit", VISIT.get()).respond(send)


@cache
def _request(name: Name, body: bytes) -> tuple[dict[str, Any], str]:
    """The scope of a request, and the name of its fingerprint."""
    headers = {"content-type": _JSON, "idempotency-key": name.key, "x-account": name.namespace}
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/charges",
        "raw_path": b"/charges",
        "query_string": b"",
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }
    view = RequestView(
        method="POST",
        path="/charges",
        raw_path="/charges",
        query="",
        headers=RequestHeaders(headers.items()),
        scope=scope,
    )
    with Spool() as spool:
        spool.write(body)
        return scope, _EXCHANGE.fingerprint(view, spool).current.digest.hex()


class WebVisit(Visit):
    """One request, which its client may give up."""

    @property
    def policy(self) -> Policy:
        """What the request is begun with."""
        return self._policy

    @property
    def name(self) -> Name:
        """The operation. Every account is a namespace, and all requests share a scope."""
        return Name(self._order.name.namespace or "tenant-1", "charge", self._order.name.key)

    async def run(self) -> None:
        """Make the request."""
        CALL.set(self.recorder.call)
        VISIT.set(self)
        body = json.dumps(self._request).encode()
        scope, fingerprint = _request(self.name, body)
        self.recorder.asked(self.name, fingerprint, self._policy, answer_within_ms=bound_ms(self._policy))
        client = _Client(body)
        try:
            await cast("WebFace", self._face).app(dict(scope), client.receive, client.send)
        except asyncio.CancelledError:
            client.gone.set()
            self.recorder.cancelled()
            raise
        except Exception as error:  # noqa: BLE001 - what an app raises is the server's to tell: status 500
            self.recorder.raised(error)
        else:
            self._told(client)
        finally:
            client.gone.set()

    async def respond(self, send: Send) -> None:
        """The handler."""
        operation = current_operation()
        self.recorder.entered(operation)
        try:
            status, body = await self._answer(operation)
        except BaseException as error:
            self.recorder.failed(error)
            raise
        failed = status in _CLIENT_ERRORS and status not in _UNKNOWN
        if status == _STATUSES[Ending.ABANDON]:
            self.recorder.failed(NotApplied())
        else:
            answer = Answer(body, status, failed, (("content-type", _JSON),))
            self.recorder.answers(answer, final=status not in _UNKNOWN)
        headers = [(b"content-type", _JSON.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if self._plan.long_answer:  # what has gone out can't be changed any more
            await send({"type": "http.response.body", "body": body[:5], "more_body": True})
            body = body[5:]
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, operation: AnyOperation) -> tuple[int, bytes]:
        plan = self._plan
        if plan.thinks:
            await self._face.sleep(plan.thinks)
        if plan.ending is Ending.NOT_APPLIED:
            raise NotApplied
        if plan.ending is Ending.ABANDON:
            return _STATUSES[plan.ending], b"too many requests"
        key = operation.downstream_key("charge")
        if plan.ending is Ending.TOUCHED:
            raise NotApplied
        effect = await self._face.ask(self._provider, partial(self._provider.charge, self.recorder.call, key))
        if plan.lingers:
            await self._face.sleep(plan.lingers)
        if plan.ending is Ending.BOOM:
            raise Boom
        return _STATUSES.get(plan.ending, 201), _body(effect)

    def _applied(self, found: str) -> object:
        """The answer of an effect that was found at the provider."""
        result = Result(ResultKind.HTTP, _body(found), 201, (("content-type", _JSON),))
        self.recorder.answers(answer_of(result, failed=False), final=True)
        return result

    def _told(self, client: _Client) -> None:
        """Say what the client was told, by what it can see."""
        replayed, status = client.headers.get("idempotency-replayed"), client.status
        answer = Answer(
            None if replayed == "omitted" else client.body,
            status,
            failed=status in _CLIENT_ERRORS and status not in _UNKNOWN,
            headers=tuple((name, value) for name, value in client.headers.items() if name == "content-type"),
        )
        retry_after = int(client.headers.get("retry-after", 0)) or None
        if replayed:
            self.recorder.told(Outcome.REPLAY, answer, marked=True)
        elif client.headers.get("content-type") == "application/problem+json":
            code = json.loads(client.body)["code"]
            refused = Outcome.RAISED if self.recorder.started else Outcome.REFUSED
            self.recorder.told(_CODES.get(code, refused), retry_after=retry_after, code=code)
        elif status in _SUCCESSES or (answer.failed and status != _STATUSES[Ending.ABANDON]):
            self.recorder.told(Outcome.DONE, answer)
        else:
            self.recorder.told(Outcome.RAISED, code=str(status))


def _body(effect: object) -> bytes:
    return json.dumps({"charge": effect}).encode()


class _Client:
    """What the server knows of a client."""

    def __init__(self, body: bytes) -> None:
        self._sent = False
        self._body = body
        self.gone: Final = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def receive(self) -> Message:
        """Give the request, and then nothing before the client is gone."""
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
