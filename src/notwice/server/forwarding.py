"""What of a request goes on to the upstream, and what of its answer comes back (RFC 9110, section 7.6).

Path and query go on as they came, byte for byte, and headers in their order, with their duplicates. What belongs to
one hop only stays here: the headers that are known for it, and ``Expect``, which the gateway answers itself. Trailers
are dropped, as that section allows. An empty query (``/path?``) can't be told from none.

That section wants whatever ``Connection`` names taken out, too. Of an answer it is; of a request it is not, on purpose:
by naming it a caller could have taken out what a proxy in front has said of him, the length of the body, or any
credential, and which headers those are only the service knows.

``Host`` stays the caller's, so that signatures and links which an application builds from it hold; ``upstream_host``
turns that off for services that live under their own name. ``X-Forwarded-For`` gets the caller's address appended;
``X-Forwarded-Proto`` and ``-Host`` are set where no proxy in front has set them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, MutableMapping
from typing import Any
from urllib.parse import quote

from notwice.server.settings import Settings

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]

ONE_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
BODILESS = (204, 304)
VIA = f"1.1 notwice-{secrets.token_hex(4)}".encode()
"""By it a gateway knows what it has sent on itself (RFC 9110, section 7.6.3); others are called otherwise."""

_BLANKED = bytes(0x20 if code in (*range(0x09), *range(0x0A, 0x20), 0x7F) else code for code in range(256))


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Give the values of a header, in their order."""
    return [value for header, value in headers if header == name]


def is_unsupported(method: str, headers: Headers) -> bool:
    """Say whether a request wants what the gateway does not speak: a tunnel, a websocket, another coding."""
    if method == "CONNECT":
        return True
    codings = values(headers, b"transfer-encoding")
    upgrades = values(headers, b"upgrade")
    return any(b"websocket" in value.lower() for value in upgrades) or any(
        value.strip().lower() != b"chunked" for value in codings
    )


def is_looped(scope: Scope) -> bool:
    """Say whether a request has come through this gateway before."""
    return any(hop.strip() == VIA for value in values(scope["headers"], b"via") for hop in value.split(b","))


def target(scope: Scope, prefix: str) -> bytes:
    """Give the request target: the upstream's path, then the caller's path and query as they came."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    query = scope["query_string"]
    return prefix.encode() + path + (b"?" + query if query else b"")


def request_headers(scope: Scope, settings: Settings) -> Headers:
    """Give the headers for the upstream."""
    came: Headers = list(scope["headers"])
    if settings.forwarded == "replace":
        came = [(name, value) for name, value in came if name not in FORWARDED]
    dropped = ONE_HOP | {b"host", b"expect", b"x-forwarded-for"}
    chunked = bool(values(came, b"transfer-encoding"))
    if chunked:
        dropped |= {b"content-length"}
    hosts = [host for host in values(came, b"host") if host]  # two of them are refused: who knows which one is meant
    own = settings.upstream.authority.encode()
    headers = [(b"host", host) for host in (hosts if hosts and settings.upstream_host == "keep" else [own])]
    headers += [(name, value) for name, value in came if name not in dropped]
    headers += _forwarded(scope, came, hosts[0] if hosts else b"")
    headers.append((b"via", VIA))
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    return headers


def response_headers(headers: Iterable[tuple[bytes, bytes]], status: int) -> Headers:
    """Give the headers for the caller, with a blank for each control character (RFC 9110, section 5.5).

    The length of a body that does not come is left out: a 304 may tell the length of what it stands for.
    """
    came = list(headers)
    named = b",".join(values(came, b"connection")).lower().split(b",")
    dropped = ONE_HOP | {name.strip() for name in named} - {b""}
    if values(came, b"transfer-encoding") or status in BODILESS:
        dropped |= {b"content-length"}
    return [(name, value.translate(_BLANKED)) for name, value in came if name not in dropped]


def _forwarded(scope: Scope, came: Headers, host: bytes) -> Headers:
    client = scope.get("client")
    chain = [*values(came, b"x-forwarded-for"), *([client[0].encode()] if client else [])]
    headers = [(b"x-forwarded-for", b", ".join(chain))] if chain else []
    if not values(came, b"x-forwarded-proto"):
        headers.append((b"x-forwarded-proto", scope["scheme"].encode()))
    if host and not values(came, b"x-forwarded-host"):
        headers.append((b"x-forwarded-host", host))
    return headers
