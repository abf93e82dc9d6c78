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
        status=400,
        safe_new_key=True,
        applied="not-applied",
        title="Idempotency key is missing",
        detail="This request needs an idempotency key. Send one, and the same one with every retry.",
    ),
    "key_invalid": Kind(
        status=400,
        safe_new_key=True,
        applied="not-applied",
        title="Idempotency key is not valid",
        detail="Send one idempotency key of 1 to 255 printable ASCII characters; quote it if it holds a blank.",
    ),
    "principal_missing": Kind(
        status=401,
        safe_new_key=True,
        applied="not-applied",
        title="The caller is not known",
        detail="Idempotency keys belong to an authenticated caller. Authenticate and send the request again.",
    ),
    "key_reused": Kind(
        status=422,
        safe_new_key=True,
        applied="not-applied",
        title="Idempotency key was used for another request",
        detail="This key belongs to a request with other contents. Send a new request under a new key.",
    ),
    "replay_forbidden": Kind(
        403,
        False,
        "not-applied",
        "The stored answer is not yours to see",
        "The request was carried out before, and its answer is not given to this caller now. Nothing ran.",
    ),
    "in_progress": Kind(
        status=409,
        safe_new_key=False,
        applied="unknown",
        title="The same request is still running",
        detail="Wait, then send the same request with the same key again. A new key could repeat the effect.",
    ),
    "unresolved": Kind(
        status=409,
        safe_new_key=False,
        applied="unknown",
        title="The outcome of this request is not known yet",
        detail="It may have taken effect. Ask for its status, or wait until it is resolved; a new key could repeat it.",
    ),
    "request_too_large": Kind(
        status=413,
        safe_new_key=True,
        applied="not-applied",
        title="Request is too large to be guarded",
        detail="Nothing ran. Send a smaller request.",
    ),
    "request_incomplete": Kind(
        status=400,
        safe_new_key=True,
        applied="not-applied",
        title="Request is not whole",
        detail="Its body ended before the length that was said. Nothing ran. Send the whole request again.",
    ),
    "unresolved_full": Kind(
        status=429,
        safe_new_key=True,
        applied="not-applied",
        title="Too many operations of this account are unresolved",
        detail="Nothing ran. Send the same request again once some of them are resolved.",
    ),
    "not_applied": Kind(
        status=503,
        safe_new_key=False,
        applied="not-applied",
        title="The request did not take effect",
        detail="Nothing happened. Send the same request with the same key again.",
    ),
    "recorded_failure": Kind(
        status=500,
        safe_new_key=False,
        applied="final",
        title="The operation failed",
        detail="The first attempt ended in this failure, and it is final for this key.",
    ),
    "ownership_lost": Kind(
        status=409,
        safe_new_key=False,
        applied="unknown",
        title="Another owner has taken this operation",
        detail="Do not repeat the effect. Look the operation up, or send the same request with the same key again.",
    ),
    "not_completed": Kind(
        status=500,
        safe_new_key=False,
        applied="unknown",
        title="The handler ended without an answer",
        detail="The outcome is unknown. Call complete, fail or abandon before leaving the operation.",
    ),
    "not_awaited": Kind(
        status=500,
        safe_new_key=False,
        applied="unknown",
        title="The handler left out a part of its work",
        detail="A move of its operation was called and not awaited, so it never ran. The outcome is unknown: mend the "
        "handler, then have the operation resolved or released.",
    ),
    "steps_changed": Kind(
        status=500,
        safe_new_key=False,
        applied="unknown",
        title="The steps of this operation have changed",
        detail="An earlier release has done some of it. Finish it with that release, or have it resolved; a new key "
        "could repeat what is done.",
    ),
    "step_running": Kind(
        status=500,
        safe_new_key=False,
        applied="unknown",
        title="A step of this name is running already",
        detail="The handler runs two steps of one name at once. Give parallel branches names of their own.",
    ),
    "progress_full": Kind(
        status=500,
        safe_new_key=False,
        applied="unknown",
        title="The operation keeps too much progress",
        detail="Its steps and checkpoints have reached the limit. Keep references to large data instead.",
    ),
    "contention": Kind(
        status=503,
        safe_new_key=False,
        applied="not-applied",
        title="Too many changes to this operation at once",
        detail="Nothing ran. Send the same request with the same key again.",
    ),
    "store_unavailable": Kind(
        status=503,
        safe_new_key=False,
        applied="not-applied",
        title="The idempotency store does not answer",
        detail="Nothing ran. Send the same request with the same key again.",
    ),
    "spool_unavailable": Kind(
        status=503,
        safe_new_key=False,
        applied="not-applied",
        title="The request can not be kept while it is read",
        detail="The disk for temporary files is full or can't be written. Nothing ran. Send the same request with the "
        "same key again.",
    ),
    "unsupported_record": Kind(
        status=503,
        safe_new_key=False,
        applied="not-applied",
        title="The stored record can not be read",
        detail="It was written by a newer release, or is damaged. Nothing ran. Upgrade this process, or look at it.",
    ),
    "result_omitted": Kind(
        status=409,
        safe_new_key=False,
        applied="final",
        title="The operation is finished, but its answer was not kept",
        detail="It took effect, once. Look its result up where the effect happened; do not send it again.",
    ),
    "encoding_error": Kind(
        status=500,
        safe_new_key=True,
        applied="not-applied",
        title="A value can not be stored",
        detail="Use values that notwice can keep without loss, or give a serialisable form of them.",
    ),
}


PAUSES = (
    "An earlier attempt left its outcome unknown, and it is tried again after a pause. Send the same request with the "
    "same key again then. A new key could repeat the effect."
)
"""Says of ``in_progress`` that nobody is at work for the moment."""

ASKED_LATER = (
    "It may have taken effect. What became of it is asked again after a pause: send the same request with the same key "
    "again then. A new key could repeat it."
)
"""Says of ``unresolved`` that no person has to find it out yet."""


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
