"""PostgreSQL: the records of any number of hosts, in tables of one database."""

from __future__ import annotations

from collections.abc import Sequence

from notwice.stores.async_batching import SharedTrips
from notwice.stores.batching import Batching
from notwice.stores.migrations import Migration
from notwice.stores.postgres.migrations import steps_of
from notwice.stores.postgres.place import OPTIONS, place_of
from notwice.stores.shared import needs_extra
from notwice.stores.urls import StoreUrl

__all__ = ["OPTIONS", "migrate", "migrations", "open_async_url", "open_url"]


def open_url(url: StoreUrl) -> Batching:
    """Open the store of ``postgresql://user:password@host:port/database``; threads share its trips.

    Nothing is connected to before the first call.
    """
    place = place_of(url)
    with needs_extra("postgres"):
        from notwice.stores.postgres.store import PostgresStore  # noqa: PLC0415 - it needs the extra
    return Batching(PostgresStore(place), timeout=place.timeout)


def open_async_url(url: StoreUrl) -> SharedTrips:
    """Open the same store for event loops; tasks share its trips."""
    place = place_of(url)
    with needs_extra("postgres"):
        from notwice.stores.postgres.async_store import AsyncPostgresStore  # noqa: PLC0415 - it needs the extra
    return SharedTrips(AsyncPostgresStore(place), timeout=place.timeout)


def migrations(url: StoreUrl) -> Sequence[Migration]:
    """All steps that make the store's tables."""
    return steps_of(place_of(url).names)


def migrate(url: StoreUrl, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables lack, or only say which they are."""
    place = place_of(url)
    with needs_extra("postgres"):
        from notwice.stores.postgres import store  # noqa: PLC0415 - it needs the extra
    return store.migrate(place, dry_run=dry_run)
