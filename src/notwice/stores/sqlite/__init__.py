"""SQLite: the records of all processes of one host, in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from notwice.stores.batching import AsyncBatching, Batching
from notwice.stores.migrations import Migration
from notwice.stores.sqlite import schema
from notwice.stores.sqlite.store import SqliteStore
from notwice.stores.urls import StoreUrl, number, one_of

__all__ = ["SqliteStore", "migrate", "migrations", "open_async_url", "open_url"]

OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "timeout": number,
    "network": one_of("refuse", "allow"),
    "other_tables": one_of("refuse", "allow"),
    "tables": one_of("make", "expect"),
}
"""The options of a URL, with what reads them."""


def open_url(url: StoreUrl) -> Batching:
    """Open the file of ``sqlite:///relative/path.db`` or ``sqlite:////absolute/path.db``; callers share its commits."""
    path, options = path_of(url), url.read_options(OPTIONS)
    return Batching(SqliteStore(path, **options))  # type: ignore[arg-type]  # each option's reader gives its type


def path_of(url: StoreUrl) -> str:
    """The file that a URL names. Raises `ValueError` if it names none."""
    path = url.path.removeprefix("/")
    if url.host:
        raise ValueError("a SQLite URL has three slashes and a path: sqlite:///relative.db or sqlite:////absolute.db")
    if not path or path == ":memory:":
        raise ValueError("name a file, as in sqlite:///payments.db; for records in memory there is memory://")
    return path


def open_async_url(url: StoreUrl) -> AsyncBatching:
    """Open the same file for event loops."""
    return open_url(url).asynchronous


def migrations(_: StoreUrl) -> Sequence[Migration]:
    """All steps that make the store's tables."""
    note = f"INSERT INTO {schema.TABLE_OF_VERSION} VALUES ({schema.VERSION})"  # noqa: S608 - made of constants
    return [Migration(schema.VERSION, "the records", reader_min=schema.VERSION, statements=(*schema.CREATE, note))]


def migrate(url: StoreUrl, *, dry_run: bool) -> Sequence[Migration]:
    """Make the file and its tables, as opening it does, or only say how."""
    path = Path(path_of(url))
    steps = [] if path.exists() and path.stat().st_size else migrations(url)
    if not dry_run:
        open_url(url).close()
    return steps
