"""Hostile values, forks, copies, interrupts and stores that lie: none of them makes a second owner or a stuck key."""

import asyncio
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from notwice import (
    AsyncGuard,
    EncodingError,
    Guard,
    InProgress,
    Mismatch,
    Operation,
    Policy,
    Replay,
    ResultOmitted,
    StoreUnavailable,
    UnsupportedRecord,
    current_operation,
    reconcile,
    rerun,
)
from notwice.errors import OperationEnded
from notwice.model import Op, Reply, Result, ResultKind, State, Unreadable
from notwice.observe import Event
from notwice.policy import NOT_APPLIED, Applied
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.port import PartlyDone
from notwice.testing import FaultyStore
from notwice.waiting import Alarm, Gate, SystemClock
from tests.unit.worlds import KEY, SCOPE, World


class Speechless(Exception):
    """An exception of a handler that fails when it is asked what it says."""

    def __str__(self) -> str:
        raise RuntimeError


def raising(error: BaseException) -> Callable[[], object]:
    def handler() -> object:
        raise error

    return handler


# -- what handlers raise, return and hand in --------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "state"), [({}, State.ACCEPTED), ({"final_errors": (Speechless,)}, State.FAILED)])
def test_an_exception_that_has_no_text(policy: dict[str, Any], state: State) -> None:
    """C07: an exception whose ``str`` raises is recorded like any other, and reaches the caller as it was."""
    world = World(**policy)
    with pytest.raises(Speechless):
        world.run(raising(Speechless()))
    assert world.view().state is state


def test_a_value_that_raises_when_it_is_looked_at() -> None:
    """P9, T12: the caller gets its value, and the operation is completed without it."""

    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    world, value = World(), Proxy()
    assert world.run(lambda: value) is value
    assert world.view().state is State.COMPLETED
    assert world.notebook.counts["result_omitted"] == 1


@pytest.mark.parametrize(
    "result",
    [
        Result(ResultKind.VALUE, "text"),  # type: ignore[arg-type]  # what is tested
        Result("value", b""),  # type: ignore[arg-type]  # what is tested
        Result(ResultKind.HTTP, b"", "200"),  # type: ignore[arg-type]  # what is tested
        Result(ResultKind.HTTP, b"", 200, (("a", 1),)),  # type: ignore[arg-type]  # what is tested
        Result(ResultKind.HTTP, b"", 200, ["ab"]),  # type: ignore[arg-type]  # what is tested
    ],
)
def test_a_ready_result_of_the_wrong_types(result: Result) -> None:
    """P14, T12: a `Result` that could not be read again is refused before it is written; the operation goes on."""
    operation = World().own()
    for move in (operation.complete, operation.fail, partial(operation.suspend, "")):
        with pytest.raises(EncodingError, match="a Result has"):
            move(result)
    operation.complete("whole")


def test_a_recovery_point_is_named_by_text() -> None:
    """P14: a recovery point of another type would make a record that can't be read again."""
    operation = World().own()
    with pytest.raises(ValueError, match="not by 5"):
        operation.checkpoint(5)  # type: ignore[arg-type]  # what is tested


# -- one owner --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_operation_can_not_be_copied(copied: Callable[[Operation], object]) -> None:
    """P1: a copy would be a second owner, and its end would stop the heartbeat of the first."""
    with pytest.raises(TypeError, match="one owner"):
        copied(World().own())


def test_a_later_begin_that_adopts_a_claim_brings_its_own_terms_and_request() -> None:
    """P1, P3: the lease that is stored is the one that the new owner renews, and the request is the new owner's."""
    world = World(lease=1, recovery=rerun)
    world.faults("lost", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.guard.begin(SCOPE, KEY)
    operation = world.own("A", policy=Policy(lease=300))
    world.clock.advance(2)
    assert isinstance(world.begin("A", guard=world.another(lease=1, recovery=rerun)), InProgress)
    operation.complete("done")
    assert isinstance(world.begin("B"), Mismatch)


def test_who_waits_for_a_running_operation_never_proceeds_unguarded() -> None:
    """P4: the store is lost while a duplicate waits; it has seen that another is at work, so nothing runs."""
    world = World()
    world.own()
    world.faults("ok", "drop", "drop", "drop")
    with pytest.raises(StoreUnavailable):
        world.run(world.effect, policy=Policy(wait=10, store_failure="proceed"))
    assert world.effects == []


def in_a_fork(child: Callable[[], object]) -> int:
    """Run `child` in a forked process, and give its exit status; one that hangs is killed."""
    pid = os.fork()
    if not pid:
        signal.alarm(10)
        os._exit(bool(child()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_is_no_owner() -> None:
    """P1, P9: a child of a fork can neither end nor renew the parent's operation, be its gate held or not."""
    guard = Guard(MemoryStore())

    def child() -> bool:
        try:
            current_operation().complete("child")
        except OperationEnded as error:
            return "fork" not in str(error)
        return True

    def leaves() -> bool:
        with operation:
            pass
        return operation.ended

    with guard.begin(SCOPE, KEY) as operation:  # type: ignore[union-attr]  # nothing is stored yet
        assert isinstance(operation, Operation)
        with operation._hold.gate.turn:
            assert in_a_fork(child) == 0
        assert in_a_fork(leaves) == 0
        operation.complete("parent")
    assert guard.run(lambda: "again", scope=SCOPE, key=KEY) == "parent"


def test_an_operation_that_is_entered_twice_is_left_whole() -> None:
    """Nothing is the current operation after the block, however often it was entered."""
    operation = World().own()
    with operation, operation:
        operation.complete()
    with pytest.raises(LookupError):
        current_operation()


# -- the heartbeat ----------------------------------------------------------------------------------------------------


def test_garbage_is_collected_while_the_heart_is_locked() -> None:
    """An operation that goes with a garbage collection takes no lock: the thread that collects may hold it."""
    world = World()
    cycle: list[object] = [world.begin()]
    cycle.append(cycle)
    del cycle

    def collect() -> None:
        with world.guard._runtime.heart._lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    world.clock.advance(300)
    assert world.view().lapsed  # nobody holds it


class Liar(FaultyStore):
    """A store that loses its tongue: it carries out, and answers as it was told to, for one call."""

    def __init__(self, world: World) -> None:
        super().__init__(world.memory)
        self.answers: list[Callable[[Sequence[Op]], Sequence[Reply]]] = []

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        replies = super().apply(ops)
        return self.answers.pop(0)(ops) if self.answers else replies


def nothing(_: Sequence[Op]) -> Any:
    return None


def too_few(_: Sequence[Op]) -> Any:
    return []


def nonsense(ops: Sequence[Op]) -> Any:
    return [None for _ in ops]


@pytest.mark.parametrize("answer", [nothing, too_few, nonsense])
def test_a_store_that_answers_nonsense_stops_no_heart(answer: Callable[[Sequence[Op]], Any]) -> None:
    """P1: a heartbeat that was not answered is sent again; the lease of a live owner does not lapse."""
    world = World()
    liar = Liar(world)
    guard = Guard(liar, policy=Policy(lease=3, recovery=rerun), clock=world.clock)
    operation = guard.begin(SCOPE, KEY)
    assert isinstance(operation, Operation)
    liar.answers.append(answer)
    world.clock.advance(30)
    assert isinstance(guard.begin(SCOPE, KEY), InProgress)
    operation.complete()


def test_an_observer_that_ends_its_thread_stops_no_heart() -> None:
    """P1: an observer that raises `SystemExit` at a heartbeat takes no lease with it."""

    class Leaver:
        def on_event(self, event: object) -> None:
            raise SystemExit

    world = World()
    guard = Guard(world.store, policy=Policy(lease=3, recovery=rerun), clock=world.clock)
    kept = [guard.begin(SCOPE, "short", policy=Policy(lease=3, run_max=0.5)), guard.begin(SCOPE, KEY)]
    guard._runtime.heart._observer = Leaver()
    world.clock.advance(30)
    assert isinstance(guard.begin(SCOPE, KEY), InProgress), kept


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_an_observer_that_ends_its_thread_by_a_loss_stops_no_heart(error: type[BaseException]) -> None:
    """P1: what an observer raises when it hears that another owner has one operation takes no lease of the others."""

    class Leaver:
        def on_event(self, event: Event) -> None:
            if event.name == "ownership_lost":
                raise error

    world = World()
    guard = Guard(world.store, policy=Policy(lease=3, recovery=rerun), clock=world.clock, observer=Leaver())
    kept = [guard.begin(SCOPE, "lost"), guard.begin(SCOPE, KEY)]
    lost: Any = guard.lookup(SCOPE, "lost")
    guard.release(lost, who="ops", why="taken", force=True)
    world.clock.advance(30)
    assert isinstance(guard.begin(SCOPE, KEY), InProgress), kept


def test_a_store_that_tells_of_too_few_stops_no_heart() -> None:
    """P1: a batch that is partly done, with fewer outcomes than operations, is tried again as a missing answer."""
    world = World()
    guard = Guard(world.store, policy=Policy(lease=3, recovery=rerun), clock=world.clock)
    kept = [guard.begin(SCOPE, "other"), guard.begin(SCOPE, KEY)]
    heart: Any = guard._runtime.heart
    apply, tries = heart._store.apply, iter(range(9))

    def answers(ops: Any) -> Any:
        if next(tries, None) == 0:
            raise PartlyDone([StoreUnavailable("no answer")])
        return apply(ops)

    heart._store = SimpleNamespace(apply=answers)
    world.clock.advance(30)
    assert isinstance(guard.begin(SCOPE, KEY), InProgress), kept


def test_the_clock_survives_what_it_calls() -> None:
    """A timed call that raises `SystemExit` doesn't end the thread that all others need."""
    clock, called = SystemClock(), threading.Event()
    clock.call_later(0, lambda: raise_(SystemExit()))
    clock.call_later(0, called.set)
    assert called.wait(10)


def raise_(error: BaseException) -> None:
    raise error


def test_an_alarm_that_could_not_be_set_is_set_again() -> None:
    """An alarm whose clock raised, as in a process that may start no thread, does not count on that call."""
    world = World()

    class Failing:
        left = 1

        def call_later(self, delay: float, function: Callable[[], None]) -> None:
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("can't start new thread")
            world.clock.call_later(delay, function)

        def monotonic(self) -> float:
            return world.clock.monotonic()

    rung: list[int] = []
    alarm = Alarm(Failing(), lambda: rung.append(1))  # type: ignore[arg-type]  # all that it needs of a clock
    with pytest.raises(RuntimeError):
        alarm.by(1)
    alarm.by(2)
    world.clock.advance(3)
    assert rung == [1]


def test_the_end_of_the_interpreter_is_not_held_up() -> None:
    """A guard that is first used while the interpreter ends starts no thread, for which it would wait for ever."""
    program = """
import notwice
guard = notwice.Guard.open("memory://")
class Last:
    def __del__(self):
        print(guard.run(lambda: "ran", scope="s", key="k"))
last = Last()
last.kept = last
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "ran\n"


def test_a_store_that_gives_up_by_itself_says_why() -> None:
    """P8: its own reason reaches the caller, be it as late as the guard's time-out."""
    world = World()

    def busy(_: Sequence[Op]) -> None:
        world.clock.advance(3)
        raise StoreUnavailable("the database is locked")

    world.faults(busy)
    with pytest.raises(StoreUnavailable, match="is locked"):
        world.begin()


# -- interrupts -------------------------------------------------------------------------------------------------------


class Interrupt(BaseException):
    """What a signal handler raises, as KeyboardInterrupt."""


def test_a_gate_is_passed_by_a_lock_of_the_interpreter() -> None:
    """No Python code runs between taking the lock and the block: a signal handler's exception can't leave it taken."""
    assert type(Gate().turn) is type(threading.Lock())
    assert not hasattr(Gate, "__enter__")


def test_an_end_that_was_interrupted_is_not_made_again() -> None:
    """P9: a signal between the store's answer and the note of it neither repeats the last move nor harms others."""
    world = World()
    operation = world.own()

    class Interrupting(dict[bytes, Any]):
        def clear(self) -> None:
            raise Interrupt

    operation._own.unconfirmed = Interrupting()
    with pytest.raises(Interrupt):
        operation.complete("done")
    operation._own.unconfirmed = {}
    world.clock.advance(60)
    assert world.view().state is State.COMPLETED
    assert operation.ended


# -- reconcile --------------------------------------------------------------------------------------------------------


def test_reconcile_finds_a_result_that_can_not_be_stored() -> None:
    """T12: the effect is known to be done, so the operation is completed without its result, and not left open."""
    world = World(recovery=reconcile(lambda _: Applied(object())))
    world.crashed()
    outcome = world.begin()
    assert isinstance(outcome, Replay)
    with pytest.raises(ResultOmitted):
        _ = outcome.result


def test_reconcile_raises_what_has_no_text() -> None:
    """An exception whose ``str`` raises is an unknown outcome like any other."""

    def asked(_: Operation) -> object:
        raise Speechless

    world = World(recovery=reconcile(asked))
    world.crashed()
    world.begin()
    assert world.view().state is State.ACCEPTED


def test_a_begin_that_can_not_start_after_reconcile_leaves_no_owner() -> None:
    """P13: the store is lost between "not applied" and the handler: nothing runs, and nobody renews the lease."""
    world = World(recovery=reconcile(lambda _: NOT_APPLIED), settle=0)
    world.crashed()
    world.faults("ok", "ok", "drop", "drop", "drop")
    with pytest.raises(StoreUnavailable) as caught:
        world.begin()
    world.clock.advance(60)
    assert world.view().state is State.ACCEPTED, caught


async def test_a_begin_that_is_cancelled_while_it_starts_after_reconcile_leaves_no_owner() -> None:
    """P13: the task is cancelled between "not applied" and its operation: the record goes back, unresolved."""
    reached, real = asyncio.Event(), MemoryStore()

    class Slow(AsyncMemoryStore):
        slow = False

        async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
            if self.slow:
                self.slow = False
                reached.set()
                await asyncio.sleep(3600)
            return real.apply(ops)

    store = Slow(real)

    def asked(_: object) -> object:
        store.slow = True
        return NOT_APPLIED

    guard = AsyncGuard(store, policy=Policy(recovery=reconcile(asked), settle=0))
    begun = await guard.begin(SCOPE, KEY)
    await begun.suspend("crash")  # type: ignore[union-attr]  # nothing was stored
    task = asyncio.create_task(guard.begin(SCOPE, KEY))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    view = await guard.lookup(SCOPE, KEY)
    assert view is not None
    assert view.state is State.ACCEPTED


def test_a_record_that_is_damaged_while_its_owner_works() -> None:
    """P9: an owner that finds its record unreadable has lost it; the value goes to the observer."""
    world = World()
    liar = Liar(world)
    guard = Guard(liar, clock=world.clock, observer=world.notebook)

    def damaged(ops: Sequence[Op]) -> list[Reply]:
        return [Reply(won=False, record=Unreadable("", "", "it is damaged")) for _ in ops]

    def handler() -> str:
        liar.answers += [damaged, damaged]
        return "money moved"

    with pytest.raises(UnsupportedRecord):
        guard.run(handler, scope=SCOPE, key=KEY)
    [lost] = [event for event in world.notebook.events if event.name == "result_lost"]
    assert lost.value == "money moved"
