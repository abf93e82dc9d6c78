"""What must hold with every driver whose transactions a guard can join, for code that blocks."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from notwice import Guard, InProgress, Mismatch, Operation, Policy, Replay, Unresolved, current_operation
from notwice.errors import NotCompleted, OperationEnded, OwnershipLost, StoreUnavailable
from notwice.model import State
from tests.stores.children import in_child
from tests.stores.transactions.ledgers import Ledger
from tests.stores.transactions.moves import ATOMIC, BRIEF, WAIT_S, Crash, RolledBack, begun, pay, until, view_of
from tests.stores.transactions.savepoints import Savepoints


class Joining(Savepoints):
    """The scenarios; a subclass has the fixture ``ledger``."""

    # --- complete on the caller's transaction

    def test_result_and_rows_are_committed_together(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: before the commit duplicates see a running operation, after it its result."""
        with begun(guard, key, policy=ATOMIC) as operation:
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                operation.checkpoint("inserted", 1, transaction=transaction)
                operation.complete("done", transaction=transaction)
                assert isinstance(guard.begin("s", key, policy=ATOMIC), InProgress)
            assert operation.ended
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.result == "done"
        assert outcome.view.record.recovery_point == "inserted"
        assert ledger.count(key) == 1

    def test_a_refusal_and_rows_are_committed_together(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """`fail` takes a transaction, too."""
        with begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
            operation.fail("no", transaction=transaction)
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.failed

    def test_a_rollback_takes_the_completion_back(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09 (c): rolled back after complete was called, the key is not completed, and the owner may do it again."""
        with begun(guard, key, policy=ATOMIC) as operation:
            with suppress(RolledBack), ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                operation.complete("done", transaction=transaction)
                raise RolledBack
            assert view_of(guard, key).state is State.IN_PROGRESS
            assert ledger.count(key) == 0
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                operation.complete("done at last", transaction=transaction)
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.result == "done at last"
        assert ledger.count(key) == 1

    def test_after_a_rollback_the_next_one_runs_it_at_once(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """What left its handler by an exception after complete was called, and was rolled back, may run again."""
        with suppress(Crash), begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            operation.complete("done", transaction=transaction)
            raise Crash
        guard._runtime.clock.advance(1)  # type: ignore[attr-defined]  # a VirtualClock: what was locked is sent again
        again = begun(guard, key, policy=ATOMIC)
        assert again.attempt == 2
        assert ledger.count(key) == 0

    def test_an_exception_after_the_commit_changes_nothing(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """The handler fails after its transaction was committed: the operation is completed."""
        with suppress(Crash), begun(guard, key, policy=ATOMIC) as operation:
            with ledger.transaction() as transaction:
                operation.complete("done", transaction=transaction)
            raise Crash
        assert isinstance(guard.begin("s", key), Replay)
        assert operation.ended

    def test_complete_twice(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """The same complete may be repeated within its transaction; another one is a fault of the calling code."""
        with begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
            operation.complete("done", transaction=transaction)
            operation.complete("done", transaction=transaction)
            with pytest.raises(OperationEnded):
                operation.complete("other", transaction=transaction)
            with pytest.raises(OperationEnded):
                operation.fail("no", transaction=transaction)
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.result == "done"

    def test_a_commit_whose_answer_was_lost(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09 (b), P13: who repeats a transaction that was committed is stopped, before its rows are there twice."""
        with begun(guard, key, policy=ATOMIC) as operation:
            pay(ledger, operation)
            with pytest.raises(OperationEnded, match="was committed"):
                pay(ledger, operation)
        assert ledger.count(key) == 1
        assert isinstance(guard.begin("s", key), Replay)

    def test_who_has_lost_it_rolls_back(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P5: a lapsed atomic operation is taken over without asking; the late owner's complete raises."""
        late = begun(guard, key, policy=BRIEF)
        until(lambda: view_of(guard, key).lapsed)
        taker = begun(guard, key, policy=ATOMIC)
        with pytest.raises(OwnershipLost):
            pay(ledger, late)
        with taker:
            pay(ledger, taker)
        assert ledger.count(key) == 1
        assert late.lost

    def test_a_taker_comes_while_the_owner_is_about_to_commit(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P1, P5: of a late owner whose completion is not committed yet, and its taker, one commits."""
        late = begun(guard, key, policy=BRIEF)
        until(lambda: view_of(guard, key).lapsed)
        with late, ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            late.complete("late", transaction=transaction)
            if ledger.locks_rows:
                assert isinstance(guard.begin("s", key, policy=ATOMIC), InProgress)
            else:
                with pytest.raises(StoreUnavailable):
                    guard.begin("s", key, policy=ATOMIC)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Replay)
        assert ledger.count(key) == 1

    def test_heartbeats(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """A lease is renewed before the transaction; while it holds the record a heartbeat fails, and does no harm."""
        with begun(guard, key, policy=Policy(atomic=True, lease=9)) as operation:
            operation.heartbeat()
            before = view_of(guard, key).record.etag
            guard._runtime.clock.advance(3.1)  # type: ignore[attr-defined]  # a VirtualClock
            assert view_of(guard, key).record.etag != before
            with ledger.transaction() as transaction:
                operation.checkpoint("one", transaction=transaction)
                guard._runtime.clock.advance(4)  # type: ignore[attr-defined]  # as above
                operation.complete("done", transaction=transaction)
                guard._runtime.clock.advance(4)  # type: ignore[attr-defined]  # as above
            assert not operation.lost
        assert isinstance(guard.begin("s", key), Replay)

    def test_a_lease_goes_on_after_a_rollback(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """What was completed and rolled back is still its owner's, who may take as long as before to do it again."""
        with begun(guard, key, policy=Policy(atomic=True, lease=9)) as operation:
            with suppress(RolledBack), ledger.transaction() as transaction:
                operation.complete("done", transaction=transaction)
                raise RolledBack
            before = view_of(guard, key).record.etag
            guard._runtime.clock.advance(3.1)  # type: ignore[attr-defined]  # a VirtualClock
            assert view_of(guard, key).record.etag != before
            pay(ledger, operation)
        guard._runtime.clock.advance(9)  # type: ignore[attr-defined]  # as above: nothing beats any longer
        assert isinstance(guard.begin("s", key), Replay)

    def test_a_heartbeat_after_a_checkpoint_was_committed(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """The owner goes on from what its transaction left, and from what it knew if that was rolled back."""
        with begun(guard, key, policy=ATOMIC) as operation:
            with ledger.transaction() as transaction:
                operation.checkpoint("kept", transaction=transaction)
            operation.heartbeat()
            with suppress(RolledBack), ledger.transaction() as transaction:
                operation.checkpoint("lost", transaction=transaction)
                raise RolledBack
            operation.heartbeat()
            assert operation.recovery_point == "kept"
            with ledger.transaction() as transaction:
                operation.complete("done", transaction=transaction)
        assert isinstance(guard.begin("s", key), Replay)

    def test_killed_before_the_commit(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09 (a), P7: there is no row, and once the lease is over the next one runs it without asking."""
        assert in_child(lambda: paid_and_killed(ledger, key, committed=False)) == -signal.SIGKILL
        assert ledger.count(key) == 0
        until(lambda: view_of(guard, key).lapsed)
        assert view_of(guard, key).unresolved
        with begun(guard, key, policy=ATOMIC) as again:
            assert again.attempt == 2
            pay(ledger, again)
        assert ledger.count(key) == 1

    def test_killed_after_the_commit(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09 (b): the next one is given the result, and there is one row."""
        assert in_child(lambda: paid_and_killed(ledger, key, committed=True)) == -signal.SIGKILL
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Replay)
        assert ledger.count(key) == 1

    def test_an_atomic_operation_is_completed_in_a_transaction(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """Complete without a transaction, or with one where the claim was not atomic, is refused."""
        with pytest.raises(ValueError, match="by transaction="), begun(guard, key, policy=ATOMIC) as operation:
            operation.complete("done")
        plain = begun(guard, f"{key}2")
        with ledger.transaction() as transaction, pytest.raises(ValueError, match="atomic=True"):
            plain.complete("done", transaction=transaction)

    def test_a_rollback_without_an_exception_is_told(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09 (c): completed on a transaction that was not committed: told on leaving, visible, and held.

        Who takes it for done may have written its rows again, without its end.
        """

        def roll_back(operation: Operation) -> None:
            with suppress(RolledBack), ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                operation.complete("done", transaction=transaction)
                raise RolledBack

        with pytest.raises(NotCompleted, match="not committed"), begun(guard, key, policy=ATOMIC) as operation:
            roll_back(operation)
        found = view_of(guard, key)
        assert (found.unresolved, found.record.state) == (True, State.ACCEPTED)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)

    def test_rows_that_are_written_again_without_an_end(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P7, P10: done again after a rollback, and its end forgotten: its rows are not written a third time."""

        def work(operation: Operation) -> None:
            with suppress(RolledBack), ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                operation.complete("done", transaction=transaction)
                raise RolledBack
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)

        with pytest.raises(NotCompleted, match="recovery policy"), begun(guard, key, policy=ATOMIC) as operation:
            work(operation)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)
        assert ledger.count(key) == 1

    def test_what_is_committed_is_known_on_leaving(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: after the commit the operation is over, and says so."""
        with begun(guard, key, policy=ATOMIC) as operation:
            with ledger.transaction() as transaction:
                operation.complete("done", transaction=transaction)
            assert not operation.view.record.terminal
        assert operation.view.record.state is State.COMPLETED

    def test_left_within_its_transaction(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """Left before the end of its transaction, what comes of it is not known yet, and nothing is told."""
        with ledger.transaction() as transaction:
            with begun(guard, key, policy=ATOMIC) as operation:
                ledger.insert(transaction, key)
                operation.complete("done", transaction=transaction)
            assert operation._own.pending is None  # nothing was written that would wait for the transaction's locks
        assert view_of(guard, key).state is State.COMPLETED

    # --- ends that are forgotten

    def test_a_forgotten_complete_is_no_proof(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P7, P10: rows that were committed without their end are not written again: it is held, as the policy says."""
        with (
            pytest.raises(NotCompleted, match="may be committed"),
            begun(guard, key, policy=ATOMIC),
            ledger.transaction() as transaction,
        ):
            ledger.insert(transaction, key)
        guard._runtime.clock.advance(3600)  # type: ignore[attr-defined]  # a VirtualClock
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)

    def test_a_complete_apart_from_its_rows_is_no_proof(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P10: completed without their transaction, or on what is none, the rows may be committed: it is held."""

        def complete(operation: Operation, given: object) -> None:
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
            operation.complete("done", transaction=given)

        for number, given in enumerate((None, object())):
            with pytest.raises((ValueError, TypeError)), begun(guard, f"{key}{number}", policy=ATOMIC) as operation:
                complete(operation, given)
            assert isinstance(guard.begin("s", f"{key}{number}", policy=ATOMIC), Unresolved)

    def test_run_with_a_handler_that_completes_it(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C09: `run` gives the value of a handler that has completed its operation on its own transaction."""

        def handler() -> str:
            with ledger.transaction() as transaction:
                ledger.insert(transaction, key)
                current_operation().complete("done", transaction=transaction)
            return "done"

        for _ in range(2):
            assert guard.run(handler, scope="s", key=key, policy=ATOMIC) == "done"
        assert ledger.count(key) == 1

    # --- begin on the caller's transaction

    def test_claim_result_and_rows_are_committed_together(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """Begun on a transaction, nobody sees the operation before the commit; then it is completed."""
        with ledger.transaction() as transaction, begun(guard, key, transaction=transaction) as operation:
            ledger.insert(transaction, key)
            assert guard.lookup("s", key) is None
            operation.checkpoint("inserted")
            operation.complete("done")
            operation.complete("done")
        outcome = guard.begin("s", key)
        assert isinstance(outcome, Replay)
        assert outcome.result == "done"
        assert ledger.count(key) == 1

    def test_what_is_rolled_back_never_was(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """By an exception, after complete or before: no record, no row, and the next one begins anew."""
        for complete in (False, True):
            with (
                suppress(Crash),
                ledger.transaction() as transaction,
                begun(guard, key, transaction=transaction) as operation,
            ):
                ledger.insert(transaction, key)
                if complete:
                    operation.complete("done")
                raise Crash
        assert guard.lookup("s", key) is None
        assert ledger.count(key) == 0
        assert begun(guard, key).attempt == 1

    def test_leaving_without_a_move(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """It raises, so that the transaction is rolled back, and nothing is written."""
        with (
            pytest.raises(NotCompleted, match="roll"),
            ledger.transaction() as transaction,
            begun(guard, key, transaction=transaction),
        ):
            ledger.insert(transaction, key)
        assert guard.lookup("s", key) is None
        assert ledger.count(key) == 0

    def test_a_commit_without_complete(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P7: the record is unresolved, and held whatever the policy; what was begun can't be completed afterwards."""
        with ledger.transaction() as transaction:
            operation = begun(guard, key, transaction=transaction, policy=BRIEF)
            ledger.insert(transaction, key)
        until(lambda: view_of(guard, key).unresolved)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)
        with pytest.raises(Exception):  # noqa: B017, PT011 - the connection is closed, or the transaction is over
            operation.complete("done")

    def test_a_key_that_is_there_already(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C14: in a transaction with an earlier insert, the answer is that of any begin, and all goes on."""
        running = begun(guard, f"{key}1", request=1)
        begun(guard, f"{key}2", request=1).complete("done")
        begun(guard, f"{key}3").suspend("what became of it is not known")
        with ledger.transaction() as transaction:
            ledger.insert(transaction, key)
            outcomes = [
                guard.begin("s", f"{key}{number}", request=request, transaction=transaction)
                for number, request in ((1, 1), (2, 1), (2, 2), (3, 1))
            ]
            assert list(map(type, outcomes)) == [InProgress, Replay, Mismatch, Unresolved]
            assert ledger.execute(transaction, "SELECT 1") == [(1,)]
            ledger.insert(transaction, key)
        assert ledger.count(key) == 2
        running.complete("undisturbed")

    def test_a_key_that_came_after_the_transaction_began(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C14: what the transaction can't see, for it reads as of its beginning, is seen by the guard."""
        with ledger.transaction() as transaction:
            assert ledger.execute(transaction, f"SELECT count(*) FROM business WHERE name = '{key}'") == [(0,)]
            begun(guard, f"{key}1").complete("done")
            begun(guard, f"{key}2")
            if ledger.locks_rows:
                ledger.insert(transaction, key)
            found = guard.begin("s", f"{key}1", transaction=transaction)
            assert isinstance(found, Replay)
            assert isinstance(guard.begin("s", f"{key}2", transaction=transaction), InProgress)
            assert ledger.execute(transaction, "SELECT 1") == [(1,)]
        assert ledger.count(key) == ledger.locks_rows

    def test_a_key_twice_in_one_transaction(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """The second begin finds what the first has written, which nobody else sees yet."""
        with ledger.transaction() as transaction, begun(guard, key, transaction=transaction) as operation:
            assert not isinstance(guard.begin("s", key, transaction=transaction), Operation)
            operation.complete("done")
            second = guard.begin("s", key, transaction=transaction)
            assert isinstance(second, Replay)
            assert ledger.execute(transaction, "SELECT 1") == [(1,)]

    def test_a_rival_that_is_not_committed_yet(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P1, C14: it is told soon, and its own transaction goes on; where one lock is all there is, it is refused."""
        with ledger.transaction() as first, begun(guard, key, transaction=first) as operation:
            if ledger.locks_rows:
                with ledger.transaction() as second:
                    ledger.insert(second, key)
                    assert isinstance(guard.begin("s", key, transaction=second), InProgress)
                    assert ledger.execute(second, "SELECT 1") == [(1,)]
                assert isinstance(guard.begin("s", key), InProgress)
            else:
                with pytest.raises(ledger.stale), ledger.transaction() as second:
                    guard.begin("s", key, transaction=second)
                with pytest.raises(StoreUnavailable):
                    guard.begin("s", key)
            operation.complete("done")
        assert ledger.count(key) == ledger.locks_rows
        assert isinstance(guard.begin("s", key), Replay)

    def test_rivals_in_transactions(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """P1: of six that begin one key at once, each on its own transaction and again where told so, one commits."""

        def run(_: int) -> Replay:
            for _ in range(WAIT_S * 10):
                with suppress(*ledger.stale, StoreUnavailable, RolledBack), ledger.transaction() as transaction:
                    outcome = guard.begin("s", key, transaction=transaction)
                    if isinstance(outcome, Operation):
                        ledger.insert(transaction, key)
                        outcome.complete("done")
                    elif isinstance(outcome, Replay):
                        return outcome
                    else:
                        raise RolledBack
                threading.Event().wait(0.005)
            raise AssertionError

        with ThreadPoolExecutor(6) as pool:
            replays = list(pool.map(run, range(6)))
        assert len({each.view.record.etag for each in replays}) == 1
        assert ledger.count(key) == 1

    def test_a_lapsed_atomic_operation_is_taken_over_in_a_transaction(
        self, ledger: Ledger, guard: Guard, key: str
    ) -> None:
        """A re-claim, too, is committed with the rows; committed without an end it is no proof any longer."""
        begun(guard, key, policy=BRIEF)
        until(lambda: view_of(guard, key).lapsed)
        with suppress(Crash), ledger.transaction() as transaction, begun(guard, key, transaction=transaction) as taker:
            assert taker.recovered
            raise Crash
        with ledger.transaction() as transaction:
            begun(guard, key, transaction=transaction)
        until(lambda: view_of(guard, key).unresolved)
        assert isinstance(guard.begin("s", key, policy=ATOMIC), Unresolved)


def paid_and_killed(ledger: Ledger, key: str, *, committed: bool) -> None:
    """Complete a row's operation in a transaction, and be killed right before or after its commit."""
    guard = Guard.open(ledger.url)
    operation = begun(guard, key, policy=Policy(atomic=True, lease=0.3))
    with ledger.transaction() as transaction:
        ledger.insert(transaction, key)
        operation.complete("done", transaction=transaction)
        if not committed:
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
