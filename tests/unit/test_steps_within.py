"""Steps within steps that are called again, and checkpoints beside them."""

from __future__ import annotations

import contextvars
import threading
from typing import Any, cast

import pytest

from notwice import Operation, StoreUnavailable
from tests.unit.test_steps import Shop


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_step_that_is_called_again_finds_what_was_done_within_it(shop: Shop) -> None:
    """A step within one that raised has returned: the next call of the outer one does not repeat it.

    Its downstream key would be another one, and its effect happen twice.
    """
    operation = shop.own()
    down = [True]

    def hotel() -> Any:
        if down and down.pop():
            raise ConnectionError
        return shop.effect("room")()

    def trip() -> list[Any]:
        turns = [operation.step("night", shop.effect(night)) for night in range(2)]
        return [*turns, operation.step("hotel", hotel)]

    with pytest.raises(ConnectionError):
        operation.step("trip", trip)
    assert operation.step("trip", trip) == [0, 1, "room"]
    names = ["trip/night", "trip/night#2", "trip/hotel"]
    assert shop.effects == [operation.downstream_key(name) for name in names]
    assert operation.step("trip", trip) == [0, 1, "room"]  # the second trip has nights of its own
    assert len(shop.effects) == 6


def test_what_was_not_written_within_a_step_is_counted_by_its_next_call(shop: Shop) -> None:
    """T03: a result that the store did not confirm is the first of its name in the next call, too, and no other's."""
    operation = shop.own()

    def trip() -> list[Any]:
        return [operation.step("night", shop.effect(night)) for night in range(3)]

    shop.world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        operation.step("trip", trip)
    assert operation.step("trip", trip) == [0, 1, 2]
    names = ["trip/night", "trip/night#2", "trip/night#3"]
    assert shop.effects == [operation.downstream_key(name) for name in names]


def test_what_a_broken_off_step_left_running_is_not_repeated(shop: Shop) -> None:
    """A branch that ends after the step around it has raised gives its result to that step's next call."""
    operation = shop.own()
    left: list[threading.Thread] = []
    go = threading.Event()

    def slow() -> Any:
        go.wait(10)
        return shop.effect("room")()

    def first() -> None:
        context = contextvars.copy_context()
        left.append(threading.Thread(target=context.run, args=(operation.step, "hotel", slow)))
        left[0].start()
        raise ConnectionError

    def second() -> Any:
        go.set()
        left[0].join(10)
        return operation.step("hotel", shop.effect("another"))

    with pytest.raises(ConnectionError):
        operation.step("trip", first)
    assert operation.step("trip", second) == "room"
    assert len(shop.effects) == 1


def test_a_step_within_another_operations_step_stands_below_its_own(shop: Shop) -> None:
    """Between two steps of one operation, those of another change no name."""
    outer, inner = shop.own(), cast("Operation", shop.world.guard.begin("help", "k-1"))

    def trip() -> Any:
        return inner.step("help", lambda: outer.step("hotel", shop.effect()))

    outer.step("trip", trip)
    assert shop.effects == [outer.downstream_key("trip/hotel")]
    assert outer.progress == {"trip": "done"}


def test_a_checkpoint_says_so_in_its_own_attempt_too(shop: Shop) -> None:
    """A checkpoint of a step's name stands for it at once, whether a step was called before it or not."""
    for steps_before in (0, 1):
        operation = cast("Operation", shop.world.guard.begin("orders", f"k-{steps_before}"))
        for _ in range(steps_before):
            operation.step("first", shop.effect())
        operation.checkpoint("charge", 5)
        assert operation.step("charge", shop.effect("never")) == 5
    assert len(shop.effects) == 1


def test_a_checkpoint_is_no_part_of_the_step_that_its_name_begins_with(shop: Shop) -> None:
    """What a handler checkpointed is kept as long as the record, whatever steps are done."""
    operation = shop.own()
    operation.checkpoint("trip/seat", 12)
    operation.step("trip", lambda: operation.step("flight", shop.effect()))
    assert operation.progress == {"trip/seat": 12, "trip": "done"}
