"""What a guard promises when its store is down, slow, or loses requests and replies."""

from __future__ import annotations

import pytest

from notwice import InProgress, OwnershipLost, State, StoreUnavailable, Unresolved, rerun
from notwice.testing.conformance.processes import LEASE, Processes, policy
from notwice.testing.faulty import Slow, Trouble

RERUN = policy(recovery=rerun)
LOSSES: tuple[Trouble, ...] = ("lost", "drop")


class StoreTroubleCases:
    """The store is down, slow, or loses what was sent."""

    def test_store_down(self, processes: Processes) -> None:
        """P8: while the store is down nothing runs, not even for a duplicate; afterwards all is as before."""
        process, ran = processes.start(), list[str]()
        process.owned("done").complete(1)
        process.plan.down = True
        for key in ("new", "done"):
            with pytest.raises(StoreUnavailable) as caught:
                process.guard.run(lambda: ran.append("ran"), scope=("refund", "ord_1"), key=key)
            assert caught.value.retry_after is not None
            assert caught.value.retry_after >= 1
        with pytest.raises(StoreUnavailable):
            process.lookup("done")
        process.plan.down = False
        assert ran == []
        assert process.answer("done") == 1
        assert process.lookup("new") is None

    def test_store_slow(self, processes: Processes) -> None:
        """P8, P13: a claim that takes longer than `store_timeout` does not run, and leaves no owner behind."""
        process = processes.start()
        process.plan.add(Slow(3))
        with pytest.raises(StoreUnavailable):
            process.begin(policy=policy(store_timeout=2))
        process.clock.advance(1)
        assert processes.start().owned().attempt == 1

    def test_proceed(self, processes: Processes) -> None:
        """P8: only `store_failure="proceed"` runs without a store, and the operation says so."""
        process = processes.start()
        process.plan.down = True
        operation = process.owned(policy=policy(store_failure="proceed"))
        assert not operation.guarded
        operation.complete(1)
        process.plan.down = False
        assert process.lookup() is None
        assert process.owned().guarded

    @pytest.mark.parametrize("loss", LOSSES)
    def test_lost_begin(self, processes: Processes, loss: Trouble) -> None:
        """P13: an owner whose acknowledgement was lost owns its operation, and is not told that it is a duplicate."""
        process = processes.start()
        for number in (1, 2):
            process.plan.add(*(loss,) * number)
            operation = process.owned(f"k{number}")
            assert isinstance(processes.start().begin(f"k{number}"), InProgress)
            operation.complete(number)
            assert process.answer(f"k{number}") == number
        assert process.plan.planned == 0

    @pytest.mark.parametrize("loss", LOSSES)
    def test_lost_take_over(self, processes: Processes, loss: Trouble) -> None:
        """P13: the same holds for a take-over."""
        processes.start().owned(policy=RERUN)
        processes.lapse()
        taker = processes.start()
        taker.plan.add("ok", loss)
        operation = taker.owned(policy=RERUN)
        assert operation.attempt == 2
        operation.complete(1)
        assert taker.answer() == 1

    @pytest.mark.parametrize("trouble", ["lost", "drop", "late"])
    def test_begin_without_an_answer(self, processes: Processes, trouble: Trouble) -> None:
        """P13: a begin that got no answer leaves no owner behind: the key is free once the store answers."""
        process = processes.start()
        process.plan.add(*(trouble,) * 3)
        with pytest.raises(StoreUnavailable):
            process.begin(request=1)
        process.clock.advance(LEASE / 2)
        process.deliver()
        process.clock.advance(LEASE)
        assert processes.start().owned(request=2).attempt == 1

    def test_begin_that_lands_after_a_lease(self, processes: Processes) -> None:
        """P13: a claim that lands when its process no longer looks after it is found by that process's next begin."""
        process = processes.start()
        process.plan.add("late", "drop", "drop")
        with pytest.raises(StoreUnavailable):
            process.begin()
        process.clock.advance(LEASE * 3)
        process.deliver()
        assert process.owned().attempt == 1

    def test_the_next_begin_after_one_without_an_answer(self, processes: Processes) -> None:
        """P13: the next begin of the same process owns at once what the first one left; others wait for it."""
        process = processes.start()
        process.plan.add("lost", "drop", "drop")
        with pytest.raises(StoreUnavailable):
            process.begin()
        assert isinstance(processes.start().begin(), InProgress)
        operation = process.owned()
        process.clock.advance(LEASE / 2)
        operation.complete(1)
        assert process.answer() == 1

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("sends", [1, 3])
    def test_lost_complete(self, processes: Processes, loss: Trouble, sends: int) -> None:
        """P9: a completion without an acknowledgement is repeated until it is known, and never becomes another's."""
        process, other = processes.start(), processes.start()
        operation = process.owned(policy=RERUN)
        process.plan.add(*(loss,) * sends)
        if sends == 1:
            operation.complete("answer")
        else:
            with pytest.raises(StoreUnavailable):
                operation.complete("answer")
            assert loss == "lost" or isinstance(other.begin(), InProgress)
            process.clock.advance(LEASE)
        assert other.answer() == "answer"
        assert processes.start().lookup().record.attempt == 1

    def test_lost_complete_of_a_value(self, processes: Processes) -> None:
        """P9: the caller of a handler that did its work gets the value, though it could not be stored."""
        process = processes.start()

        def refund() -> str:
            process.plan.down = True
            return "refunded"

        assert process.guard.run(refund, scope=("refund", "ord_1"), key="k") == "refunded"
        process.clock.advance(1)
        process.plan.down = False
        assert isinstance(processes.start().begin(), InProgress)
        process.clock.advance(LEASE)
        assert processes.start().answer() == "refunded"

    def test_lost_complete_of_a_process_that_dies(self, processes: Processes) -> None:
        """P9: if the process dies before its completion is stored, the operation is unresolved, and not freed."""
        process, other = processes.start(), processes.start()
        operation = process.owned()
        process.plan.down = True
        with pytest.raises(StoreUnavailable):
            operation.complete("answer")
        processes.lapse()
        assert isinstance(other.begin(), Unresolved)
        assert other.unresolved() == ["k"]

    def test_after_an_unanswered_complete(self, processes: Processes) -> None:
        """P9: after a completion without an answer nothing but the same completion may follow."""
        process = processes.start()
        operation = process.owned()
        process.plan.add("lost", "lost", "lost")
        with pytest.raises(StoreUnavailable):
            operation.complete("answer")
        for move in (operation.abandon, operation.heartbeat, lambda: operation.complete("another")):
            with pytest.raises(StoreUnavailable):
                move()
        operation.complete("answer")
        assert process.answer() == "answer"

    @pytest.mark.parametrize("loss", LOSSES)
    def test_lost_sign_of_life(self, processes: Processes, loss: Trouble) -> None:
        """P13: a heartbeat or checkpoint whose acknowledgement was lost is no loss of the operation."""
        process = processes.start()
        operation = process.owned()
        for move in (operation.heartbeat, lambda: operation.checkpoint("charged", 1), operation.confirm):
            process.plan.add(loss)
            move()
            process.plan.add(loss, loss, loss)
            with pytest.raises(StoreUnavailable):
                move()
        operation.complete(1)
        assert process.lookup().record.recovery_point == "charged"
        assert process.answer() == 1

    def test_heartbeats_through_an_outage(self, processes: Processes) -> None:
        """P13: heartbeats that fail are tried again; an outage shorter than a lease costs nothing."""
        process, other = processes.start(), processes.start()
        operation = process.owned(policy=RERUN)
        for _ in range(3):
            process.plan.down = True
            processes.wait(LEASE / 2, process)
            process.plan.down = False
            processes.wait(LEASE / 2, process)
            assert isinstance(other.begin(policy=RERUN), InProgress)
        operation.complete(1)
        assert other.answer() == 1

    @pytest.mark.parametrize("loss", LOSSES)
    def test_lost_abandon(self, processes: Processes, loss: Trouble) -> None:
        """P10, P13: an abandon without an acknowledgement frees the key in the end, and no later one's."""
        process, other = processes.start(), processes.start()
        operation = process.owned(request=1)
        process.plan.add(loss)
        operation.abandon()
        anew = other.owned(request=2)
        anew.complete(2)
        assert process.answer(request=2) == 2

    def test_lost_abandon_that_finds_another(self, processes: Processes) -> None:
        """P10, P13: an abandon that was carried out unseen and was followed by another's claim is done."""
        process, other = processes.start(), processes.start()
        operation = process.owned()
        process.plan.add("lost", "drop", "drop")
        with pytest.raises(StoreUnavailable):
            operation.abandon()
        anew = other.owned()
        process.clock.advance(LEASE)
        assert not operation.lost
        anew.complete(1)
        assert process.answer() == 1

    @pytest.mark.parametrize("loss", LOSSES)
    def test_lost_suspend(self, processes: Processes, loss: Trouble) -> None:
        """P9, P13: a suspend without an acknowledgement leaves the operation unresolved, be it carried out or not."""
        process, other = processes.start(), processes.start()
        operation = process.owned()
        process.plan.add(loss)
        operation.suspend("timed out")
        assert other.lookup().state is State.ACCEPTED
        assert isinstance(other.begin(), Unresolved)


class FreeingCases:
    """What frees a key, and what does not."""

    def test_abandon_frees_what_it_claimed(self, processes: Processes) -> None:
        """P10: an owner that created the record and did nothing frees it, for any request."""
        process, other = processes.start(), processes.start()
        process.owned(request=1).abandon()
        operation = other.owned(request=2)
        assert (operation.attempt, operation.recovered) == (1, False)

    def test_abandon_keeps_what_was_done(self, processes: Processes) -> None:
        """P10: after a checkpoint or a downstream key an abandon does not free: something may have happened."""
        process = processes.start()
        touched = process.owned("checkpoint")
        touched.checkpoint("charged")
        touched.abandon()
        keyed = process.owned("key")
        keyed.downstream_key()
        keyed.abandon()
        for key in ("checkpoint", "key"):
            assert isinstance(process.begin(key), Unresolved)
        assert sorted(process.unresolved()) == ["checkpoint", "key"]

    def test_abandon_frees_no_earlier_attempt(self, processes: Processes) -> None:
        """P10: what a second attempt knows says nothing about the first: its abandon does not free the key."""
        process = processes.start()
        process.owned(policy=RERUN)
        processes.lapse()
        second = processes.start().owned(policy=RERUN)
        second.abandon()
        assert process.lookup().unresolved
        assert isinstance(process.begin(), Unresolved), "a caller under hold does not run it"

    def test_a_release_is_used_up_by_a_claim(self, processes: Processes) -> None:
        """P10: what an operator released runs again once, for the same request."""
        process = processes.start()
        process.owned(request=1).suspend("lost")
        process.guard.release(process.lookup(), who="ana", why="nothing there")
        second = process.owned(request=1)
        assert isinstance(process.begin(request=1), InProgress)
        second.suspend("lost again")
        assert isinstance(process.begin(request=1), Unresolved)

    def test_a_failing_handler(self, processes: Processes) -> None:
        """P10: an exception says nothing: the key stays, unresolved, unless the handler says that nothing happened."""
        process = processes.start()

        def fail(error: Exception) -> None:
            raise error

        with pytest.raises(TimeoutError):
            process.guard.run(lambda: fail(TimeoutError("30 s")), scope=("refund", "ord_1"), key="k")
        assert isinstance(process.begin(), Unresolved)
        declared = policy(not_applied_errors=(ConnectionRefusedError,))
        with pytest.raises(ConnectionRefusedError):
            process.guard.run(
                lambda: fail(ConnectionRefusedError()), scope=("refund", "ord_1"), key="free", policy=declared
            )
        assert process.owned("free").attempt == 1

    def test_a_lost_owner_is_told(self, processes: Processes) -> None:
        """P5: an owner learns from its heartbeat that it has lost its operation, and its next move raises."""
        process = processes.start()
        operation = process.owned(policy=RERUN)
        processes.lapse()
        processes.start().owned(policy=RERUN)
        process.clock.advance(LEASE)
        assert operation.lost
        with pytest.raises(OwnershipLost):
            operation.complete(1)
