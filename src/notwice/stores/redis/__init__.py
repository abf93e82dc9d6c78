"""Redis 6 and Valkey, or later: one server, or a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from notwice.errors import not_installed
from notwice.stores.port import AsyncStore, Store
from notwice.stores.urls import StoreUrl

__all__ = ["open_async_url", "open_url"]


class _Faces(Protocol):
    def opened(self, url: StoreUrl) -> Store: ...

    def opened_async(self, url: StoreUrl) -> AsyncStore: ...


def open_url(url: StoreUrl) -> Store:
    """Open ``redis://host:port/db``, or a cluster: ``redis+cluster://host:port,host:port``. Threads share its trips.

    Nothing is connected before the first call. Raises `ImportError` if redis-py is not installed.
    """
    return _faces().opened(url)


def open_async_url(url: StoreUrl) -> AsyncStore:
    """Open the same for event loops, whose tasks share its trips."""
    return _faces().opened_async(url)


def _faces() -> _Faces:
    try:
        return cast("_Faces", import_module("notwice.stores.redis.opening"))
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("redis", "hiredis"):
            raise ImportError(not_installed("a Redis store needs redis-py and hiredis", "redis")) from error
        raise
