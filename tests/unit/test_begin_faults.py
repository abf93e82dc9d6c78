"""Begins whose messages are lost or late, and whose store is down or slow."""

from __future__ import annotations

import pytest

from notwice import (
    InProgress,
    Operation,
    Policy,
    State,
    StoreUnavailable,
    Unresolved,
    hold,
    rerun,
)
from notwice.model import Op
from notwice.testing import Slow
from tests.unit.worlds import World


@pytest.mark.parametrize("faults", [["lost"], ["drop"], ["drop", "lost"], ["lost", "lost"], ["lost", "drop"]])
def test_a_begin_whose_acknowledgement_was_lost_owns_its_operation(faults: list[str]) -> None:
    """P13: a lost acknowledgement does not turn the owner into its own duplicate, and does not cost an attempt."""
    world = World()
    world.faults(*faults)
    operation = world.own()
    assert operation.attempt == 1
    operation.complete(1)
    assert world.begin().result == 1


def test_a_take_over_whose_acknowledgement_was_lost_owns_its_operation() -> None:
    """P13: the same for a swap."""
    for fault in ("lost", "drop"):
        world = World(recovery=rerun)
        world.crashed()
        world.faults("ok", fault)
        assert world.own().attempt == 2


def test_a_begin_without_an_answer_is_owned_by_the_next_one_of_its_process() -> None:
    """P13: nothing ran under a begin that got no answer, so the next begin of the process goes on with its record."""
    world = World()
    world.faults("lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    assert isinstance(world.begin(guard=world.another()), InProgress)
    assert world.own().attempt == 1


def test_only_one_goes_on_with_an_unanswered_begin() -> None:
    """P1: the etag of an unanswered begin is taken off the list once; all others see a running operation."""
    world = World()
    world.faults("lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    assert [type(world.begin()) for _ in range(3)] == [Operation, InProgress, InProgress]


def test_a_begin_without_an_answer_is_freed_behind_its_caller() -> None:
    """P13, T07: as soon as the store answers again the record is free for any request, of any process."""
    world = World()
    world.faults("lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    world.clock.advance(1)
    assert isinstance(world.begin(request=2, guard=world.another()), Operation)


def test_an_unanswered_take_over_gives_back_what_it_took() -> None:
    """P7, P10: freeing an unanswered claim of a second attempt leaves the first one's unknown outcome unknown."""
    world = World(recovery=rerun)
    first = world.own()
    first.checkpoint("charge")
    world.crash(first)
    world.faults("ok", "lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    world.clock.advance(1)
    view = world.view()
    assert (view.state, view.unresolved, view.record.recovery_point) == (State.ACCEPTED, True, "charge")


def test_a_strict_caller_does_not_go_on_with_a_lax_ones_take_over() -> None:
    """P7: under hold, the record of an unanswered re-run is given back first, and then held."""
    world = World(recovery=rerun)
    world.crashed()
    world.faults("ok", "lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    assert isinstance(world.begin(policy=Policy(recovery=hold)), Unresolved)


def test_an_unanswered_take_over_of_a_released_record_keeps_the_release() -> None:
    """P10: the operator's mark comes back when the claim that used it up did nothing."""
    world = World()
    world.crashed()
    world.guard.release(world.view(), who="ann", why="checked")
    world.faults("ok", "lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        world.begin()
    world.clock.advance(1)
    assert isinstance(world.begin(guard=world.another()), Operation)


def test_a_late_insert_is_freed_when_it_lands() -> None:
    """P13: an insert that is carried out after its begin gave up is found and freed; nobody owns it unknowingly."""
    world = World()
    world.faults("late", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.begin()
    world.clock.advance(2)
    world.store.deliver()
    world.clock.advance(60)
    assert isinstance(world.begin(request=2, guard=world.another()), Operation)


def test_a_begin_that_is_interrupted_leaves_no_owner() -> None:
    """P13: an interrupted begin is settled like an unanswered one."""
    world = World()

    class Stop(BaseException):
        pass

    def interrupt(ops: list[Op]) -> None:
        world.memory.apply(ops)
        raise Stop

    world.faults(interrupt)
    with pytest.raises(Stop):
        world.begin()
    assert world.view().state is State.IN_PROGRESS
    world.clock.advance(1)
    assert isinstance(world.begin(request=2, guard=world.another()), Operation)


# -- the store is down or slow ----------------------------------------------------------------------------------------


def test_a_store_that_is_down_runs_nothing() -> None:
    """P8, C12: the handler does not run, and the error says that the same call may be repeated."""
    world = World()
    world.store.plan.down = True
    with pytest.raises(StoreUnavailable) as caught:
        world.run(world.effect)
    assert world.effects == []
    assert (caught.value.http_status, caught.value.retry_after, caught.value.safe_new_key) == (503, 1, False)


def test_an_answer_that_comes_too_late_runs_nothing() -> None:
    """P8, P13: a claim that was won after store_timeout does not run, and is freed behind the caller."""
    world = World(store_timeout=2)
    world.faults(Slow(2.001))
    with pytest.raises(StoreUnavailable, match="store_timeout"):
        world.run(world.effect)
    assert world.effects == []
    world.clock.advance(1)
    assert isinstance(world.begin(request=2, guard=world.another()), Operation)


def test_a_store_in_time_is_no_failure() -> None:
    """P8: an answer just within store_timeout counts."""
    world = World(store_timeout=2)
    world.faults(Slow(2.0))
    assert world.run(world.effect) == "done"


def test_proceed_runs_unguarded_and_says_so() -> None:
    """P8: only store_failure="proceed" runs without a guard; the operation and the observer say that it did."""
    world = World(store_failure="proceed")
    world.store.plan.down = True
    operation = world.own()
    assert not operation.guarded
    assert world.run(world.effect) == "done"
    assert world.notebook.counts["unguarded"] == 2


def test_what_ran_unguarded_is_never_freed() -> None:
    """P10: a claim that landed unseen before its handler ran unguarded stays, and shows as unresolved."""
    world = World(store_failure="proceed")
    world.faults("lost", "lost", "lost")
    assert world.run(world.effect) == "done"
    world.clock.advance(301)
    assert isinstance(world.begin(), Unresolved)


def test_a_leftover_of_an_answered_begin_is_not_forgotten() -> None:
    """P13: an insert that lands after its begin owned by a second one, and was done with it, is found and taken up."""
    world = World(lease=300)
    world.faults("late")
    world.own().abandon()
    world.clock.advance(301)
    assert world.guard.purge() == 1
    world.store.deliver()
    assert world.view().state is State.IN_PROGRESS
    assert world.own().attempt == 1


def test_a_leftover_of_a_refused_begin_is_not_forgotten() -> None:
    """P13: the same for a begin that was told of a rival, whose record is gone when the insert lands."""
    world = World(lease=300)
    world.faults("late", lambda _: rivals.append(world.own(guard=world.another())))
    rivals: list[Operation] = []
    assert isinstance(world.begin(), InProgress)
    rivals[0].abandon()
    world.clock.advance(301)
    assert world.guard.purge() == 1
    world.store.deliver()
    assert world.own().attempt == 1


def test_a_guard_can_be_checked_before_its_first_request() -> None:
    """P8, C32: a store that does not answer is found at the start."""
    world = World()
    world.guard.check()
    world.store.plan.down = True
    with pytest.raises(StoreUnavailable):
        world.guard.check()
