"""What an operation does on its way: who beats for it, what is told of it, and how it is left."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from notwice import (
    UNKNOWN,
    Guard,
    Operation,
    OwnershipLost,
    Policy,
    RecordView,
    State,
    StepsChanged,
    StoreUnavailable,
    Unresolved,
    reconcile,
    rerun,
)
from notwice.model import Get, Record, Swap
from notwice.operation import _wake
from notwice.operation_base import CURRENT
from notwice.policy import Verdict
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.test_steps import Shop
from tests.unit.worlds import KEY, SCOPE, Notebook, World

# -- leases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", ["checkpoint", "confirm", "step"])
def test_a_lease_is_kept_up_after_each_move_but_the_last(move: str) -> None:
    """P5: the heartbeat goes on after a checkpoint, a confirmation and a step."""
    world = World()
    operation = world.own()
    match move:
        case "checkpoint":
            operation.checkpoint("paid")
        case "confirm":
            operation.confirm()
        case _:
            operation.step("pay", world.effect)
    world.clock.advance(1500)
    assert not world.view().lapsed
    operation.complete(1)


def test_an_operation_on_the_callers_transaction_has_no_heartbeat(tmp_path: Path) -> None:
    """T22: nobody sees it before the commit, so no lease is renewed, and none is lost, however long it takes."""
    path, clock = tmp_path / "records.db", VirtualClock()
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True), clock=clock)
    guard.check()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        operation = cast("Operation", guard.begin(SCOPE, KEY, transaction=connection))
        clock.advance(1000)
        operation.complete(1)
        connection.execute("COMMIT")
    assert not operation.lost
    assert guard.call(lambda: pytest.fail("ran again"), scope=SCOPE, key=KEY).result == 1
    guard.close()


def test_an_operation_without_a_record_asks_nothing_of_the_store() -> None:
    """P8: who goes on without a store by explicit choice has no lease that could be renewed, or lost."""
    world = World(store_failure="proceed")
    world.store.plan.down = True
    operation = world.own()
    world.store.plan.down = False
    calls = world.store.plan.calls
    world.clock.advance(1000)
    assert (operation.guarded, operation.lost, world.store.plan.calls - calls) == (False, False, 0)


def test_a_claim_counts_as_a_confirmed_write() -> None:
    """The lease has just begun, whatever the hour is: a first step does not renew it."""
    world = World()
    world.clock.advance(10_000)
    operation, calls = world.own(), world.store.plan.calls
    operation.step("pay", world.effect)
    assert world.store.plan.calls - calls == 1


# -- what is told, and kept -------------------------------------------------------------------------------------------


def test_nothing_is_told_of_what_goes_on_within_a_handler() -> None:
    """An observer hears of a claim and of an end; steps, checkpoints and heartbeats have no events."""
    world = World()
    operation = world.own()
    operation.step("pay", world.effect)
    operation.checkpoint("paid")
    operation.heartbeat()
    operation.complete(1)
    assert [event.name for event in world.notebook.events] == ["claimed", "completed"]


def test_what_is_left_without_a_word_says_nothing() -> None:
    """A reason that nobody gave is none."""
    world, other = World(), World()
    world.own().suspend()
    other.own().omit()
    assert (world.view().record.error, other.view().record.error) == ("", "")


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_leaving_without_a_move_while_the_store_is_down() -> None:
    """P9: it can't be suspended now, so who leaves it is told that the store did not answer."""
    world = World()
    operation = world.own()
    with pytest.raises(StoreUnavailable), operation:
        world.store.plan.down = True
    world.store.plan.down = False
    world.clock.advance(301)
    assert world.view().unresolved


def test_leaving_in_another_context_than_it_was_entered_in() -> None:
    """A generator may be resumed by another task, in a context of its own: the operation ends there all the same."""
    world = World()
    operation = world.own()
    contextvars.copy_context().run(operation.__enter__)
    operation.complete(1)
    operation.__exit__(None, None, None)
    assert CURRENT.get(None) is None
    assert world.view().record.state is State.COMPLETED


def test_leaving_after_another_has_finished_what_was_not_confirmed() -> None:
    """P5, P13: the end was lost behind its caller, who has not heard of it, so leaving tells."""
    world = World(recovery=rerun)
    operation = world.own()

    def leaves() -> None:
        with operation:
            world.faults("drop", "drop", "drop")
            with pytest.raises(StoreUnavailable):
                operation.complete(1)
            world.store.plan.down = True
            world.clock.advance(301)
            world.store.plan.down = False
            world.own(guard=world.another(recovery=rerun)).complete("taker's")
            world.clock.advance(60)

    with pytest.raises(OwnershipLost):
        leaves()
    assert world.begin().result == "taker's"


def test_a_final_error_does_not_end_what_has_not_asked_for_its_steps() -> None:
    """C47: by the error alone it would have failed; it left before a step that is done, so it is suspended."""
    shop = Shop(final_errors=(ValueError,))
    first = shop.own()
    first.step("charge", shop.effect())
    first.step("mail", shop.effect())
    again = shop.crash(first)

    def handler() -> None:
        with again:
            again.step("charge", shop.effect())
            raise ValueError("no such card")

    with pytest.raises(ValueError, match="no such card"):
        handler()
    view = shop.world.view()
    assert (view.record.state, view.unresolved, view.record.error.split(":")[0]) == (
        State.ACCEPTED,
        True,
        "StepsChanged",
    )


def test_who_lost_it_to_another_hears_so_once_on_a_transaction_too(tmp_path: Path) -> None:
    """P5, T22: the move raises it and writes nothing; leaving is quiet then, and the observer hears it once."""
    path, notebook = tmp_path / "records.db", Notebook()
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True, recovery=rerun), observer=notebook)
    operation = cast("Operation", guard.begin(SCOPE, KEY))
    guard.release(cast("RecordView", guard.lookup(SCOPE, KEY)), who="ann", why="stuck", force=True)
    taker = cast("Operation", guard.begin(SCOPE, KEY))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, operation:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OwnershipLost):
            operation.complete(1, transaction=connection)
        connection.execute("ROLLBACK")
    assert (operation.lost, taker.attempt, notebook.counts["ownership_lost"]) == (True, 2, 1)
    guard.close()


@pytest.mark.parametrize(("ends", "told"), [("COMMIT", "completed"), ("ROLLBACK", "suspended")])
def test_what_is_told_of_an_end_on_a_transaction(tmp_path: Path, ends: str, told: str) -> None:
    """T22: a move by hand after it finds out what became of it, and that is told, by its own name, once."""
    path, notebook = tmp_path / "records.db", Notebook()
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True), observer=notebook)
    operation = cast("Operation", guard.begin(SCOPE, KEY))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        operation.complete(1, transaction=connection)
        connection.execute(ends)
    operation.suspend("by hand")
    assert [event.name for event in notebook.events] == ["claimed", told]
    state = State.COMPLETED if ends == "COMMIT" else State.ACCEPTED
    assert cast("RecordView", guard.lookup(SCOPE, KEY)).record.state is state
    guard.close()


# -- reconcile --------------------------------------------------------------------------------------------------------


def test_what_could_not_be_found_out_is_put_back_behind_the_caller() -> None:
    """P7, P9: where the store does not answer, the record does not stay claimed until the lease is over."""
    world = World()

    def ask(_operation: object) -> Verdict:
        world.store.plan.down = True
        return UNKNOWN

    policy = Policy(recovery=reconcile(ask))
    world.own(policy=policy).suspend()
    with pytest.raises(StoreUnavailable):
        world.begin(policy=policy)
    world.store.plan.down = False
    assert world.view().record.state is State.IN_PROGRESS
    world.clock.advance(60)
    assert world.view().record.state is State.ACCEPTED


def test_what_was_put_back_and_taken_meanwhile_is_nobody_s_loss() -> None:
    """P13: the acknowledgement was lost, and another has it since: whoever let go of it is told what it found out."""
    world = World()

    def rival(_ops: object) -> None:
        [reply] = world.memory.apply([Get("", operation)])
        record = cast("Record", reply.record)
        taken = record._replace(etag=os.urandom(16), state=State.IN_PROGRESS, attempt=record.attempt + 1)
        world.memory.apply([Swap(taken, record.etag)])

    def ask(_operation: object) -> Verdict:
        world.faults("lost", rival)
        return UNKNOWN

    policy = Policy(recovery=reconcile(ask))
    first = world.own(policy=policy)
    operation = first.operation
    first.suspend()
    assert isinstance(world.begin(policy=policy), Unresolved)
    assert world.view().record.attempt == 3
    assert world.notebook.counts["ownership_lost"] == 0


# -- steps ------------------------------------------------------------------------------------------------------------


def test_what_was_done_within_a_step_that_raised_is_asked_for() -> None:
    """C47: it will be asked for by the step around it, so a new step beside that one does not run before."""
    shop = Shop()
    first = shop.own()

    def trip() -> None:
        first.step("hotel", shop.effect())
        raise ConnectionError

    with pytest.raises(ConnectionError):
        first.step("trip", trip)
    again = shop.crash(first)
    with pytest.raises(StepsChanged, match="has not asked for 'trip/hotel'"):
        again.step("mail", shop.effect())
    assert len(shop.effects) == 1


def test_a_thread_that_waits_goes_on_once_the_kept_steps_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """C47: however short the lease is, a new step waits for the kept ones until it is over, and no longer."""
    shop = Shop(lease=1)
    first = shop.own()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(first.step, "kept", shop.effect()).result(10)
        second = shop.crash(first)

        def asks_meanwhile(event: threading.Event, _timeout: float) -> bool:
            pool.submit(second.step, "kept", shop.effect()).result(10)
            return event.is_set()

        monkeypatch.setattr(shop.world.clock, "wait", asks_meanwhile)
        assert second.step("new", shop.effect()) == "done"
    second.complete(1)


async def part() -> str:
    return "done"


async def test_a_task_that_waits_goes_on_once_the_kept_steps_were_asked_for() -> None:
    """C47: a new step in a branch waits for the kept ones and no longer: here for none of the lease's one second."""
    world = AsyncWorld(recovery=rerun, lease=1)
    first: Any = await world.begin()
    await asyncio.create_task(first.step("kept", part))
    world.guard._runtime.heart.remove(first._hold)
    world.clock.advance(1)
    second: Any = await world.begin()
    world.guard._runtime.heart.remove(second._hold)
    before = world.clock.monotonic()
    new = asyncio.create_task(second.step("new", part))
    await asyncio.sleep(0)
    kept = asyncio.create_task(second.step("kept", part))
    assert list(await asyncio.wait_for(asyncio.gather(new, kept), 10)) == ["done", "done"]
    assert world.clock.monotonic() == before
    await second.complete(1)


def test_waking_a_task_whose_loop_has_gone_is_no_error() -> None:
    """Whoever asks for a step in a thread is not told of a loop that was closed while its task waited."""
    loop, event = asyncio.new_event_loop(), asyncio.Event()
    loop.close()
    _wake(loop, event)
    assert not event.is_set()
