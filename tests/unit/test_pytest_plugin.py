"""The fixtures that users' tests get."""

import subprocess
import sys

import pytest

from notwice import AsyncGuard, Guard, InProgress, Operation
from notwice.testing import VirtualClock


def test_a_guard_without_a_store(notwice_guard: Guard) -> None:
    """`notwice_guard` guards in memory, from an empty store in each test."""
    calls: list[int] = []

    def refund() -> str:
        calls.append(1)
        return "done"

    assert [notwice_guard.run(refund, scope="s", key="k") for _ in range(2)] == ["done", "done"]
    assert calls == [1]


def test_time_moves_by_the_clock(notwice_guard: Guard, notwice_clock: VirtualClock) -> None:
    """`notwice_clock` is the guard's and the store's clock: leases are renewed and run out by it."""
    operation = notwice_guard.begin("s", "k")
    assert isinstance(operation, Operation)
    notwice_clock.advance(3_000)
    assert isinstance(notwice_guard.begin("s", "k"), InProgress), "within run_max it is alive"
    notwice_clock.advance(3_000)
    view = notwice_guard.lookup("s", "k")
    assert view is not None
    assert view.unresolved


async def test_both_guards_have_the_same_records(notwice_guard: Guard, notwice_async_guard: AsyncGuard) -> None:
    """`notwice_async_guard` is the same guard for event loops."""
    assert isinstance(notwice_guard.begin("s", "k"), Operation)
    assert isinstance(await notwice_async_guard.begin("s", "k"), InProgress)


def test_pytest_finds_the_fixtures_by_itself(pytestconfig: pytest.Config) -> None:
    """An installed notwice brings its fixtures along, and nothing of its stores is loaded for that."""
    assert pytestconfig.pluginmanager.has_plugin("notwice")
    script = "import sys, notwice.testing.pytest_plugin; print('notwice.testing.conformance' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "False\n"
