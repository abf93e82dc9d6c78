"""The suite that holds every store to its promises. It needs pytest.

A store's own test is a class with one fixture::

    class TestMyStore(StoreCases):
        @pytest.fixture
        def engine(self, tmp_path):
            return Engine(open=lambda: MyStore(tmp_path / "records"), damage=scribble)

and `AsyncStoreCases` with an `AsyncEngine` is the same for a store of an event loop. `GuardCases` and
`AsyncGuardCases` take the same fixtures, and try what a guard promises on that store: crashes, take-overs, lost
acknowledgements. Longer histories, chosen by hypothesis, are in `notwice.testing.conformance.machine`.
"""

from notwice.testing.conformance.cases import AsyncGuardCases, AsyncStoreCases, GuardCases, StoreCases
from notwice.testing.conformance.engine import AsyncEngine, Engine

__all__ = ["AsyncEngine", "AsyncGuardCases", "AsyncStoreCases", "Engine", "GuardCases", "StoreCases"]
