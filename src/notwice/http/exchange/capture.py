"""An app's answer as it goes by: what is kept of it, what it says of the operation, and when it may go out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from notwice.http.exchange.headers import Headers, kept, values, without
from notwice.http.exchange.settings import Ending, HttpPolicy
from notwice.model import Result, ResultKind

BODILESS: Final = (204, 304)
_ABANDONED: Final = "not-applied"
_FINAL: Final = "final"
_SUCCESS: Final = range(200, 400)
_TAKEN: Final = range(200, 300)


class Capture:
    """The answer of one request.

    A chunk may go out at once unless the answer is whole with it: the last byte goes after the result is stored.
    Whether it is whole is known by the declared length, else by the end of the answer. Beyond ``response_bytes_max``
    nothing more is kept. Such an answer, and an event stream, may be cut short by the client: then `breakable`.
    """

    __slots__ = (
        "_bodiless",
        "_body",
        "_declared",
        "_policy",
        "_said",
        "_seen",
        "breakable",
        "kept",
        "started",
        "status",
    )

    def __init__(self, policy: HttpPolicy, method: str) -> None:
        self._policy = policy
        self._bodiless = method == "HEAD"
        self._body: bytearray | None = bytearray()
        self._declared: int | None = None
        self._seen = 0
        self._said = ""
        self.started = False
        self.breakable = False
        self.status = 0
        self.kept: Headers = ()

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> Headers:
        """Note status and headers, and give the headers to send on. A second call replaces the first."""
        lines = tuple(headers)
        outcome = self._policy.look.outcome_header.lower()
        self.started = True
        self.status = status
        self.kept = kept(lines, self._policy.kept_headers)
        self._bodiless = self._bodiless or status in BODILESS
        self._said = ", ".join({word.strip().lower() for word in values(lines, outcome)})
        self._declared = _length(values(lines, "content-length"))
        self.breakable = any(
            value.lstrip().lower().startswith("text/event-stream") for value in values(lines, "content-type")
        )
        return without(lines, outcome)

    def add(self, chunk: bytes) -> None:
        """Note the next bytes of the body."""
        self._seen += len(chunk)
        if self._body is None or self._bodiless:
            return
        if len(self._body) + len(chunk) > self._policy.response_bytes_max:
            self._body = None
            self.breakable = True
        else:
            self._body += chunk

    @property
    def whole(self) -> bool:
        """Whether all bytes of the declared length have been seen."""
        return self._declared is not None and self._seen >= self._declared

    @property
    def sound(self) -> bool:
        """Whether an answer that has ended has as many bytes as it declared."""
        return self._bodiless or self._declared is None or self._seen == self._declared

    @property
    def result(self) -> Result:
        """What the record keeps of a whole answer. A body over the limit is omitted."""
        body = None if self._body is None else bytes(self._body)
        return Result(ResultKind.HTTP, body, self.status, self.kept)

    @property
    def ending(self) -> Ending:
        """What the whole answer says of the operation: by its outcome header, else by its status.

        A word in the outcome header that is none of the three counts as ``unknown``: it was meant to say something. So
        do two lines of it that differ.
        """
        if not self._said:
            return self._policy.ending(self.status)
        return self._declared_ending()

    def proves_without(self, left_out: Collection[str]) -> bool:
        """Whether the answer finishes a request that was sent again without the headers `left_out`.

        A refusal, or a redirect to where one signs in, may be about what was left out.
        """
        ends = self.ending in (Ending.COMPLETED, Ending.FAILED)
        return bool(not left_out or self._said or not ends or self.status in _TAKEN)

    def break_off(self) -> Ending | None:
        """Take the answer for broken: its body is not kept. Gives what it says of the operation; ``None``: nothing."""
        self._body = None
        return self._declared_ending() if self._said in (_ABANDONED, _FINAL) else None

    def _declared_ending(self) -> Ending:
        if self._said == _ABANDONED:
            return Ending.ABANDONED
        if self._said == _FINAL:
            return Ending.COMPLETED if self.status in _SUCCESS else Ending.FAILED
        return Ending.UNKNOWN


def _length(lines: list[str]) -> int | None:
    return int(lines[0]) if len(lines) == 1 and lines[0].strip().isdecimal() else None
