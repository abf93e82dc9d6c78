"""Policies: validated once, with sentences."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from notwice import NOT_APPLIED, Guard, InProgress, Operation, Policy, reconcile, rerun
from notwice.model import RecoveryKind
from tests.unit.worlds import World


def test_durations_are_seconds_or_timedeltas() -> None:
    """C41: whole, fractional and timedelta durations are the same, and are kept in milliseconds."""
    for lease in (90, 90.0, timedelta(seconds=90)):
        assert Policy(lease=lease).terms.lease_ms == 90_000
    assert Policy(lease=0.0001).terms.lease_ms == 1


@pytest.mark.parametrize("name", ["lease", "retention", "rerun_within", "run_max", "store_timeout"])
@pytest.mark.parametrize("value", [0, -1, timedelta(0), float("nan"), float("inf"), 10**12, 10**400])
def test_durations_that_mean_nothing_are_refused(name: str, value: Any) -> None:
    """C05, C41: zero, negative, endless and overflowing durations are refused with a sentence."""
    with pytest.raises(ValueError, match=name):
        Policy(**{name: value})


@pytest.mark.parametrize("name", ["wait", "settle"])
def test_durations_that_may_be_nothing_are_not_less(name: str) -> None:
    """C41: not to wait at all is a choice; a negative or endless wait is a mistake."""
    options: dict[str, Any] = {name: 0}
    assert getattr(Policy(**options), name) == 0
    for value in (-1, timedelta(seconds=-1), float("nan"), float("inf")):
        options[name] = value
        with pytest.raises(ValueError, match=name):
            Policy(**options)


def test_without_retention_there_would_be_no_guard() -> None:
    """C05: other libraries keep an answer for ever by a retention of zero; here that would run each duplicate."""
    with pytest.raises(ValueError, match="retention must be more than zero seconds, or None to keep answers for ever"):
        Policy(retention=0)
    with pytest.raises(ValueError, match=r"or None for ever \(recovery=hold runs nothing again\), not 0"):
        Policy(rerun_within=0)


@pytest.mark.parametrize("name", ["lease", "retention", "wait", "settle"])
@pytest.mark.parametrize("value", ["5", True, b"1"])
def test_durations_of_other_types_are_refused(name: str, value: Any) -> None:
    """A text or a flag in the place of a duration is a mistake, and is told apart from one."""
    with pytest.raises(TypeError, match=name):
        Policy(**{name: value})


def test_none_and_zero_are_different() -> None:
    """C05: None is no limit or the usual one, zero is nothing at all; neither is read as the other."""
    assert Policy(retention=None).terms.retention_ms is None
    assert Policy(rerun_within=None).terms.rerun_within_ms is None
    assert Policy(settle=None).terms.settle_ms == Policy().terms.lease_ms
    assert Policy(settle=0).terms.settle_ms == 0


def test_a_very_short_lease_is_over_at_once() -> None:
    """C05: a lease of a millisecond under rerun is taken over right after; no value is read as "for ever"."""
    world = World(lease=0.001, recovery=rerun)
    world.crashed()
    assert isinstance(world.begin(), Operation)


def test_a_lease_always_exists() -> None:
    """C04: without any setting a claim is protected, and a second one sees it in progress."""
    world = World()
    world.own()
    world.clock.advance(0.05)
    assert isinstance(world.begin(), InProgress)


@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True])
def test_attempts_are_whole_numbers_from_one_on(value: Any) -> None:
    """attempts_max of anything else is refused."""
    with pytest.raises(ValueError, match="attempts_max"):
        Policy(attempts_max=value)


def test_a_misspelled_option_gets_a_suggestion() -> None:
    """An unknown option names the one that was meant."""
    with pytest.raises(TypeError, match="did you mean 'retention'"):
        Policy(retension=5)  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize(
    "options",
    [{"recovery": "hold"}, {"final_errors": ValueError}, {"final_errors": ("x",)}, {"not_applied_errors": (int,)}],
)
def test_options_of_a_wrong_type_are_refused(options: dict[str, Any]) -> None:
    """Recovery is hold, rerun or reconcile(fn); errors come as a tuple of exception types."""
    with pytest.raises(TypeError):
        Policy(**options)


def test_store_failure_is_refuse_or_proceed() -> None:
    """A third word is refused: nothing runs unguarded by a spelling mistake."""
    with pytest.raises(ValueError, match="store_failure"):
        Policy(store_failure="procede")  # type: ignore[arg-type]  # that is the point


def test_reconcile_takes_a_function() -> None:
    """reconcile("x") is refused."""
    with pytest.raises(TypeError, match="function"):
        reconcile("x")  # type: ignore[arg-type]  # that is the point


def test_deduplicated_is_true_or_false() -> None:
    """What is no bool is refused: the record would be written with it, and could not be read again."""
    with pytest.raises(TypeError, match="deduplicated"):
        reconcile(lambda _: NOT_APPLIED, deduplicated=1)  # type: ignore[arg-type]  # that is the point


def test_presets() -> None:
    """The older money guard re-runs and never forgets; the older API cache holds."""
    money = Policy.money_guard().terms
    assert (money.recovery, money.retention_ms, money.attempts_max, money.rerun_within_ms, money.lease_ms) == (
        RecoveryKind.RERUN,
        None,
        None,
        None,
        300_000,
    )
    assert Policy.api_cache().terms.recovery is RecoveryKind.HOLD


def test_a_guard_takes_no_mapping_for_a_policy() -> None:
    """What is no Policy is refused by the guard and by each begin."""
    world = World()
    with pytest.raises(TypeError, match="Policy"):
        world.begin(policy={"lease": 3})
    with pytest.raises(TypeError, match="Policy"):
        Guard(world.memory, policy={"lease": 3})  # type: ignore[arg-type]  # that is the point
