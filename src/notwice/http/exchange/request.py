"""What a guard is shown of a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

LENGTH_DIGITS_MAX: Final = 20


class HeaderMissing(KeyError):
    """A request has no header of this name. Out of a ``principal`` function it means: the caller is not known."""


class RequestHeaders(Mapping[str, str]):
    """The headers of a request by name, whatever their case; several lines of one name are joined by commas."""

    __slots__ = ("_lines",)

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._lines: dict[str, tuple[str, ...]] = {}
        for name, value in lines:
            lowered = name.lower()
            self._lines[lowered] = (*self._lines.get(lowered, ()), value)

    def __getitem__(self, name: str) -> str:
        lines = self._lines.get(name.lower())
        if lines is None:
            raise HeaderMissing(name)
        return ", ".join(lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def lines(self, name: str) -> tuple[str, ...]:
        """The values of all lines of this name, in their order."""
        return self._lines.get(name.lower(), ())


def length_said(headers: RequestHeaders) -> int | None:
    """The length that a body is said to have; 0 if nothing is said, ``None`` if it is no number, or several."""
    said = {value.strip() for value in headers.get("content-length", "").split(",")} - {""}
    if len(said) > 1:
        return None
    length = said.pop() if said else "0"
    return int(length) if length.isdecimal() and len(length) < LENGTH_DIGITS_MAX else None


@dataclass(frozen=True, slots=True)
class RequestView:
    """What the functions of an `HttpPolicy` are given.

    ``path`` is decoded, ``raw_path`` as it was sent (without the query), ``query`` as it was sent (without the
    question mark), ``scope`` the ASGI scope or the WSGI environment.
    """

    method: str
    path: str
    raw_path: str
    query: str
    headers: RequestHeaders
    scope: Mapping[str, Any]

    @property
    def content_length(self) -> int:
        """The length that the body is said to have; 0 if nothing is said."""
        return length_said(self.headers) or 0


def is_cut_short(headers: RequestHeaders, body_bytes: int) -> bool:
    """Whether a body that ended after so many bytes is not what its head said.

    A transfer coding tells itself where the body ends. But some servers give none of the body of a request that offers
    another protocol, because their parser ends it at its head: one that is empty then is not believed.
    """
    if "transfer-encoding" in headers:
        offers = "upgrade" in headers and "upgrade" in headers.get("connection", "").lower()
        return offers and body_bytes == 0
    return body_bytes < (length_said(headers) or 0)


class Asked(NamedTuple):
    """A request with a key and an owner."""

    request: RequestView
    key: str
    namespace: str


class Gone(Enum):
    """A client that hung up before its request was whole: nobody to answer, and nothing to run."""

    GONE = "gone"
