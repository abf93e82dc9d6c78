"""Steps: each runs once, keeps its result, and is told apart from all others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest

from notwice import (
    EncodingError,
    NotApplied,
    Operation,
    OperationEnded,
    OwnershipLost,
    ProgressFull,
    State,
    StepRunning,
    StepsChanged,
    StoreUnavailable,
    core,
    current_operation,
    current_step,
    rerun,
)
from notwice.codec import decode_value, encode_step
from notwice.errors import UnsupportedRecord
from notwice.model import Released
from tests.unit.worlds import World


class Shop:
    """A world whose handlers run in steps; `effects` has the downstream key of each step that ran."""

    def __init__(self, **policy: Any) -> None:
        self.world = World(**{"recovery": rerun, "attempts_max": None, **policy})
        self.effects: list[str] = []

    def own(self) -> Operation:
        return self.world.own()

    def crash(self, operation: Operation) -> Operation:
        """The process dies; gives the operation as the next one has it."""
        self.world.crash(operation)
        return self.world.own()

    def effect(self, value: object = "done") -> Callable[[], Any]:
        def function() -> object:
            self.effects.append(current_step().downstream_key())
            return value

        return function


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- kept and skipped -------------------------------------------------------------------------------------------------


def test_a_step_that_is_done_is_skipped_and_gives_its_result(shop: Shop) -> None:
    """C47: a recovered operation does not repeat a step that returned, and is given an equal result of its type."""
    value = {"amount": Decimal("9.90"), "at": datetime(2027, 1, 1, tzinfo=UTC), "parts": (1, b"x")}
    first = shop.own()
    given = first.step("charge", shop.effect(value))
    assert given is value
    again = shop.crash(first)
    assert (again.step("charge", shop.effect()), again.recovered) == (value, True)
    assert len(shop.effects) == 1


def test_pauses_do_not_repeat_what_was_before_them(shop: Shop) -> None:
    """C47: resumed three times, what stands before the pause has run once."""
    operation = shop.own()
    for _ in range(4):
        assert operation.step("pay", shop.effect()) == "done"
        operation = shop.crash(operation)
    assert len(shop.effects) == 1


def test_what_is_done_is_in_the_record(shop: Shop) -> None:
    """P7: the steps that are done, their results and the recovery point can be seen by whoever looks."""
    operation = shop.own()
    operation.step("charge", shop.effect(7))
    operation.step("mail", shop.effect(None))
    assert (operation.recovery_point, operation.progress) == ("mail", {"charge": 7, "mail": None})
    assert [label for label, _ in shop.world.view().record.progress] == ["charge", "mail"]


def test_what_was_checkpointed_under_its_name_is_a_steps_result(shop: Shop) -> None:
    """A step whose name an earlier release checkpointed is done; other checkpoints are no concern of steps."""
    operation = shop.own()
    operation.checkpoint("charge", 5)
    operation.checkpoint("noted", "elsewhere")
    again = shop.crash(operation)
    assert again.step("charge", shop.effect()) == 5
    assert again.step("mail", shop.effect()) == "done"
    again.complete()
    assert len(shop.effects) == 1


def test_the_step_that_was_running_runs_again_under_the_same_key(shop: Shop) -> None:
    """T08: what a kill interrupted runs again, and the next system knows it by its downstream key."""
    operation = shop.own()
    operation.step("charge", shop.effect())

    def killed() -> None:
        shop.effects.append(current_step().downstream_key())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operation.step("mail", killed)
    again = shop.crash(operation)
    for name in ("charge", "mail"):
        again.step(name, shop.effect())
    assert shop.effects[1] == shop.effects[2] == again.downstream_key("mail")
    assert len(set(shop.effects)) == 2


def test_a_steps_uuid_is_that_of_its_name(shop: Shop) -> None:
    """A step's downstream key and UUID are those which the operation derives from its name."""
    operation = shop.own()
    found = operation.step("charge", lambda: (current_step().downstream_key(), current_step().downstream_uuid()))
    assert found == (operation.downstream_key("charge"), operation.downstream_uuid("charge"))


# -- names ------------------------------------------------------------------------------------------------------------


def test_the_turns_of_a_loop_are_told_apart(shop: Shop) -> None:
    """C47: a loop of three intended payments, resumed, is three payments: not six, not one."""
    operation = shop.own()
    assert [operation.step("pay", shop.effect(turn)) for turn in range(2)] == [0, 1]
    again = shop.crash(operation)
    assert [again.step("pay", shop.effect(f"turn {turn}")) for turn in range(3)] == [0, 1, "turn 2"]
    assert [label for label, _ in again.view.record.progress] == ["pay", "pay#2", "pay#3"]
    assert len(set(shop.effects)) == len(shop.effects) == 3


def test_a_step_that_raised_is_the_same_step_when_it_is_called_again(shop: Shop) -> None:
    """A handler that tries a step again does so under the same downstream key, now and after a crash."""
    operation = shop.own()

    def fails() -> None:
        shop.effects.append(current_step().downstream_key())
        raise OSError("the line is dead")

    for _ in range(2):
        with pytest.raises(OSError, match="dead"):
            operation.step("pay", fails)
    again = shop.crash(operation)
    assert again.step("pay", shop.effect(1)) == 1
    assert again.step("pay", shop.effect(2)) == 2
    assert len(shop.effects) == 4
    assert len(set(shop.effects)) == 2


def test_steps_within_a_step_stand_below_it(shop: Shop) -> None:
    """C47: a sub-flow's steps are skipped when it is resumed, and once it is done its result stands for them."""
    operation = shop.own()
    inner: list[int] = []

    def trip(at: Operation, last: Callable[[], Any]) -> list[object]:
        return [at.step("hotel", shop.effect("h")), at.step("hotel", shop.effect("h2")), at.step("flight", last)]

    def dies() -> None:
        inner.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        operation.step("trip", lambda: trip(operation, dies))
    assert [label for label, _ in operation.view.record.progress] == ["trip/hotel", "trip/hotel#2"]
    again = shop.crash(operation)
    assert again.step("trip", lambda: trip(again, shop.effect("f"))) == ["h", "h2", "f"]
    assert again.progress == {"trip": ["h", "h2", "f"]}
    assert shop.crash(again).step("trip", shop.effect()) == ["h", "h2", "f"]
    assert len(shop.effects) == 3


def test_names_that_look_like_others_are_not_taken_for_them(shop: Shop) -> None:
    """A slash, a number sign and a backslash in a name make no name of another step."""
    operation = shop.own()
    names = ["pay", "pay", "pay#2", "pay/a", "pay\\", "pay\\#2", "#", "/"]
    for place, name in enumerate(names):
        operation.step(name, shop.effect(place))
    again = shop.crash(operation)
    assert [again.step(name, shop.effect()) for name in names] == list(range(len(names)))
    assert len(set(shop.effects)) == len(names)


@pytest.mark.parametrize("name", ["", "x" * 256, None, 7])
def test_a_step_needs_a_name(shop: Shop, name: Any) -> None:
    """A name that could not be kept is refused with a sentence before anything runs."""
    with pytest.raises(ValueError, match="a step is named by a text"):
        shop.own().step(name, shop.effect())
    assert shop.effects == []


def test_two_unfinished_steps_of_one_name_are_refused(shop: Shop) -> None:
    """C47: nothing would tell parallel branches of one name apart, so the second is refused and does not run."""
    operation = shop.own()
    with pytest.raises(StepRunning, match="names of their own") as refused:
        operation.step("pay", lambda: [ThreadPoolExecutor(1).submit(operation.step, "pay", shop.effect()).result()])
    assert (refused.value.code, refused.value.safe_new_key, refused.value.http_status) == ("step_running", False, 500)
    assert shop.effects == []
    assert operation.step("pay", shop.effect()) == "done"


def test_outside_of_a_step_there_is_none(shop: Shop) -> None:
    """A function that needs its step's key does not run without: not outside, and not after it."""
    operation = shop.own()
    operation.step("charge", shop.effect())
    with pytest.raises(LookupError, match="no step is running"):
        current_step()


# -- steps that changed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        ["capture", "mail"],  # renamed
        ["check", "charge", "mail"],  # one more at the start
        ["charge", "check", "mail"],  # one more in the middle
        ["charge", "log"],  # one less, and another
        ["mail", "log"],
    ],
)
def test_steps_that_changed_since_are_refused(shop: Shop, steps: list[str]) -> None:
    """C47: a release whose handler asks for other steps runs none of the new ones; nobody waits to find that out."""
    first = shop.own()
    for name in ("charge", "mail"):
        first.step(name, shop.effect())
    started = shop.world.clock.monotonic()
    again = shop.crash(first)
    ran = shop.world.clock.monotonic() - started

    def handler() -> None:
        with again:
            for name in steps:
                again.step(name, shop.effect())

    with pytest.raises(StepsChanged, match=r"new step '(capture|check|log)'") as refused:
        handler()
    assert len(shop.effects) == 2
    assert (refused.value.code, refused.value.safe_new_key, refused.value.operation) == (
        "steps_changed",
        False,
        again.operation,
    )
    view = shop.world.view()
    assert (view.unresolved, view.record.error.split(":")[0]) == (True, "StepsChanged")
    assert shop.world.clock.monotonic() - started == ran


def test_a_handler_that_ends_without_a_step_that_is_done_is_refused(shop: Shop) -> None:
    """A release that has lost a step does not finish the operation, be it as done or as failed."""
    first = shop.own()
    for name in ("charge", "mail"):
        first.step(name, shop.effect())
    again = shop.crash(first)
    with again:
        again.step("charge", shop.effect())
        for end in (again.complete, again.fail):
            with pytest.raises(StepsChanged, match="ends, and has not asked for 'mail'"):
                end("done")
        again.suspend()
    assert shop.world.view().unresolved


def test_after_a_change_no_new_step_runs_in_that_attempt(shop: Shop) -> None:
    """A handler that swallows the refusal gets no further: nothing is guessed."""
    first = shop.own()
    first.step("charge", shop.effect())
    again = shop.crash(first)
    for name in ("capture", "mail"):
        with pytest.raises(StepsChanged):
            again.step(name, shop.effect())
    assert again.step("charge", shop.effect()) == "done"
    with pytest.raises(StepsChanged):
        again.step("mail", shop.effect())
    with pytest.raises(StepsChanged):
        again.complete()
    assert len(shop.effects) == 1


def test_final_errors_do_not_hide_that_steps_have_changed() -> None:
    """A policy by which every exception is an answer does not make one of this: the outcome is unknown."""
    shop = Shop(final_errors=(Exception,))
    first = shop.own()
    first.step("charge", shop.effect())
    again = shop.crash(first)
    with pytest.raises(StepsChanged), again:
        again.step("capture", shop.effect())
    assert shop.world.view().state is State.ACCEPTED


def test_new_steps_may_follow_those_that_are_done(shop: Shop) -> None:
    """A release that has more steps after those that were done goes on with them, and so does one in other order."""
    first = shop.own()
    for name in ("charge", "mail"):
        first.step(name, shop.effect(name))
    again = shop.crash(first)
    assert [again.step(name, shop.effect(name)) for name in ("mail", "charge", "log")] == ["mail", "charge", "log"]
    again.complete()
    assert shop.world.view().state is State.COMPLETED


def test_steps_dropped_by_an_operator_run_again(shop: Shop) -> None:
    """`release(from_start=True)` drops the steps, so that the handler may ask for others."""
    first = shop.own()
    first.step("charge", shop.effect())
    shop.world.crash(first)
    shop.world.guard.release(shop.world.view(), who="ann", why="it was undone", from_start=True)
    again = shop.own()
    assert again.step("capture", shop.effect()) == "done"


def test_branches_in_threads_come_in_any_order(shop: Shop) -> None:
    """C47: of two branches the one with a new step waits until the other has asked for its own that are done."""
    first = shop.own()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(first.step, "pay b", shop.effect("b")).result()
    again = shop.crash(first)
    asked = threading.Event()

    def wait(event: threading.Event, timeout: float) -> bool:
        asked.set()
        return event.wait(20)

    shop.world.clock.wait = wait  # type: ignore[method-assign]  # real time: the other branch runs at its own pace
    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(again.step, "pay a", shop.effect("a"))
        assert asked.wait(20)
        assert len(shop.effects) == 1
        assert again.step("pay b", shop.effect()) == "b"
        assert new.result() == "a"
    again.complete()
    assert len(shop.effects) == 2


def test_a_branch_waits_no_longer_than_a_lease(shop: Shop) -> None:
    """If nobody asks for what is done, the new step is refused after one lease, not run."""
    first = shop.own()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(first.step, "pay b", shop.effect("b")).result()
    started = shop.world.clock.monotonic()
    again = shop.crash(first)
    with ThreadPoolExecutor(1) as pool, pytest.raises(StepsChanged):
        pool.submit(again.step, "pay a", shop.effect("a")).result()
    assert shop.world.clock.monotonic() - started == 2 * 300  # the first one is the crash
    assert len(shop.effects) == 1


# -- ownership --------------------------------------------------------------------------------------------------------


def calls_of(shop: Shop, name: str) -> int:
    before = shop.world.store.plan.calls
    shop.world.kept[-1].step(name, shop.effect())
    return shop.world.store.plan.calls - before


def test_a_step_confirms_where_half_the_lease_has_gone() -> None:
    """P5: before a step runs, the lease is renewed if the store has confirmed no write for half of it, else not."""
    shop = Shop(run_max=1)
    operation = shop.own()
    assert calls_of(shop, "one") == 1
    shop.world.clock.advance(149)
    assert calls_of(shop, "two") == 1
    shop.world.clock.advance(150)
    assert calls_of(shop, "three") == 2
    assert operation.attempt == 1


def test_heartbeats_count_as_confirmed_writes() -> None:
    """A step after a beat that was confirmed needs no other; after beats that failed it does."""
    shop = Shop()
    shop.own()
    shop.world.clock.advance(199)
    assert calls_of(shop, "one") == 1
    shop.world.store.plan.down = True
    shop.world.clock.advance(160)
    shop.world.store.plan.down = False
    assert calls_of(shop, "two") == 2


def test_whoever_lost_its_operation_runs_no_step() -> None:
    """P5: a paused owner whose operation was taken over runs no further step, be it new or done."""
    shop = Shop(run_max=1)
    paused = shop.own()
    paused.step("charge", shop.effect())
    shop.crash(paused).step("charge", shop.effect())
    with pytest.raises(OwnershipLost):
        paused.step("mail", shop.effect())
    with pytest.raises(OwnershipLost):
        paused.step("other", shop.effect())
    assert len(shop.effects) == 1


def test_no_step_runs_after_the_end(shop: Shop) -> None:
    """A step after the last move is a fault of the caller; it does not run."""
    operation = shop.own()
    operation.complete()
    with pytest.raises(OperationEnded):
        operation.step("charge", shop.effect())
    assert shop.effects == []


def test_a_step_makes_an_abandon_free_nothing(shop: Shop) -> None:
    """P10: what has begun a step can't say that nothing happened, even if the step raised `NotApplied`."""

    def refuses() -> None:
        raise NotApplied

    with pytest.raises(NotApplied):
        shop.world.run(lambda: cast("Operation", current_operation()).step("charge", refuses))
    assert (shop.world.view().unresolved, shop.world.view().record.released) == (True, Released.NO)


# -- results that can't be kept ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [("lost",) * 3, ("drop",) * 3])
def test_a_result_that_was_not_confirmed_is_stored_by_the_next_call(shop: Shop, faults: tuple[str, ...]) -> None:
    """P9: the effect is done and the store silent: the step raises, and called again it stores, but does not run."""
    operation = shop.own()
    shop.world.faults(*faults)
    with pytest.raises(StoreUnavailable):
        operation.step("charge", shop.effect(9))
    assert operation.step("charge", shop.effect()) == 9
    assert operation.step("charge", shop.effect(10)) == 10
    assert len(shop.effects) == 2
    again = shop.crash(operation)
    assert [again.step("charge", shop.effect()) for _ in range(2)] == [9, 10]


def test_a_result_that_no_codec_keeps_is_an_error_that_says_so(shop: Shop) -> None:
    """A step whose result can't be kept raises; where its annotation tells it, before it runs."""
    operation = shop.own()

    def annotated() -> threading.Event:
        shop.effects.append("ran")
        return threading.Event()

    with pytest.raises(EncodingError):
        operation.step("charge", annotated)
    assert shop.effects == []
    with pytest.raises(EncodingError):
        operation.step("charge", shop.effect(threading.Event()))
    assert operation.progress == {}


async def _coroutine() -> None:
    pass


def test_a_step_is_a_function_that_has_run_when_it_returns(shop: Shop) -> None:
    """T14: a coroutine function and a generator would have their effect after the step: refused."""
    operation = shop.own()
    with pytest.raises(TypeError, match="AsyncGuard"):
        operation.step("charge", cast("Any", _coroutine))
    with pytest.raises(TypeError, match="has not run"):
        operation.step("charge", lambda: (turn for turn in range(3)))
    assert operation.progress == {}


def test_the_number_of_steps_has_a_limit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a step is refused before it runs, with what to do instead; the operation goes on."""
    monkeypatch.setattr(core, "PROGRESS_POINTS_MAX", 3)
    operation = shop.own()
    for _ in range(3):
        operation.step("pay", shop.effect())
    with pytest.raises(ProgressFull, match="Keep references") as refused:
        operation.step("pay", shop.effect())
    assert (refused.value.code, refused.value.safe_new_key) == ("progress_full", False)
    assert len(shop.effects) == 3
    operation.complete()


def test_the_size_of_results_has_a_limit(shop: Shop) -> None:
    """A result beyond the limit raises and is not kept, and so does a checkpoint; what was kept stays."""
    operation = shop.own()
    operation.step("small", shop.effect())
    with pytest.raises(ProgressFull):
        operation.step("large", shop.effect(bytes(core.PROGRESS_BYTES_MAX)))
    with pytest.raises(ProgressFull):
        operation.checkpoint("large", bytes(core.PROGRESS_BYTES_MAX))
    assert operation.progress == {"small": "done"}


def test_a_loop_within_a_step_takes_no_room_once_it_is_done(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a loop may stand in a step around it, which keeps only its own result."""
    monkeypatch.setattr(core, "PROGRESS_POINTS_MAX", 5)
    operation = shop.own()
    for part in range(3):
        total = operation.step(f"part {part}", lambda: sum(operation.step("pay", shop.effect(1)) for _ in range(3)))
        assert total == 3
    assert list(operation.progress) == ["part 0", "part 1", "part 2"]


def test_unguarded_steps_run() -> None:
    """Under ``store_failure="proceed"`` steps run without a record, as the whole operation does."""
    shop = Shop(store_failure="proceed")
    shop.world.store.plan.down = True
    operation = shop.own()
    assert not operation.guarded
    assert operation.step("charge", shop.effect()) == "done"
    operation.complete()


@pytest.mark.parametrize("data", [b"s", b"sx", b"sh", b"sxj1", b"shsj1", b"sh\xff", encode_step(1, at_home=True)[:2]])
def test_damaged_results_are_refused(data: bytes) -> None:
    """P14: bytes that are no step's result are refused, never guessed at."""
    with pytest.raises(UnsupportedRecord):
        decode_value(data)
