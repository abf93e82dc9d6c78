"""An operation and the caller's transaction, on the store that is a file: what is told, and what counts as done."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from notwice import (
    Applied,
    AsyncGuard,
    Guard,
    NotApplied,
    NotCompleted,
    OperationEnded,
    OperationUnresolved,
    Policy,
    Replay,
    State,
    Unresolved,
)
from notwice.stores.memory import AsyncMemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from tests.unit.worlds import KEY, SCOPE, Notebook


class Shop:
    """A guard and a connection of its own on one database."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.notebook = Notebook()
        self.clock = VirtualClock()
        self.guard = Guard(SqliteStore(path), policy=Policy(atomic=True), observer=self.notebook, clock=self.clock)
        self.guard.check()

    def own(self) -> Any:
        return self.guard.begin(SCOPE, KEY)

    def view(self) -> Any:
        return self.guard.lookup(SCOPE, KEY)

    def settle(self) -> None:
        """What is done behind the callers, soon."""
        self.clock.advance(1)

    def transaction(self) -> sqlite3.Connection:
        self.connection.execute("BEGIN IMMEDIATE")
        return self.connection


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    path = tmp_path / "records.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        shop = Shop(path, connection)
        yield shop
        shop.guard.close()


def left(operation: Any) -> str:
    """What its caller is told when an operation is left now."""
    with pytest.raises(NotCompleted) as caught, operation:
        pass
    return str(caught.value)


HELD = (
    "it is suspended, and its recovery policy applies, as for one that is not atomic: what else was done there may be "
    "committed. End it outside of savepoints, and leave it by an exception where all is rolled back"
)


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_an_end_that_was_rolled_back(shop: Shop, end: str) -> None:
    """P10, T22: leaving finds out that it was not committed, and says so; whether its rows were is not known."""
    operation = shop.own()
    getattr(operation, end)(5, transaction=shop.transaction())
    assert (operation.ended, operation.finishing) == (True, True)
    shop.connection.execute("ROLLBACK")
    assert left(operation) == (
        f"operation {operation.operation} was ended on a transaction that was not committed; {HELD}"
    )
    record = shop.view().record
    assert (record.error, record.terms.atomic) == ("ended on a transaction that was not committed", False)
    assert isinstance(shop.own(), Unresolved)


def test_an_end_that_was_rolled_back_by_an_exception(shop: Shop) -> None:
    """P7, T22: who leaves by an exception has rolled back all: the record stays a proof of that, and is run again."""
    operation = shop.own()
    with suppress(ZeroDivisionError), operation:
        operation.complete(5, transaction=shop.transaction())
        shop.connection.execute("ROLLBACK")
        raise ZeroDivisionError
    assert shop.own().attempt == 2


def undone(shop: Shop) -> Any:
    """An operation that was completed after a savepoint that its transaction has gone back to."""
    operation = shop.own()
    shop.transaction().execute("SAVEPOINT callers")
    operation.complete(5, transaction=shop.connection)
    shop.connection.execute("ROLLBACK TO callers")
    return operation


def test_an_end_that_was_undone_with_a_savepoint(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10, T22: what its transaction does not show any more is not completed, and what it does besides is not known."""
    operation = undone(shop)
    monkeypatch.setattr(operation._runtime.store, "apply", lambda _: 1 / 0)  # it would wait for the caller's lock
    assert left(operation) == (
        f"operation {operation.operation} was ended on a transaction that went back to a savepoint from before that; "
        f"{HELD}"
    )
    pending = operation._own.pending
    assert pending.error == "ended on a transaction that went back to a savepoint from before that"
    assert not pending.terms.atomic


def test_an_end_that_was_undone_with_a_savepoint_before_an_exception(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: the exception is no word on what the transaction does besides: it is still open."""
    operation = undone(shop)
    monkeypatch.setattr(operation._runtime.store, "apply", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="the handler's"), operation:
        raise ZeroDivisionError("the handler's")
    assert not operation._own.pending.terms.atomic


@pytest.mark.parametrize("error", [None, ZeroDivisionError()], ids=["left", "raised"])
def test_leaving_that_is_interrupted(shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """P7, P10: interrupted while it looks how its transaction ended, nobody knows: it is held, behind its caller.

    Until its lease was over it would have looked as if it were running, and would then have been run again.
    """
    operation = undone(shop)
    shop.connection.execute("COMMIT")
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            operation.__exit__(None if error is None else type(error), error, None)
    shop.settle()
    assert shop.view().state is State.ACCEPTED
    assert isinstance(shop.own(), Unresolved)
    assert [event.name for event in shop.notebook.events][:2] == ["claimed", "unanswered"]


def test_leaving_that_is_interrupted_after_the_commit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: what was committed is completed, and what follows behind its caller changes nothing."""
    operation = shop.own()
    operation.complete(5, transaction=shop.transaction())
    shop.connection.execute("COMMIT")
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt), operation:
            pass
    shop.settle()
    assert operation.view.state is State.COMPLETED
    assert isinstance(shop.own(), Replay)


def test_leaving_that_is_interrupted_before_anything_is_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: the same for who waits for a heartbeat that is under way: what was to be written is written."""
    operation: Any = shop.guard.begin(SCOPE, KEY, policy=Policy())
    with monkeypatch.context() as patch:
        patch.setattr(type(operation), "_move", interrupted)
        with pytest.raises(KeyboardInterrupt), operation:
            raise NotApplied
    shop.settle()
    assert shop.view().record.released


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


async def test_a_task_that_is_cancelled_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7, P10: the same for a task that is cancelled again while it leaves."""
    guard = AsyncGuard(shop.guard._runtime.store, policy=Policy(atomic=True), clock=shop.clock)
    operation: Any = await guard.begin(SCOPE, KEY)
    shop.transaction().execute("SAVEPOINT callers")
    await operation.complete(5, transaction=shop.connection)
    shop.connection.execute("ROLLBACK TO callers")
    shop.connection.execute("COMMIT")

    async def cancelled(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(type(guard._runtime.asynchronous), "apply", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await operation.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
    shop.settle()
    assert isinstance(shop.own(), Unresolved)


@pytest.mark.parametrize("found", ["by a heartbeat", "by its repetition"])
def test_an_end_that_is_found_before_leaving(shop: Shop, found: str) -> None:
    """C09: that it is completed is told to the observer once, whoever finds it."""
    operation = shop.own()
    with suppress(OperationEnded), operation:
        operation.complete(5, transaction=shop.transaction())
        shop.connection.execute("COMMIT")
        if found == "by a heartbeat":
            shop.clock.advance(operation.policy.beat_seconds + 1)
        else:
            operation.complete(5, transaction=shop.transaction())
    assert [event.name for event in shop.notebook.events] == ["claimed", "completed"]


def test_an_end_that_is_suspended_by_hand(shop: Shop) -> None:
    """P10: who suspends it after ending it on a transaction says that nothing is known, and that is what is kept."""
    operation = shop.own()
    operation.complete(5, transaction=shop.transaction())
    shop.connection.execute("ROLLBACK")
    operation.suspend()
    assert not shop.view().record.terms.atomic


@pytest.mark.parametrize(("end", "state"), [("complete", State.COMPLETED), ("fail", State.FAILED)])
def test_an_end_that_was_committed(shop: Shop, end: str, state: State) -> None:
    """T22: it is finished together with its rows, leaving is quiet, and duplicates get the answer."""
    operation = shop.own()
    with operation:
        getattr(operation, end)(5, transaction=shop.transaction())
        shop.connection.execute("COMMIT")
    assert shop.view().state is state
    assert isinstance(shop.own(), Replay)
    assert [event.name for event in shop.notebook.events] == ["claimed", str(state), "replayed"]


def test_an_end_that_was_forgotten(shop: Shop) -> None:
    """T22: the rows may be committed, so the record proves nothing any more, and the caller is told what to do."""
    operation = shop.own()
    assert left(operation) == (
        f"operation {operation.operation} was left without an answer; it is suspended, and its recovery policy "
        "applies, as for one that is not atomic: its rows may be committed. Complete it on their transaction"
    )
    record = shop.view().record
    assert (record.error, record.terms.atomic) == ("left without an answer", False)


def test_an_end_apart_from_its_rows(shop: Shop) -> None:
    """T22: who tried to complete it on no transaction may have committed its rows; the record proves nothing."""
    operation = shop.own()
    with pytest.raises(ValueError, match="is atomic"):
        operation.complete(5)
    operation.suspend()
    assert not shop.view().record.terms.atomic
    other: Any = shop.guard.begin(SCOPE, "other")
    other.suspend()
    view: Any = shop.guard.lookup(SCOPE, "other")
    assert view.record.terms.atomic


def test_an_end_on_no_transaction(shop: Shop) -> None:
    """T22: a connection that has none open may have committed the rows already; the record proves nothing."""
    operation = shop.own()
    with pytest.raises(ValueError, match="transaction"):
        operation.complete(5, transaction=shop.connection)
    operation.suspend()
    assert not shop.view().record.terms.atomic


DECLARED: dict[str, dict[str, Any]] = {
    "not applied": {"not_applied_errors": (TypeError, ValueError)},
    "final": {"final_errors": (TypeError, ValueError)},
}


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
@pytest.mark.parametrize(
    ("returned", "atomic"), [(5, True), (Applied(5), True), (Applied(5), False), ((part for part in "5"), False)]
)
def test_what_the_guard_refuses_is_not_the_word_of_its_handler(
    shop: Shop, declared: dict[str, Any], returned: object, atomic: bool
) -> None:
    """P10, T22: a handler has returned, so its effect is there: no error that follows frees its key, or fails it."""
    policy = Policy(atomic=atomic, **declared)
    with pytest.raises((TypeError, ValueError)):
        shop.guard.run(lambda: returned, scope=SCOPE, key=KEY, policy=policy)
    with pytest.raises(OperationUnresolved):
        shop.guard.run(lambda: returned, scope=SCOPE, key=KEY, policy=policy)
    assert shop.view().record.attempt == 1


async def test_what_the_guard_refuses_is_not_the_word_of_a_task(shop: Shop) -> None:
    """P10: the same for event loops."""
    guard = AsyncGuard(AsyncMemoryStore(), policy=Policy(**DECLARED["not applied"]))

    async def handler() -> object:
        return Applied(5)

    with pytest.raises(TypeError, match="reconcile function"):
        await guard.run(handler, scope=SCOPE, key=KEY)
    with pytest.raises(OperationUnresolved):
        await guard.run(handler, scope=SCOPE, key=KEY)


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)
def test_a_refused_end_is_not_the_word_of_its_handler(shop: Shop, declared: dict[str, Any]) -> None:
    """P10, T22: completed on no transaction, an operation is neither free nor failed; but `NotApplied` is a word."""
    operation: Any = shop.guard.begin(SCOPE, KEY, policy=Policy(atomic=True, **declared))
    with pytest.raises(ValueError, match="may be committed already"), operation:
        operation.complete(5, transaction=shop.connection)
    assert isinstance(shop.own(), Unresolved)
    other: Any = shop.guard.begin(SCOPE, "other", policy=Policy(atomic=True, **declared))
    with pytest.raises(ValueError, match="may be committed already"):
        other.complete(5, transaction=shop.connection)
    with pytest.raises(NotApplied), other:
        raise NotApplied
    assert other.freed


def test_a_checkpoint_that_was_rolled_back_is_no_step(shop: Shop) -> None:
    """T22: what may be rolled back counts as done in no step of this attempt; what is stored does."""
    operation = shop.own()
    runs: list[str] = []

    def part(name: str) -> str:
        runs.append(name)
        return name

    operation.step("first", lambda: part("first"))
    operation.checkpoint("pay", 7, transaction=shop.transaction())
    shop.connection.execute("ROLLBACK")
    assert operation.step("pay", lambda: part("pay")) == "pay"
    operation.checkpoint("mail", 9)
    assert operation.step("mail", lambda: part("mail")) == 9
    assert runs == ["first", "pay"]


def test_a_checkpoint_is_committed_with_its_rows(shop: Shop) -> None:
    """T22: a checkpoint on the caller's transaction is kept if that is committed."""
    operation = shop.own()
    operation.checkpoint("pay", 7, transaction=shop.transaction())
    assert shop.guard.lookup(SCOPE, KEY) is not None
    shop.connection.execute("COMMIT")
    assert shop.view().record.progress == (("pay", b"j7"),)
