"""`guard.recover`: what is unresolved and may run again is finished, each operation once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    AsyncOperation,
    EncodingError,
    Guard,
    NotApplied,
    Operation,
    Policy,
    Replay,
    State,
    StoreUnavailable,
    hold,
    reconcile,
    rerun,
)
from notwice.core import REQUEST_BYTES_MAX
from notwice.model import Released
from notwice.recovery import Round, keep_recovering_async
from notwice.stores.sqlite import SqliteStore
from notwice.testing import Pause, VirtualClock
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.worlds import KEY, SCOPE, World

AGAIN = Policy(recovery=rerun)


def finished(operation: Operation) -> str:
    return f"finished at attempt {operation.attempt}"


def crashed(world: World, policy: Policy = AGAIN, **options: Any) -> Operation:
    return world.crashed(policy=policy, **options)


# -- one round --------------------------------------------------------------------------------------------------------


def test_a_lapsed_operation_is_finished_by_the_handler_of_its_scope() -> None:
    """T08: killed in the middle and found by a worker, an operation gets its result, and duplicates get that."""
    world = World()
    crashed(world)
    assert world.guard.recover({SCOPE: finished}) == Round(finished=1)
    assert world.run(world.effect, policy=AGAIN) == "finished at attempt 2"
    assert world.effects == []
    assert world.guard.recover({SCOPE: finished}) == Round()


def test_the_template_of_a_scope_gives_its_values_to_the_handler() -> None:
    """A handler for a template is given what stands in the scope, by name and unescaped."""
    world = World()
    given: list[Any] = []
    for scope in (("refund", "ord:1", "a\\b"), ("refund", "ord_2", "c")):
        world.guard.begin(scope, KEY, policy=AGAIN).suspend()

    guard: Guard = world.guard

    @guard.recovers("refund:{order_id}:{line}")
    def refund(operation: Operation, order_id: str, line: str) -> None:
        given.append((operation.scope, order_id, line))

    assert guard.recover() == Round(finished=2)
    assert callable(refund)
    assert given == [(r"refund:ord\:1:a\\b", "ord:1", "a\\b"), ("refund:ord_2:c", "ord_2", "c")]


def test_an_exception_after_the_effect_is_not_repeated_under_hold() -> None:
    """C10: the effect happened and the handler raised: no worker runs it again, and it is listed for a person."""
    world = World()

    def handler(*_: object) -> None:
        world.effect()
        raise OSError("the receipt was not sent")

    with pytest.raises(OSError, match="receipt"):
        world.run(handler)
    for _ in range(3):
        world.clock.advance(3600)
        assert world.guard.recover({SCOPE: handler}) == Round(held=1)
    assert world.effects == ["done"]
    assert [view.record.key for view in world.guard.operations(unresolved=True)] == [KEY]


def test_only_what_the_stored_policy_allows_is_touched() -> None:
    """P7: what was begun under hold is left for a person; a worker's own policy makes it neither laxer nor stricter."""
    world = World()
    policies = {"held": Policy(recovery=hold), "again": AGAIN}
    for key, policy in policies.items():
        world.guard.begin(SCOPE, key, policy=policy).suspend()
    lax = world.guard.recover({SCOPE: finished}, policy=Policy(recovery=rerun))
    assert lax == Round(finished=1, held=1)
    world.guard.begin(SCOPE, "another", policy=AGAIN).suspend()
    assert world.guard.recover({SCOPE: finished}, policy=Policy(recovery=hold)) == Round(finished=1, held=1)
    assert world.guard.lookup(SCOPE, "held").record.attempt == 1


def test_a_running_operation_is_left_alone() -> None:
    """P1: within its lease an operation is its owner's; a worker does not even list it."""
    world = World()
    owner = world.own(policy=AGAIN)
    assert world.guard.recover({SCOPE: finished}) == Round()
    owner.complete("by its owner")


def test_it_goes_on_from_the_recovery_point() -> None:
    """C47: a worker's handler skips the steps that are done, and sees what was checkpointed."""
    world = World()
    first = world.own(policy=AGAIN)
    first.step("charge", world.effect)
    world.crash(first)

    def handler(operation: Operation) -> object:
        return operation.recovery_point, operation.step("charge", world.effect), operation.step("mail", world.effect)

    assert world.guard.recover({SCOPE: handler}) == Round(finished=1)
    assert world.guard.begin(SCOPE, KEY, policy=AGAIN).result == ("charge", "done", "done")
    assert len(world.effects) == 2


def test_failures_are_tried_again_with_growing_pauses_and_then_held() -> None:
    """The handler's failures wait 0, 2, 4, 8 s, and after `attempts_max` the operation is held, and listed so."""
    world = World()
    crashed(world)
    tries: list[float] = []

    def fails(operation: Operation) -> None:
        tries.append(world.clock.monotonic())
        raise ConnectionError("no way")

    rounds: set[Round] = set()
    for _ in range(60):
        rounds.add(world.guard.recover({SCOPE: fails}))
        world.clock.advance(0.5)
    assert rounds == {Round(failed=1), Round(waiting=1), Round(held=1)}
    assert [later - sooner for sooner, later in pairwise(tries)] == [2, 4, 8]
    assert world.notebook.counts["recovery_failed"] == 4
    view = world.view()
    assert (view.record.attempt, view.unresolved, "no way" in view.record.error) == (5, True, True)


def test_what_is_held_for_its_age_stays_held() -> None:
    """Past `rerun_within` nothing runs again: what the next system remembers of its key may be gone."""
    world = World()
    crashed(world)
    world.clock.advance(20 * 3600)
    assert world.guard.recover({SCOPE: finished}) == Round(held=1)


def test_what_nobody_handles_is_counted() -> None:
    """A scope without a handler is left as it is, and the round says so."""
    world = World()
    crashed(world)
    assert world.guard.recover({}) == Round(unhandled=1)
    assert world.guard.recover({"refund": finished, "refund:{a}:{b}": lambda operation, **_: None}) == Round(
        unhandled=1
    )
    assert world.view().record.attempt == 1


def test_namespaces() -> None:
    """P11: a guard recovers its own namespace, and all of them only if it is told to; keys are kept apart."""
    world = World()
    for namespace in ("", "a", "b"):
        world.guard.begin(SCOPE, KEY, policy=AGAIN, namespace=namespace).suspend()
    seen: list[str] = []
    handler = {SCOPE: lambda operation: seen.append(operation.namespace)}
    assert world.guard.within("a").recover(handler) == Round(finished=1)
    assert world.guard.recover(handler, all_namespaces=True) == Round(finished=2)
    assert sorted(seen) == ["", "a", "b"]


def test_a_handler_may_end_the_operation_itself() -> None:
    """Complete, fail, abandon and suspend of a handler stand; only what was finished counts as that."""
    ends = {
        "complete": (State.COMPLETED, Round(finished=1)),
        "fail": (State.FAILED, Round(finished=1)),
        "abandon": (State.ACCEPTED, Round(failed=1)),
        "suspend": (State.ACCEPTED, Round(failed=1)),
    }
    for end, (state, found) in ends.items():
        world = World()
        crashed(world)
        assert world.guard.recover({SCOPE: lambda operation, end=end: getattr(operation, end)()}) == found
        assert (world.view().state, world.view().record.released) == (state, Released.NO)


def test_not_applied_by_a_worker_frees_nothing() -> None:
    """P10: what a worker's attempt knows says nothing about the attempt before it."""
    world = World()
    crashed(world)

    def refuses(operation: Operation) -> None:
        raise NotApplied

    assert world.guard.recover({SCOPE: refuses}) == Round(failed=1)
    assert world.view().unresolved


def test_a_worker_creates_nothing() -> None:
    """P1: what was finished and purged between a worker's look and its claim does not begin anew because of it."""
    world = World(retention=1, recovery=rerun)
    world.own().suspend()
    seen = list(world.guard.operations(unresolved=True))
    world.own().complete()
    world.clock.advance(2)
    assert world.guard.purge() == 1
    world.guard.operations = lambda **_: iter(seen)  # it has looked before
    assert world.guard.recover({SCOPE: finished}) == Round(elsewhere=1)
    assert world.view() is None


def test_what_is_released_meanwhile_waits_for_its_next_retry() -> None:
    """What an operator freed between a worker's look and its claim is run by a retry, and not by the worker."""
    world = World(recovery=rerun)
    world.own().suspend()
    seen = list(world.guard.operations(unresolved=True))
    world.guard.release(world.view(), who="Ada", why="it did not happen", new_downstream_key=True)
    world.guard.operations = lambda **_: iter(seen)  # it has looked before
    assert world.guard.recover({SCOPE: finished}) == Round(elsewhere=1)
    assert (world.view().record.released, world.view().record.attempt) == (Released.OPERATOR, 1)
    assert world.own().attempt == 2


def test_what_a_begin_left_unanswered_keeps_its_request() -> None:
    """A claim that a begin of this process left behind is taken over like any other, not replaced by a worker's own."""
    world = World(recovery=rerun, store_request=True)
    world.faults("lost", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.begin({"amount": 5})
    world.store.plan.down = True
    world.clock.advance(400)
    world.store.plan.down = False
    got: list[object] = []
    assert world.guard.recover({SCOPE: lambda operation: got.append(operation.request)}) == Round(finished=1)
    assert got == [{"amount": 5}]
    assert world.view().record.fingerprint is not None


def test_who_comes_second_does_nothing() -> None:
    """P1: two workers that saw the same operation: one gets it, the other one goes on."""
    world = World()
    crashed(world)
    inside = Pause()

    def slow(operation: Operation) -> str:
        inside.stop()
        return "slow"

    rounds: list[Round] = []
    first = threading.Thread(target=lambda: rounds.append(world.guard.recover({SCOPE: slow})))
    seen = list(world.guard.operations(unresolved=True))
    first.start()
    assert inside.reached.wait(20)
    other = world.another()
    other.operations = lambda **_: iter(seen)  # type: ignore[method-assign]  # it has looked before
    assert other.recover({SCOPE: finished}) == Round(elsewhere=1)
    inside.release()
    first.join(20)
    assert rounds == [Round(finished=1)]


def test_a_store_that_is_down_ends_the_round() -> None:
    """P8: a worker runs nothing unguarded, even where its policy would let calls proceed."""
    world = World()
    crashed(world)
    ran: list[Operation] = []
    lax = Policy(store_failure="proceed", recovery=rerun)
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.guard.recover({SCOPE: ran.append}, policy=lax)
    assert ran == []
    assert world.guard.recover({SCOPE: finished}) == Round(finished=1)


def test_a_claim_whose_acknowledgement_was_lost_is_still_the_workers() -> None:
    """P13: a worker that finds its own etag owns the operation."""
    world = World()
    crashed(world)
    world.faults("ok", "lost")
    assert world.guard.recover({SCOPE: finished}) == Round(finished=1)


def test_an_answer_that_can_not_be_stored_now_is_stored_behind_the_worker() -> None:
    """P9: the effect is done and the store is silent: the same complete is repeated while the process lives."""
    world = World()
    crashed(world)
    world.faults("ok", "ok", "drop", "drop", "drop")
    assert world.guard.recover({SCOPE: finished}) == Round(finished=1)
    world.clock.advance(1)
    assert world.view().state is State.COMPLETED


def test_a_worker_stops_when_it_is_told_to() -> None:
    """Asked before each operation, it leaves the rest for another round."""
    world = World()
    for key in "abc":
        world.guard.begin(SCOPE, key, policy=AGAIN).suspend()
    told = iter([False, True])
    assert world.guard.recover({SCOPE: finished}, stopping=lambda: next(told)) == Round(finished=1)


def test_interrupted_work_is_suspended() -> None:
    """T07: a worker that is interrupted leaves its operation unresolved, never free."""
    world = World()
    crashed(world)

    def interrupted(operation: Operation) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.guard.recover({SCOPE: interrupted})
    assert (world.view().unresolved, world.view().record.attempt) == (True, 2)


# -- reconcile --------------------------------------------------------------------------------------------------------


def test_a_worker_asks_what_became_of_it() -> None:
    """Under reconcile the outcome is found out first: applied completes, not applied runs the handler once settled."""
    answers: dict[str, object] = {"applied": Applied("found"), "not": NOT_APPLIED, "unknown": UNKNOWN}
    asking = Policy(recovery=reconcile(lambda operation: answers[operation.key]))
    world = World()
    for key in answers:
        world.guard.begin(SCOPE, key, policy=asking).suspend()
    assert world.guard.recover({SCOPE: finished}, policy=asking) == Round(finished=1, waiting=2)
    assert world.guard.recover({SCOPE: finished}, policy=asking) == Round(waiting=2)
    world.clock.advance(300)
    assert world.guard.recover({SCOPE: finished}, policy=asking) == Round(finished=1, waiting=1)
    found = {key: world.guard.begin(SCOPE, key, policy=asking) for key in answers}
    assert [found[key].result for key in ("applied", "not")] == ["found", "finished at attempt 3"]
    assert not isinstance(found["unknown"], Replay)


def test_without_a_function_nobody_is_asked() -> None:
    """A worker that has nothing to ask with leaves what was begun under reconcile, and says so."""
    world = World()
    world.own(policy=Policy(recovery=reconcile(lambda operation: UNKNOWN))).suspend()
    assert world.guard.recover({SCOPE: finished}) == Round(unhandled=1)


def test_each_handler_may_ask_in_its_own_way() -> None:
    """A policy that is registered with a handler gives its scope's lease and reconcile function."""
    world = World()
    asking = Policy(lease=7, recovery=reconcile(lambda operation: Applied("found")))
    world.own(policy=asking).suspend()
    world.guard.recovers(SCOPE, policy=asking)(finished)
    assert world.guard.recover() == Round(finished=1)
    assert world.view().record.terms.lease_ms == 7000


# -- with the caller's rows --------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE entry (amount INTEGER)")
    return path


def entries(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [amount for (amount,) in connection.execute("SELECT amount FROM entry ORDER BY rowid")]


def test_an_atomic_operation_that_was_not_committed_runs_again(database: Path) -> None:
    """C09: killed before its commit, it did nothing, whatever its policy: the worker does it, in one commit again."""
    clock = VirtualClock()
    store = SqliteStore(database, clock=clock, other_tables="allow")
    guard = Guard(store, policy=Policy(atomic=True, recovery=hold), clock=clock)
    first = guard.begin(SCOPE, KEY)
    assert isinstance(first, Operation)
    guard._runtime.heart.remove(first._hold)
    clock.advance(300)

    def book(operation: Operation) -> None:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO entry VALUES (5)")
            operation.complete("booked", transaction=connection)
            connection.execute("COMMIT")

    def fail(operation: Operation) -> None:
        raise ConnectionError(operation.scope)

    assert guard.recover({SCOPE: fail}) == Round(failed=1)
    clock.advance(2)
    assert guard.recover({SCOPE: book}) == Round(finished=1)
    assert (entries(database), guard.begin(SCOPE, KEY).result) == ([5], "booked")  # type: ignore[union-attr]  # a replay
    guard.close()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_steps_are_part_of_the_callers_transaction(database: Path, end: str) -> None:
    """C09: steps of an operation that was begun on a transaction are there with its rows, or not at all."""
    guard = Guard(SqliteStore(database, other_tables="allow"))
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        operation = guard.begin(SCOPE, KEY, transaction=connection)
        assert isinstance(operation, Operation)
        for amount in (1, 2):
            operation.step(f"book {amount}", lambda: connection.execute("INSERT INTO entry VALUES (1)").rowcount)
        operation.complete("booked")
        connection.execute(end)
    view = guard.lookup(SCOPE, KEY)
    if end == "COMMIT":
        assert view is not None
        assert ([label for label, _ in view.record.progress], entries(database)) == (["book 1", "book 2"], [1, 1])
    else:
        assert (view, entries(database)) == (None, [])
    guard.close()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_is_stored_only_where_the_policy_says_so() -> None:
    """P15: without `store_request` the record keeps a digest of the request and nothing of it."""
    world = World()
    operation = crashed(world, request={"card": "4111"})
    with pytest.raises(LookupError, match="store_request=True"):
        _ = operation.request
    assert world.view().record.request is None


def test_a_stored_request_is_there_for_the_handler_and_gone_when_it_is_finished() -> None:
    """A worker's handler gets the request equal to what was begun with; a finished record has none."""
    world = World()
    crashed(world, Policy(recovery=rerun, store_request=True), request={"amount": 5, "to": (1, b"x")})
    got: list[object] = []
    assert world.guard.recover({SCOPE: lambda operation: got.append(operation.request)}) == Round(finished=1)
    assert got == [{"amount": 5, "to": (1, b"x")}]
    assert world.view().record.request is None


@pytest.mark.parametrize("end", ["abandon", "resolve"])
def test_a_request_goes_with_whatever_ends_its_operation(end: str) -> None:
    """P15: no request is left in a record that was freed or resolved."""
    world = World()
    operation = world.own(policy=Policy(recovery=rerun, store_request=True))
    if end == "abandon":
        operation.abandon()
    else:
        operation.suspend()
        world.guard.resolve(world.view(), "paid", who="ann", why="seen")
    assert world.view().record.request is None


@pytest.mark.parametrize("request_", ["x" * REQUEST_BYTES_MAX, threading.Lock()])
def test_a_request_that_can_not_be_stored_is_refused_before_anything_runs(request_: object) -> None:
    """T11: too large, or of a kind that can't be kept: nothing runs and nothing is stored."""
    world = World()
    with pytest.raises(EncodingError):
        world.begin(request_, policy=Policy(store_request=True))
    assert world.view() is None


# -- for event loops ---------------------------------------------------------------------------------------------------


async def test_tasks_recover_with_coroutines() -> None:
    """The worker of an event loop awaits its handlers, and its loop stops when it is told to."""
    world = AsyncWorld(recovery=rerun)
    for key in "ab":
        begun: Any = await world.guard.begin(SCOPE, key)
        await begun.suspend()
    stop = asyncio.Event()
    rounds: list[Round] = []

    @world.guard.recovers(SCOPE)
    async def handler(operation: AsyncOperation) -> str:
        async def one() -> str:
            await asyncio.sleep(0)
            return operation.key

        return await operation.step("one", one)

    def told(found: Round) -> None:
        rounds.append(found)
        stop.set()

    await keep_recovering_async(world.guard.recover, stop=stop, every=20, told=told)
    assert rounds == [Round(finished=2)]
    found: Any = await world.guard.begin(SCOPE, "b")
    assert found.result == "b"


async def test_a_cancelled_worker_leaves_its_operation_unresolved() -> None:
    """T07: a worker whose task is cancelled suspends what it was at, and raises."""
    world = AsyncWorld(recovery=rerun)
    await (await world.begin()).suspend()

    async def cancelled(operation: AsyncOperation) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await world.guard.recover({SCOPE: cancelled})
    view = await world.guard.lookup(SCOPE, KEY)
    assert view is not None
    assert view.unresolved
