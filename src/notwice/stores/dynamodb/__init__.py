"""DynamoDB: the records of any number of hosts, in one table of one region."""

from __future__ import annotations

from collections.abc import Sequence

from notwice.stores.dynamodb.place import OPTIONS, place_of
from notwice.stores.migrations import Migration
from notwice.stores.port import AsyncStore, Store
from notwice.stores.shared import needs_extra
from notwice.stores.urls import StoreUrl

__all__ = ["OPTIONS", "migrate", "migrations", "open_async_url", "open_url"]


def open_url(url: StoreUrl) -> Store:
    """Open the store of ``dynamodb://table?region=eu-central-1``.

    Nothing is connected to before the first call, and no table is made: ``notwice migrate`` does that, for it costs
    money and takes longer than a call may. Raises `ImportError` if botocore is not installed.
    """
    place = place_of(url)
    with needs_extra("dynamodb"):
        from notwice.stores.dynamodb.store import DynamoStore  # noqa: PLC0415 - it needs the extra
    return DynamoStore(place)


def open_async_url(url: StoreUrl) -> AsyncStore:
    """Open the same store for event loops, whose requests go side by side in threads."""
    place = place_of(url)
    with needs_extra("dynamodb"):
        from notwice.stores.dynamodb.async_store import AsyncDynamoStore  # noqa: PLC0415 - it needs the extra
        from notwice.stores.dynamodb.store import DynamoStore  # noqa: PLC0415 - as above
    return AsyncDynamoStore(DynamoStore(place))


def migrations(url: StoreUrl) -> Sequence[Migration]:
    """The steps that make the table, as commands of the service's own command line."""
    with needs_extra("dynamodb"):
        from notwice.stores.dynamodb.schema import steps_of  # noqa: PLC0415 - it needs the extra
    return steps_of(place_of(url))


def migrate(url: StoreUrl, *, dry_run: bool) -> Sequence[Migration]:
    """Make the table, and set what is not set, or only say what that would be."""
    with needs_extra("dynamodb"):
        from notwice.stores.dynamodb import schema  # noqa: PLC0415 - it needs the extra
    place = place_of(url)
    return schema.missing(place) if dry_run else schema.migrate(place)
