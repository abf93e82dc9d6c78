"""The guard at the HTTP edge, without the HTTP: headers and bytes in, decisions and answers out.

Both faces, ASGI and WSGI, ask this class in the same order and do nothing but move bytes:

1. `key`: is there a key? If not, the request passes through, or is refused.
2. `account`: whose key is it? Then the body is read, up to ``request_bytes_max``.
3. `fingerprint` and `terms` go into the guard's ``begin``.
4. Its outcome is an operation to run, whose answer passes through a `Capture`, or it is answered by `answer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isawaitable
from typing import NamedTuple, Protocol, cast
from urllib.parse import parse_qs

from notwice.errors import InvalidKey, NotApplied, NotwiceError, OwnershipLost
from notwice.fingerprint import (
    BODY_SHA256,
    HTTP,
    HTTP_BYTES,
    BytesRequest,
    HttpRequest,
    compute,
    fingerprint_bytes,
    fingerprint_http,
)
from notwice.http.exchange.answers import (
    Answer,
    Client,
    duplicate_answer,
    error_answer,
    failure,
    first,
    for_first,
    is_formless,
    record_answer,
    refusal,
    refused,
    replay,
)
from notwice.http.exchange.capture import Capture
from notwice.http.exchange.codings import offered
from notwice.http.exchange.dialect import Dialect
from notwice.http.exchange.headers import KEPT_HEADERS, Headers, exposed, kept, without
from notwice.http.exchange.keys import read_key, read_query_key
from notwice.http.exchange.request import (
    Asked,
    Gone,
    HeaderMissing,
    RequestHeaders,
    RequestView,
    is_cut_short,
    length_said,
)
from notwice.http.exchange.settings import (
    SHARED,
    Ending,
    HttpFields,
    HttpPolicy,
    body_alone,
    http_policy_of,
    scope_given,
)
from notwice.http.exchange.stored import StoredRequest, restored, storable
from notwice.identity import check_namespace, join_scope
from notwice.model import Fingerprint, InProgress, Mismatch, RecordView, Replay, Result, Unresolved
from notwice.policy import Policy
from notwice.problems import problem

__all__ = [
    "KEPT_HEADERS",
    "SHARED",
    "Answer",
    "Asked",
    "Body",
    "Capture",
    "Client",
    "Dialect",
    "Ending",
    "Exchange",
    "Gone",
    "HeaderMissing",
    "Headers",
    "HttpFields",
    "HttpPolicy",
    "RequestHeaders",
    "RequestPrint",
    "RequestView",
    "StoredRequest",
    "Terms",
    "http_policy_of",
    "is_cut_short",
    "offered",
    "restored",
]


class Terms(NamedTuple):
    """What a request is begun with."""

    scope: str | tuple[object, ...]
    policy: Policy | None


class Body(Protocol):
    """The body of a request: iterated over once for each fingerprint, or read as a whole."""

    def __iter__(self) -> Iterator[bytes]:
        """The body in pieces, from its start."""
        ...

    def read(self) -> bytes:
        """The whole body."""
        ...


class Owned(Protocol):
    """What is asked of an operation whose handler has ended."""

    @property
    def operation(self) -> str:
        """Its id."""
        ...

    @property
    def view(self) -> RecordView:
        """Its record as it was left."""
        ...

    @property
    def policy(self) -> Policy:
        """The policy that it was begun with."""
        ...

    @property
    def freed(self) -> bool:
        """Whether its key is free again."""
        ...

    @property
    def finishing(self) -> bool:
        """Whether it is finished, or will be as soon as the store has confirmed that."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether a record stands behind it."""
        ...


class RequestPrint:
    """A request's fingerprint by the current recipe, and by older ones for records that were made with them."""

    __slots__ = ("_request", "current")

    def __init__(self, request: HttpRequest | BytesRequest, current: Fingerprint) -> None:
        self._request = request
        self.current = current

    def by(self, recipe: str) -> Fingerprint | None:
        """By `recipe`; ``None`` if this release doesn't know it."""
        return compute(recipe, self._request)


class Exchange:
    """The decisions of one `HttpPolicy`. Each gives an `Answer` where the request is not to go on."""

    __slots__ = ("_look", "_policy")

    def __init__(self, policy: HttpPolicy) -> None:
        self._policy = policy
        self._look = policy.look

    def key(self, request: RequestView) -> str | Answer | None:
        """The request's key; ``None``: it has none, and needs none."""
        lines = request.headers.lines(self._policy.header)
        if not lines:
            required = self._policy.required
            needed = _not_awaited("required", required(request)) if callable(required) else required
            return refusal(self._look, problem("key_missing")) if needed else None
        try:
            return read_key(lines, strict=self._policy.strict)
        except InvalidKey as error:
            return error_answer(self._look, error)

    def account(self, principal: object, *, within: str) -> str | Answer:
        """The namespace of an account, inside of the guard's own. Raises `TypeError` if it is no text.

        Its separators are escaped, also where it stands alone: else the account ``shop:alice`` of one guard were the
        account ``alice`` of another, that is bound to ``shop``. A blank text names nobody, and one that is too long, or
        has characters that no name has, nobody that keys could belong to: such callers are as good as not known.
        """
        if principal is None or (isinstance(principal, str) and not principal.strip()):
            return self._unknown()
        if not isinstance(principal, str):
            raise TypeError(
                f"principal gave a value of type {type(principal).__qualname__}; it must give the account's name as"
                " text, or None if the caller is not known"
            )
        try:
            return check_namespace(join_scope((within, principal) if within else (principal,)))
        except InvalidKey:
            return self._unknown(
                "The name that you are known by can't be an account's: it is too long, or has a control character. "
                "Authenticate as another one and send the request again."
            )

    def _unknown(self, detail: str | None = None) -> Answer:
        told = refusal(self._look, problem("principal_missing", detail=detail))
        challenge = self._policy.challenge
        return told._replace(headers=(*told.headers, ("www-authenticate", challenge))) if challenge else told

    def terms(self, request: RequestView) -> Terms:
        """Scope and policy of the request. Raises `TypeError` if the policy's function gives no scope."""
        scope, policy = self._policy.scope, self._policy.policy
        return Terms(
            scope_given(scope(request)) if callable(scope) else scope, policy(request) if callable(policy) else policy
        )

    def guards(
        self, request: RequestView, namespace: str, scope: str | tuple[object, ...]
    ) -> frozenset[tuple[str, str]]:
        """The guards that this request has met, with this one. Raises `RuntimeError` if it has met it before.

        Two guards on one scope and namespace: the inner one would take the request for a duplicate of itself.
        """
        met: frozenset[tuple[str, str]] = request.scope.get("notwice.guards", frozenset())
        this = (namespace, join_scope(scope))
        if this in met:
            raise RuntimeError(
                f"this request has met two guards on the scope {this[1]!r} in one namespace, so the inner one would"
                " take it for a duplicate of itself; take one of them out, or give one another scope"
            )
        return met | {this}

    @property
    def _recipe(self) -> str:
        return HTTP if self._policy.canonical_json else HTTP_BYTES

    def fingerprint(self, request: RequestView, body: Body) -> RequestPrint:
        """What the request is compared by. Raises `TypeError` if the policy's function gives no bytes."""
        choose = self._policy.fingerprint
        if choose is None or choose is body_alone:
            content_type = "\n".join(request.headers.lines("content-type"))  # so that two lines are never read as one
            raw_path, query = request.raw_path.encode("latin-1"), request.query.encode("latin-1")
            whole = HttpRequest(request.method, raw_path, query, content_type, body)
            return RequestPrint(whole, fingerprint_http(whole, BODY_SHA256 if choose else self._recipe))
        chosen = choose(request, body.read())
        if not isinstance(chosen, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers may be untyped
            raise TypeError(f"fingerprint gave a value of type {type(chosen).__qualname__}; it must give bytes")
        return RequestPrint(BytesRequest(chosen), fingerprint_bytes(chosen))

    def storable(self, request: RequestView, body: Body) -> dict[str, object] | None:
        """The request as its record keeps it; ``None`` if it is too large for that."""
        return storable(request, body.read(), kept=cast("frozenset[str]", self._policy.stored_headers))

    def too_long(self, request: RequestView) -> Answer | None:
        """The refusal of a body by the length that it is said to have; ``None`` if it may be read."""
        return self.too_large(0 if "transfer-encoding" in request.headers else length_said(request.headers))

    def too_large(self, bytes_known: int | None) -> Answer | None:
        """The refusal of a body of so many bytes; ``None`` if it can be guarded. ``None`` bytes: nobody can tell."""
        if bytes_known is not None and bytes_known <= self._policy.request_bytes_max:
            return None
        detail = "Its length is not known. Send a Content-Length." if bytes_known is None else None
        return refusal(self._look, problem("request_too_large", detail=detail))

    def incomplete(self) -> Answer:
        """The refusal of a body that ended too early."""
        return refusal(self._look, problem("request_incomplete"))

    def capture(self, request: RequestView) -> Capture:
        """What the answer to this request goes through."""
        return Capture(self._policy, request.method)

    def answer(self, outcome: Replay | InProgress | Unresolved | Mismatch, request: RequestView) -> Answer:
        """The answer to a duplicate."""
        if isinstance(outcome, Replay):
            told = replay(self._look, outcome.view, _client(request))
            return told._replace(headers=self._advertised(told.headers, outcome.view))
        return refused(self._look, outcome)

    def trouble(self, replayed: Replay) -> str:
        """Why a duplicate is told nothing of the value that is kept; empty where it is told."""
        if not is_formless(replayed.view):
            return ""
        return "JSON has no form for the value that it was finished with: finish it with a whole Result"

    def error(self, error: NotwiceError, request: RequestView) -> Answer:
        """The answer where the guard raised."""
        if isinstance(error, OwnershipLost) and error.view is not None:
            return self._told_as_duplicate(error.view, request)
        return error_answer(self._look, error)

    def forbidden(self) -> Answer:
        """The answer where a stored answer may not be given to this caller."""
        return refusal(self._look, problem("replay_forbidden"))

    def excuse(self, error: Exception, owned: Owned, request: RequestView) -> Answer | None:
        """The answer where the handler raised before it answered; ``None`` if the exception is the server's to tell.

        One of ``final_errors`` is told alike to the first caller and to the next, and a handler's word that nothing
        happened is told. But where the guard could not fail it, or free the key, by that, the caller gets what a
        duplicate would get.
        """
        meaning = owned.policy.says_of(error)
        if meaning == "not_applied":
            if owned.guarded and not owned.freed:
                return self._told_as_duplicate(owned.view, request)
            told = error.problem() if isinstance(error, NotApplied) else problem("not_applied", retry_after=1)
            return refusal(self._look, told)
        if meaning == "final":
            if owned.guarded and not owned.finishing:
                return self._told_as_duplicate(owned.view, request)
            return failure(self._look, owned.operation)
        return self.error(error, request) if isinstance(error, OwnershipLost) else None

    def instead(self, finished: RecordView, answer: Result, request: RequestView) -> Answer | None:
        """What goes out in place of a handler's `answer`, where the handler had finished its operation before it.

        That is what duplicates get. ``None``: `answer` is the same, or nothing was kept that could be told.
        """
        told = first(self._look, finished)
        if told is None or (told.status, told.body, self._comparable(told.headers)) == (
            answer.status,
            answer.body,
            self._comparable(answer.headers),
        ):
            return None
        whole = for_first(told, _client(request))
        return whole._replace(headers=self._retained(whole.headers, finished.record.terms.retention_ms))

    def _comparable(self, headers: Headers) -> list[tuple[str, str]]:
        return sorted(kept(headers, cast("frozenset[str]", self._policy.kept_headers)))

    def marked(self, headers: Headers, *, guarded: bool, kept_back: bool) -> Headers:
        """The headers of a first answer, marked if it was given without a guard, or if its key could not be freed."""
        if not guarded:
            name, value = self._look.guarded_header, "false"
        elif kept_back:
            name, value = self._look.outcome_header, "unknown"
        else:
            return headers
        return exposed((*headers, (name.lower(), value)), [name])

    def opened(self, headers: Headers, owned: Owned, ending: Ending, *, kept_back: bool) -> Headers:
        """The headers of a first answer as they go out: marked, and with how long it will be kept if it is whole.

        `ending` is what a whole answer says of the operation.
        """
        marked = self.marked(headers, guarded=owned.guarded, kept_back=kept_back)
        if not owned.guarded or ending not in {Ending.COMPLETED, Ending.FAILED}:
            return marked
        return self._retained(marked, owned.view.record.terms.retention_ms)

    def _advertised(self, headers: Headers, view: RecordView) -> Headers:
        """The headers of a kept answer, with how much longer duplicates get it: those that are held get it for ever."""
        retention_ms = view.record.expires_after_ms
        left_ms = None if retention_ms is None else max(0, retention_ms - (view.now_ms - view.written_ms))
        return self._retained(headers, left_ms)

    def _retained(self, headers: Headers, left_ms: int | None) -> Headers:
        name = self._policy.retention_header
        if name is None or left_ms is None:
            return headers
        return exposed((*without(headers, name.lower()), (name.lower(), str(left_ms // 1000))), [name])

    def is_look_up(self, method: str, path: str) -> bool:
        """Whether the request asks for an operation's status."""
        return method == "GET" and path == self._policy.status_path

    def look_up_key(self, request: RequestView) -> str | Answer:
        """The key that a look-up asks for."""
        found = parse_qs(request.query, keep_blank_values=True).get("idempotency_key", [])
        if not found:
            return refusal(self._look, problem("key_missing", detail="Give ?idempotency_key=, the key to look up."))
        try:
            return read_query_key(found)
        except InvalidKey as error:
            return error_answer(self._look, error)

    def look_up(self, key: str, view: RecordView | None) -> Answer:
        """What is known of the operation with this key."""
        return record_answer(self._look, key, view)

    def has_answer(self, view: RecordView | None) -> bool:
        """Whether a look-up would give a stored answer."""
        return view is not None and view.answered

    def _told_as_duplicate(self, view: RecordView, request: RequestView) -> Answer:
        told = duplicate_answer(self._look, view, _client(request))
        return told._replace(headers=self._advertised(told.headers, view)) if view.record.terminal else told


def _not_awaited(name: str, given: object) -> object:
    """What a function gave. Raises `TypeError` for what would have to be awaited, which is true whatever it says."""
    if isawaitable(given):
        raise TypeError(f"{name} gave something to wait for; only principal and authorize_replay may, under ASGI")
    return given


def _client(request: RequestView) -> Client:
    return Client(request.method, request.headers.lines("accept-encoding"))
