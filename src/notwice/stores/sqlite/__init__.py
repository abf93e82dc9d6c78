"""SQLite: the records of all processes of one host, in one file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from notwice.stores.batching import AsyncBatching, Batching
from notwice.stores.sqlite.store import SqliteStore
from notwice.stores.urls import StoreUrl, one_of

__all__ = ["SqliteStore", "open_async_url", "open_url"]

OPTIONS: Final[dict[str, Callable[[str], object]]] = {"timeout": float, "network": one_of("refuse", "allow")}
"""The options of a URL, with what reads them."""


def open_url(url: StoreUrl) -> Batching:
    """Open the file of ``sqlite:///relative/path.db`` or ``sqlite:////absolute/path.db``; callers share its commits."""
    path = url.path.removeprefix("/")
    if url.host:
        raise ValueError("a SQLite URL has three slashes and a path: sqlite:///relative.db or sqlite:////absolute.db")
    if not path or path == ":memory:":
        raise ValueError("name a file, as in sqlite:///payments.db; for records in memory there is memory://")
    options = url.read_options(OPTIONS)
    return Batching(SqliteStore(path, **options))  # type: ignore[arg-type]  # each option's reader gives its type


def open_async_url(url: StoreUrl) -> AsyncBatching:
    """Open the same file for event loops."""
    return open_url(url).asynchronous
