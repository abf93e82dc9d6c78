"""Heartbeats and waiters."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from notwice import (
    AsyncGuard,
    InProgress,
    Operation,
    OperationEnded,
    OwnershipLost,
    Result,
    ResultKind,
    rerun,
)
from notwice.model import Get
from notwice.stores.memory import AsyncMemoryStore
from notwice.waiting import Clock, Gate
from tests.unit.worlds import SCOPE, World

ANSWER = Result(ResultKind.HTTP, b"sorry", 500)


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
    assert not world.guard._runtime.heart._buckets
    assert not world.guard._runtime.heart._young


def test_heartbeats_that_are_due_together_share_a_trip() -> None:
    """Two hundred running operations renew their leases in one batch."""
    world = World(lease=300)
    world.kept = [world.guard.begin(SCOPE, str(number)) for number in range(200)]
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
    assert world.guard._runtime.waiters.waiting == {}


def beating(world: World, call: int, then: Callable[[], None]) -> Clock:
    """The clock of a heart, which does something else when it is asked for the time that often."""
    calls = count(1)

    class Interleaved:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.clock, name)

        def monotonic(self) -> float:
            if next(calls) == call:
                then()
            return world.clock.monotonic()

    return Interleaved()


class Busy(Gate):
    """The gate of an operation whose owner makes its last move in the moment of the first beat."""

    def __init__(self, move: Callable[[], None]) -> None:
        super().__init__()
        self.move: Callable[[], None] | None = move

    def acquire(self, *, blocking: bool = True) -> bool:
        move, self.move = self.move, None
        if move is not None:
            move()
            return False
        return super().acquire(blocking=blocking)


@pytest.mark.parametrize("moment", ["while its owner moves", "after the beat"])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_what_was_left_in_the_moment_of_a_heartbeat_lapses(moment: str, *, asynchronous: bool) -> None:
    """P7: the heart goes on with nothing that its owner has taken out, though the rest of leaving was interrupted."""
    world = World(lease=300)
    guard: Any = world.guard
    operation = world.own()
    if asynchronous:
        guard = AsyncGuard(AsyncMemoryStore(world.memory), clock=world.clock)
        operation = await guard.begin(SCOPE, "of a task")
    heart, hold = guard._runtime.heart, operation._hold

    def leave() -> None:
        heart.remove(hold)

    if moment == "after the beat":
        heart._clock = beating(world, 3, leave)
    else:
        hold.gate = Busy(leave)
    world.clock.advance(101)
    (before,) = world.memory.apply([Get("", operation.operation)])
    world.clock.advance(301)
    (after,) = world.memory.apply([Get("", operation.operation)])
    assert (after.record, after.written_ms) == (before.record, before.written_ms)
    assert not heart._buckets
    assert not heart._young


def test_an_operation_that_nobody_holds_lapses() -> None:
    """C05: an owner that drops its operation renews no lease, so the operation is soon unresolved, not stuck."""
    world = World(lease=300)
    assert isinstance(world.begin(), Operation)
    gc.collect()
    world.clock.advance(300)
    assert world.view().unresolved
