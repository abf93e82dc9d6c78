"""The suite on every store that comes with notwice."""

import sqlite3
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from notwice.stores.batching import Batching
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from notwice.testing.conformance.engine import Inability
from notwice.testing.conformance.machine import store_machine

MEMORY_CANNOT: dict[Inability, str] = {
    "reopen": "records in memory end with their store",
    "damage": "records in memory are values, not bytes",
}


class TestMemory(StoreCases, GuardCases):
    """P16: the memory store."""

    @pytest.fixture
    def engine(self) -> Engine:
        clock = VirtualClock()
        return Engine(open=lambda: MemoryStore(clock), clock=clock, cannot=MEMORY_CANNOT)


class TestAsyncMemory(AsyncStoreCases, AsyncGuardCases):
    """P16: the memory store's async face."""

    @pytest.fixture
    def async_engine(self) -> AsyncEngine:
        clock = VirtualClock()
        return AsyncEngine(
            open=lambda: AsyncMemoryStore(MemoryStore(clock)), clock=clock, cannot=MEMORY_CANNOT, alone_length=2
        )


def damage(_: Store, namespace: str, operation: str, path: Path) -> None:
    """Overwrite a record's bytes, as a failing disk would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        cursor = connection.execute(
            "UPDATE notwice_record SET record = x'00' WHERE namespace = ? AND id = ?", (namespace, operation)
        )
        assert cursor.rowcount == 1


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A path in memory if there is such a file system: the suite is about replies, not about the disk."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path / "records.db"
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "records.db"


class TestSqlite(StoreCases, GuardCases):
    """P16: the SQLite store."""

    @pytest.fixture
    def engine(self, file: Path) -> Engine:
        clock = VirtualClock()
        return Engine(open=lambda: SqliteStore(file, clock=clock), clock=clock, damage=partial(damage, path=file))


class TestBatching(StoreCases, GuardCases):
    """P16: the SQLite store behind shared commits."""

    @pytest.fixture
    def engine(self, file: Path) -> Engine:
        clock = VirtualClock()
        return Engine(
            open=lambda: Batching(SqliteStore(file, clock=clock)),
            clock=clock,
            damage=partial(damage, path=file),
        )


class TestAsyncBatching(AsyncStoreCases, AsyncGuardCases):
    """P16: the SQLite store for event loops."""

    @pytest.fixture
    def async_engine(self, file: Path) -> AsyncEngine:
        clock = VirtualClock()
        return AsyncEngine(
            open=lambda: Batching(SqliteStore(file, clock=clock)).asynchronous,
            clock=clock,
            damage=partial(damage, path=file),
            alone_length=2,
        )


@contextmanager
def sqlite_engine() -> Generator[Engine, None, None]:
    clock = VirtualClock()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Engine(open=lambda: SqliteStore(Path(folder) / "records.db", clock=clock), clock=clock)


@contextmanager
def memory_engine() -> Generator[Engine, None, None]:
    clock = VirtualClock()
    yield Engine(open=lambda: MemoryStore(clock), clock=clock, cannot=MEMORY_CANNOT)


MemoryPrograms = store_machine(memory_engine)
SqlitePrograms = store_machine(sqlite_engine)


@pytest.mark.parametrize("machine", [MemoryPrograms, SqlitePrograms], ids=["memory", "sqlite"])
def test_programs(machine: type[RuleBasedStateMachine]) -> None:
    """P16: programs of up to fifty operations, chosen by hypothesis, are answered as the reference answers them."""
    run_state_machine_as_test(machine, settings=settings(max_examples=60, deadline=None))
