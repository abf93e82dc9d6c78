"""Threads, tasks and processes that race for the same operations: one of them runs each, and nobody sees a lock."""

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from notwice import (
    AsyncGuard,
    Guard,
    Mismatch,
    Operation,
    OwnershipLost,
    Policy,
    Replay,
    rerun,
)
from notwice.stores.batching import Batching
from notwice.stores.jsonfile import JsonFileStore
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.engines.faults import children_go_on
from tests.engines.races import KEYS, RIVALS, all_keys, the_owner
from tests.sources import ROOT

KEYS_OF_TASKS = 100
POLICY = Policy(recovery=rerun, lease=300)


def blocking_store(kind: str, folder: Path, clock: VirtualClock) -> MemoryStore | Batching:
    match kind:
        case "memory":
            return MemoryStore(clock)
        case "file":
            return Batching(JsonFileStore(folder / "cache.json", clock=clock, timeout=20), timeout=20)
        case _:
            return Batching(SqliteStore(folder / "records.db", clock=clock, timeout=20))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_threads(kind: str, tmp_path: Path) -> None:
    """P1 to P5, C01, C06, T22: 16 threads on 300 keys: one first owner, one taker, no way back, equal replays."""
    clock = VirtualClock()
    store = blocking_store(kind, tmp_path, clock)
    guard, dead = (Guard(store, policy=POLICY, clock=VirtualClock()) for _ in range(2))
    begin = partial(all_keys, KEYS, lambda key: guard.begin("race", str(key), request=1))
    first = [the_owner(row, 1) for row in all_keys(KEYS, lambda key: dead.begin("race", str(key), request=1))]
    clock.advance(301)
    second = [the_owner(row, 2) for row in begin()]
    for late, current in zip(first, second, strict=True):
        for move in (late.abandon, partial(late.complete, "late")):
            with pytest.raises(OwnershipLost):
                move()
        current.complete(current.key)
    for row in begin():
        assert {each.result for each in row if isinstance(each, Replay)} == {row[0].view.record.key}
        assert all(isinstance(each, Replay) for each in row)
    for row in all_keys(KEYS, lambda key: guard.begin("race", str(key), request=2)):
        assert all(isinstance(each, Mismatch) for each in row)
    guard.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
async def test_tasks(kind: str, tmp_path: Path) -> None:
    """P1 to P5, C01: the same for 16 tasks of an event loop."""
    clock = VirtualClock()
    blocking = blocking_store(kind, tmp_path, clock)
    store = AsyncMemoryStore(blocking) if isinstance(blocking, MemoryStore) else blocking.asynchronous
    guard, dead = (AsyncGuard(store, policy=POLICY, clock=VirtualClock()) for _ in range(2))

    async def begin(by: AsyncGuard, request: int = 1) -> list[list[Any]]:
        rows = []
        for key in range(KEYS_OF_TASKS):
            rivals = (by.begin("race", str(key), request=request) for _ in range(RIVALS))
            rows.append(list(await asyncio.gather(*rivals)))
        return rows

    first = [the_owner(row, 1) for row in await begin(dead)]
    clock.advance(301)
    second = [the_owner(row, 2) for row in await begin(guard)]
    for late, current in zip(first, second, strict=True):
        with pytest.raises(OwnershipLost):
            await late.complete("late")
        await current.complete(current.key)
    for key, row in enumerate(await begin(guard)):
        assert [each.result for each in row] == [str(key)] * RIVALS
    for row in await begin(guard, request=2):
        assert all(isinstance(each, Mismatch) for each in row)
    await guard.close()


class Racers:
    """Processes that race on one file; what is left of them in the end is killed."""

    def __init__(self, path: Path, keys: Sequence[Sequence[str]]) -> None:
        self.path = path
        self._keys = keys
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.processes = [self._start(own, stack) for own in self._keys]
            for process in self.processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in self.processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, keys: Sequence[str], stack: ExitStack) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.stores.racer", str(self.path), *keys]
        pipe = subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
        stack.callback(process.kill)
        return process

    def reports(self) -> Iterator[dict[str, Any]]:
        """What each process that was not killed says in the end."""
        for process in self.processes:
            said, _ = process.communicate(timeout=120)
            if process.returncode == 0:
                yield json.loads(said)

    def effects(self) -> Counter[str]:
        """How often each effect happened, by key and attempt."""
        return Counter(self.path.with_suffix(".effects").read_text().splitlines())


def told(reports: Sequence[dict[str, Any]]) -> Counter[str]:
    """What all processes were told, together; no error reached any of them."""
    assert [error for report in reports for error in report["errors"]] == []
    return sum((Counter(report["told"]) for report in reports), Counter())


@pytest.mark.slow
def test_processes(tmp_path: Path) -> None:
    """C15, P1: 8 processes with 200 keys each and one shared by all, on one file: no lock error, one run a key."""
    keys = [[f"own{number}:200", "shared:1"] for number in range(8)]
    with Racers(tmp_path / "records.db", keys) as racers:
        counts = told(list(racers.reports()))
        effects = racers.effects()
    assert counts["Operation"] == len(effects) == 8 * 200 + 1
    assert set(effects.values()) == {1}
    assert counts["Operation"] + counts["InProgress"] + counts["Replay"] == 8 * 201


@pytest.mark.slow
def test_processes_that_all_want_the_same(tmp_path: Path) -> None:
    """P1, T22: 16 processes that begin the same 2,000 keys: each runs once, and nobody sees a lock."""
    with Racers(tmp_path / "records.db", [["shared:2000"]] * 16) as racers:
        counts = told(list(racers.reports()))
        effects = racers.effects()
    assert counts["Operation"] == len(effects) == 2_000
    assert set(effects.values()) == {1}


@pytest.mark.slow
def test_processes_that_take_over(tmp_path: Path) -> None:
    """C15, C42, P1, P5: of 8 processes that find stale and expired records, one owns each."""
    path = tmp_path / "records.db"
    guard = Guard(SqliteStore(path), clock=VirtualClock())
    for number in range(50):
        guard.begin("race", f"stale-{number}", policy=Policy(recovery=rerun, lease=0.001))
        finished = guard.begin("race", f"expired-{number}", policy=Policy(retention=0.001))
        assert isinstance(finished, Operation)
        finished.complete(1)
    guard.close()
    with Racers(path, [["stale:50", "expired:50"]] * 8) as racers:
        counts = told(list(racers.reports()))
        effects = racers.effects()
    assert counts["Operation"] == 100
    assert effects == Counter([f"stale-{n} 2" for n in range(50)] + [f"expired-{n} 1" for n in range(50)])


@pytest.mark.slow
def test_processes_of_which_some_are_killed(tmp_path: Path) -> None:
    """P1, P7: processes are killed in the middle of it; every key has run at most once, and no answer is lost."""
    chance = random.Random(7)
    path = tmp_path / "records.db"
    with Racers(path, [["shared:2000"]] * 8) as racers:
        for process in chance.sample(racers.processes, 3):
            wait_for_effects(path, chance.randrange(50, 400))
            process.kill()
        counts = told(list(racers.reports()))
        effects = racers.effects()
    assert set(effects.values()) == {1}
    assert counts["Operation"] <= len(effects) <= 2_000
    with Guard(SqliteStore(path)) as guard:
        states = {view.record.key: view.record.state for view in guard.operations()}  # type: ignore[union-attr]  # all can be read
    left_open = [key for key, state in states.items() if state == "in_progress"]
    assert len(left_open) <= 3, "a killed process leaves one operation at most"
    assert len(states) == 2_000
    assert {key for key, state in states.items() if state == "completed"} <= {line.split()[0] for line in effects}


def wait_for_effects(path: Path, count: int) -> None:
    """Wait until so many more effects happened."""
    effects = path.with_suffix(".effects")
    goal = size_of(effects) + count * 10
    while size_of(effects) < goal:
        threading.Event().wait(0.005)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.slow
def test_a_store_that_was_made_before_a_fork(tmp_path: Path) -> None:
    """P1: children of one process go on with the store and the guard that were made before the fork."""
    assert children_go_on(f"sqlite:///{tmp_path / 'records.db'}?timeout=10")
