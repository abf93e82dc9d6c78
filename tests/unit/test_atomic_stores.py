"""Which stores an atomic operation can be begun in: those that can take part in a caller's transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notwice import AsyncGuard, AsyncOperation, Guard, Operation, Policy, Privacy, RecordView, new_key
from notwice.stores.batching import Batching
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import AsyncFaultyStore, FaultyStore
from tests.unit.worlds import KEY, SCOPE

ATOMIC = Policy(atomic=True)
SEALING = Privacy(keys=[new_key("k1")])
REFUSAL = r"atomic=True.* keeps its records in no database that .* Use SQLite, .* or leave atomic out"

CAN_NOT: dict[str, Callable[[Path], Guard]] = {
    "memory": lambda _: Guard(MemoryStore()),
    "file": lambda path: Guard.open(f"file://{path}/cache.json"),
    "batching": lambda _: Guard(Batching(MemoryStore())),
    "sealed": lambda _: Guard(MemoryStore(), privacy=SEALING),
    "faulty": lambda _: Guard(FaultyStore(MemoryStore())),
}
CAN: dict[str, Callable[[Path], Guard]] = {
    "sqlite": lambda path: Guard(SqliteStore(path / "records.db")),
    "opened": lambda path: Guard.open(f"sqlite:///{path}/records.db"),
    "sealed": lambda path: Guard.open(f"sqlite:///{path}/records.db", privacy=SEALING),
}
CAN_NOT_IN_LOOPS: dict[str, Callable[[Path], AsyncGuard]] = {
    "memory": lambda _: AsyncGuard.open("memory://"),
    "blocking": lambda _: AsyncGuard(MemoryStore()),
    "sealed": lambda _: AsyncGuard(AsyncMemoryStore(MemoryStore()), privacy=SEALING),
    "sealed and blocking": lambda _: AsyncGuard(MemoryStore(), privacy=SEALING),
    "faulty": lambda _: AsyncGuard(AsyncFaultyStore(AsyncMemoryStore(MemoryStore()))),
}
CAN_IN_LOOPS: dict[str, Callable[[Path], AsyncGuard]] = {
    "blocking": lambda path: AsyncGuard(SqliteStore(path / "records.db")),
    "opened": lambda path: AsyncGuard.open(f"sqlite:///{path}/records.db"),
    "sealed": lambda path: AsyncGuard.open(f"sqlite:///{path}/records.db", privacy=SEALING),
}


@pytest.mark.parametrize("store", CAN_NOT)
def test_nothing_is_claimed_that_could_not_be_completed(store: str, tmp_path: Path) -> None:
    """T22: a store that no transaction can take in refuses an atomic operation before its key is claimed."""
    with CAN_NOT[store](tmp_path) as guard:
        with pytest.raises(TypeError, match=REFUSAL):
            guard.begin(SCOPE, KEY, policy=ATOMIC)
        with pytest.raises(TypeError, match=REFUSAL):
            guard.run(lambda: pytest.fail("it ran"), scope=SCOPE, key=KEY, policy=ATOMIC)
        assert guard.lookup(SCOPE, KEY) is None
        assert isinstance(guard.begin(SCOPE, KEY), Operation)


@pytest.mark.parametrize("store", CAN)
def test_a_database_takes_it(store: str, tmp_path: Path) -> None:
    """A store in a database, alone or behind one that seals, begins what may be atomic."""
    with CAN[store](tmp_path) as guard, guard.begin(SCOPE, KEY, policy=ATOMIC) as operation:  # type: ignore[union-attr]  # nothing was there
        operation.suspend()


@pytest.mark.parametrize("store", CAN_NOT_IN_LOOPS)
async def test_nothing_is_claimed_in_a_loop_either(store: str, tmp_path: Path) -> None:
    """T22: the same for event loops, whatever stands before the store."""
    async with CAN_NOT_IN_LOOPS[store](tmp_path) as guard:
        with pytest.raises(TypeError, match=REFUSAL):
            await guard.begin(SCOPE, KEY, policy=ATOMIC)
        assert await guard.lookup(SCOPE, KEY) is None


@pytest.mark.parametrize("store", CAN_IN_LOOPS)
async def test_a_database_takes_it_in_a_loop(store: str, tmp_path: Path) -> None:
    """A blocking store is reached through a worker of its own, which may take part as the store may."""
    async with CAN_IN_LOOPS[store](tmp_path) as guard:
        operation = await guard.begin(SCOPE, KEY, policy=ATOMIC)
        assert isinstance(operation, AsyncOperation)
        await operation.suspend()


def test_a_guard_s_own_policy(tmp_path: Path) -> None:
    """It is asked at each begin: such a guard still looks operations up, and begins those that aren't atomic."""
    for make in CAN_NOT.values():
        guard: Any = make(tmp_path)
        with Guard(guard._runtime.store, policy=ATOMIC) as atomic:
            with pytest.raises(TypeError, match=REFUSAL):
                atomic.begin(SCOPE, KEY)
            assert atomic.run(lambda: 1, scope=SCOPE, key=KEY, policy=Policy()) == 1
            assert isinstance(atomic.lookup(SCOPE, KEY), RecordView)
