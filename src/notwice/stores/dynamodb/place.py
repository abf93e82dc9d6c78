"""Where a store is, as its URL says, and what the errors of the service mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from notwice.errors import NotwiceError, RecordTooLarge, StoreUnavailable
from notwice.stores.urls import StoreUrl, connections, one_of, seconds

Ask = Callable[..., dict[str, Any]]
"""Sends a request about the table: a method of the driver's client, and its arguments by name."""

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}")


def _region(text: str) -> str:
    if not _REGION.fullmatch(text):
        raise ValueError("it is the name of a region, as eu-central-1")
    return text


def _endpoint(text: str) -> str:
    if not re.fullmatch(r"https?://[^/@?#\s]+/?", text):
        raise ValueError("it is http:// or https:// with a host and a port")
    return text


OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "region": _region,
    "endpoint": _endpoint,
    "timeout": seconds,
    "pool": connections,
    "safe": one_of("warn", "require", "ignore"),
}
"""The options of a URL, with what reads them."""


class Place(NamedTuple):
    """A table and the limits of a store in it.

    Without ``region`` and ``endpoint`` the service's own configuration says where it is. ``timeout`` is in seconds, for
    connecting and for each answer; ``pool`` is how many requests of a process are under way at most. ``safe`` says what
    to do about a table whose settings break promises; of ``ignore`` nobody asks for them.
    """

    table: str
    region: str | None = None
    endpoint: str | None = None
    timeout: float = 2.0
    pool: int = 16
    safe: str = "warn"

    @property
    def shown(self) -> str:
        """The store for people."""
        return f"dynamodb://{self.table}" + (f"?region={self.region}" if self.region else "")


def place_of(url: StoreUrl) -> Place:
    """Read a URL. Raises `ValueError` for one that can't be used."""
    options: dict[str, Any] = url.read_options(OPTIONS)
    if "@" in url.host:
        raise ValueError("a dynamodb URL holds no credentials: they come from the environment, a profile or a role")
    if not _TABLE.fullmatch(url.host) or url.path.strip("/"):
        raise ValueError("a dynamodb URL names a table: dynamodb://notwice?region=eu-central-1")
    return Place(url.host, **options)


# --- errors -----------------------------------------------------------------------------------------------------------


class ConditionFailed(Exception):
    """A write whose condition does not hold: nothing was done. ``item`` is what is there, ``None`` if nothing is."""

    def __init__(self, item: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.item = item


class NotAllowed(StoreUnavailable):
    """These credentials may not do that. Nothing was done."""


_THROTTLED: Final = "it is throttled: the table, or one partition of it, has no capacity left. Nothing was done"
_REFUSED: Final = 400  # the status of what the service did not do
_FORBIDDEN: Final = frozenset({"AccessDeniedException", "AccessDenied"})

_SAID: Final[Mapping[str, str]] = {
    "ProvisionedThroughputExceededException": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "Throttling": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "ResourceNotFoundException": "there is no such table, or not its index; `notwice migrate` makes them",
    "TransactionConflictException": "a transaction holds this record; nothing was done",
    "ReplicatedWriteConflictException": "another region writes this record; nothing was done",
    "TransactionInProgressException": "a transaction holds this record; nothing was done",
    "ExpiredTokenException": "these credentials are no longer valid; nothing was done",
    "UnrecognizedClientException": "it does not know these credentials; nothing was done",
    "InvalidSignatureException": "the request's signature is refused: wrong credentials, or a clock that is wrong",
    "EndpointConnectionError": "it can't be reached; nothing was done",
    "ConnectTimeoutError": "it can't be reached; nothing was done",
    "NoCredentialsError": "there are no credentials: not in the environment, nor a profile, nor a role",
    "NoRegionError": "no region is named; put region=… into the URL",
    "ReadTimeoutError": "no answer came in time; whether a write is there is not known",
}
"""By the service's code of an error, or the name of the driver's."""


def translated(error: Exception, place: Place) -> Exception:
    """What is raised for an error of the driver, or of the service."""
    if isinstance(error, NotwiceError):
        return error
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    said = response.get("Error", {})
    code = str(said.get("Code") or type(error).__name__)
    if code == "ConditionalCheckFailedException":
        return ConditionFailed(response.get("Item"))
    if code in _FORBIDDEN:
        return NotAllowed(f"{place.shown}: {said.get('Message')}; nothing was done")
    refused = response.get("ResponseMetadata", {}).get("HTTPStatusCode") == _REFUSED
    text = said.get("Message") or str(error)
    if refused and "item size" in text.lower():
        return RecordTooLarge(f"{place.shown}: {text}. Nothing was done")
    known = _SAID.get(code, f"{text}; {'nothing was done' if refused else 'whether a write is there is not known'}")
    return StoreUnavailable(f"{place.shown}: {known} ({code})")


def all_busy(place: Place) -> StoreUnavailable:
    """The error of a call that waited for its turn in vain."""
    return StoreUnavailable(
        f"{place.shown}: all {place.pool} requests were busy for {place.timeout:g} s; nothing was done"
    )
