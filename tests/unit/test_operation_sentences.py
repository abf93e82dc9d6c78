"""What an operation says of itself, and the sentences of its refusals: an operator, or a log, has nothing else."""

from __future__ import annotations

import copy
import pickle
import sqlite3
import threading
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from notwice import (
    NOT_APPLIED,
    Guard,
    NotApplied,
    NotCompleted,
    Operation,
    OperationEnded,
    OwnershipLost,
    Policy,
    ProgressFull,
    Result,
    ResultKind,
    State,
    StoreUnavailable,
    current_operation,
    reconcile,
    rerun,
)
from notwice import core as rules
from notwice.identity import downstream_key, downstream_uuid
from notwice.model import Released
from notwice.operation_base import CURRENT
from notwice.stores.sqlite import SqliteStore
from tests.unit.worlds import KEY, SCOPE, Notebook, World


def refusal(kind: type[BaseException], move: Callable[[], object]) -> str:
    """The sentence that a move is refused with."""
    with pytest.raises(kind) as caught:
        move()
    return str(caught.value)


# -- what it is -------------------------------------------------------------------------------------------------------


def test_an_operation_shows_its_record() -> None:
    """Each property is the record's own; a view's times are those of the creation."""
    world = World()
    world.clock.advance(7)
    operation = world.own()
    record, view = operation.view.record, operation.view
    assert (operation.namespace, operation.scope, operation.key) == ("", SCOPE, KEY)
    assert (operation.operation, operation.attempt, operation.recovery_point) == (record.id, 1, "")
    assert (view.written_ms, view.now_ms, view.age_ms) == (record.created_ms, record.created_ms, 0)
    assert record.created_ms > 0
    assert operation.policy is operation._policy
    assert operation.guarded
    flags = (operation.lost, operation.ended, operation.finishing, operation.freed, operation.recovered)
    assert not any(flags)


def test_a_downstream_key_is_that_of_the_record() -> None:
    """T06: the next system's key follows from namespace, scope, key, generation and name, in both its forms."""
    world = World(recovery=rerun)
    first = world.crashed()
    assert first.downstream_key() == downstream_key(namespace="", scope=SCOPE, key=KEY, generation=0, name="")
    assert first.downstream_uuid() == downstream_uuid(namespace="", scope=SCOPE, key=KEY, generation=0, name="")
    world.guard.release(world.view(), who="ann", why="checked", new_downstream_key=True)
    second = world.own()
    names: dict[str, Any] = {"namespace": "", "scope": SCOPE, "key": KEY, "generation": 1, "name": "mail"}
    assert second.downstream_key("mail") == downstream_key(**names)
    assert second.downstream_uuid("mail") == downstream_uuid(**names)
    assert isinstance(second.downstream_uuid(), uuid.UUID)


def test_what_a_recovered_operation_knows() -> None:
    """A second attempt finds what the first one checkpointed, its data in their own types."""
    world = World(recovery=rerun)
    first = world.own()
    first.checkpoint("charge", {"id": 7})
    first.checkpoint("mail")
    world.crash(first)
    second = world.own()
    assert (second.recovered, second.attempt, second.recovery_point) == (True, 2, "mail")
    assert second.progress == {"charge": {"id": 7}, "mail": None}
    assert not first.recovered


def test_a_request_that_was_not_stored() -> None:
    """The error says which setting keeps requests."""
    operation = World().own()
    assert refusal(LookupError, lambda: operation.request) == (
        f"operation {operation.operation} keeps no request: begin it with Policy(store_request=True)"
    )
    assert World(store_request=True).own({"amount": 5}).request == {"amount": 5}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_operation_has_one_owner(copied: Callable[[object], object]) -> None:
    """P5: a copy in another process would be a second owner; the error says what to hand on instead."""
    assert refusal(TypeError, lambda: copied(World().own())) == (
        "an operation can't be copied or pickled, for it has one owner; hand on its scope and key instead"
    )


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["", None, 5, b"charge"])
def test_a_checkpoint_needs_a_name(point: Any) -> None:
    """What can't name a recovery point is shown in the refusal, and nothing is kept."""
    world = World()
    operation = world.own()
    assert refusal(ValueError, lambda: operation.checkpoint(point)) == (
        f"a recovery point is named by a text that is not empty, not by {point!r}"
    )
    assert world.view().record.progress == ()


def test_too_many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal counts what would be kept, and says what to do about it; a full record stays as it was."""
    monkeypatch.setattr(rules, "PROGRESS_POINTS_MAX", 2)
    world = World()
    operation = world.own()
    operation.checkpoint("a", 1)
    operation.checkpoint("bc", "x")
    size = len("a") + len(b"j1") + len("bc") + len(b'j"x"') + len("d") + len(b"jnull")
    assert refusal(ProgressFull, lambda: operation.checkpoint("d")) == (
        f"operation {operation.operation} would keep 3 steps and checkpoints in {size} bytes, and "
        f"2 in {rules.PROGRESS_BYTES_MAX} are the most. Keep references to large data, "
        "put the steps of a loop into one step around it, or make each turn an operation of its own"
    )
    assert list(operation.progress) == ["a", "bc"]


def test_a_checkpoint_that_does_not_fit_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: a refused checkpoint is no sign of an effect, so that an abandon still frees the key."""
    monkeypatch.setattr(rules, "PROGRESS_POINTS_MAX", 0)
    operation = World().own()
    with pytest.raises(ProgressFull):
        operation.checkpoint("a")
    operation.abandon()
    assert operation.freed


@pytest.mark.parametrize(
    ("end", "state"), [("complete", "completed"), ("fail", "failed"), ("suspend", "accepted"), ("abandon", "accepted")]
)
def test_a_move_after_the_end(end: str, state: str) -> None:
    """The refusal says which operation is over, and what it became."""
    operation = World().own()
    getattr(operation, end)()
    sentence = f"operation {operation.operation} is over: it is {state} already"
    assert refusal(OperationEnded, operation.heartbeat) == sentence
    assert refusal(OperationEnded, lambda: operation.complete(1)) == sentence


@pytest.mark.parametrize("end", ["complete", "fail", "abandon", "suspend"])
def test_a_last_move_that_was_not_confirmed_is_repeated_behind(end: str) -> None:
    """P9: whichever end it is, the operation is over for its owner, and the store gets it later."""
    world = World()
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        getattr(operation, end)()
    assert operation.ended
    assert world.view().state is State.IN_PROGRESS
    world.clock.advance(1)
    assert world.view().state is not State.IN_PROGRESS
    assert world.view().record.terms == operation.view.record.terms


def test_an_abandon_that_gives_a_mark_back_is_told_as_one() -> None:
    """P10: a claim on a released record that did nothing leaves the key free, and that is what is told."""
    world = World()
    world.crashed()
    world.guard.release(world.view(), who="ann", why="checked")
    world.own().abandon()
    assert (world.notebook.events[-1].name, world.notebook.events[-1].detail) == ("abandoned", "")


def test_a_handler_that_may_start_after_reconcile_is_told_once() -> None:
    """P7: the claim is told, and not the write that confirms it once the answer is there."""
    world = World(recovery=reconcile(lambda _: NOT_APPLIED))
    world.own().suspend()
    world.clock.advance(301)
    assert isinstance(world.begin(), Operation)
    assert [event.name for event in world.notebook.events] == ["claimed", "suspended", "reclaimed"]


@pytest.mark.parametrize(("end", "lost"), [("complete", 1), ("fail", 1), ("abandon", 0), ("suspend", 0)])
def test_an_end_that_meets_a_taker_when_it_is_repeated(end: str, lost: int) -> None:
    """P5, P13: who let go of the operation has lost nothing to its taker; who finished it has, and it is told."""
    world = World(recovery=rerun)
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        getattr(operation, end)()
    world.store.plan.down = True
    world.clock.advance(301)
    world.store.plan.down = False
    taker = world.own(guard=world.another(recovery=rerun))
    assert taker.attempt == 2
    world.clock.advance(60)
    assert world.notebook.counts["ownership_lost"] == lost
    taker.complete("taker's")
    assert world.begin().result == "taker's"


@pytest.mark.parametrize("end", ["complete", "fail", "abandon", "suspend"])
def test_whoever_waits_is_woken_by_each_end(end: str) -> None:
    """C03: a waiter looks again as soon as the operation is over, however it ends."""
    world, woken = World(), threading.Event()
    operation = world.own()
    world.guard._runtime.waiters.add(("", operation.operation), woken.set)
    operation.heartbeat()
    before = woken.is_set()
    getattr(operation, end)()
    assert (before, woken.is_set()) == (False, True)


def test_what_an_abandoned_record_says() -> None:
    """P10: the proof that nothing happened stands in the record, also where it frees the key."""
    world = World(not_applied_errors=(ConnectionRefusedError,))

    def refused() -> None:
        raise ConnectionRefusedError("no route")

    with pytest.raises(ConnectionRefusedError):
        world.run(refused)
    assert world.view().record.error == "abandoned: ConnectionRefusedError: no route"
    other = World()
    other.own().abandon()
    assert other.view().record.error == "abandoned"


def test_a_move_after_one_that_was_not_confirmed() -> None:
    """P9: the refusal names the operation, and what may follow."""
    world = World()
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        operation.complete(1)
    assert (operation.ended, operation.finishing, operation.freed) == (True, True, False)
    assert refusal(StoreUnavailable, operation.heartbeat) == (
        f"the store has not confirmed the last move of operation {operation.operation}; only the same may follow"
    )
    assert [event.detail for event in world.notebook.events if event.name == "unanswered"] == ["StoreUnavailable"]


def test_an_unconfirmed_heartbeat_is_no_last_move() -> None:
    """Nothing is repeated behind the owner for it, and nobody is told that an end is open."""
    world = World()
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        operation.heartbeat()
    assert (operation.ended, world.notebook.counts["unanswered"]) == (False, 0)
    operation.complete(1)


def test_an_abandon_that_was_not_confirmed() -> None:
    """P9: it is over and it frees the key, as far as its owner knows; it finishes nothing."""
    world = World()
    operation = world.own()
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        operation.abandon()
    assert (operation.ended, operation.finishing, operation.freed) == (True, False, True)


def test_a_fork_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """T08: in a forked child the parent's operation moves nothing, and leaving it there does nothing either."""
    world = World()
    operation = world.own()
    monkeypatch.setattr(operation._runtime, "process", object())
    sentence = (
        f"operation {operation.operation} belongs to the process that began it, and this is a fork of that one. "
        "Nothing changed: end it there, or begin the operation here under a scope or key of its own"
    )
    assert refusal(OperationEnded, operation.heartbeat) == sentence
    assert refusal(OperationEnded, lambda: operation.step("a", lambda: 1)) == sentence
    with operation:
        pass
    assert world.view().state is State.IN_PROGRESS


# -- ways out ---------------------------------------------------------------------------------------------------------


def test_leaving_without_a_move() -> None:
    """C10: the caller is told that it is suspended, and the record says why."""
    world = World()
    operation = world.own()

    def leaves() -> None:
        with operation:
            pass

    assert refusal(NotCompleted, leaves) == (
        f"operation {operation.operation} was left without an answer; it is suspended. End its handler with "
        "complete(...), or with fail, abandon or suspend"
    )
    assert world.view().record.error == "left without an answer"
    assert world.notebook.events[-1].name == "suspended"
    assert world.notebook.events[-1].detail == ""


@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (OSError("no receipt"), "OSError: no receipt", "OSError"),
        (OSError(), "OSError", "OSError"),
        ("why", "why", ""),
    ],
    ids=repr,
)
def test_what_a_suspended_record_says(error: object, told: str, kind: str) -> None:
    """P15: the record holds the error's kind and text, the event no more than its kind."""
    world = World()
    world.own().suspend(error)
    assert world.view().record.error == told
    assert (world.notebook.events[-1].name, world.notebook.events[-1].detail) == ("suspended", kind)


def test_an_answer_that_was_sent_is_kept() -> None:
    """C28: what the caller of a suspended operation saw is replayed to its duplicates."""
    world = World()
    answer = Result(ResultKind.HTTP, b"sorry", 500)
    world.own().suspend("why", answer)
    assert world.view().record.result == answer


def test_each_end_is_told_once() -> None:
    """An observer hears of each last move by its name, and of no other move."""
    ends: list[tuple[Callable[[Operation], object], str]] = [
        (lambda own: own.complete(1), "completed"),
        (lambda own: own.omit(), "completed"),
        (lambda own: own.fail(1), "failed"),
        (lambda own: own.abandon(), "abandoned"),
        (lambda own: own.suspend(), "suspended"),
    ]
    for end, name in ends:
        world = World()
        operation = world.own()
        operation.heartbeat()
        operation.confirm()
        operation.checkpoint("a")
        operation = operation if name != "abandoned" else World.own(world := World())
        end(operation)
        assert [event.name for event in world.notebook.events] == ["claimed", name]
        assert world.notebook.events[-1].detail == ""


def test_a_record_that_is_completed_says_nothing_against_it() -> None:
    """An operator who lists what went wrong finds only what did."""
    world = World()
    world.own().complete(1)
    assert world.view().record.error == ""


def test_why_a_result_was_omitted_is_cut_at_the_limit() -> None:
    """What stands in the record is bounded."""
    world = World()
    world.own().omit("x" * (rules.ERROR_CHARACTERS_MAX + 1))
    assert world.view().record.error == "x" * rules.ERROR_CHARACTERS_MAX
    assert world.view().state is State.COMPLETED


@pytest.mark.parametrize(
    ("why", "kept"), [(["a"], "['a']"), (5, "5"), (None, "None"), (OSError("no"), "OSError: no")], ids=repr
)
def test_why_a_result_was_omitted_is_text(why: Any, kept: str) -> None:
    """T12: the effect is done, so whatever is given as the reason, its text is kept and the record can be read."""
    world = World()
    world.own().omit(why)
    assert world.view().record.error == kept


def test_who_lost_it_hears_of_it_once() -> None:
    """P5: the first move after the loss raises it; leaving raises it too, if no move has; then leaving is quiet."""
    world = World(recovery=rerun)
    first = world.crashed()
    second = world.own()
    assert refusal(OwnershipLost, first.heartbeat)
    assert (first.lost, second.lost) == (True, False)
    assert refusal(OwnershipLost, first.confirm) == str(OwnershipLost(first.operation))
    with first:
        pass  # it has been told
    assert world.notebook.counts["ownership_lost"] == 1
    other = World(recovery=rerun)
    late = other.crashed()
    other.own()

    def leaves() -> None:
        with late:
            pass

    assert refusal(OwnershipLost, leaves)


def test_the_current_operation_is_the_inner_one() -> None:
    """Operations nest: the inner one is current within, and the outer one again after it."""
    world, other = World(), World()
    with world.own() as outer:
        with other.own() as inner:
            assert current_operation() is inner
            inner.complete(1)
        assert current_operation() is outer
        outer.complete(1)
    assert refusal(LookupError, current_operation) == (
        "no operation is running here: call this from a guarded handler, or inside `with op:`"
    )


def test_an_operation_that_is_entered_twice_is_current_until_it_is_left() -> None:
    """The token of the first entry counts; after the end nothing is current."""
    operation = World().own()
    with operation:
        operation.__enter__()
        assert current_operation() is operation
        operation.complete(1)
    assert CURRENT.get(None) is None
    with operation:
        assert current_operation() is operation
    assert CURRENT.get(None) is None


def test_leaving_by_not_applied_within_with() -> None:
    """P10: as in run, it frees the key."""
    world = World()
    with pytest.raises(NotApplied), world.own():
        raise NotApplied
    assert world.view().record.released is Released.AS_NEW


def test_leaving_by_an_error_when_the_store_is_down_raises_that_error() -> None:
    """The handler's own error is what its caller needs; the store's would hide it."""
    world = World()
    operation = world.own()

    def leaves() -> None:
        with operation:
            world.store.plan.down = True
            raise OSError("the handler's")

    assert refusal(OSError, leaves) == "the handler's"


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_needs_an_atomic_operation() -> None:
    """T22: a move that can't be committed together with the rows is refused, and says which policy can."""
    operation = World().own()
    for move in (operation.complete, operation.fail, operation.checkpoint):
        sentence = refusal(ValueError, partial(move, "a", transaction=object()))
        assert sentence == (f"operation {operation.operation} takes no transaction: begin it with Policy(atomic=True)")
    operation.complete(1)


def test_an_atomic_operation_needs_a_transaction() -> None:
    """T22: completing it apart from its rows is refused; other ends and heartbeats need none."""
    operation = World(atomic=True).own()
    operation.heartbeat()
    operation.checkpoint("a")
    sentence = f"operation {operation.operation} is atomic: complete it together with its rows, by transaction=..."
    assert refusal(ValueError, lambda: operation.complete(1)) == sentence
    assert refusal(ValueError, operation.omit) == sentence
    operation.fail("no")
    assert operation.finishing


def test_a_later_attempt_is_as_atomic_as_its_policy() -> None:
    """A record that an older release began takes a transaction if the attempt's own policy is atomic."""
    world = World(recovery=rerun)
    world.crashed()
    second = cast("Operation", world.begin(guard=world.another(recovery=rerun, atomic=True)))
    sentence = refusal(BaseException, lambda: second.complete(1, transaction=object()))
    assert "takes no transaction: begin it" not in sentence
    second.complete(1)


def test_an_operation_on_the_callers_transaction(tmp_path: Path) -> None:
    """T22: it goes on there and names no transaction; left without an answer it says what to roll back."""
    path, notebook = tmp_path / "records.db", Notebook()
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True), observer=notebook)
    guard.check()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        operation: Any = guard.begin(SCOPE, KEY, transaction=connection)
        assert refusal(ValueError, lambda: operation.complete(1, transaction=connection)) == (
            f"operation {operation.operation} was begun on a transaction, and goes on there: leave transaction= out"
        )
        assert (operation.ended, operation.finishing) == (False, False)

        def leaves() -> None:
            with operation:
                pass

        assert refusal(NotCompleted, leaves) == (
            f"operation {operation.operation} was left without an answer; roll its transaction back"
        )
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        again: Any = guard.begin(SCOPE, KEY, transaction=connection)
        with again:
            again.complete(5)
            assert (again.ended, again.finishing) == (True, True)
        connection.execute("COMMIT")
    assert guard.call(lambda: pytest.fail("ran again"), scope=SCOPE, key=KEY).result == 5
    guard.close()
