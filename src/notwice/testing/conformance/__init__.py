"""The suite that holds every store to its promises. It needs pytest.

A store's own test is a class with one fixture::

    class TestMyStore(StoreCases):
        @pytest.fixture
        def engine(self, tmp_path):
            return Engine(open=lambda: MyStore(tmp_path / "records"), damage=scribble)

and `AsyncStoreCases` with an `AsyncEngine` is the same for a store of an event loop. Longer histories, chosen by
hypothesis, are in `notwice.testing.conformance.machine`.
"""

from notwice.testing.conformance.cases import AsyncStoreCases, StoreCases
from notwice.testing.conformance.engine import AsyncEngine, Engine

__all__ = ["AsyncEngine", "AsyncStoreCases", "Engine", "StoreCases"]
