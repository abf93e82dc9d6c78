"""The gateway's own refusals, in the form of `notwice.problems`: what the upstream did not say itself."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from notwice.problems import Kind, Problem

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MALFORMED: Final = "request_malformed"
UNSUPPORTED: Final = "protocol_unsupported"
UNREACHABLE: Final = "upstream_unreachable"
LOST: Final = "upstream_lost"
TIMEOUT: Final = "upstream_timeout"
STOPPED: Final = "gateway_stopped"
LOOPED: Final = "loop_detected"

KINDS: Final[dict[str, Kind]] = {
    MALFORMED: Kind(
        400,
        safe_new_key=True,
        applied="not-applied",
        title="The request can not be forwarded",
        detail="It is not as HTTP/1.1 wants it, or its head is too large. Nothing was sent on.",
    ),
    UNSUPPORTED: Kind(
        501,
        safe_new_key=False,
        applied="not-applied",
        title="The gateway does not speak this protocol",
        detail="It forwards no tunnels, no websockets and no transfer coding but chunked. Nothing was sent on.",
    ),
    UNREACHABLE: Kind(
        502,
        safe_new_key=False,
        applied="not-applied",
        title="The service behind the gateway can not be reached",
        detail="No byte of the request was sent, so nothing happened. Send the same request with the same key again.",
    ),
    LOST: Kind(
        502,
        safe_new_key=False,
        applied="unknown",
        title="The service behind the gateway broke off",
        detail="It may have taken effect. Repeat it only with the same key: a new one could make it happen twice.",
    ),
    STOPPED: Kind(
        503,
        safe_new_key=False,
        applied="unknown",
        title="The gateway was stopped",
        detail="It may have taken effect. Repeat it only with the same key: a new one could make it happen twice.",
    ),
    TIMEOUT: Kind(
        504,
        safe_new_key=False,
        applied="unknown",
        title="The service behind the gateway did not answer in time",
        detail="It may have taken effect. Repeat it only with the same key: a new one could make it happen twice.",
    ),
    LOOPED: Kind(
        508,
        safe_new_key=False,
        applied="not-applied",
        title="The gateway stands behind itself",
        detail="This request has come through this gateway before. Nothing was sent on. Correct its upstream.",
    ),
}


def problem_of(code: str, operation: str | None = None) -> Problem:
    """Build the refusal for `code`, with the id of the guarded operation if there is one."""
    kind = KINDS[code]
    document = {
        "type": "about:blank",
        "title": kind.title,
        "status": kind.status,
        "detail": kind.detail,
        "code": code,
        "safe_new_key": kind.safe_new_key,
    }
    if operation is not None:
        document["operation"] = operation
    headers = [
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        ("idempotency-outcome", kind.applied),
    ]
    if code == UNREACHABLE:
        headers.append(("retry-after", "1"))
    return Problem(kind.status, tuple(headers), json.dumps(document, separators=(",", ":")).encode())


async def refuse(send: Send, code: str, operation: str | None = None) -> None:
    """Send the refusal for `code`, with the id of the guarded operation if there is one."""
    status, told, body = problem_of(code, operation)
    headers = [(name.encode(), value.encode()) for name, value in told]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
