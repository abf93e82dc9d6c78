"""What a guard does off the straight way: refused handlers, lost races, pages of a count, workers that come late."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from notwice import (
    NOT_APPLIED,
    Applied,
    AsyncGuard,
    Fingerprint,
    Guard,
    NotCompleted,
    Operation,
    OperationInProgress,
    OperationUnresolved,
    Policy,
    Privacy,
    RecordView,
    StoreUnavailable,
    Unresolved,
    UnsupportedRecord,
    current_operation,
    hold,
    new_key,
    reconcile,
    rerun,
)
from notwice.async_guard import _set
from notwice.codec import encode_value
from notwice.model import Get, Op, Query, Record, Result, ResultKind, Swap
from notwice.recovery import Round
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.worlds import KEY, SCOPE, Notebook, World


async def lazy(_operation: object) -> int:
    return 1


def five(_operation: object) -> int:
    return 5


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "register",
    [
        lambda guard: guard.recovers(SCOPE)(lazy),
        lambda guard: guard.recover({SCOPE: lazy}),
        lambda guard: guard.begin(SCOPE, KEY, policy=Policy(recovery=reconcile(cast("Any", lazy)))),
        lambda guard: guard.run(lambda: 1, scope=SCOPE, key=KEY, policy=Policy(recovery=reconcile(cast("Any", lazy)))),
    ],
    ids=["recovers", "recover", "begin", "run"],
)
def test_a_coroutine_function_is_refused_where_nobody_waits_for_it(register: Callable[[Any], object]) -> None:
    """P7: a guard that blocks would never run it, and take the coroutine for what it gives."""
    world = World()
    with pytest.raises(TypeError, match="lazy"):
        register(world.guard)
    assert world.guard.lookup(SCOPE, KEY) is None


def test_a_handler_is_not_registered_with_what_is_no_policy() -> None:
    """The mistake is told where it is made, and not by the first round."""
    world = World()
    with pytest.raises(TypeError, match="policy must be a Policy"):
        world.guard.recovers(SCOPE, policy=cast("Any", rerun))(five)
    assert not world.guard.has_handlers


def test_an_age_that_is_none_is_told_by_its_name() -> None:
    """Which of the arguments is meant stands in the sentence."""
    with pytest.raises(ValueError, match=r"^older_than "):
        list(World().guard.operations(older_than=-1))


def test_a_fingerprint_of_ones_own_is_not_the_one_of_a_request() -> None:
    """P3: a record that was made by another recipe can't be compared with this request, so nothing runs."""
    world = World()
    world.guard.begin(SCOPE, KEY, fingerprint=Fingerprint("mine", b"1"))
    with pytest.raises(UnsupportedRecord, match="its fingerprint was made by the recipe 'mine'"):
        world.begin(1)


# -- what goes on -----------------------------------------------------------------------------------------------------


def test_a_handler_may_complete_on_its_transaction_and_return(tmp_path: Path) -> None:
    """T22: the call gives what the handler returned, which was run just now; duplicates get what was committed."""
    path = tmp_path / "records.db"
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True))
    guard.check()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def handler() -> str:
            connection.execute("BEGIN IMMEDIATE")
            current_operation().complete("kept", transaction=connection)
            connection.execute("COMMIT")
            return "returned"

        done = guard.call(handler, scope=SCOPE, key=KEY)
        again = guard.call(handler, scope=SCOPE, key=KEY)
    view: Any = guard.lookup(SCOPE, KEY)
    assert (done.result, done.replayed, done.operation) == ("returned", False, view.operation)
    assert (again.result, again.replayed, again.operation) == ("kept", True, view.operation)
    guard.close()


def test_a_claim_that_was_committed_without_its_end_is_held(tmp_path: Path) -> None:
    """T22, P7: nobody is at work any more, and whoever committed it so has committed other rows too, perhaps."""
    path = tmp_path / "records.db"
    clock = VirtualClock()
    guard = Guard(SqliteStore(path, clock=clock), policy=Policy(atomic=True, recovery=rerun))
    guard.check()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotCompleted), cast("Any", guard.begin(SCOPE, KEY, transaction=connection)):
            pass
        connection.execute("COMMIT")
    clock.advance(0.001)
    view: Any = guard.lookup(SCOPE, KEY)
    assert (view.unresolved, view.record.terms.recovery, view.record.terms.atomic) == (True, hold.kind, False)
    assert isinstance(guard.begin(SCOPE, KEY), Unresolved)
    guard.close()


def test_reconcile_whose_finding_can_not_be_stored() -> None:
    """P8: what it found is stored behind the caller, who is told that the store does not answer."""
    world = World()

    def found(_operation: object) -> Applied:
        world.store.plan.down = True
        return Applied(5)

    policy = Policy(recovery=reconcile(found))
    world.own(policy=policy).suspend()
    with pytest.raises(StoreUnavailable):
        world.begin(policy=policy)
    world.store.plan.down = False
    world.clock.advance(60)
    assert world.begin().result == 5


def test_a_claim_that_nobody_confirmed_is_looked_for_during_one_lease() -> None:
    """P13: after that it has lapsed, if it is there at all, so the store is not asked for ever."""
    world = World(lease=30)
    world.faults("drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.begin()
    world.store.plan.down = True
    world.clock.advance(120)
    calls = world.store.plan.calls
    world.clock.advance(10_000)
    assert world.store.plan.calls == calls


@pytest.mark.parametrize(("unresolved", "refused"), [(4, False), (5, True)])
def test_a_count_goes_through_all_pages(monkeypatch: pytest.MonkeyPatch, unresolved: int, refused: bool) -> None:
    """Each page counts once: a namespace is full at its limit, and not before."""
    monkeypatch.setattr("notwice.guard.PAGE_MAX", 2)
    world = World(unresolved_max=5)
    for number in range(unresolved):
        world.another().begin("s", str(number)).suspend()  # type: ignore[union-attr] # each is its owner's
    if refused:
        with pytest.raises(Exception, match="has 5 unresolved"):
            world.begin()
    else:
        assert isinstance(world.begin(), Operation)


def test_who_released_it_and_why_stays_in_the_record() -> None:
    """An operator's name and reason are for those who come after."""
    world = World()
    world.own().suspend()
    [note] = world.guard.release(world.view(), who="ann", why="bank says no").record.audit
    assert (note.who, note.action, note.why) == ("ann", "released", "bank says no")


# -- who lost it ------------------------------------------------------------------------------------------------------


def test_that_a_result_was_lost_is_told_with_the_reason() -> None:
    """P5: the handler's value goes to the observer, who may need it to undo the effect."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.own().complete("taker's")
        return "late"

    assert world.run(slow) == "taker's"
    [event] = [event for event in world.notebook.events if event.name == "result_lost"]
    assert (event.detail, event.value) == ("ownership lost", "late")


def test_the_loser_gets_the_answer_that_its_taker_has_sent() -> None:
    """P5: what a duplicate under `hold` gets, for whoever has lost it takes nothing over: the answer that was kept."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.own().suspend("timed out", Result(ResultKind.VALUE, encode_value("sent")))
        return "late"

    assert world.run(slow) == "sent"


def test_the_loser_whose_taker_has_died_is_told_that_it_is_unresolved() -> None:
    """P5, P7: the taker's lease is over, so nobody is at work, and the loser does not take it over itself."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.crashed()
        return "late"

    with pytest.raises(OperationUnresolved):
        world.run(slow)
    assert world.view().record.attempt == 2


def test_the_loser_is_told_how_long_its_taker_has_been_at_work() -> None:
    """P4: as any duplicate it is to wait as long as the operation has run so far, within half a minute."""
    world = World(recovery=rerun, lease=5)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.own(guard=world.another(recovery=rerun))
        world.clock.advance(7)
        return "late"

    with pytest.raises(OperationInProgress) as told:
        world.run(slow)
    assert told.value.retry_after == 12


# -- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_lost_its_operation_to_one_who_finished_it() -> None:
    """P5: the handler's end is too late, which is no failure of it: nothing is told as failed."""
    world = World(recovery=rerun)
    world.own().suspend()

    def slow(operation: Operation) -> str:
        world.crash(operation)
        world.own(guard=world.another(recovery=rerun)).complete("taker's")
        return "late"

    world.guard.recover({SCOPE: slow})
    assert world.notebook.counts["recovery_failed"] == 0
    assert world.begin().result == "taker's"


def test_a_handler_of_recovery_that_finishes_and_then_raises() -> None:
    """What it has completed is finished, whatever it raises after that; the error is told."""
    world = World(recovery=rerun)
    world.own().suspend()

    def handler(operation: Operation) -> None:
        operation.complete(5)
        raise OSError

    assert world.guard.recover({SCOPE: handler}) == Round(finished=1)
    assert world.notebook.counts["recovery_failed"] == 1
    assert world.begin().result == 5


def test_what_runs_out_while_its_request_is_missing_is_held() -> None:
    """P7: a handler that needs the request is not called without; by the stored policy a person has to decide."""
    world = World(recovery=hold)
    world.own().suspend()
    world.guard.recovers(SCOPE, needs_request=True)(five)
    assert world.guard.recover() == Round(held=1)


def test_a_worker_leaves_what_it_can_not_read() -> None:
    """P14, P15: an unresolved record that is sealed with a key that is not here is counted, and no handler gets it."""
    store = MemoryStore()
    sealing = Guard(store, privacy=Privacy(keys=[new_key("2027-01")]))
    cast("Operation", sealing.begin(SCOPE, KEY, policy=Policy(recovery=rerun), request="secret")).suspend("why")
    assert Guard(store).recover({SCOPE: five}) == Round(unreadable=1)
    assert sealing.recover({SCOPE: five}) == Round(finished=1)


class Meanwhile:
    """Two operations to recover, and what becomes of the second one while the worker is at the first."""

    def __init__(self, happens: Callable[[World], object], **policy: Any) -> None:
        self.world = World(**policy)
        self.happens = happens
        self.turns = 0
        self.world.guard.begin("first", KEY).suspend()
        self.world.clock.advance(1)
        self.world.own().suspend()
        self.world.clock.advance(300)

    def stopping(self) -> bool:
        self.turns += 1
        if self.turns == 2:
            self.happens(self.world)
        return False

    def round(self) -> Round:
        found: Round = self.world.guard.recover({"first": five, SCOPE: five}, stopping=self.stopping)
        return found


def finishes(world: World) -> None:
    world.guard.resolve(world.view(), "by hand", who="ann", why="seen")


def takes(world: World) -> None:
    world.own(guard=world.another(recovery=rerun))


@pytest.mark.parametrize("happens", [finishes, takes])
def test_a_worker_that_comes_too_late_has_finished_nothing(happens: Callable[[World], object]) -> None:
    """P1: what another has finished, or is at work on, counts as elsewhere; no handler runs for it."""
    meanwhile = Meanwhile(happens, recovery=rerun)
    assert meanwhile.round() == Round(finished=1, elsewhere=1)


def test_a_worker_that_may_ask_leaves_what_another_is_at_work_on() -> None:
    """P1: it asks nobody about an operation that was taken meanwhile, and counts it as the other's."""
    asked: list[str] = []

    def ask(operation: Operation) -> Applied:
        asked.append(operation.scope)
        return Applied(5)

    world = World(recovery=reconcile(ask))
    first = cast("Operation", world.guard.begin("first", KEY))
    first.suspend()
    world.clock.advance(1)
    world.own().suspend()
    world.clock.advance(300)
    turns: list[Operation] = []

    def stopping() -> bool:
        if asked and not turns:
            turns.append(world.own(guard=world.another(recovery=reconcile(lambda _: NOT_APPLIED, deduplicated=True))))
        return False

    assert world.guard.recover({"first": five, SCOPE: five}, stopping=stopping) == Round(finished=1, elsewhere=1)
    assert asked == ["first"]


def test_a_worker_that_meets_a_record_it_can_not_claim() -> None:
    """P1: rivals who change it at each of its tries are at work on it, and the other operations go on."""
    world = World(recovery=rerun)
    operation = world.own().operation
    world.kept.pop().suspend()

    def rival(_ops: Sequence[Op]) -> None:
        [reply] = world.memory.apply([Get("", operation)])
        record = cast("Record", reply.record)
        world.memory.apply([Swap(record._replace(etag=os.urandom(16)), record.etag)])

    world.faults(*[rival] * 20)
    assert world.guard.recover({SCOPE: five}) == Round(elsewhere=1)


# -- tasks ------------------------------------------------------------------------------------------------------------


async def test_who_waits_in_a_task_runs_nothing_without_the_store() -> None:
    """P8, C03: another is at work, so also where the policy would proceed without a store, nothing is run."""
    world = AsyncWorld(wait=5, store_failure="proceed")
    assert (await world.begin()).guarded

    waiting = asyncio.create_task(world.begin())
    await asyncio.sleep(0)
    world.store.plan.down = True
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(waiting, 10)


async def test_a_waiting_task_is_woken_by_the_end_of_what_it_waits_for() -> None:
    """C03: it does not wait until it would have looked again by itself."""
    world = AsyncWorld(wait=60)
    operation = await world.begin()
    before = world.clock.monotonic()
    waiting = asyncio.create_task(world.begin())
    for _ in range(3):
        await asyncio.sleep(0)
    await operation.complete(5)
    assert (await asyncio.wait_for(waiting, 10)).result == 5
    assert world.clock.monotonic() - before < 1


async def test_a_thread_wakes_a_task() -> None:
    """C03: whoever ends the operation in a thread sets the event of a loop by that loop."""
    event = asyncio.Event()
    thread = threading.Thread(target=_set, args=(asyncio.get_running_loop(), event))
    thread.start()
    await asyncio.wait_for(event.wait(), 10)
    thread.join()


async def test_a_guard_for_loops_seals_as_any_other_does() -> None:
    """P15: what lies in its store is sealed, and bears no key of a caller."""
    memory, privacy = MemoryStore(), Privacy(keys=[new_key("2027-01")], hash_keys=True)
    guard = AsyncGuard(AsyncMemoryStore(memory), privacy=privacy)

    async def secret() -> str:
        return "secret"

    assert await guard.run(secret, scope=SCOPE, key=KEY) == "secret"
    [item] = memory.scan(Query()).items
    record = cast("RecordView", item).record
    assert record.sealed
    assert record.key == record.id
    assert b"secret" not in repr(record).encode()
    assert (await guard.call(secret, scope=SCOPE, key=KEY)).replayed


def test_waking_a_task_whose_loop_has_gone_is_no_error() -> None:
    """Whoever ends an operation in a thread is not told of a loop that was closed while its task waited."""
    loop, event = asyncio.new_event_loop(), asyncio.Event()
    loop.close()
    _set(loop, event)
    assert not event.is_set()


class Both(MemoryStore):
    """A store that blocks, with a face for loops of its own."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.asynchronous = AsyncMemoryStore(self)


async def test_a_store_with_a_face_for_loops_is_asked_by_that() -> None:
    """A guard for loops takes the face that a store brings, and makes one where it brings none."""
    store, notebook = Both(VirtualClock()), Notebook()

    async def number() -> int:
        return 5

    guard = AsyncGuard(store, observer=notebook)
    assert guard._store is store.asynchronous
    assert await guard.run(number, scope=SCOPE, key=KEY) == 5
    assert await AsyncGuard(MemoryStore()).run(number, scope=SCOPE, key=KEY) == 5
    assert notebook.counts == {"claimed": 1, "completed": 1}
    await guard.close()
