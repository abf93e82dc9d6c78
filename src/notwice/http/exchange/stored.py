"""Requests as a record keeps them, to be given to the application once more.

What looks like a credential is left out, unless the policy names it: a header whose name speaks of keys, tokens,
cookies, sessions or the like. The header that carries the idempotency key stays. Bodies stay as they are. The names of
what was left out are kept: a refusal may be about that, and then says nothing of the first time it was sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from notwice.core import REQUEST_BYTES_MAX
from notwice.errors import UnsupportedRecord
from notwice.http.exchange.request import RequestView

FORM: Final = 1
"""Of what is stored. A higher one was written by a newer release."""

CREDENTIALS: Final = re.compile(
    r"auth|bearer|cookie|credential|csrf|dpop|hmac|jwt|key|otp|passw|saml|secret|session|sign|ticket|token|xsrf"
)
"""Names of headers that are not stored, by what they contain."""

_HEAD_BYTES: Final = 512
_HEADER_BYTES: Final = 24  # what the codec adds to each, at most


class StoredRequest(NamedTuple):
    """A request that was stored, as an ASGI scope, its body, and the names of the headers that were left out."""

    scope: dict[str, Any]
    body: bytes
    left_out: tuple[str, ...] = ()


def storable(request: RequestView, body: bytes, *, kept: Collection[str]) -> dict[str, object] | None:
    """The request as a value that a record keeps; ``None``: it is too large. `kept` are names of headers to store."""
    left_out = [name for name in request.headers if name not in kept and CREDENTIALS.search(name)]
    headers = [
        [name, value] for name in request.headers if name not in left_out for value in request.headers.lines(name)
    ]
    root: str = request.scope.get("root_path", "")
    texts = [request.method, request.raw_path, request.path, root, request.query, *left_out]
    size = len(body) + sum(2 * len(text) + _HEADER_BYTES for text in texts)
    size += _HEAD_BYTES + sum(2 * len(name) + 2 * len(value) + _HEADER_BYTES for name, value in headers)
    if size > REQUEST_BYTES_MAX:
        return None
    client = request.scope.get("client")
    return {
        "form": FORM,
        "method": request.method,
        "scheme": request.scope.get("scheme", "http"),
        "path": request.raw_path,
        "route": request.path,
        "root": root,
        "query": request.query,
        "headers": headers,
        "left_out": left_out,
        "client": client[0] if client else None,
        "body": body,
    }


def restored(stored: object) -> StoredRequest:
    """A stored request as an application is given it. Raises `UnsupportedRecord` if it is none, or a newer one."""
    parts: Any = stored
    try:
        client = parts["client"]
        texts = [parts[name] for name in ("method", "scheme", "route", "root")]
        texts += ["" if client is None else client, *parts["left_out"]]
        sound = parts["form"] == FORM and set(map(type, texts)) == {str} and type(parts["body"]) is bytes
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": parts["method"],
            "scheme": parts["scheme"],
            "path": parts["route"],
            "raw_path": parts["path"].encode("latin-1"),
            "query_string": parts["query"].encode("latin-1"),
            "root_path": parts["root"],
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in parts["headers"]],
            "client": None if client is None else (client, 0),
            "server": None,
        }
        found = StoredRequest(scope, parts["body"], tuple(parts["left_out"])) if sound else None
    except (KeyError, TypeError, ValueError, AttributeError):
        found = None
    if found is None:
        raise UnsupportedRecord("the stored request is no HTTP request of this release; upgrade this process")
    return found
