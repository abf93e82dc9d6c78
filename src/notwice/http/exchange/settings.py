"""What the HTTP faces are told to do: one frozen, validated `HttpPolicy`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, Literal, Self, TypedDict, cast

from notwice.errors import NotwiceError
from notwice.http.exchange.dialect import DIALECTS, Dialect
from notwice.http.exchange.headers import KEPT_HEADERS, NO_KEYS, never_kept
from notwice.http.exchange.request import RequestView
from notwice.identity import join_scope
from notwice.policy import Policy, suggesting, unknown_option

MIB: Final = 1024 * 1024


class Shared(Enum):
    """The type of `SHARED`."""

    SHARED = "shared"


SHARED: Final = Shared.SHARED
"""Says on purpose that all callers are one: ``principal=SHARED``."""


class Ending(StrEnum):
    """What the status of an answer says of the operation."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"  # nothing happened
    UNKNOWN = "unknown"  # suspended, with the answer kept


STATUSES: Final[Mapping[int | str, Ending]] = {
    "2xx": Ending.COMPLETED,
    "3xx": Ending.COMPLETED,
    "4xx": Ending.FAILED,
    401: Ending.ABANDONED,
    403: Ending.ABANDONED,
    425: Ending.ABANDONED,
    429: Ending.ABANDONED,
    408: Ending.UNKNOWN,
    "5xx": Ending.UNKNOWN,
}
"""What an answer means, by its status or the class of its status. A status comes before its class."""

_CACHE_STATUSES: Final[Mapping[int | str, str]] = {
    **dict.fromkeys(("3xx", "4xx", "5xx", 401, 403, 408, 425), "failed"),
    429: "abandoned",
}
_CLASSES: Final = ("2xx", "3xx", "4xx", "5xx")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")

Principal = Callable[[RequestView], str | Awaitable[str | None] | None] | Literal[Shared.SHARED]
Scope = str | tuple[object, ...]


def body_alone(_: RequestView, body: bytes) -> bytes:
    """Compare a request by its body and nothing else, by the recipe ``body-sha256``, as the older API cache did."""
    return body


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """How requests are guarded. All functions are given a `RequestView`.

    principal: gives the account that a request's keys belong to; ``None`` or blank: not known, 401. It names
        the account, not the credential, so that a rotated token still finds its keys. `SHARED`: all callers are one.
        There is no default. Under ASGI it may be a coroutine function.
    challenge: what a 401 says in ``WWW-Authenticate`` of how to become known, such as ``"Bearer"``; ``None``: nothing.
    methods: the methods that are guarded; ``OPTIONS`` never is.
    required: whether a guarded method needs a key; a bool or a function of the request.
    header: the header that holds the key. `strict`: only as a structured-field string (RFC 9651).
    dialect: ``"standard"``, ``"stripe"`` or a `Dialect`: codes, statuses, names of headers and bodies of refusals.
    scope: what is guarded: text, a tuple of parts or a function of the request that gives one of them. Where that gives
        ``None``, or a part that names nothing, `TypeError` is raised, so a 500: it is no fault of the client's.
    statuses: what answers mean, in place of `STATUSES`: a status (429) or a class ("5xx") to ``"completed"``,
        ``"failed"``, ``"abandoned"`` or ``"unknown"``. A status comes before its class.
    kept_headers: the headers that are kept for a replay; see `KEPT_HEADERS`.
    request_bytes_max: the largest body that is guarded; a larger request is refused before anything runs.
    response_bytes_max: the largest body that is kept; of a larger one only status and headers are.
    fingerprint: a function of the request and its body that gives the bytes to compare, in place of method, path,
        query, media type and body.
    canonical_json: whether JSON bodies are compared by what they say instead of by their bytes.
    status_path: the path under which an operation can be looked up; ``None``: there is none.
    retention_header: the header of a kept answer that says for how many more seconds duplicates get it, such as
        ``"Idempotency-Retention"``; ``None``: none does. A retry that comes later runs again.
    stored_headers: names of headers that are stored with a request although they look like credentials, where the
        policy stores requests: ``Policy(store_request=True)``, under ASGI.
    authorize_replay: asked before a stored answer is given; a false answer refuses it with 403. Under ASGI it may be
        a coroutine function.
    policy: a `Policy` or a function of the request that gives one; ``None``: the guard's own.

    Raises `TypeError` or `ValueError` with a sentence for anything else.
    """

    principal: Principal
    challenge: str | None = None
    methods: Iterable[str] = ("POST", "PATCH")
    required: bool | Callable[[RequestView], bool] = False
    header: str = "Idempotency-Key"
    strict: bool = False
    dialect: str | Dialect = "standard"
    scope: Scope | Callable[[RequestView], Scope] = "http"
    statuses: Mapping[int | str, str] = dataclasses.field(default_factory=dict)
    kept_headers: Iterable[str] = KEPT_HEADERS
    request_bytes_max: int = 10 * MIB
    response_bytes_max: int = MIB
    fingerprint: Callable[[RequestView, bytes], bytes] | None = None
    canonical_json: bool = True
    status_path: str | None = None
    retention_header: str | None = None
    stored_headers: Iterable[str] = ()
    authorize_replay: Callable[[RequestView], bool | Awaitable[bool]] | None = None
    policy: Policy | Callable[[RequestView], Policy] | None = None
    look: Dialect = dataclasses.field(init=False, repr=False, compare=False)
    endings: Mapping[int | str, Ending] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate every field once, and derive what the exchange needs."""
        put = object.__setattr__
        _check_principal(self.principal)
        _check_challenge(self.challenge)
        put(self, "methods", _methods(self.methods))
        _check_key_header(_header_name("header", self.header))
        if self.retention_header is not None:
            _check_retention_header(_header_name("retention_header", self.retention_header), self.header)
        stored = frozenset(name.lower() for name in _names("stored_headers", self.stored_headers))
        put(self, "stored_headers", stored | {self.header.lower()})
        put(self, "look", _dialect(self.dialect))
        put(self, "endings", {**STATUSES, **_endings(self.statuses)})
        put(self, "kept_headers", _kept(self.kept_headers))
        for name in ("strict", "canonical_json"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        for name in ("request_bytes_max", "response_bytes_max"):
            _check_size(name, getattr(self, name))
        _check_choice("required", self.required, bool)
        _check_choice("policy", self.policy, Policy | None)
        _check_choice("authorize_replay", self.authorize_replay, type(None))
        _check_choice("fingerprint", self.fingerprint, type(None))
        _check_scope(self.scope)
        for name in ("required", "scope", "policy", "fingerprint"):
            if inspect.iscoroutinefunction(getattr(self, name)):
                raise TypeError(f"{name} is a coroutine function; only principal and authorize_replay may be")
        _check_path(self.status_path)

    @classmethod
    def api_cache(cls, *, principal: Principal, **options: Any) -> Self:  # noqa: ANN401 - the fields of this class
        """The older API cache: 2xx completed, 429 abandoned, all else failed, the body alone compared, by its bytes."""
        preset: dict[str, Any] = {"statuses": _CACHE_STATUSES, "canonical_json": False, "fingerprint": body_alone}
        return cls(principal=principal, **{**preset, **options})

    def ending(self, status: int) -> Ending:
        """What an answer of this status says of the operation. A status outside of 200 to 599 says nothing."""
        exact = self.endings.get(status)
        return exact or self.endings.get(f"{status // 100}xx", Ending.UNKNOWN)


class HttpFields(TypedDict, total=False):
    """The fields of `HttpPolicy` as keywords of a middleware. A test holds the two together."""

    principal: Principal
    challenge: str | None
    methods: Iterable[str]
    required: bool | Callable[[RequestView], bool]
    header: str
    strict: bool
    dialect: str | Dialect
    scope: Scope | Callable[[RequestView], Scope]
    statuses: Mapping[int | str, str]
    kept_headers: Iterable[str]
    request_bytes_max: int
    response_bytes_max: int
    fingerprint: Callable[[RequestView, bytes], bytes] | None
    canonical_json: bool
    status_path: str | None
    retention_header: str | None
    stored_headers: Iterable[str]
    authorize_replay: Callable[[RequestView], bool | Awaitable[bool]] | None
    policy: Policy | Callable[[RequestView], Policy] | None


def http_policy_of(given: HttpPolicy | None, fields: HttpFields) -> HttpPolicy:
    """The policy that a middleware was given: as a whole, or by its fields. Raises `TypeError` with a sentence."""
    if given is not None:
        if fields:
            raise TypeError("give http_policy=HttpPolicy(...) or its fields, not both")
        return given
    if "principal" not in fields:
        raise TypeError(
            "principal is missing: keys without an owner leak answers between users. Give a function of the request"
            " that names the account, or principal=SHARED if all callers are one."
        )
    return HttpPolicy(**fields)


def _check_principal(value: object) -> None:
    if value is not SHARED and not callable(value):
        raise TypeError(f"principal must be a function of the request, or SHARED if all callers are one, not {value!r}")


def _check_challenge(value: object) -> None:
    if value is not None and not (isinstance(value, str) and value.isascii() and value.isprintable() and value.strip()):
        raise ValueError(f"challenge must be printable ASCII such as 'Bearer', or None, not {value!r}")


def _methods(value: object) -> frozenset[str]:
    methods = frozenset(name.upper() for name in _names("methods", value))
    if not methods:
        raise ValueError("methods is empty, so nothing would be guarded")
    if "OPTIONS" in methods:
        raise ValueError("OPTIONS can not be guarded: browsers send it without a key before the request itself")
    return methods


def _names(field: str, value: object) -> list[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{field} must be a collection of names, not {value!r}")
    return [_header_name(field, name) for name in value]


def _header_name(field: str, value: object) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError(f"{field} must hold names of letters, digits and hyphens, not {value!r}")
    return value


def _check_key_header(name: str) -> None:
    if name.lower() in NO_KEYS:
        raise ValueError(f"header can not be {name}: it says something else in every request, so it holds no key")


def _check_retention_header(name: str, header: str) -> None:
    lowered = name.lower()
    if never_kept(lowered) or lowered in KEPT_HEADERS or lowered == header.lower():
        raise ValueError(f"retention_header can not be {name}: it says something else in an answer")


def _kept(value: object) -> frozenset[str]:
    names = frozenset(name.lower() for name in _names("kept_headers", value))
    for name in sorted(names):
        if never_kept(name):
            raise ValueError(f"kept_headers may not hold {name}: it belongs to one exchange and is never replayed")
    return names | {"content-type", "content-encoding"}  # without them a body can't be read


def _dialect(value: object) -> Dialect:
    if isinstance(value, Dialect):
        return value
    if not isinstance(value, str):
        raise TypeError(f"dialect must be one of {', '.join(DIALECTS)}, or a Dialect, not {value!r}")
    if value not in DIALECTS:
        raise ValueError(unknown_option("dialect", value, list(DIALECTS)))
    return DIALECTS[value]


def _endings(value: Mapping[int | str, str]) -> dict[int | str, Ending]:
    for status in value:
        if status not in _CLASSES and not (isinstance(status, int) and 200 <= status <= 599):  # noqa: PLR2004 - final statuses
            raise ValueError(
                f"statuses: {status!r} is neither a status from 200 to 599 nor one of {', '.join(_CLASSES)}"
            )
    try:
        return {status: Ending(ending) for status, ending in value.items()}
    except ValueError as error:
        raise ValueError(f"statuses: {error}; known are {', '.join(Ending)}") from None


def _check_size(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number of bytes from 0 on, not {value!r}")


def _check_choice(name: str, value: object, other: Any) -> None:  # noqa: ANN401 - anything that isinstance takes
    if not callable(value) and not isinstance(value, other):
        raise TypeError(f"{name} can not be {value!r}; give a function of the request, or see HttpPolicy")


def _check_scope(value: object) -> None:
    if callable(value):
        return
    if not isinstance(value, str | tuple):
        raise TypeError(f"scope must be text, a tuple of parts or a function of the request, not {value!r}")
    try:
        join_scope(cast("Scope", value))
    except NotwiceError as error:
        raise ValueError(f"scope can not be {value!r}: {error}") from error


def scope_given(value: object) -> str:
    """The scope that the policy's function gave for a request.

    Raises `TypeError` for what names nothing or has no text that is the same everywhere: it is the function that is
    wrong, and no other request of the client's would help. Raises `InvalidKey` for a text that is too long or has
    characters that no name has: that came with the request.
    """
    try:
        return join_scope(cast("Scope", value))
    except NotwiceError as error:
        parts = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
        if parts and all(isinstance(part, str) and part.strip() for part in parts):
            raise
        raise TypeError(f"scope gave {value!r}, which no operation can be named by: {error}") from error


def _check_path(value: object) -> None:
    if value is not None and not (isinstance(value, str) and value.startswith("/") and "?" not in value):
        raise ValueError(f"status_path must be a path that starts with a slash, or None, not {value!r}")
