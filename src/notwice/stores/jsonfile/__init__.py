"""The JSON file of the older API cache, for a hand-over from it or back to it: one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from notwice.stores.batching import AsyncBatching, Batching
from notwice.stores.jsonfile.store import JsonFileStore
from notwice.stores.urls import StoreUrl, number, one_of, whole_number

__all__ = ["JsonFileStore", "open_async_url", "open_url"]

OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "records_max": whole_number,
    "retention": number,
    "namespace": str,
    "timeout": number,
    "access": one_of("write", "read"),
    "network": one_of("refuse", "allow"),
}
"""The options of a URL, with what reads them."""


class SharedWrites(Batching):
    """`Batching` in front of a JSON file."""

    def __init__(self, store: JsonFileStore) -> None:
        super().__init__(store)
        self._file = store

    def unlisted(self) -> int:
        """How many entries no scan gives, for they can't be decoded and nobody knows whose they are."""
        return self._file.unlisted()


def open_url(url: StoreUrl) -> SharedWrites:
    """Open ``file:///absolute/path.json`` or ``file://./relative/path.json``; callers share its writes."""
    path, options = path_of(url), url.read_options(OPTIONS)
    return SharedWrites(JsonFileStore(path, **options))  # type: ignore[arg-type]  # each option's reader gives its type


def path_of(url: StoreUrl) -> str:
    """The file that a URL names. Raises `ValueError` if it names none."""
    if url.host not in {"", "."}:
        raise ValueError(
            "a file's URL has three slashes and an absolute path, file:///var/lib/cache.json, "
            "or a relative one after a dot, file://./cache.json"
        )
    path = f"{url.host}{url.path}"
    if not path.endswith(".json"):
        raise ValueError("name a file that ends in .json, as in file:///var/lib/cache.json")
    return path


def open_async_url(url: StoreUrl) -> AsyncBatching:
    """Open the same file for event loops."""
    return open_url(url).asynchronous
