"""The clocks of the embedded stores: what a step of the wall clock may and may not do."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from notwice.model import Get, Insert, State
from notwice.stores.clocks import DRIFT_MAX_MS, ClockDriftWarning, SystemStoreClock, TrustedClock
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, get, insert, new_record

HOUR = DRIFT_MAX_MS / 1000


@pytest.fixture(params=["memory", "sqlite"])
def open_with(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[VirtualClock], Store]:
    if request.param == "memory":
        return MemoryStore
    return lambda clock: SqliteStore(tmp_path / "records.db", clock=clock)


def test_the_clocks_of_this_host_go_on() -> None:
    """The host's clocks never go back within a test, and name one boot."""
    clock = SystemStoreClock()
    first = (clock.wall_ms(), clock.boot_ms(), clock.boot_id())
    assert clock.boot_id() == first[2] == SystemStoreClock().boot_id() != ""
    assert clock.boot_ms() >= first[1] > 0


def test_expiry_follows_small_steps_of_the_wall_clock() -> None:
    """Within an hour of drift the wall clock is believed, forward and back."""
    clock = VirtualClock()
    trusted = TrustedClock(clock)
    for step in (HOUR, -HOUR, -HOUR, HOUR):
        clock.step_wall(step)
        moment = trusted.read()
        assert moment.now_ms == moment.stamp_ms == clock.wall_ms()


@pytest.mark.parametrize("step", [HOUR + 1, -HOUR - 1, 40 * 365 * 24 * HOUR, -40 * 365 * 24 * HOUR])
def test_a_drift_is_told_once_and_both_clocks_must_agree(step: float) -> None:
    """Beyond an hour of drift there is one warning; a write gets the later time, retention counts by the earlier."""
    clock = VirtualClock()
    trusted = TrustedClock(clock)
    expected_ms = clock.wall_ms()
    clock.step_wall(step)
    with pytest.warns(ClockDriftWarning, match="wall clock") as warned:
        moments = [trusted.read(), trusted.read()]
    assert len(warned) == 1
    assert {moment.now_ms for moment in moments} == {min(expected_ms, clock.wall_ms())}
    assert {moment.stamp_ms for moment in moments} == {max(expected_ms, clock.wall_ms())}
    clock.step_wall(-step)
    assert trusted.read().now_ms == clock.wall_ms() == expected_ms
    clock.step_wall(step)
    with pytest.warns(ClockDriftWarning):
        trusted.read()


def test_a_reboot_is_no_drift() -> None:
    """Another boot begins a new count: its clock starts at zero, and nothing is warned of."""
    clock = VirtualClock()
    trusted = TrustedClock(clock)
    clock.advance(10 * HOUR)
    clock.reboot()
    clock.advance(HOUR)
    assert trusted.read().now_ms == clock.wall_ms()


@pytest.mark.parametrize("step", [2 * HOUR, 365 * 24 * HOUR, -2 * HOUR])
def test_expiry_pauses_while_the_clocks_disagree(open_with: Callable[[VirtualClock], Store], step: float) -> None:
    """A wall clock that jumped drops no answer, neither by a purge nor by what a begin is told, and says so loudly."""
    clock = VirtualClock()
    store = open_with(clock)
    record = finished("kept", retention_ms=60_000)
    insert(store, record)
    clock.step_wall(step)
    with pytest.warns(ClockDriftWarning):
        assert store.purge(10) == 0
    found = get(store, record)
    assert found.now_ms - found.written_ms <= 0
    clock.step_wall(-step)
    clock.advance(61)
    assert store.purge(10) == 1
    store.close()


def test_what_was_written_while_the_clock_was_behind_is_kept(open_with: Callable[[VirtualClock], Store]) -> None:
    """An answer that was stored while the wall clock stood in the past is not expired once the clock is right again."""
    clock = VirtualClock()
    store = open_with(clock)
    clock.step_wall(-24 * HOUR)
    with warnings.catch_warnings(action="ignore", category=ClockDriftWarning):
        insert(store, finished("kept", retention_ms=60_000))
    clock.step_wall(24 * HOUR)
    clock.advance(30)
    assert store.purge(10) == 0
    clock.advance(31)
    assert store.purge(10) == 1
    store.close()


def test_a_lease_does_not_end_by_a_step_of_the_wall_clock(open_with: Callable[[VirtualClock], Store]) -> None:
    """However far the wall clock jumps, the age that leases are judged by is that of the clock since boot."""
    clock = VirtualClock()
    store = open_with(clock)
    record = new_record("open", state=State.IN_PROGRESS)
    store.apply([Insert(record)])
    clock.advance(3)
    clock.step_wall(400 * 24 * HOUR)
    with pytest.warns(ClockDriftWarning):
        (found,) = store.apply([Get(record.namespace, record.id)])
    assert found.age_ms == 3_000
    store.close()
