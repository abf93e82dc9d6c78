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
        declared = self.headers.get("content-length", "")
        return int(declared) if declared.isdecimal() and len(declared) < LENGTH_DIGITS_MAX else 0


class Asked(NamedTuple):
    """A request with a key and an owner."""

    request: RequestView
    key: str
    namespace: str


class Gone(Enum):
    """A client that hung up before its request was whole: nobody to answer, and nothing to run."""

    GONE = "gone"
