"""Where records are kept: the port, the engines, and what shares their commits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast, runtime_checkable

from notwice.stores.migrations import Migration
from notwice.stores.port import AsyncStore, Store, StoreClock
from notwice.stores.urls import StoreUrl, parsed, suggestion

__all__ = ["AsyncStore", "Store", "StoreClock", "migrate", "open_async_store", "open_store"]


class _Engine(Protocol):
    def open_url(self, url: StoreUrl) -> Store: ...

    def open_async_url(self, url: StoreUrl) -> AsyncStore: ...


@runtime_checkable
class _HasTables(Protocol):
    def migrations(self, url: StoreUrl) -> Sequence[Migration]: ...

    def migrate(self, url: StoreUrl, *, dry_run: bool) -> Sequence[Migration]: ...


_ENGINES: Final = {
    "dynamodb": "notwice.stores.dynamodb",
    "file": "notwice.stores.jsonfile",
    "memory": "notwice.stores.memory",
    "mysql": "notwice.stores.mysql",
    "postgresql": "notwice.stores.postgres",
    "redis": "notwice.stores.redis",
    "redis+cluster": "notwice.stores.redis",
    "rediss": "notwice.stores.redis",
    "rediss+cluster": "notwice.stores.redis",
    "sqlite": "notwice.stores.sqlite",
}
"""The module of each scheme, imported when it is asked for. It is an `_Engine`; some are `_HasTables`, too."""


def open_store(url: str) -> Store:
    """Open the store that `url` names, for threads.

    ``memory://?records_max=1000&when_full=refuse``, ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``
    with ``?timeout=2&network=allow``, ``file:///absolute/path.json``. Raises `ValueError` for a URL that can't be used,
    `StoreUnavailable` or `UnsupportedRecord` for a store that can't be opened.
    """
    parts = parsed(url)
    return _engine(parts.scheme).open_url(parts)


def open_async_store(url: str) -> AsyncStore:
    """Open the store that `url` names, for event loops. Takes the URLs and raises the errors of `open_store`."""
    parts = parsed(url)
    return _engine(parts.scheme).open_async_url(parts)


def migrate(url: str, *, dry_run: bool) -> Sequence[Migration]:
    """Carry out the steps that the tables of the store lack, and give them; or only say which they are.

    Raises `ValueError` for a URL that can't be used and a store that has no tables, `StoreUnavailable` or
    `UnsupportedRecord` for one that can't be worked on.
    """
    parts = parsed(url)
    engine = _engine(parts.scheme)
    if not isinstance(engine, _HasTables):
        message = f"a {parts.scheme} store has no tables, so there is nothing to migrate"
        raise ValueError(message)  # noqa: TRY004 - it is the URL that names another engine
    return engine.migrate(parts, dry_run=dry_run)


def _engine(scheme: str) -> _Engine:
    if scheme not in _ENGINES:
        known = ", ".join(f"{name}://" for name in _ENGINES)
        raise ValueError(f"there is no store {scheme}://; the known ones are {known}. {_did_you_mean(scheme)}".rstrip())
    return cast("_Engine", import_module(_ENGINES[scheme]))


def _did_you_mean(scheme: str) -> str:
    hint = suggestion(scheme, _ENGINES)
    return hint.capitalize() if hint.startswith("did") else ""
