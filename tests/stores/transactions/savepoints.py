"""What must hold where a part of the caller's transaction is rolled back, with every driver."""

from contextlib import suppress

import pytest

from notwice import Guard, Operation, Replay, Unresolved
from notwice.errors import NotCompleted, OperationEnded
from tests.stores.transactions.ledgers import Ledger
from tests.stores.transactions.moves import ATOMIC, Crash, RolledBack, begun, completed_and_undone


class Savepoints:
    """The scenarios; a subclass has the fixture ``ledger``."""

    def test_a_savepoint_that_is_kept(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: completed in a nested block that ends well, and left before and after the commit, it is completed."""
        inner = begun(guard, f"{key}1", policy=ATOMIC)
        with ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            with inner, ledger.nested(transaction):
                inner.complete("done", transaction=transaction)
        with begun(guard, f"{key}2", policy=ATOMIC) as outer, ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            with ledger.nested(transaction):
                outer.complete("done", transaction=transaction)
        assert all(isinstance(guard.begin("s", f"{key}{number}"), Replay) for number in (1, 2))
        assert ledger.count(key) == 2

    def test_a_savepoint_that_is_gone_back_to(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09, P7, P10: rows were committed without the completion: told on leaving, and never written again."""

        def work(operation: Operation) -> None:
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                completed_and_undone(ledger, operation, transaction)

        with (
            pytest.raises(NotCompleted, match="recovery policy applies"),
            begun(guard, key, policy=ATOMIC) as operation,
        ):
            work(operation)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)
        assert ledger.count(key) == 1

    def test_left_after_a_savepoint_and_before_the_commit(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09, P7, P10: the same where the transaction goes on."""
        operation = begun(guard, key, policy=ATOMIC)
        with ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            with pytest.raises(NotCompleted, match="went back to a savepoint"), operation:
                completed_and_undone(ledger, operation, transaction)
        guard._runtime.clock.advance(1)  # type: ignore[attr-defined]  # a VirtualClock: what was locked is sent again
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)
        assert ledger.count(key) == 1

    def test_left_by_an_exception_after_a_savepoint_and_the_commit(
        self, ledger: Ledger, guard: Guard, key: str
    ) -> None:
        """C09, P7, P10: the same for an exception after the commit, where a savepoint is known of."""

        def work(operation: Operation) -> None:
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                completed_and_undone(ledger, operation, transaction)
            raise Crash

        with suppress(Crash), begun(guard, key, policy=ATOMIC) as operation:
            work(operation)
        again = guard.begin("s", key, policy=ATOMIC)
        assert isinstance(again, Unresolved if ledger.tells_apart else Operation)

    def test_completed_again_after_a_savepoint(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: what was undone with a nested block may be done again in its transaction."""
        with begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            completed_and_undone(ledger, operation, transaction)
            operation.complete("done at last", transaction=transaction)
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.result == "done at last"

    def test_begun_after_a_savepoint(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: of what was begun in a nested block that is undone nothing is there; its owner is told, and begins anew.

        Also if it was left before: then the next one begins anew.
        """
        with ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            with suppress(RolledBack), ledger.nested(transaction):
                with begun(guard, f"{key}1", transaction=transaction) as left:
                    left.complete("undone")
                raise RolledBack
            with pytest.raises(NotCompleted, match="begin the operation again"):  # noqa: PT012 - on leaving
                with suppress(RolledBack), ledger.nested(transaction):
                    operation = begun(guard, f"{key}2", transaction=transaction).__enter__()
                    operation.complete("undone")
                    raise RolledBack
                operation.__exit__(None, None, None)
            with pytest.raises(OperationEnded, match="begin the operation again"):
                operation.complete("undone")
            with begun(guard, f"{key}2", transaction=transaction) as again:
                again.complete("done")
        assert guard.lookup("s", f"{key}1") is None
        outcome = guard.begin("s", f"{key}2")
        assert isinstance(outcome, Replay)
        assert outcome.result == "done"
