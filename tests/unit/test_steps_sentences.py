"""What the refusals of steps say, and which operation and step they name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from notwice import ProgressFull, StepRunning, StepsChanged, core, current_step, rerun
from notwice.identity import downstream_uuid
from tests.unit.worlds import KEY, SCOPE, World


def value(given: object) -> Callable[[], object]:
    return lambda: given


def changed(operation: str, asks: str) -> str:
    return (
        f"the steps of operation {operation} have changed since an earlier attempt: its handler {asks}. "
        "Nothing new ran. Finish it with the release that began it, or look its effects up and resolve it"
    )


def again(*names: str) -> tuple[World, Any]:
    """An operation whose first attempt has done these steps, in the hands of its second."""
    world = World(recovery=rerun)
    first = world.own()
    for name in names:
        first.step(name, value(name))
    world.crash(first)
    return world, world.own()


def refusal(kind: type[Any], call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value), caught.value.operation


def test_a_step_that_runs_already() -> None:
    """The refusal names the step as it stands within another, and the operation."""
    operation = World().own()
    told: list[tuple[str, str]] = []

    def twice() -> None:
        with ThreadPoolExecutor(1) as pool:  # a thread of its own, with no step around it
            told.append(pool.submit(refusal, StepRunning, lambda: operation.step("x/y", value(1))).result())

    operation.step("x/y", twice)
    sentence = (
        f"the step 'x\\\\/y' of operation {operation.operation} is running already, and nothing would tell its results "
        "apart. Give the steps of parallel branches names of their own, such as f'pay {item.id}'"
    )
    assert told == [(sentence, operation.operation)]


def test_a_new_step_before_a_kept_one() -> None:
    """The refusal names the new step, up to three that were done, and the operation."""
    _, operation = again("a", "b", "c", "d")
    told = refusal(StepsChanged, lambda: operation.step("new", value(1)))
    asks = "asks for the new step 'new', and has not asked for 'a', 'b', 'c', done before"
    assert told == (changed(operation.operation, asks), operation.operation)
    told = refusal(StepsChanged, lambda: operation.step("more", value(1)))
    assert told[0].startswith(f"the steps of operation {operation.operation} have changed")
    assert "'more'" in told[0]


def test_a_handler_that_ends_too_early() -> None:
    """The refusal says that it ends, what it has not asked for, and which operation it is."""
    _, operation = again("a", "b")
    operation.step("a", value(1))
    told = refusal(StepsChanged, lambda: operation.complete(1))
    assert told == (changed(operation.operation, "ends, and has not asked for 'b', done before"), operation.operation)
    assert refusal(StepsChanged, lambda: operation.fail(1))[0] == told[0]


def test_a_branch_that_has_waited_in_vain() -> None:
    """After a lease without a sign of the kept step, the refusal names the one that waited."""
    world, operation = again("a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: refusal(StepsChanged, lambda: operation.step("branch", value(1))))
        while not waiting.done():
            world.clock.advance(1)
            operation._runtime.clock.wait(threading.Event(), 0)
    asks = "asks for the new step 'branch', and has not asked for 'a', done before"
    assert waiting.result() == (changed(operation.operation, asks), operation.operation)


@pytest.mark.parametrize("name", ["", "x" * 256, 5, None])
def test_what_is_no_name(name: Any) -> None:
    """The refusal shows what was given, and how long a name may be; the longest one is a name."""
    operation = World().own()
    with pytest.raises(ValueError, match="a step is named") as caught:
        operation.step(name, value(1))
    assert str(caught.value) == f"a step is named by a text of 1 to 255 characters, not by {name!r}"
    assert operation.step("x" * 255, value(1)) == 1


def test_outside_of_a_step() -> None:
    """The refusal says from where a step is found."""
    with pytest.raises(LookupError) as caught:
        current_step()
    assert str(caught.value) == ("no step is running here: call this from a function that was given to `step`")


def test_a_step_s_keys_are_its_labels() -> None:
    """T06: a step's UUID and key are those of its label, also of a second call and of one within another."""
    operation = World().own()
    seen: list[tuple[str, object, object]] = []

    def sees() -> None:
        step = current_step()
        seen.append((step.label, step.downstream_key(), step.downstream_uuid()))

    operation.step("pay", sees)
    operation.step("pay", sees)
    operation.step("trip", lambda: operation.step("hotel", sees))
    assert [label for label, _, _ in seen] == ["pay", "pay#2", "trip/hotel"]
    for label, key, uuid in seen:
        assert key == operation.downstream_key(label)
        assert uuid == downstream_uuid(namespace="", scope=SCOPE, key=KEY, generation=0, name=label)


@pytest.mark.parametrize(("silent_ms", "confirms"), [(149_999, False), (150_000, True)])
def test_a_lease_that_is_half_gone_is_renewed_before_a_step(silent_ms: int, confirms: bool) -> None:
    """P5: at exactly half of the lease without a confirmed write the step confirms first, and not a moment before."""
    world = World(lease=300)
    operation = world.own()
    world.guard._runtime.heart.remove(operation._hold)  # nothing beats on its behalf
    world.clock.advance(silent_ms / 1000)
    before = world.view().record.etag
    assert operation.step("pay", lambda: world.view().record.etag != before) is confirms


def test_a_full_record_runs_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is looked for before the function runs: its effect could not be kept."""
    monkeypatch.setattr(core, "PROGRESS_POINTS_MAX", 1)
    world = World()
    operation = world.own()
    operation.step("a", value(1))
    with pytest.raises(ProgressFull, match="2 steps and checkpoints"):
        operation.step("b", world.effect)
    assert world.effects == []
    assert not operation.freed
