"""The suite on every store that comes with notwice."""

import pytest

from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import VirtualClock
from notwice.testing.conformance import AsyncEngine, AsyncStoreCases, Engine, StoreCases
from notwice.testing.conformance.engine import Inability

MEMORY_CANNOT: dict[Inability, str] = {
    "reopen": "records in memory end with their store",
    "damage": "records in memory are values, not bytes",
}


class TestMemory(StoreCases):
    """P16: the memory store."""

    @pytest.fixture
    def engine(self) -> Engine:
        clock = VirtualClock()
        return Engine(open=lambda: MemoryStore(clock), clock=clock, cannot=MEMORY_CANNOT)


class TestAsyncMemory(AsyncStoreCases):
    """P16: the memory store's async face."""

    @pytest.fixture
    def async_engine(self) -> AsyncEngine:
        clock = VirtualClock()
        return AsyncEngine(open=lambda: AsyncMemoryStore(MemoryStore(clock)), clock=clock, cannot=MEMORY_CANNOT)
