"""The suite on the JSON file of the older API cache."""

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from notwice.stores.batching import Batching
from notwice.testing import VirtualClock
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from notwice.testing.conformance.machine import store_machine
from tests.stores.apart import Opener, damage


@contextmanager
def folder_in_memory() -> Generator[Path, None, None]:
    """A folder in memory if there is such a file system: the suite is about replies, not about the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def file() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "cache.json"


class TestJsonFile(StoreCases, GuardCases):
    """P16: the JSON file store."""

    @pytest.fixture
    def engine(self, file: Path) -> Engine:
        clock = VirtualClock()
        return Engine(open=Opener(file, clock), clock=clock, damage=damage)


class TestAsyncJsonFile(AsyncStoreCases, AsyncGuardCases):
    """P16: the JSON file store for event loops, whose callers share its writes."""

    @pytest.fixture
    def async_engine(self, file: Path) -> AsyncEngine:
        clock = VirtualClock()
        opener = Opener(file, clock)
        return AsyncEngine(
            open=lambda: Batching(opener()).asynchronous,
            clock=clock,
            damage=damage,
            history_length=2,
        )


@contextmanager
def engine_in_memory() -> Generator[Engine, None, None]:
    clock = VirtualClock()
    with folder_in_memory() as folder:
        yield Engine(open=Opener(folder / "cache.json", clock), clock=clock)


def test_programs() -> None:
    """P16: programs of up to fifty operations, chosen by hypothesis, are answered as the reference answers them."""
    machine = store_machine(engine_in_memory)
    run_state_machine_as_test(machine, settings=settings(max_examples=40, deadline=None))
