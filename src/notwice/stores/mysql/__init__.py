"""MariaDB and MySQL: the records of any number of hosts, in tables of one database."""

from __future__ import annotations

from collections.abc import Sequence

from notwice.stores.batching import AsyncBatching, Batching
from notwice.stores.migrations import Migration
from notwice.stores.mysql.migrations import steps_of
from notwice.stores.mysql.place import OPTIONS, place_of
from notwice.stores.shared import needs_extra
from notwice.stores.urls import StoreUrl

__all__ = ["OPTIONS", "migrate", "migrations", "open_async_url", "open_url"]


def open_url(url: StoreUrl) -> Batching:
    """Open the store of ``mysql://user:password@host:port/database``; callers share its trips.

    Nothing is connected to before the first call.
    """
    place = place_of(url)
    with needs_extra("mysql"):
        from notwice.stores.mysql.store import MysqlStore  # noqa: PLC0415 - it needs the extra
    return Batching(MysqlStore(place), timeout=place.timeout)


def open_async_url(url: StoreUrl) -> AsyncBatching:
    """Open the same store for event loops, which one thread serves."""
    return open_url(url).asynchronous


def migrations(url: StoreUrl) -> Sequence[Migration]:
    """All steps that make the store's tables."""
    return steps_of(place_of(url).names)


def migrate(url: StoreUrl, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables lack, or only say which they are."""
    place = place_of(url)
    with needs_extra("mysql"):
        from notwice.stores.mysql import opening  # noqa: PLC0415 - it needs the extra
    return opening.migrate_place(place, dry_run=dry_run)
