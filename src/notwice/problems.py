"""The refusals of notwice as one table: code, status, and what the caller should do next (RFC 9457)."""

from __future__ import annotations

import json
from typing import NamedTuple


class Problem(NamedTuple):
    """A refusal, ready to send: status, headers and the bytes of an ``application/problem+json`` document."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Kind(NamedTuple):
    """What one code means. ``safe_new_key`` says whether sending the request again under a new key is harmless.

    ``applied`` is what the refusal says of the effect: ``not-applied`` (nothing ran) or ``unknown``.
    """

    status: int
    safe_new_key: bool
    applied: str
    title: str
    detail: str


KINDS: dict[str, Kind] = {
    "key_missing": Kind(
        400, True, "not-applied", "Idempotency key is missing",
        "This request needs an idempotency key. Send one, and the same one with every retry.",
    ),
    "key_invalid": Kind(
        400, True, "not-applied", "Idempotency key is not valid",
        "Send one idempotency key of 1 to 255 printable ASCII characters; quote it if it holds a blank.",
    ),
    "principal_missing": Kind(
        401, True, "not-applied", "The caller is not known",
        "Idempotency keys belong to an authenticated caller. Authenticate and send the request again.",
    ),
    "key_reused": Kind(
        422, True, "not-applied", "Idempotency key was used for another request",
        "This key belongs to a request with other contents. Send a new request under a new key.",
    ),
    "in_progress": Kind(
        409, False, "unknown", "The same request is still running",
        "Wait, then send the same request with the same key again. A new key could make the effect happen twice.",
    ),
    "unresolved": Kind(
        409, False, "unknown", "The outcome of this request is not known yet",
        "It may have taken effect. Ask for its status or wait until it is resolved; a new key could make it happen twice.",
    ),
    "request_too_large": Kind(
        413, True, "not-applied", "Request is too large to be guarded",
        "Nothing ran. Send a smaller request.",
    ),
    "not_applied": Kind(
        503, False, "not-applied", "The request did not take effect",
        "Nothing happened. Send the same request with the same key again.",
    ),
    "recorded_failure": Kind(
        500, False, "final", "The operation failed",
        "The first attempt ended in this failure, and it is final for this key.",
    ),
    "ownership_lost": Kind(
        409, False, "unknown", "Another owner has taken this operation",
        "Do not repeat the effect. Look the operation up, or send the same request with the same key again.",
    ),
    "not_completed": Kind(
        500, False, "unknown", "The handler ended without an answer",
        "The outcome is unknown. Call complete, fail or abandon before leaving the operation.",
    ),
    "contention": Kind(
        503, False, "not-applied", "Too many changes to this operation at once",
        "Nothing ran. Send the same request with the same key again.",
    ),
    "store_unavailable": Kind(
        503, False, "not-applied", "The idempotency store does not answer",
        "Nothing ran. Send the same request with the same key again.",
    ),
    "unsupported_record": Kind(
        503, False, "not-applied", "The stored record can not be read",
        "It was written by a newer release, or is damaged. Nothing ran. Upgrade this process, or ask an operator.",
    ),
    "encoding_error": Kind(
        500, True, "not-applied", "A value can not be stored",
        "Use values that notwice can keep without loss, or give a serialisable form of them.",
    ),
}


def problem(
    code: str,
    *,
    operation: str | None = None,
    state: str | None = None,
    retry_after: int | None = None,
    detail: str | None = None,
) -> Problem:
    """Build the refusal for `code`. `retry_after` is in whole seconds and at least 1."""
    kind = KINDS[code]
    document: dict[str, object] = {
        "type": "about:blank",
        "title": kind.title,
        "status": kind.status,
        "detail": detail or kind.detail,
        "code": code,
        "safe_new_key": kind.safe_new_key,
    }
    if operation is not None:
        document["operation"] = operation
    if state is not None:
        document["state"] = str(state)
    headers = [
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        ("idempotency-outcome", kind.applied),
    ]
    if retry_after is not None:
        headers.append(("retry-after", str(max(1, retry_after))))
    return Problem(kind.status, tuple(headers), json.dumps(document, separators=(",", ":")).encode())
