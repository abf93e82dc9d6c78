"""Running operations and the owner's moves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest

from notwice import (
    EncodingError,
    Failure,
    InProgress,
    NotApplied,
    NotCompleted,
    Operation,
    OperationEnded,
    OperationInProgress,
    OperationUnresolved,
    OwnershipLost,
    RecordedFailure,
    Replay,
    RequestMismatch,
    Result,
    ResultKind,
    ResultOmitted,
    State,
    StoreUnavailable,
    Unresolved,
    current_operation,
    rerun,
)
from notwice.model import Released
from tests.unit.worlds import KEY, SCOPE, World

ANSWER = Result(ResultKind.HTTP, b"sorry", 500)


# -- run, call and leaving --------------------------------------------------------------------------------------------


def test_run_runs_once() -> None:
    """P1, P2: the handler runs once, and every later call gets its value."""
    world = World()
    assert [world.run(world.effect) for _ in range(3)] == ["done"] * 3
    assert world.effects == ["done"]


@pytest.mark.parametrize("value", [None, 0, 0.0, False, "", {}, [], b"", "None", "null"])
def test_falsy_results_are_results(value: object) -> None:
    """C35: a falsy result is kept like any other, with its type."""
    world = World()
    for _ in range(2):
        again = world.run(lambda: world.effect() and value)
        assert (type(again), again) == (type(value), value)
    assert world.effects == ["done"]


def test_call_tells_a_replay_from_a_run() -> None:
    """C37: the first call says that it ran, all others that they are replays, even where the value is None."""
    world = World()
    told = [world.guard.call(lambda: None, scope=SCOPE, key=KEY).replayed for _ in range(3)]
    assert told == [False, True, True]
    assert (world.notebook.counts["claimed"], world.notebook.counts["replayed"]) == (1, 2)


def test_the_running_operation_is_found_by_its_handler() -> None:
    """A handler finds its operation, and nothing finds one outside."""
    world = World()
    assert world.run(lambda: current_operation().attempt) == 1
    with pytest.raises(LookupError, match="guarded handler"):
        current_operation()


def test_duplicates_are_told_apart_by_errors() -> None:
    """P3, P4, P7: run says by its error whether to wait, to look the operation up, or to use another key."""
    world = World()
    operation = world.own()
    with pytest.raises(OperationInProgress) as running:
        world.run(world.effect)
    assert (running.value.http_status, running.value.retry_after, running.value.safe_new_key) == (409, 1, False)
    with pytest.raises(RequestMismatch) as other:
        world.run(world.effect, request=2)
    assert (other.value.http_status, other.value.safe_new_key) == (422, True)
    operation.suspend()
    with pytest.raises(OperationUnresolved, match=operation.operation) as unknown:
        world.run(world.effect)
    assert (unknown.value.http_status, unknown.value.safe_new_key) == (409, False)
    assert world.effects == []


def test_an_exception_leaves_the_outcome_unknown() -> None:
    """C10, P10: an exception after the effect does not free the key; the operation is listed as unresolved."""
    world = World()

    def handler() -> None:
        world.effect()
        raise OSError("the receipt was not sent")

    with pytest.raises(OSError, match="receipt"):
        world.run(handler)
    with pytest.raises(OperationUnresolved):
        world.run(handler)
    assert world.effects == ["done"]
    [view] = world.guard.operations(unresolved=True)
    assert "receipt" in view.record.error


def test_not_applied_frees_the_key() -> None:
    """C10, C11, P10: a handler that proves that nothing happened may run again; done answers only after done."""
    world = World()

    def refuses() -> None:
        raise NotApplied

    with pytest.raises(NotApplied):
        world.run(refuses)
    assert world.run(world.effect, request=2) == "done"
    assert world.run(world.effect, request=2) == "done"
    assert world.effects == ["done"]


def test_declared_errors_are_proof() -> None:
    """P10: not_applied_errors free the key as NotApplied does; no other exception does."""
    world = World(not_applied_errors=(ConnectionRefusedError,))

    def refused() -> None:
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        world.run(refused)
    assert world.run(world.effect) == "done"


def test_final_errors_are_answers() -> None:
    """T25, C39: a declared refusal finishes the operation, and its replay names the first error."""

    class CardDeclined(Exception):
        pass

    world = World(final_errors=(CardDeclined,))

    def declined() -> None:
        world.effect()
        raise CardDeclined("insufficient funds")

    with pytest.raises(CardDeclined):
        world.run(declined)
    with pytest.raises(RecordedFailure, match="CardDeclined: insufficient funds"):
        world.run(declined)
    assert world.effects == ["done"]
    replay = world.begin()
    assert isinstance(replay.result, Failure)


@pytest.mark.parametrize("exit_", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_way_out_frees_the_key(exit_: type[BaseException]) -> None:
    """C07, T07: whatever takes the handler down, the operation is suspended, not freed and not stuck in progress."""
    world = World()

    def handler() -> None:
        raise exit_

    with pytest.raises(exit_):
        world.run(handler)
    assert world.view().unresolved


def test_leaving_without_an_answer_is_an_error() -> None:
    """An operation that is left without a move is suspended, and its caller is told."""
    world = World()
    with pytest.raises(NotCompleted), world.own():
        pass
    assert world.view().unresolved


def test_an_operation_ends_once() -> None:
    """A move after the last one is an error of the caller's, and changes nothing."""
    world = World()
    operation = world.own()
    operation.complete(1)
    for move in (operation.abandon, operation.heartbeat, lambda: operation.complete(2), lambda: operation.fail(2)):
        with pytest.raises(OperationEnded):
            move()
    assert world.begin().result == 1


def test_a_value_that_can_not_be_kept_leaves_the_operation_open() -> None:
    """T12: complete refuses what it can't store, and the owner may complete with something else."""
    world = World()
    operation = world.own()
    with pytest.raises(EncodingError):
        operation.complete(object())
    operation.complete("re_1")
    assert world.begin().result == "re_1"


def test_run_finishes_even_if_the_value_can_not_be_kept() -> None:
    """T12, P9: the first caller gets the value; duplicates are told that it is done, and nothing runs again."""
    world = World(recovery=rerun)
    value = object()
    assert world.run(lambda: world.effect(value)) is value
    with pytest.raises(ResultOmitted, match="could not be kept") as caught:
        world.run(world.effect)
    assert (caught.value.safe_new_key, caught.value.operation) == (False, world.view().operation)
    assert dict(caught.value.problem().headers)["idempotency-outcome"] == "final"
    assert world.effects == [value]
    assert world.view().state is State.COMPLETED


def generates() -> Iterator[int]:
    yield 1


async def waits() -> int:
    return 1


@pytest.mark.parametrize("handler", [generates, waits, partial(waits)], ids=["generator", "coroutine", "partial"])
def test_a_handler_that_its_call_does_not_run_is_refused(handler: object) -> None:
    """C51: run refuses a generator or coroutine function before anything is claimed."""
    world = World()
    with pytest.raises(TypeError):
        world.run(handler)
    assert world.guard.lookup(SCOPE, KEY) is None


LAZY: dict[str, Callable[[], object]] = {
    "generator": lambda: generates(),  # noqa: PLW0108 - the call is what matters
    "coroutine": lambda: waits(),  # noqa: PLW0108 - the call is what matters
    "map": lambda: map(str, [1]),
    "filter": lambda: filter(str, [1]),
    "zip": lambda: zip(map(str, [1]), strict=True),
    "enumerate": lambda: enumerate(generates()),
    "chain": lambda: itertools.chain(map(str, [1])),
    "starmap": lambda: itertools.starmap(max, [(1, 2)]),
    "pairwise": lambda: itertools.pairwise(generates()),
}


@pytest.mark.parametrize("handler", LAZY.values(), ids=LAZY)
def test_a_value_that_is_still_to_run_completes_nothing(handler: object) -> None:
    """C51: an operation is not completed by what has not run, such as a coroutine or a map; its outcome is unknown."""
    world = World()
    with pytest.raises(TypeError, match="has not run"):
        world.run(handler)
    assert world.view().unresolved


# -- lost messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", [["lost"], ["drop"], ["lost", "lost"], ["drop", "lost"]])
@pytest.mark.parametrize("end", ["complete", "fail", "abandon", "suspend"])
def test_a_last_move_survives_lost_messages(end: str, faults: list[str]) -> None:
    """P9, P13: a move whose acknowledgement was lost is sent again under its etag, and is carried out once."""
    world = World()
    operation = world.own()
    world.faults(*faults)
    getattr(operation, end)()
    after = {"complete": Replay, "fail": Replay, "abandon": Operation, "suspend": Unresolved}
    assert isinstance(world.begin(), after[end])


def test_a_move_goes_on_from_an_unconfirmed_heartbeat() -> None:
    """P13: a refusal that shows the owner's own unconfirmed write is not a loss."""
    world = World()
    operation = world.own()
    for _ in range(2):
        world.faults("lost", "lost", "lost")
        with pytest.raises(StoreUnavailable):
            operation.heartbeat()
    operation.checkpoint("charge", 1)
    operation.complete(5)
    assert world.begin().result == 5


def test_the_caller_gets_a_value_that_the_store_did_not_confirm() -> None:
    """P9: the effect is done and the store is down: the caller gets the value, and complete is repeated behind."""
    world = World()
    world.faults("ok", "drop", "drop", "drop")
    assert world.run(world.effect) == "done"
    assert isinstance(world.begin(), InProgress)
    world.store.plan.down = True
    world.clock.advance(200)
    world.store.plan.down = False
    world.clock.advance(31)
    assert world.run(world.effect) == "done"
    assert world.effects == ["done"]


def test_after_an_unanswered_complete_only_the_same_may_follow() -> None:
    """P9: once a complete may have landed, the operation can't be failed, freed or completed otherwise."""
    world = World()
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        operation.complete(1)
    for move in (operation.abandon, operation.heartbeat, lambda: operation.complete(2), lambda: operation.fail(1)):
        with pytest.raises(StoreUnavailable, match="only the same"):
            move()
    operation.complete(1)
    assert world.begin().result == 1


def test_an_owner_that_died_with_an_unstored_result_leaves_it_unresolved() -> None:
    """P9, P7: when the process dies before its result is stored, the record lapses and is not freed."""
    world = World()
    world.faults("ok", "drop", "drop", "drop")
    world.run(world.effect)
    world.guard._runtime.unanswered.forget()  # the process is gone
    world.clock.advance(300)
    assert isinstance(world.begin(guard=world.another()), Unresolved)


def test_a_lost_abandon_that_meets_a_rival_is_done() -> None:
    """P13: the key was freed and taken before the acknowledgement came: no error, and the rival keeps it."""
    world = World()
    operation = world.own()
    rivals: list[object] = []
    world.faults("lost", lambda _: rivals.append(world.begin(request=2, guard=world.another())))
    operation.abandon()
    assert isinstance(rivals[0], Operation)
    rivals[0].complete(1)


def test_the_loser_of_a_complete_gets_what_a_duplicate_gets() -> None:
    """P5: a late owner's value changes nothing; its caller gets the taker's answer, the observer the late value."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.own().complete("taker's")
        return "late"

    assert world.run(slow) == "taker's"
    [event] = [event for event in world.notebook.events if event.name == "result_lost"]
    assert event.value == "late"


def test_the_loser_of_a_complete_is_told_to_wait_for_the_taker() -> None:
    """P5: while the taker still runs, the late owner's caller is told that the operation is in progress."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.own()
        return "late"

    with pytest.raises(OperationInProgress):
        world.run(slow)


# -- abandon ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("touch", ["checkpoint", "downstream_key", "downstream_uuid"])
def test_abandon_frees_only_an_untouched_claim(touch: str) -> None:
    """P10: after a checkpoint or a downstream key "nothing happened" is no longer sure, and the key stays."""
    world = World()
    operation = world.own()
    getattr(operation, touch)("charge")
    operation.abandon()
    assert world.view().unresolved
    assert not operation.freed
    [event] = [event for event in world.notebook.events if event.name == "not_freed"]
    assert event.detail == "a downstream key or a checkpoint was taken before"
    assert world.notebook.counts["abandoned"] == 0


def test_abandon_of_a_second_attempt_does_not_free_the_first_ones_effect() -> None:
    """P10: what attempt 2 knows says nothing about attempt 1."""
    world = World(recovery=rerun)
    first = world.own()
    first.checkpoint("charge", 7)
    world.crash(first)
    second = world.own()
    second.abandon()
    view = world.view()
    assert (view.state, view.unresolved, view.record.recovery_point) == (State.ACCEPTED, True, "charge")
    assert not second.freed
    assert world.notebook.events[-1].detail == "this is attempt 2, and an earlier one may have taken effect"
    world.clock.advance(2)
    assert world.own().attempt == 3


def test_abandon_gives_an_operators_mark_back() -> None:
    """P10: a claim on a released record that did nothing leaves it released; one that began something does not."""
    for touched in (False, True):
        world = World()
        world.crashed()
        world.guard.release(world.view(), who="ann", why="checked")
        operation = world.own()
        if touched:
            operation.downstream_key()
        operation.abandon()
        assert (world.view().record.released is Released.OPERATOR) is not touched
        assert operation.freed is not touched


def test_a_freed_record_is_kept_for_a_lease_and_then_purged() -> None:
    """P6: released-as-new is kept one lease, so that late messages find it, and is purged after that."""
    world = World(lease=300)
    operation = world.own()
    before = operation.freed
    operation.abandon()
    assert (before, operation.freed) == (False, True)
    assert world.view().record.released is Released.AS_NEW
    world.clock.advance(300)
    assert world.guard.purge() == 0
    world.clock.advance(0.001)
    assert world.guard.purge() == 1


def test_a_late_abandon_leaves_the_takers_claim() -> None:
    """C06, P5: the first owner's clean-up does not remove the second one's claim, so a third one is refused."""
    world = World(recovery=rerun)
    first = world.crashed()
    world.own()
    with pytest.raises(OwnershipLost):
        first.abandon()
    assert isinstance(world.begin(), InProgress)
