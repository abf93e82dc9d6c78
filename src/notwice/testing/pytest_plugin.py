"""Fixtures for tests of guarded code: a guard that forgets, and a clock that moves when it is told to.

pytest finds them by itself once notwice is installed. Guards and stores are imported when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from notwice import AsyncGuard, Guard
    from notwice.stores.memory import MemoryStore
    from notwice.testing import VirtualClock


@pytest.fixture
def notwice_clock() -> VirtualClock:
    """The clock of the other fixtures. Time stands still but for `advance` and for those who wait by it."""
    from notwice.testing import VirtualClock  # noqa: PLC0415 - see above

    return VirtualClock()


@pytest.fixture
def notwice_store(notwice_clock: VirtualClock) -> Iterator[MemoryStore]:
    """An empty store in memory, closed in the end."""
    from notwice.stores.memory import MemoryStore  # noqa: PLC0415 - see above

    store = MemoryStore(notwice_clock)
    yield store
    store.close()


@pytest.fixture
def notwice_guard(notwice_store: MemoryStore, notwice_clock: VirtualClock) -> Guard:
    """A guard on `notwice_store`."""
    from notwice import Guard  # noqa: PLC0415 - see above

    return Guard(notwice_store, clock=notwice_clock)


@pytest.fixture
def notwice_async_guard(notwice_store: MemoryStore, notwice_clock: VirtualClock) -> AsyncGuard:
    """A guard for an event loop, on the same records as `notwice_guard`."""
    from notwice import AsyncGuard  # noqa: PLC0415 - see above
    from notwice.stores.memory import AsyncMemoryStore  # noqa: PLC0415 - see above

    return AsyncGuard(AsyncMemoryStore(notwice_store), clock=notwice_clock)
