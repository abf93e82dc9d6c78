"""The owner's moves, the heartbeat, and an operator's moves."""

from __future__ import annotations

import dataclasses
import threading
from typing import cast

import pytest

from notwice import (
    EncodingError,
    Failure,
    ForceRequired,
    InProgress,
    NotApplied,
    NotCompleted,
    Operation,
    OperationEnded,
    OperationInProgress,
    OperationUnresolved,
    OwnershipLost,
    RecordChanged,
    RecordedFailure,
    Replay,
    RequestMismatch,
    Result,
    ResultKind,
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
    with pytest.raises(OperationUnresolved) as unknown:
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
    with pytest.raises(EncodingError, match="could not be kept"):
        world.run(world.effect)
    assert world.effects == [value]
    assert world.view().state is State.COMPLETED


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


def test_abandon_of_a_second_attempt_does_not_free_the_first_ones_effect() -> None:
    """P10: what attempt 2 knows says nothing about attempt 1."""
    world = World(recovery=rerun)
    first = world.own()
    first.checkpoint("charge", 7)
    world.crash(first)
    world.own().abandon()
    view = world.view()
    assert (view.state, view.unresolved, view.record.recovery_point) == (State.ACCEPTED, True, "charge")
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


def test_a_freed_record_is_kept_for_a_lease_and_then_purged() -> None:
    """P6: released-as-new is kept one lease, so that late messages find it, and is purged after that."""
    world = World(lease=300)
    world.own().abandon()
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


# -- heartbeat --------------------------------------------------------------------------------------------------------


def test_a_handler_may_outlive_its_lease() -> None:
    """C04, C06, T03: the lease of a running handler is renewed, so that no duplicate enters however long it runs."""
    world = World(recovery=rerun, lease=0.3)

    def slow() -> str:
        for _ in range(20):
            world.clock.advance(0.1)
            assert isinstance(world.begin(), InProgress)
        return "done"

    assert world.run(slow) == "done"


def test_the_heartbeat_stops_after_run_max() -> None:
    """A handler that hangs for longer than run_max loses its lease, and the observer is told."""
    world = World(recovery=rerun, lease=300, run_max=3600)
    world.own()
    world.clock.advance(3599)
    assert isinstance(world.begin(), InProgress)
    world.clock.advance(400)
    assert isinstance(world.begin(), Operation)
    assert world.notebook.counts["heartbeat_stopped"] == 1


def test_a_store_that_is_back_within_the_lease_costs_nothing() -> None:
    """P5: heartbeats that fail are tried again sooner, so a short outage loses no lease."""
    world = World(recovery=rerun, lease=300)
    operation = world.own()
    world.clock.advance(99)
    world.store.plan.down = True
    world.clock.advance(180)
    world.store.plan.down = False
    world.clock.advance(40)
    assert isinstance(world.begin(), InProgress)
    assert world.notebook.counts["heartbeat_failed"] > 1
    operation.complete(1)


def test_an_owner_that_was_overtaken_is_told_by_its_heartbeat() -> None:
    """P5, T18: the renewal of a lost lease overwrites nothing, and the owner knows."""
    world = World(recovery=rerun, lease=300)
    operation = world.own()
    world.store.plan.down = True
    world.clock.advance(301)
    world.store.plan.down = False
    taker = world.own(guard=world.another(recovery=rerun))
    taker.complete("taker's")
    world.clock.advance(100)
    assert operation.lost
    assert world.notebook.counts["ownership_lost"] == 1
    assert world.begin().result == "taker's"
    with pytest.raises(OwnershipLost):
        operation.confirm()


def test_a_lapsed_lease_that_nobody_took_is_renewed() -> None:
    """A paused owner that comes back before anyone took over goes on, and completes."""
    world = World(recovery=rerun)
    operation = world.crashed()
    operation.confirm()
    assert isinstance(world.begin(), InProgress)
    operation.complete(1)


def test_nothing_beats_after_the_end() -> None:
    """C43: a finished operation leaves nothing behind in the heart, and its record is not touched any more."""
    world = World()
    for number in range(100):
        world.guard.begin(SCOPE, str(number)).complete(number)
    calls = world.store.plan.calls
    world.clock.advance(1000)
    assert world.store.plan.calls == calls
    assert world.guard._runtime.heart._buckets == {}


def test_heartbeats_that_are_due_together_share_a_trip() -> None:
    """Two hundred running operations renew their leases in one batch."""
    world = World(lease=300)
    for number in range(200):
        world.guard.begin(SCOPE, str(number))
    calls = world.store.plan.calls
    world.clock.advance(101)
    assert world.store.plan.calls == calls + 1


def test_heartbeats_race_moves() -> None:
    """P13: a heartbeat and the last move of one operation never take each other for a rival."""
    world = World()
    for number in range(200):
        operation = world.guard.begin(SCOPE, str(number))
        errors: list[BaseException] = []

        def beat(operation: Operation = operation, errors: list[BaseException] = errors) -> None:
            try:
                for _ in range(20):
                    operation.heartbeat()
            except OperationEnded:
                pass
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
                errors.append(error)

        thread = threading.Thread(target=beat)
        thread.start()
        operation.complete(number)
        thread.join()
        assert errors == []
        assert world.guard.begin(SCOPE, str(number)).result == number


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_a_waiter_gets_the_answer_when_it_is_there() -> None:
    """C03, P4: with a wait of two seconds, a duplicate of a half-second handler gets its replay right at its end."""
    world = World(wait=2)
    operation = world.own()
    world.clock.call_later(0.5, lambda: operation.complete("x"))
    assert world.begin().result == "x"
    assert world.clock.monotonic() == pytest.approx(0.5)


def test_a_waiter_gives_up_in_time() -> None:
    """C03, P4: the wait is bounded, and then the duplicate is refused with a time to wait."""
    world = World(wait=0.1)
    operation = world.own()
    world.clock.call_later(0.5, lambda: operation.complete("x"))
    outcome = world.begin()
    assert isinstance(outcome, InProgress)
    assert outcome.retry_after >= 1
    assert world.clock.monotonic() == pytest.approx(0.1)


def test_a_waiter_may_become_the_owner() -> None:
    """C03: if the owner abandons, exactly one of the waiters runs, and the others go on waiting for it."""
    world = World(wait=10)
    operation = world.own()
    world.clock.call_later(0.5, operation.abandon)
    outcomes = [world.begin()]
    assert isinstance(outcomes[0], Operation)
    world.clock.call_later(0.5, lambda: outcomes[0].complete("second"))
    assert world.begin().result == "second"


def test_a_waiter_is_compared_first_and_last() -> None:
    """P3, C19: another request does not wait; and what a waiter finds when it wakes is compared again."""
    world = World(wait=10)
    operation = world.own()
    assert world.begin(request=2).problem().status == 422
    assert world.clock.monotonic() == 0

    def becomes_another() -> None:
        operation.abandon()
        world.own(request=2).complete("other's")

    world.clock.call_later(0.5, becomes_another)
    assert world.begin().problem().status == 422


def test_waiters_leave_nothing_behind() -> None:
    """C43: the table of waiters is empty once nobody waits."""
    world = World(wait=1)
    world.own()
    world.begin()
    assert world.guard._runtime.waiters._waiting == {}


# -- an operator's moves ----------------------------------------------------------------------------------------------


def test_resolve_finishes_an_unresolved_operation() -> None:
    """P7, C52: what a person found out becomes the answer of every duplicate, and the record says who and why."""
    world = World()
    world.crashed()
    world.guard.resolve(world.view(), {"id": "re_1"}, who="ann", why="seen at the provider")
    assert world.begin().result == {"id": "re_1"}
    [note] = world.view().record.audit
    assert (note.who, note.why, note.action, note.when_ms) == (
        "ann",
        "seen at the provider",
        "resolved as completed",
        world.clock.wall_ms(),
    )


def test_resolve_may_refuse() -> None:
    """An operation may be resolved as failed; duplicates get the refusal."""
    world = World()
    world.crashed()
    world.guard.resolve(world.view(), failed="declined", who="ann", why="seen at the provider")
    with pytest.raises(RecordedFailure):
        world.run(world.effect)


def test_an_operators_move_is_on_the_record_that_was_shown() -> None:
    """A record that changed since it was shown is left alone, and the person is told to look again."""
    world = World()
    operation = world.crashed()
    shown = world.view()
    operation.heartbeat()
    with pytest.raises(RecordChanged):
        world.guard.release(shown, who="ann", why="checked")
    assert isinstance(world.begin(), InProgress)


@pytest.mark.parametrize("state", ["running", "completed", "free"])
def test_live_and_finished_records_need_force(state: str) -> None:
    """C52, P10: a live lease, a finished record and a freed one are changed only with force."""
    world = World()
    operation = world.own()
    if state == "completed":
        operation.complete(1)
    elif state == "free":
        operation.abandon()
    for move in (world.guard.release, lambda view, **by: world.guard.resolve(view, 2, **by)):
        with pytest.raises(ForceRequired, match="force=True"):
            move(world.view(), who="ann", why="x")
    world.guard.release(world.view(), who="ann", why="x", force=True)
    assert world.own().attempt == 2
    if state == "running":
        with pytest.raises(OwnershipLost):
            operation.complete(2)


def test_a_release_can_start_from_the_start_with_new_keys() -> None:
    """from_start drops the steps, new_downstream_key changes what the next system sees; neither happens unasked."""
    world = World()
    operation = world.own()
    operation.checkpoint("charge", 1)
    before = operation.downstream_key("charge")
    world.crash(operation)
    world.guard.release(world.view(), who="ann", why="x")
    kept = world.own()
    assert (kept.progress, kept.downstream_key("charge")) == ({"charge": 1}, before)
    world.crash(kept)
    world.guard.release(world.view(), who="ann", why="x", from_start=True, new_downstream_key=True)
    anew = world.own()
    assert (anew.progress, anew.recovery_point) == ({}, "")
    assert anew.downstream_key("charge") != before


def test_a_release_keeps_the_fingerprint() -> None:
    """P3: only the same request may follow a release."""
    world = World()
    world.crashed()
    world.guard.release(world.view(), who="ann", why="x")
    assert world.begin(request=2).problem().status == 422


def test_an_operator_must_say_who_and_why() -> None:
    """C52: no move without an audit line."""
    world = World()
    world.crashed()
    with pytest.raises(ValueError, match="who and why"):
        world.guard.release(world.view(), who="ann", why="")


def test_an_operators_move_survives_lost_messages() -> None:
    """P13: a release whose acknowledgement was lost is carried out once, with one audit line."""
    world = World()
    world.crashed()
    shown = world.view()
    world.faults("ok", "lost", "drop")
    world.guard.release(shown, who="ann", why="x")
    assert len(world.view().record.audit) == 1


# -- namespaces and look-ups ------------------------------------------------------------------------------------------


def test_namespaces_never_meet() -> None:
    """P11, C21: two tenants with one key have two operations; neither sees, blocks or lists the other's."""
    world = World()
    one, two = world.guard.within("tenant-1"), world.guard.within("tenant-2")
    first, second = one.begin(SCOPE, KEY, request=1), two.begin(SCOPE, KEY, request=2)
    assert isinstance(first, Operation)
    assert isinstance(second, Operation)
    assert first.operation == second.operation
    first.complete("one's")
    assert two.lookup(SCOPE, KEY).state is State.IN_PROGRESS
    assert [view.record.namespace for view in two.operations()] == ["tenant-2"]
    assert len(list(world.guard.operations(all_namespaces=True))) == 2
    assert first.downstream_key() != second.downstream_key()


def test_a_look_up_finds_what_is_there_and_says_what_is_not() -> None:
    """P12: state, answer and lapse are shown; what is absent is None."""
    world = World()
    assert world.guard.lookup(SCOPE, KEY) is None
    operation = world.own()
    assert (world.view().lapsed, world.view().answered) == (False, False)
    world.crash(operation)
    assert (world.view().lapsed, world.view().unresolved) == (True, True)
    operation.suspend(answer=ANSWER)
    assert (world.view().answered, world.view().result) == (True, ANSWER)


def test_operations_are_filtered() -> None:
    """C10, C52: by state, by scope, by age, by id and by being unresolved, page after page."""
    world = World()
    for number in range(250):
        world.guard.begin(("refund", str(number)), KEY).complete(number)
    world.clock.advance(60)
    open_ = world.guard.begin("payout:1", KEY)
    assert len(list(world.guard.operations())) == 251
    assert len(list(world.guard.operations(state="completed"))) == 250
    assert len(list(world.guard.operations(scope_prefix="payout:"))) == 1
    assert len(list(world.guard.operations(older_than=60))) == 250
    assert len(list(world.guard.operations(operation=open_.operation))) == 1
    assert list(world.guard.operations(unresolved=True)) == []


def test_purge_takes_only_what_expired() -> None:
    """P6, C42: in bounded batches, and a record that was claimed again meanwhile survives."""
    world = World(retention=10)
    for number in range(30):
        world.guard.begin(SCOPE, str(number)).complete(number)
    unresolved = world.guard.begin(SCOPE, "open")
    world.clock.advance(11)
    again = world.guard.begin(SCOPE, "7")
    assert [world.guard.purge(20), world.guard.purge(20), world.guard.purge(20)] == [20, 9, 0]
    assert {view.operation for view in world.guard.operations()} == {again.operation, unresolved.operation}


def test_events_hold_no_key_and_no_body() -> None:
    """P15: what observers are told, and may log, names operations by their id only."""
    world = World()
    world.run(lambda: "card 4242", request={"card": "4242"})
    world.begin(request=2)
    told = "".join(str(event._replace(value=None)) for event in world.notebook.events)
    assert KEY not in told.replace("key_reused", "")
    assert "4242" not in told


def test_outcomes_are_problems() -> None:
    """Refusals are problem+json with the operation, its state and what to do next."""
    world = World()
    world.own()
    status, headers, body = world.begin().problem()
    assert status == 409
    assert dict(headers)["retry-after"] == "1"
    assert dict(headers)["idempotency-outcome"] == "unknown"
    assert dict(headers)["cache-control"] == "no-store"
    assert b'"code":"in_progress"' in body
    assert b'"state":"in_progress"' in body


def test_outcomes_are_values() -> None:
    """What begin gives can't be changed."""
    world = World()
    world.own()
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.begin().retry_after = 5
