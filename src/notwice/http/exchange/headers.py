"""Which headers of an answer are kept, and how an answer's headers are put together again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

Headers = tuple[tuple[str, str], ...]

KEPT_HEADERS: Final = frozenset(
    {
        *("content-type", "content-encoding", "content-language", "content-disposition", "content-location"),
        *("location", "etag", "last-modified", "link", "vary", "allow", "retry-after", "refresh"),
        *("cache-control", "expires", "pragma", "deprecation", "sunset", "preference-applied", "accept-patch"),
        *("access-control-allow-origin", "access-control-allow-credentials", "access-control-expose-headers"),
        *("x-accel-redirect", "x-sendfile"),  # the body is elsewhere
    }
)
"""The headers that are kept for a replay, if nothing else is said. All others are made afresh by whoever makes them."""

NO_KEYS: Final = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "date", "via", "expect", "range"),
        *("accept", "accept-encoding", "accept-language", "user-agent", "origin", "referer"),
        *("authorization", "proxy-authorization", "cookie", "forwarded", "x-forwarded-for"),
        *("connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""The headers of a request that say something else, and so can't hold a key."""

_NEVER: Final = frozenset(
    {
        *("set-cookie", "set-cookie2", "cookie", "date", "age", "content-length"),
        *("authorization", "www-authenticate", "authentication-info", "clear-site-data"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("request-id", "correlation-id", "traceparent", "tracestate"),
    }
)
_NEVER_PATTERN: Final = re.compile(
    r"proxy-.*|(x-)?rate-?limit(-.*)?|x-(.*-)?(request|correlation|trace|amzn-trace)-id|x-csrf-?token|x-xsrf-?token"
)


def never_kept(name: str) -> bool:
    """Whether a header belongs to one exchange: cookies, dates, credentials, rate limits, connections, request ids."""
    lowered = name.lower()
    return lowered in _NEVER or _NEVER_PATTERN.fullmatch(lowered) is not None


def kept(headers: Iterable[tuple[str, str]], names: Iterable[str]) -> Headers:
    """The headers that a record keeps: those named, in their order, each line for itself."""
    wanted = frozenset(names)
    return tuple((name.lower(), value) for name, value in headers if name.lower() in wanted)


def values(headers: Iterable[tuple[str, str]], name: str) -> list[str]:
    """The values of all lines of this name (lower case), in their order."""
    return [value for each, value in headers if each.lower() == name]


def without(headers: Iterable[tuple[str, str]], *names: str) -> Headers:
    """The headers but for those named (lower case)."""
    return tuple((name, value) for name, value in headers if name.lower() not in names)


def members(lines: Iterable[str]) -> list[str]:
    """The members of a comma-separated list over several lines, empty ones left out."""
    return [member for line in lines for part in line.split(",") if (member := part.strip(" \t"))]


def exposed(headers: Headers, names: Sequence[str]) -> Headers:
    """The headers with `names` exposed to scripts of other origins, beside those that the app exposes."""
    listed = members(values(headers, "access-control-expose-headers"))
    known = {member.lower() for member in listed}
    listed += [name for name in names if name.lower() not in known]
    if len(listed) == len(known):
        return headers
    line = ("access-control-expose-headers", ", ".join(listed))
    return (*without(headers, "access-control-expose-headers"), line)


def with_vary(headers: Headers, name: str) -> Headers:
    """The headers with `name` among those that the answer varies by."""
    listed = members(values(headers, "vary"))
    if "*" in listed or name.lower() in {member.lower() for member in listed}:
        return headers
    return (*without(headers, "vary"), ("vary", ", ".join([*listed, name])))
