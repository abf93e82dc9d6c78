"""An operator's moves, look-ups, namespaces, and what observers are told."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from notwice import (
    ForceRequired,
    InProgress,
    InvalidKey,
    Operation,
    OwnershipLost,
    RecordChanged,
    RecordedFailure,
    Result,
    ResultKind,
    State,
)
from tests.unit.worlds import KEY, SCOPE, World

ANSWER = Result(ResultKind.HTTP, b"sorry", 500)


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


@pytest.mark.parametrize(("who", "why", "kinds"), [(5, "x", "int and str"), ("ann", ["x"], "str and list")])
def test_who_and_why_are_texts(who: Any, why: Any, kinds: str) -> None:
    """C52: what the audit trail could not be read with again is refused, and nothing changes."""
    world = World()
    world.crashed()
    view = world.view()
    sentence = f"who and why are texts, not {kinds}: the record keeps no others"
    for move in (world.guard.release, partial(world.guard.resolve, result=1)):
        with pytest.raises(TypeError) as caught:
            move(view, who=who, why=why)
        assert str(caught.value) == sentence
    assert world.view().record == view.record


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
    with pytest.raises(InvalidKey, match="empty text is nobody"):
        world.guard.within("")
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

    def fails() -> None:
        raise ValueError("card 4242 was refused")

    with pytest.raises(ValueError, match="4242"):
        world.guard.run(fails, scope=SCOPE, key="other")
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


def test_what_is_no_record_can_not_be_moved() -> None:
    """An operation that was looked up and is absent is refused with a sentence."""
    world = World()
    for move in (world.guard.release, lambda view, **by: world.guard.resolve(view, 1, **by)):
        with pytest.raises(TypeError, match="absent"):
            move(world.guard.lookup(SCOPE, KEY), who="ann", why="x")
