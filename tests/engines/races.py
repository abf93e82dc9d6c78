"""Threads, tasks and processes that race on a server's store: one owner a key, in every phase of its life."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Guard,
    InProgress,
    Mismatch,
    Operation,
    OwnershipLost,
    Policy,
    Replay,
    rerun,
)
from notwice.stores import open_async_store, open_store
from notwice.testing import VirtualClock
from tests.engines.private import TIMES
from tests.sources import ROOT

RIVALS = 16
KEYS = 300 * TIMES
LIVE = Policy(recovery=rerun, lease=300, store_timeout=20)
STALE = Policy(recovery=rerun, lease=0.001, store_timeout=20)


def the_owner(outcomes: Sequence[object], attempt: int) -> Any:
    """The one operation among the outcomes; all others were told that it is running."""
    (operation,) = (each for each in outcomes if isinstance(each, Operation | AsyncOperation))
    assert sum(isinstance(each, InProgress) for each in outcomes) == len(outcomes) - 1
    assert operation.attempt == attempt
    return operation


def all_keys(keys: int, act: Callable[[int], object]) -> list[list[Any]]:
    """What each of 16 threads gets for every key, all of them set off at once. One row a key."""
    barrier = threading.Barrier(RIVALS)

    def run(_: int) -> list[object]:
        barrier.wait()
        return [act(key) for key in range(keys)]

    with ThreadPoolExecutor(RIVALS) as pool:
        columns = list(pool.map(run, range(RIVALS)))
    return [list(row) for row in zip(*columns, strict=True)]


def race_threads(url: str, keys: int) -> None:
    """Five phases: first, take-over, zombie, replay, mismatch."""
    guard = Guard.open(url, policy=LIVE)
    dead = Guard(open_store(url), policy=STALE, clock=VirtualClock())

    def begin(name: str) -> list[list[Any]]:
        return all_keys(keys, lambda key: guard.begin("race", f"{name}{key}", request=1))

    for row in begin("first"):
        the_owner(row, 1)
    late = [dead.begin("race", f"stale{key}", request=1) for key in range(keys)]
    current = [the_owner(row, 2) for row in begin("stale")]
    for zombie, owner in zip(late, current, strict=True):
        assert isinstance(zombie, Operation)
        for move in (zombie.abandon, partial(zombie.complete, "late")):
            with pytest.raises(OwnershipLost):
                move()
        owner.complete(owner.key)
    for key, row in enumerate(begin("stale")):
        assert all(isinstance(each, Replay) for each in row)
        assert {each.result for each in row} == {f"stale{key}"}
    for row in all_keys(keys, lambda key: guard.begin("race", f"stale{key}", request=2)):
        assert all(isinstance(each, Mismatch) for each in row)
    dead.close()
    guard.close()


async def race_tasks(url: str, keys: int) -> None:
    """The same for 16 tasks of an event loop, each on all keys."""
    guard = AsyncGuard.open(url, policy=LIVE)
    dead = AsyncGuard(open_async_store(url), policy=STALE, clock=VirtualClock())

    async def begin(name: str, request: int = 1) -> list[list[Any]]:
        async def run() -> list[Any]:
            return [await guard.begin("race", f"{name}{key}", request=request) for key in range(keys)]

        columns = await asyncio.gather(*(run() for _ in range(RIVALS)))
        return [list(row) for row in zip(*columns, strict=True)]

    for row in await begin("first"):
        the_owner(row, 1)
    late = [await dead.begin("race", f"stale{key}", request=1) for key in range(keys)]
    current = [the_owner(row, 2) for row in await begin("stale")]
    for zombie, owner in zip(late, current, strict=True):
        assert isinstance(zombie, AsyncOperation)
        with pytest.raises(OwnershipLost):
            await zombie.complete("late")
        await owner.complete(owner.key)
    for key, row in enumerate(await begin("stale")):
        assert [each.result for each in row] == [f"stale{key}"] * RIVALS
    for row in await begin("stale", request=2):
        assert all(isinstance(each, Mismatch) for each in row)
    await dead.close()
    await guard.close()


def race_processes(
    url: str, folder: Path, *, processes: int = 8, keys: int = 100 * TIMES, watches: bool = False
) -> None:
    """Processes that all begin the same new keys, stale ones and expired ones: one runs each.

    `watches`: they look at the stale ones first, for an engine without a clock, where each has to see for itself that
    a lease is over.
    """
    with Guard(open_store(url), clock=VirtualClock()) as guard:
        for number in range(keys):
            guard.begin("race", f"stale-{number}", policy=STALE)
            finished = guard.begin("race", f"expired-{number}", policy=Policy(retention=0.001))
            assert isinstance(finished, Operation)
            finished.complete(1)
    names = [f"{name}:{keys}" for name in (*["stale"] * watches, "shared", "stale", "expired")]
    path = folder / "race"
    reports = list(_reports([str(path), "--store", url, *names], processes))
    effects = Counter(path.with_suffix(".effects").read_text().splitlines())
    assert [error for report in reports for error in report["errors"]] == []
    assert sum(report["told"].get("Operation", 0) for report in reports) == 3 * keys
    attempts = {"shared": 1, "stale": 2, "expired": 1}
    assert effects == Counter(f"{name}-{number} {attempts[name]}" for name in attempts for number in range(keys))


def _reports(arguments: Sequence[str], processes: int) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.stores.racer", *arguments]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            )
            for _ in range(processes)
        ]
        for racer in racers:
            stack.callback(racer.kill)
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            said, _ = racer.communicate(timeout=120 * TIMES)
            assert racer.returncode == 0
            yield json.loads(said)
