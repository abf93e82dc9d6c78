"""What a guard answers to a worker and to a list, and what a handler may not return."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    Guard,
    InvalidKey,
    Operation,
    Policy,
    Replay,
    rerun,
)
from notwice.recovery import Round
from notwice.stores.sqlite import SqliteStore
from tests.unit.worlds import KEY, SCOPE, World


def five(_operation: object) -> int:
    return 5


@pytest.mark.parametrize(
    ("value", "said"), [(Applied(5), "Applied(...)"), (NOT_APPLIED, "NOT_APPLIED"), (UNKNOWN, "UNKNOWN")], ids=repr
)
def test_what_only_a_reconcile_function_says(value: Any, said: str) -> None:
    """P7: a handler that returns it is told which of them it was, and its operation is not finished by it."""
    world = World()
    with pytest.raises(TypeError) as caught:
        world.run(lambda: value)
    assert str(caught.value) == (
        f"the handler returned {said}, which is what a reconcile function says: return the result itself, and "
        "raise NotApplied where nothing happened"
    )
    assert world.view().unresolved


def test_operations_by_their_age() -> None:
    """`older_than` counts from the last write; zero is any age, and exactly that age is old enough."""
    world = World()
    world.own().suspend()
    for older_than, count in ((0, 1), (10, 0)):
        assert len(list(world.guard.operations(older_than=older_than))) == count
    world.clock.advance(10)
    assert len(list(world.guard.operations(older_than=10))) == 1
    assert not list(world.guard.operations(older_than=10.001))


def test_what_a_handler_of_recovery_raised_is_told() -> None:
    """An observer gets the error itself, to be logged or redacted; the round counts it as failed."""
    world = World(recovery=rerun)
    world.own().suspend()
    error = OSError("still down")

    def handler(_operation: object) -> None:
        raise error

    assert world.guard.recover({SCOPE: handler}) == Round(failed=1)
    [event] = [event for event in world.notebook.events if event.name == "recovery_failed"]
    assert (event.detail, event.value) == ("OSError", error)


def test_how_a_round_counts() -> None:
    """Each unresolved operation counts once: by the policy that was stored, and by whether anything can finish it."""
    world = World(recovery=rerun)
    world.own().suspend()
    held: Any = world.another().begin("held", KEY)
    held.suspend()
    assert world.guard.recover({}) == Round(unhandled=1, held=1)
    assert world.guard.recover({"held": five}) == Round(unhandled=1, held=1)
    world.guard.recovers(SCOPE, needs_request=True)(five)
    assert world.guard.has_handlers
    assert world.guard.recover() == Round(unhandled=1, held=1)
    assert world.guard.recover({SCOPE: five}) == Round(finished=1, held=1)
    assert world.begin().result == 5


def test_run_hands_on_its_options() -> None:
    """C42: the namespace and the policy of one call are those of its operation, by `run` and by the decorator."""
    world = World()
    assert world.guard.run(lambda: 5, scope="s", key="k", namespace="shop", policy=Policy(lease=7)) == 5
    view = world.guard.lookup("s", "k", namespace="shop")
    assert (view.record.namespace, view.record.terms.lease_ms) == ("shop", 7000)
    assert world.guard.lookup("s", "k") is None

    def handler(key: str) -> str:
        return key

    guarded = world.guard.idempotent(scope="t", key="{key}", policy=Policy(lease=9))(handler)
    assert guarded("k") == "k"
    assert world.guard.lookup("t", "k").record.terms.lease_ms == 9000


def test_within_nobody() -> None:
    """C42: the refusal says why an empty namespace is none, and what to do."""
    with pytest.raises(InvalidKey) as caught:
        World().guard.within("")
    assert str(caught.value) == (
        "within takes whose keys these are, and an empty text is nobody: callers without a name would be given "
        "each other's answers. Refuse them, or use a guard without a namespace where all callers are one"
    )


def test_duplicates_on_the_callers_transaction(tmp_path: Path) -> None:
    """T22: a claim on a transaction that finds the operation finished is a replay, and the transaction goes on."""
    guard = Guard(SqliteStore(tmp_path / "records.db"), policy=Policy(atomic=True))
    guard.check()
    with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as connection:
        for wanted in (Operation, Replay):
            connection.execute("BEGIN IMMEDIATE")
            outcome: Any = guard.begin("s", "k", request=1, transaction=connection)
            assert isinstance(outcome, wanted)
            if isinstance(outcome, Operation):
                outcome.complete(5)
            connection.execute("COMMIT")
    assert outcome.result == 5
    guard.close()
