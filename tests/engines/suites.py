"""The suite's view of a server: what every engine with one tells of itself in the same way."""

from collections.abc import Callable
from functools import partial
from typing import Any

from notwice.stores import open_async_store, open_store
from notwice.testing.conformance import AsyncEngine, Engine


def engine_of(
    server: object, url: str, *, damage: Callable[..., None], age: Callable[..., None], **more: Any
) -> Engine:
    """A store for threads. `damage` and `age` are told the server and the URL."""
    known = {"server": server, "url": url}
    return Engine(open=partial(open_store, url), damage=partial(damage, **known), age=partial(age, **known), **more)


def async_engine_of(server: object, url: str, *, damage: Callable[..., None], age: Callable[..., None]) -> AsyncEngine:
    """A store for event loops. Its histories of three steps go side by side."""
    known = {"server": server, "url": url}
    return AsyncEngine(
        open=partial(open_async_store, url),
        damage=partial(damage, **known),
        age=partial(age, **known),
        alone_length=2,
    )
