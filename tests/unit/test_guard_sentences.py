"""What a guard tells: its refusals word for word, what an observer hears, and what of its settings counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    AsyncGuard,
    EncodingError,
    Guard,
    InProgress,
    NotwiceError,
    Operation,
    OperationUnresolved,
    OwnershipLost,
    Policy,
    Privacy,
    RecordedFailure,
    Replay,
    Result,
    ResultKind,
    State,
    StoreUnavailable,
    Unresolved,
    UnresolvedFull,
    core,
    current_operation,
    new_key,
    reconcile,
    rerun,
)
from notwice.identity import operation_id
from notwice.model import Op, Query, Released, Reply
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from tests.unit.worlds import KEY, SCOPE, Notebook, World


def refusal(kind: type[BaseException], call: Callable[[], object]) -> str:
    """The sentence that a call is refused with."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def told(world: World) -> list[tuple[str, str]]:
    return [(event.name, event.detail) for event in world.notebook.events]


# -- settings ---------------------------------------------------------------------------------------------------------


def test_a_guard_is_opened_with_its_settings(tmp_path: Path) -> None:
    """`Guard.open` hands on every option, and leaving ``with`` closes the store."""
    notebook, policy = Notebook(), Policy(lease=7)
    privacy = Privacy(hash_keys=True)
    url = f"sqlite:///{tmp_path / 'records.db'}"
    with Guard.open(url, policy=policy, namespace="shop", observer=notebook, privacy=privacy) as guard:
        operation: Any = guard.begin("s", "k")
        assert (operation.namespace, operation.key, operation.policy) == ("shop", operation_id("s", "k"), policy)
        assert operation.view.record.terms.lease_ms == 7000
        assert guard.namespace == "shop"
        operation.complete(1)
    assert [event.name for event in notebook.events] == ["claimed", "completed"]


def test_a_guard_without_a_namespace() -> None:
    """C42, P14: it is the empty one, however the guard is made: another default would find none of its records."""
    for guard in (Guard(MemoryStore()), Guard.open("memory://"), AsyncGuard(AsyncMemoryStore(MemoryStore()))):
        assert guard.namespace == ""


def test_leaving_a_guard_closes_its_store() -> None:
    """After ``with guard:`` its store is closed, once."""
    closed: list[int] = []

    class Closing(MemoryStore):
        def close(self) -> None:
            closed.append(1)

    with Guard(Closing()) as guard:
        assert isinstance(guard, Guard)
    assert closed == [1]


def test_what_a_begin_stores() -> None:
    """T19: the record has the scope and key as texts, the policy's terms, and the request where that is asked for."""
    world = World(store_request=True, lease=9)
    record = world.own({"amount": 5}).view.record
    assert (record.scope, record.key, record.id) == (SCOPE, KEY, operation_id(SCOPE, KEY))
    assert (record.request, record.terms) == (b'j{"amount":5}', Policy(store_request=True, lease=9).terms)
    assert record.fingerprint is not None
    bare: Any = world.guard.begin("s", "bare")
    assert (bare.view.record.request, bare.view.record.fingerprint) == (None, None)
    other: Any = World().own({"amount": 5})
    assert other.view.record.request is None
    parts: Any = world.guard.begin(("refund", 1), ("a", "b"))
    assert (parts.scope, parts.key) != (SCOPE, KEY)
    assert world.guard.lookup(("refund", 1), ("a", "b")).operation == parts.operation


def test_namespaces_of_one_call() -> None:
    """C42: a call may name its namespace; the guard's own is the default, for look-ups as for begins."""
    world = World()
    shop: Any = world.guard.begin("s", "k", namespace="shop")
    assert shop.namespace == "shop"
    assert world.guard.lookup("s", "k") is None
    assert world.guard.lookup("s", "k", namespace="shop").operation == shop.operation
    shop.complete("shop's")
    bound = world.guard.within("shop")
    assert (bound.namespace, bound.call(lambda: 1, scope="s", key="k").result) == ("shop", "shop's")
    assert world.guard.call(lambda: 2, scope="s", key="k", namespace="shop").replayed
    assert world.guard.run(lambda: 3, scope="s", key="k") == 3
    assert [view.record.namespace for view in bound.operations()] == ["shop"]
    assert len(list(world.guard.operations(all_namespaces=True))) == 2


def test_a_request_that_is_too_large_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal counts it, and says what to give in its place; one at the limit is stored."""
    monkeypatch.setattr(core, "REQUEST_BYTES_MAX", 5)
    world = World(store_request=True)
    assert refusal(EncodingError, lambda: world.begin("12345")) == (
        "the request has 8 bytes, and 5 are the most that are stored. "
        "Nothing ran. Give a reference in its place, or leave store_request out"
    )
    assert world.guard.lookup(SCOPE, KEY) is None
    assert isinstance(world.begin("12"), Operation)


def test_what_is_no_policy() -> None:
    """The refusal shows what was given, and what to give."""
    wrong: Any = {"lease": 5}
    sentence = "policy must be a Policy, such as Policy(recovery=rerun), not {'lease': 5}"
    assert refusal(TypeError, lambda: Guard(MemoryStore(), policy=wrong)) == sentence
    assert refusal(TypeError, lambda: World().begin(policy=wrong)) == sentence
    assert refusal(TypeError, lambda: World().run(lambda: 1, policy=wrong)) == sentence


# -- duplicates -------------------------------------------------------------------------------------------------------


def test_each_outcome_is_told() -> None:
    """An observer hears how each begin ended, by its name."""
    world = World()
    operation = world.own()
    world.begin()
    world.begin(request=2)
    operation.suspend()
    world.begin()
    world.guard.resolve(world.view(), 1, who="ann", why="checked")
    world.begin()
    names = ["claimed", "in_progress", "mismatch", "suspended", "unresolved", "resolved", "replayed"]
    assert [name for name, _ in told(world)] == names
    assert ("resolved", "by ann") in told(world)


def test_a_later_attempt_is_told_as_that() -> None:
    """P7: a take-over is another event than a first claim."""
    world = World(recovery=rerun)
    world.crashed()
    world.own()
    assert [name for name, _ in told(world)] == ["claimed", "reclaimed"]


def test_a_refusal_that_is_no_error_is_replayed_with_its_value() -> None:
    """C39: what `fail` was given is in the error that its duplicates get."""
    world = World()
    world.own().fail({"code": 51})
    with pytest.raises(RecordedFailure) as caught:
        world.run(world.effect)
    error = caught.value
    assert (error.kind, error.message, error.value) == (
        "failed",
        "the operation was finished with a refusal",
        {"code": 51},
    )
    assert error.operation == world.view().operation


def test_an_error_is_replayed_by_its_name() -> None:
    """C39: the first error's name and text come back, and the operation they belong to; a value they have none."""
    world = World()
    world.own().fail(OSError("no funds"))
    with pytest.raises(RecordedFailure) as caught:
        world.run(world.effect)
    error = caught.value
    assert (error.kind, error.message, error.value) == ("builtins.OSError", "no funds", None)
    assert error.operation == world.view().operation


def test_a_call_says_which_operation_it_was() -> None:
    """C37: the first call and its replays name the operation."""
    world = World()
    first, again = (world.guard.call(lambda: 5, scope=SCOPE, key=KEY) for _ in range(2))
    assert (first.result, first.replayed, first.operation) == (5, False, world.view().operation)
    assert (again.result, again.replayed, again.operation) == (5, True, world.view().operation)


def test_a_value_that_is_not_kept_is_told() -> None:
    """T12: the observer hears that the value was omitted and why, and the record says it, too."""
    world = World()
    world.run(object)
    [(_, why)] = [event for event in told(world) if event[0] == "result_omitted"]
    assert why.startswith("a value of type builtins.object can't be stored")
    assert world.view().record.error == f"the result was not kept: {why}"


# -- a store that fails -----------------------------------------------------------------------------------------------


def test_a_store_that_is_down_is_told() -> None:
    """P8: the observer hears of a refusal for the store's sake, and why."""
    world = World()
    world.store.plan.down = True
    sentence = refusal(StoreUnavailable, world.begin)
    assert told(world) == [("store_unavailable", sentence)]


def test_what_runs_unguarded_is_told() -> None:
    """P8: with ``store_failure="proceed"`` the operation is the caller's, is no record, and is told."""
    world = World(store_failure="proceed")
    world.store.plan.down = True
    operation: Any = world.begin()
    assert (operation.guarded, operation.attempt, operation.recovered) == (False, 1, False)
    [(name, why)] = told(world)
    assert name == "unguarded"
    assert why
    operation.complete(1)
    assert operation.ended


class Failing(MemoryStore):
    """A store whose driver raises what it likes."""

    def scan(self, query: Query) -> Any:
        raise RuntimeError(query.namespace)

    def purge(self, limit: int) -> int:
        raise RuntimeError(limit)


@pytest.mark.parametrize("call", ["operations", "check", "purge"])
def test_a_driver_s_error_is_the_store_s(call: str) -> None:
    """P8: whatever the driver raises is told as a store that can't be asked, with the driver's error as its cause."""
    with pytest.raises(StoreUnavailable, match=r"the store failed \(RuntimeError\)") as caught:
        list(getattr(Guard(Failing()), call)())
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_an_error_of_notwice_passes_as_it_is() -> None:
    """A store that says itself what is wrong is not spoken for."""

    class Saying(MemoryStore):
        def purge(self, limit: int) -> int:
            raise NotwiceError(f"not {limit}")

    guard = Guard(Saying())
    assert refusal(NotwiceError, lambda: guard.purge(5)) == "not 5"
    assert refusal(NotwiceError, guard.purge) == "not 1000"


def test_a_guard_is_checked_by_one_short_look() -> None:
    """`check` asks for one record of the guard's own namespace."""
    asked: list[Query] = []

    class Noting(MemoryStore):
        def scan(self, query: Query) -> Any:
            asked.append(query)
            return super().scan(query)

    Guard(Noting(), namespace="shop").check()
    assert asked == [Query(namespace="shop", limit=1)]


# -- operators --------------------------------------------------------------------------------------------------------


def test_resolve_takes_one_outcome() -> None:
    """C52: neither none nor both, and the refusal says which two there are."""
    world = World()
    world.crashed()
    sentence = "resolve takes either the result that the operation had, or failed=... with its refusal"
    assert refusal(TypeError, lambda: world.guard.resolve(world.view(), who="ann", why="x")) == sentence
    assert refusal(TypeError, lambda: world.guard.resolve(world.view(), 1, failed=2, who="ann", why="x")) == sentence
    assert world.guard.resolve(world.view(), None, who="ann", why="x").state is State.COMPLETED
    assert world.begin().result is None


def test_an_operators_refusal_is_kept() -> None:
    """C52: what an operator found refused is a failure for every duplicate, with its audit line."""
    world = World()
    world.crashed()
    view = world.guard.resolve(world.view(), failed="declined", who="ann", why="checked")
    assert view.state is State.FAILED
    [note] = view.record.audit
    assert (note.who, note.why) == ("ann", "checked")
    assert told(world)[-1] == ("resolved", "by ann")
    with pytest.raises(RecordedFailure) as caught:
        world.run(world.effect)
    assert caught.value.value == "declined"


@pytest.mark.parametrize("who_why", [("", "x"), ("ann", "")])
def test_an_operator_is_named(who_why: tuple[str, str]) -> None:
    """C52: the refusal says what is missing, and why it is asked for."""
    world = World()
    world.crashed()
    who, why = who_why
    sentence = "an operator's move needs who and why: they stay in the record for those who come after"
    assert refusal(ValueError, lambda: world.guard.release(world.view(), who=who, why=why)) == sentence
    assert refusal(ValueError, lambda: world.guard.resolve(world.view(), 1, who=who, why=why)) == sentence


@pytest.mark.parametrize(("view", "kind"), [(None, "NoneType"), ("idem_1", "str")])
def test_an_operator_s_move_is_on_a_record(view: Any, kind: str) -> None:
    """C52: what was not shown can't be moved; the refusal says where records come from."""
    world = World()
    sentence = f"this takes a record as lookup or operations give it, not {kind}; what is absent can't be moved"
    assert refusal(TypeError, lambda: world.guard.release(view, who="ann", why="x")) == sentence
    assert refusal(TypeError, lambda: world.guard.resolve(view, 1, who="ann", why="x")) == sentence


def test_a_release_says_from_where_it_goes_on() -> None:
    """P6: steps are kept and keys stay, unless the operator says otherwise."""
    for from_start in (False, True):
        for new_key_ in (False, True):
            world = World()
            operation = world.own()
            operation.checkpoint("charge", 1)
            world.crash(operation)
            view = world.guard.release(
                world.view(), who="ann", why="x", from_start=from_start, new_downstream_key=new_key_
            )
            assert (view.record.recovery_point, view.record.generation) == (
                "" if from_start else "charge",
                int(new_key_),
            )
            assert told(world)[-1] == ("released", "by ann")


def test_a_sealed_record_without_its_key_is_listed_as_unreadable() -> None:
    """P15: it is shown where it is, with the reason, and nothing of what it holds."""
    store = MemoryStore()
    sealing = Guard(store, privacy=Privacy(keys=[new_key("2027-01")]), namespace="shop")
    sealing.run(lambda: "secret", scope="s", key="k")
    [item] = list(Guard(store, namespace="shop").operations())
    assert (item.namespace, item.id) == ("shop", operation_id("s", "k"))  # type: ignore[union-attr] # no record
    assert "2027-01" in item.reason  # type: ignore[union-attr] # as above


# -- reconcile --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (UNKNOWN, "reconcile says unknown"),
        (NOT_APPLIED, "reconcile says not applied, but an earlier owner may still act"),
        (5, "reconcile must return Applied(result), NOT_APPLIED or UNKNOWN, not int"),
        (None, "reconcile must return Applied(result), NOT_APPLIED or UNKNOWN, not NoneType"),
    ],
    ids=repr,
)
def test_why_the_outcome_stays_unknown(answer: Any, error: str) -> None:
    """P7: the record and the event say what reconcile answered, and the duplicate when it is asked again."""
    world = World(recovery=reconcile(lambda _operation: answer))
    operation = world.own()
    operation.suspend()
    outcome = world.begin()
    assert isinstance(outcome, Unresolved)
    assert (outcome.retry_after, outcome.view.record.error) == (core.RECONCILE_PAUSE_MS // 1000, error)
    assert told(world)[-2:] == [("reconcile_unknown", error), ("unresolved", "")]


def test_a_reconcile_that_raises() -> None:
    """P7, P15: the record has the error's name and text, the event its name, and nothing is raised to the caller."""

    def asks(_operation: object) -> Applied:
        raise LookupError("no answer")

    world = World(recovery=reconcile(asks))
    world.own().suspend()
    outcome = world.begin()
    assert isinstance(outcome, Unresolved)
    assert outcome.view.record.error == "reconcile raised LookupError: no answer"
    assert told(world)[-2] == ("reconcile_unknown", "LookupError")


def test_a_reconcile_that_is_interrupted() -> None:
    """T07: an interrupt is raised, and the operation is left to be asked about later."""

    def asks(_operation: object) -> Applied:
        raise KeyboardInterrupt

    world = World(recovery=reconcile(asks))
    world.own().suspend()
    with pytest.raises(KeyboardInterrupt):
        world.begin()
    assert world.view().record.error == "reconcile was interrupted"
    assert told(world)[-1] == ("reconcile_unknown", "reconcile was interrupted")
    assert world.view().unresolved


def test_what_reconcile_found_is_replayed() -> None:
    """P7: the answer's result completes the operation, the record says nothing against it."""
    answer = Result(ResultKind.HTTP, b"made", 201)
    world = World(recovery=reconcile(lambda _operation: Applied(answer)))
    world.own().suspend()
    outcome = world.begin()
    assert isinstance(outcome, Replay)
    assert (outcome.result, outcome.view.state) == (answer, State.COMPLETED)


# -- who lost it ------------------------------------------------------------------------------------------------------


def test_the_loser_that_knew_of_its_loss_gets_the_taker_s_answer() -> None:
    """P5: also where the handler has been told before it returned, its caller gets what a duplicate gets."""
    world = World(recovery=rerun)

    def slow() -> str:
        operation: Any = current_operation()
        world.crash(operation)
        world.own().complete("taker's")
        with pytest.raises(OwnershipLost):
            operation.heartbeat()
        return "late"

    assert world.run(slow) == "taker's"


def test_the_loser_of_a_released_operation_is_told_that_it_is_unresolved() -> None:
    """P5: where an operator has freed it and nobody has taken it yet, the loser does not take it over itself."""
    world = World(recovery=rerun)

    def slow() -> str:
        world.crash(cast("Operation", current_operation()))
        world.guard.release(world.view(), who="ann", why="checked")
        return "late"

    with pytest.raises(OperationUnresolved, match=operation_id(SCOPE, KEY)):
        world.run(slow)
    assert world.view().record.released is Released.OPERATOR


def test_the_loser_of_a_record_that_is_gone() -> None:
    """P5: a record that is not kept any more is no answer, and nothing is taken for one."""
    world = World(recovery=rerun, retention=3600)

    def slow() -> str:
        operation: Any = current_operation()
        world.crash(operation)
        world.own().complete("taker's")
        with pytest.raises(OwnershipLost):
            operation.heartbeat()
        world.clock.advance(3601)
        assert world.guard.purge() == 1
        return "late"

    assert refusal(StoreUnavailable, lambda: world.run(slow)) == (
        f"operation {operation_id(SCOPE, KEY)} was taken over, and its record is gone; look the effect up"
    )


def test_a_full_namespace_is_told() -> None:
    """The refusal counts what is unresolved, and says what to do; the observer hears of the operation."""
    world = World(unresolved_max=2)
    for key in ("a", "b"):
        world.guard.begin("s", key).suspend()
    assert refusal(UnresolvedFull, world.begin) == (
        f"operation {operation_id(SCOPE, KEY)} was not begun: its namespace has 2 unresolved operations, and "
        "unresolved_max allows no more. Nothing ran. Find out what keeps failing, then resolve or release them"
    )
    assert (world.notebook.events[-1].name, world.notebook.events[-1].operation) == (
        "unresolved_full",
        operation_id(SCOPE, KEY),
    )


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_only_who_waits_looks_again() -> None:
    """C03: without ``wait`` a duplicate is refused at once, with one look; with it, it looks until its time is over."""
    for wait in (0, 3):
        world = World(wait=wait)
        world.own()
        asked: list[Sequence[Op]] = []

        class Noting:
            def __init__(self, apply: Callable[[Sequence[Op]], Sequence[Reply]], asked: list[Sequence[Op]]) -> None:
                self.apply, self.asked = apply, asked

            def __call__(self, ops: Sequence[Op]) -> Sequence[Reply]:
                self.asked.append(ops)
                return self.apply(ops)

        world.store.apply = Noting(world.store.apply, asked)  # type: ignore[method-assign] # it notes what is asked
        before = world.clock.monotonic()
        assert isinstance(world.begin(), InProgress)
        assert (len(asked) > 1) is bool(wait)
        assert world.clock.monotonic() - before == pytest.approx(wait)
        assert not world.guard._runtime.waiters.waiting
