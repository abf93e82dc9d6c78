"""Every option of the HTTP faces is checked once, with a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, Policy
from notwice.http import KEPT_HEADERS, SHARED, Dialect, Ending, HttpPolicy, RequestHeaders, asgi, wsgi
from notwice.http.exchange import HttpFields
from notwice.http.exchange.headers import never_kept
from notwice.http.exchange.request import HeaderMissing
from notwice.http.exchange.settings import body_alone

FIELDS = [
    *("principal", "challenge", "methods", "required", "header", "strict", "dialect", "scope", "statuses"),
    *("kept_headers", "request_bytes_max", "response_bytes_max", "fingerprint", "canonical_json", "status_path"),
    *("retention_header", "stored_headers", "authorize_replay", "policy"),
]


async def later(_: object) -> str:
    return "a"


def policy(**fields: Any) -> HttpPolicy:
    return HttpPolicy(**{"principal": SHARED, **fields})


def test_the_fields() -> None:
    """The options are these and no others; all are keyword-only, and the policy is frozen."""
    assert [field.name for field in dataclasses.fields(HttpPolicy) if field.init] == FIELDS
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy().strict = True  # type: ignore[misc]  # what is tested
    with pytest.raises(TypeError):
        HttpPolicy(SHARED)  # type: ignore[call-arg]  # what is tested


def test_the_keywords_of_a_middleware_are_the_fields() -> None:
    """Each field is a keyword of both faces, of the same type."""
    fields = {field.name: field.type for field in dataclasses.fields(HttpPolicy) if field.init}
    keywords = {name: hint.__forward_arg__ for name, hint in HttpFields.__annotations__.items()}
    assert keywords == fields


def test_the_defaults() -> None:
    """POST and PATCH are guarded, a key is not required, bodies up to 10 MiB are taken and up to 1 MiB kept."""
    default = policy()
    assert set(default.methods) == {"POST", "PATCH"}
    assert (default.required, default.strict, default.canonical_json) == (False, False, True)
    assert (default.header, default.scope, default.status_path) == ("Idempotency-Key", "http", None)
    assert (default.request_bytes_max, default.response_bytes_max) == (10 * 1024**2, 1024**2)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"principal": None}, "principal must be a function of the request, or SHARED"),
        ({"principal": "tenant"}, "principal must be a function of the request, or SHARED"),
        ({"challenge": ""}, "challenge must be printable ASCII"),
        ({"challenge": "Bearer\r\nX: y"}, "challenge must be printable ASCII"),
        ({"methods": "POST"}, "methods must be a collection of names"),
        ({"methods": []}, "methods is empty"),
        ({"methods": ["POST", "options"]}, "OPTIONS can not be guarded"),
        ({"methods": [7]}, "methods must hold names"),
        ({"required": 1}, "required can not be 1"),
        ({"required": later}, "required is a coroutine function"),
        ({"header": "a b"}, "header must hold names"),
        ({"header": ""}, "header must hold names"),
        ({"header": "Content-Length"}, "header can not be Content-Length"),
        ({"header": "HOST"}, "header can not be HOST"),
        ({"retention_header": "Date"}, "retention_header can not be Date"),
        ({"retention_header": "set-cookie"}, "retention_header can not be set-cookie"),
        ({"retention_header": "Location"}, "retention_header can not be Location"),
        ({"retention_header": "idempotency-key"}, "retention_header can not be idempotency-key"),
        ({"strict": "yes"}, "strict must be True or False"),
        ({"dialect": "strip"}, "did you mean 'stripe'"),
        ({"dialect": 7}, "dialect must be one of"),
        ({"scope": ""}, "scope can not be '': the scope is empty or blank"),
        ({"scope": ()}, r"scope can not be \(\): the scope is an empty tuple"),
        ({"scope": ("charge", None)}, "a part of the scope is missing"),
        ({"scope": ("charge", 0.5)}, "a part of the scope is of type float"),
        ({"scope": "a\nb"}, "the scope has a control character"),
        ({"scope": 7}, "scope must be text"),
        ({"scope": later}, "scope is a coroutine function"),
        ({"statuses": {"6xx": "failed"}}, "neither a status"),
        ({"statuses": {100: "failed"}}, "neither a status"),
        ({"statuses": {"5xx": "fail"}}, "known are completed, failed, abandoned, unknown"),
        ({"kept_headers": ["Set-Cookie"]}, "kept_headers may not hold set-cookie"),
        ({"kept_headers": "location"}, "kept_headers must be a collection"),
        ({"request_bytes_max": -1}, "request_bytes_max must be a whole number"),
        ({"request_bytes_max": True}, "request_bytes_max must be a whole number"),
        ({"response_bytes_max": 1.5}, "response_bytes_max must be a whole number"),
        ({"fingerprint": b"x"}, "fingerprint can not be"),
        ({"canonical_json": None}, "canonical_json must be True or False"),
        ({"status_path": "status"}, "status_path must be a path"),
        ({"status_path": "/a?b"}, "status_path must be a path"),
        ({"authorize_replay": True}, "authorize_replay can not be True"),
        ({"policy": "hold"}, "policy can not be 'hold'"),
        ({"policy": later}, "policy is a coroutine function"),
        ({"method": ["POST"]}, "has no option 'method'; did you mean 'methods'"),
        ({"statues": {}}, "did you mean 'statuses'"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    """A wrong value says what it must be; an unknown name gets a suggestion."""
    with pytest.raises((TypeError, ValueError), match=sentence):
        policy(**fields)


@pytest.mark.parametrize("face", [asgi, wsgi])
def test_a_principal_is_asked_for(face: Any) -> None:
    """C21: Without a principal no middleware is made, and the error says why."""
    guard = AsyncGuard.open("memory://") if face is asgi else Guard.open("memory://")
    with pytest.raises(TypeError, match="keys without an owner leak answers"):
        face.IdempotencyMiddleware(None, guard=guard)
    with pytest.raises(TypeError, match="did you mean 'principal'"):
        face.IdempotencyMiddleware(None, guard=guard, principal=SHARED, principle=SHARED)
    with pytest.raises(TypeError, match="not both"):
        face.IdempotencyMiddleware(None, guard=guard, http_policy=policy(), principal=SHARED)
    with pytest.raises(TypeError):
        HttpPolicy()  # type: ignore[call-arg]  # what is tested


def test_each_face_takes_its_own_guard() -> None:
    """The ASGI face takes an `AsyncGuard`, the WSGI face a `Guard`, and each says so."""
    with pytest.raises(TypeError, match="must be an AsyncGuard under ASGI"):
        asgi.IdempotencyMiddleware(None, guard=Guard.open("memory://"), principal=SHARED)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match="must be a Guard under WSGI"):
        wsgi.IdempotencyMiddleware(None, guard=AsyncGuard.open("memory://"), principal=SHARED)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("name", ["principal", "authorize_replay"])
def test_wsgi_does_not_wait(name: str) -> None:
    """Coroutine functions are refused where nobody could wait for them."""
    fields = {"principal": SHARED, name: later}
    with pytest.raises(TypeError, match=f"{name} is a coroutine function"):
        wsgi.IdempotencyMiddleware(None, guard=Guard.open("memory://"), **fields)  # type: ignore[arg-type]  # no app


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        *((status, "completed") for status in (200, 201, 202, 204, 226, 300, 303, 304, 399)),
        *((status, "failed") for status in (400, 402, 404, 405, 406, 409, 410, 415, 418, 422, 423, 424, 451, 499)),
        *((status, "abandoned") for status in (401, 403, 425, 429)),
        *((status, "unknown") for status in (408, 500, 501, 502, 503, 504, 507, 599, 100, 199, 600, 999)),
    ],
)
def test_what_a_status_means(status: int, ending: str) -> None:
    """C38: The table of outcomes, row by row."""
    assert policy().ending(status) == Ending(ending)


def test_a_status_comes_before_its_class() -> None:
    """A class that is given another meaning leaves the statuses that have one of their own."""
    changed = policy(statuses={"4xx": "abandoned", 404: "completed"})
    assert [changed.ending(status) for status in (400, 404, 408, 401)] == [
        *(Ending.ABANDONED, Ending.COMPLETED, Ending.UNKNOWN, Ending.ABANDONED)
    ]


def test_the_older_cache() -> None:
    """The preset of the older API cache: 2xx completed, 429 abandoned, all else failed, and the body alone compared."""
    cache = HttpPolicy.api_cache(principal=SHARED, required=True)
    for status in range(200, 600):
        expected = "completed" if status < 300 else "abandoned" if status == 429 else "failed"
        assert cache.ending(status) == Ending(expected)
    assert (cache.canonical_json, cache.required) == (False, True)
    assert cache.fingerprint is body_alone


@pytest.mark.parametrize(
    "name",
    [
        *("Set-Cookie", "date", "Content-Length", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding"),
        *("Upgrade", "WWW-Authenticate", "Proxy-Authenticate", "Proxy-Connection", "Authorization", "X-Request-ID"),
        *("Request-Id", "X-Correlation-ID", "traceparent", "RateLimit", "RateLimit-Policy", "X-RateLimit-Reset"),
        *("X-Rate-Limit-Remaining", "X-CSRF-Token", "Authentication-Info", "Age", "X-Amzn-Trace-Id"),
    ],
)
def test_headers_of_one_exchange_can_not_be_kept(name: str) -> None:
    """C31: Cookies, dates, credentials, limits, connections and request ids can't even be named."""
    assert never_kept(name)
    with pytest.raises(ValueError, match="never replayed"):
        policy(kept_headers=[name])


def test_no_default_header_is_forbidden() -> None:
    """C31: The list of kept headers holds none that belongs to one exchange."""
    assert not [name for name in KEPT_HEADERS if never_kept(name)]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Dialect(codes={"key_lost": "x"}), "has no option 'key_lost'"),
        (lambda: Dialect(statuses={"in_progres": 409}), "did you mean 'in_progress'"),
        (lambda: Dialect(statuses={"in_progress": 200}), "must be one of 400 to 599"),
        (lambda: Dialect(marker="x"), "Dialect has no option 'marker'"),  # type: ignore[call-arg]  # what is tested
    ],
)
def test_a_dialect_is_checked(make: Callable[[], Dialect], sentence: str) -> None:
    """Codes that do not exist, and statuses that are no refusal, are refused."""
    with pytest.raises((TypeError, ValueError), match=sentence):
        make()


def test_a_policy_of_the_guard_is_taken() -> None:
    """``policy`` is a Policy or a function; another policy's options do not get in here."""
    assert policy(policy=Policy(lease=10)).policy == Policy(lease=10)
    with pytest.raises(TypeError, match="HttpPolicy has no option 'lease'"):
        policy(lease=10)


def test_request_headers() -> None:
    """Headers are found whatever their case; several lines are joined, and can be had one by one."""
    headers = RequestHeaders([("X-A", "1"), ("x-a", "2"), ("B", "3")])
    assert (headers["x-A"], headers["b"], len(headers), list(headers)) == ("1, 2", "3", 2, ["x-a", "b"])
    assert headers.lines("X-a") == ("1", "2")
    assert headers.lines("c") == ()
    assert "B" in headers
    with pytest.raises(HeaderMissing):
        headers["c"]
