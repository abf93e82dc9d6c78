"""How refusals and marks look: codes, statuses, names of headers and the shape of the body."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from notwice.policy import suggesting, unknown_option
from notwice.problems import KINDS

RenderBody = Callable[[Mapping[str, object]], bytes]


def problem_body(document: Mapping[str, object]) -> bytes:
    """The document as ``application/problem+json`` (RFC 9457)."""
    return json.dumps(document, separators=(",", ":")).encode()


def stripe_body(document: Mapping[str, object]) -> bytes:
    """The document as an error object in Stripe's shape: ``{"error": {"type": …, "code": …, "message": …}}``."""
    status = document["status"]
    kind = "api_error" if isinstance(status, int) and status >= 500 else "invalid_request_error"  # noqa: PLR2004 - the class of server errors
    error = {
        "type": "idempotency_error" if document["code"] == "idempotency_error" else kind,
        "code": document["code"],
        "message": document["detail"],
        **{name: document[name] for name in ("operation", "state", "safe_new_key") if name in document},
    }
    return json.dumps({"error": error}, separators=(",", ":")).encode()


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How refusals and marks look. The defaults are those of the standard dialect.

    codes: what is sent in place of a code, by the code of notwice.
    statuses: what is sent in place of a status, by the code of notwice.
    body: gives the bytes of a refusal from its document (``title``, ``status``, ``detail``, ``code``,
        ``safe_new_key``, and ``operation`` and ``state`` where there are any); `media_type` is its media type.
    replayed_header, replayed_mark, omitted_mark: the marker of a replay, and of one whose body was not kept.
    outcome_header: by which a handler says what its answer means, and a refusal says what became of the effect.
    guarded_header: marks an answer that was given without a guard.

    Raises `ValueError` for a code that does not exist.
    """

    codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    statuses: Mapping[str, int] = dataclasses.field(default_factory=dict)
    body: RenderBody = problem_body
    media_type: str = "application/problem+json"
    replayed_header: str = "Idempotency-Replayed"
    replayed_mark: str = "true"
    omitted_mark: str = "omitted"
    outcome_header: str = "Idempotency-Outcome"
    guarded_header: str = "Idempotency-Guarded"

    def __post_init__(self) -> None:
        """Refuse codes that do not exist, and statuses that are no refusal."""
        for code in (*self.codes, *self.statuses):
            if code not in KINDS:
                raise ValueError(unknown_option("Dialect", code, list(KINDS)))
        for code, status in self.statuses.items():
            if not 400 <= status <= 599:  # noqa: PLR2004 - the statuses of errors
                raise ValueError(f"the status of {code} must be one of 400 to 599, not {status!r}")


STANDARD: Final = Dialect()
STRIPE: Final = Dialect(
    codes={"key_reused": "idempotency_error", "in_progress": "idempotency_key_in_use"},
    statuses={"key_reused": 400},
    body=stripe_body,
    media_type="application/json",
    replayed_header="Idempotent-Replayed",
)
DIALECTS: Final[Mapping[str, Dialect]] = {"standard": STANDARD, "stripe": STRIPE}
