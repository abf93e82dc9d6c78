"""What a guard promises on any store: who owns an operation, what duplicates get, what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    ForceRequired,
    InProgress,
    Mismatch,
    OwnershipLost,
    RecordChanged,
    Replay,
    Result,
    ResultKind,
    State,
    Unresolved,
    UnresolvedFull,
    UnsupportedRecord,
    hold,
    reconcile,
    rerun,
)
from notwice.testing.conformance.processes import LEASE, Process, Processes, owns, policy
from notwice.testing.conformance.records import at_once

RIVALS = 8
RERUN = policy(recovery=rerun)


class OwnerCases:
    """Who owns an operation."""

    def test_one_owner(self, processes: Processes) -> None:
        """P1: of any number of begins at once, one owns the operation; the others are told that it is running."""
        rivals = [processes.start() for _ in range(RIVALS)]
        for number in range(4):
            outcomes = at_once(RIVALS, partial(self._begin, rivals, f"k{number}"))
            assert sorted(owns(outcome) for outcome in outcomes) == [False] * (RIVALS - 1) + [True]
            assert all(isinstance(each, InProgress) and each.retry_after >= 1 for each in outcomes if not owns(each))

    @staticmethod
    def _begin(rivals: Sequence[Process], key: str, rival: int) -> Any:  # noqa: ANN401 - either face's outcome
        return rivals[rival].begin(key)

    def test_one_taker(self, processes: Processes) -> None:
        """P1: of any number of begins that find a lapsed operation, one takes it over."""
        rivals = [processes.start() for _ in range(RIVALS)]
        processes.start().owned(policy=RERUN)
        processes.lapse()
        outcomes = at_once(RIVALS, lambda rival: rivals[rival].begin(policy=RERUN))
        (taker,) = filter(owns, outcomes)
        assert (taker.attempt, taker.recovered) == (2, True)

    def test_a_live_owner_keeps_it(self, processes: Processes) -> None:
        """P1, P4: an owner that is alive keeps its operation beyond its lease, whatever the policy of others."""
        owner, other = processes.start(), processes.start()
        operation = owner.owned(policy=RERUN)
        for _ in range(3):
            processes.wait(LEASE, owner)
            assert isinstance(other.begin(policy=RERUN), InProgress)
        operation.complete(1)
        assert other.answer() == 1

    def test_a_late_owner(self, processes: Processes) -> None:
        """P5: an owner that was presumed gone can neither complete, fail, suspend nor free the taker's operation."""
        for move in ("complete", "fail", "suspend", "abandon", "checkpoint"):
            owner, taker = processes.start(), processes.start()
            late = owner.owned(move, policy=RERUN)
            processes.lapse()
            taken = taker.owned(move, policy=RERUN)
            with pytest.raises(OwnershipLost):
                getattr(late, move)(*["late"] * (move != "abandon"))
            assert late.lost
            taken.complete("taken")
            assert owner.answer(move) == "taken"

    def test_a_late_owner_of_a_finished_operation(self, processes: Processes) -> None:
        """P5: once the taker has finished, a late owner can't overwrite its answer, nor take a new one's record."""
        late = processes.start().owned(policy=policy(recovery=rerun, retention=LEASE))
        processes.lapse()
        other = processes.start()
        other.owned(policy=RERUN).complete("first")
        with pytest.raises(OwnershipLost):
            late.complete("late")
        processes.engine.advance(LEASE * 1.5)
        anew = other.owned()
        with pytest.raises(OwnershipLost):
            late.complete("later")
        anew.complete("anew")
        assert other.answer() == "anew"

    def test_a_lapsed_owner_that_nobody_followed(self, processes: Processes) -> None:
        """P5: a lapsed lease that nobody took over may be renewed, and the operation completed."""
        owner = processes.start()
        operation = owner.owned()
        processes.lapse()
        operation.confirm()
        assert isinstance(processes.start().begin(), InProgress)
        operation.complete(1)
        assert owner.answer() == 1


class RecoveryCases:
    """What becomes of an operation whose owner is gone."""

    def test_hold(self, processes: Processes) -> None:
        """P5, P7: what was begun under `hold` is never run again, whatever a later caller's policy; it is listed."""
        processes.start().owned(policy=policy(recovery=hold))
        other = processes.start()
        assert other.unresolved() == []
        processes.lapse()
        before = other.lookup()
        for later in (policy(recovery=hold), RERUN, policy(recovery=reconcile(lambda _: NOT_APPLIED))):
            assert isinstance(other.begin(policy=later), Unresolved)
        assert other.unresolved() == ["k"]
        assert other.lookup().record == before.record

    def test_rerun(self, processes: Processes) -> None:
        """P5, P7: what was begun under `rerun` is run again, with its recovery point, and at most so many times."""
        limited = policy(recovery=rerun, attempts_max=2)
        first = processes.start().owned(policy=limited)
        first.checkpoint("charged", 7)
        processes.lapse()
        stricter = processes.start()
        assert isinstance(stricter.begin(policy=policy(recovery=hold)), Unresolved)
        second = processes.start().owned(policy=limited)
        assert (second.attempt, second.recovery_point, second.progress) == (2, "charged", {"charged": 7})
        processes.lapse()
        assert isinstance(stricter.begin(policy=limited), Unresolved)
        assert stricter.unresolved() == ["k"]

    def test_reconcile_finds_the_effect(self, processes: Processes) -> None:
        """P5, P7: a reconcile function that finds the effect completes the operation with what it found."""
        asking = policy(recovery=reconcile(lambda _: Applied("found")))
        processes.start().owned(policy=asking)
        processes.lapse()
        other = processes.start()
        for _ in range(2):
            assert other.answer(policy=asking) == "found"
        assert other.lookup().state is State.COMPLETED

    def test_reconcile_finds_nothing(self, processes: Processes) -> None:
        """P5, P10: "not applied" runs the operation only once every earlier owner has been silent for `settle`."""
        answers: list[object] = [UNKNOWN, NOT_APPLIED, NOT_APPLIED]
        asking = policy(recovery=reconcile(lambda _: answers.pop(0)), settle=60)
        if processes.engine.waits:
            pytest.skip("it would take more than a minute")
        processes.start().owned(policy=asking)
        other = processes.start()
        processes.lapse()
        for left in (2, 1):
            assert isinstance(other.begin(policy=asking), Unresolved)
            assert len(answers) == left
            assert isinstance(other.begin(policy=asking), Unresolved), "it is not asked again at once"
            assert len(answers) == left
            processes.engine.advance(31)
        operation = other.owned(policy=asking)
        assert operation.attempt == 4
        operation.complete(1)
        assert other.answer() == 1

    def test_open_records_stay(self, processes: Processes) -> None:
        """P6: what is neither finished nor released as new is never purged, however long nobody asks for it."""
        guarded = policy(retention=LEASE)
        process = processes.start()
        process.owned("running", policy=guarded)
        process.owned("suspended", policy=guarded).suspend("lost")
        process.owned("freed", policy=guarded).suspend("lost")
        process.guard.release(process.lookup("freed"), who="ana", why="nothing there")
        process.owned("done", policy=guarded).complete(1)
        processes.engine.advance(LEASE * 1.5 if processes.engine.waits else 400 * 86_400)
        assert process.guard.purge() <= 1
        assert process.lookup("done") is None
        assert sorted(process.unresolved()) == ["running", "suspended"]
        assert process.owned("freed").attempt == 2

    def test_a_full_namespace(self, processes: Processes) -> None:
        """With ``unresolved_max`` a namespace takes in no new operation while so many are unresolved; others do."""
        limited = policy(unresolved_max=2)
        process = processes.start()
        for key in ("a", "b"):
            process.owned(key).suspend("lost")
        process.owned("done").complete(1)
        full = processes.start()
        with pytest.raises(UnresolvedFull):
            full.begin("new", policy=limited)
        assert full.lookup("new") is None
        assert full.answer("done", policy=limited) == 1
        assert isinstance(full.begin("a", policy=limited), Unresolved)
        assert owns(full.begin("new", policy=limited, namespace="another tenant"))
        full.guard.resolve(full.lookup("a"), 1, who="ana", why="in the ledger")
        full.clock.advance(600)
        full.owned("new", policy=limited).complete(2)

    def test_an_expired_record_begins_anew(self, processes: Processes) -> None:
        """P6: after its retention a key begins anew, and a purge doesn't touch what was begun in its place."""
        process = processes.start()
        process.owned(policy=policy(retention=LEASE)).complete(1)
        assert process.answer() == 1
        processes.engine.advance(LEASE * 1.5)
        anew = process.owned(request={"amount": 2})
        assert (anew.attempt, anew.recovered) == (1, False)
        assert process.guard.purge() == 0
        anew.complete(2)
        assert process.answer() == 2

    def test_an_operator_resolves(self, processes: Processes) -> None:
        """P10: an operator's result finishes an unresolved operation; a live or changed one is left alone."""
        owner, operator = processes.start(), processes.start()
        owner.owned()
        live = operator.lookup()
        with pytest.raises(ForceRequired):
            operator.guard.resolve(live, "found", who="ana", why="asked the provider")
        processes.lapse()
        shown = operator.lookup()
        operator.guard.resolve(shown, "found", who="ana", why="asked the provider")
        with pytest.raises(RecordChanged):
            operator.guard.release(shown, who="ben", why="too late")
        assert owner.answer() == "found"
        (note,) = operator.lookup().record.audit
        assert (note.who, note.why) == ("ana", "asked the provider")


class DuplicateCases:
    """What duplicates get, and who can see what."""

    def test_replay(self, processes: Processes) -> None:
        """P2: every duplicate gets the first answer: status, headers and equal bytes, in whatever process it asks."""
        process = processes.start()
        answers = [
            Result(ResultKind.HTTP, bytes(range(256)) * 300, 201, (("location", "/1"), ("link", "a"), ("link", "b"))),
            Result(ResultKind.HTTP, b"", 204, ()),
            Result(ResultKind.HTTP, None, 200, (("content-type", "video/mp4"),)),
        ]
        for number, answer in enumerate(answers):
            process.owned(f"http-{number}").complete(answer)
            replay = processes.start().begin(f"http-{number}")
            assert isinstance(replay, Replay)
            same = replay.stored == answer
            assert same, f"the answer with status {answer.status} came back as another"  # to show how takes minutes
        values: list[object] = [None, 0, False, "", [], {}, b"", 10**30, {"a": [1, "x"]}]
        for number, value in enumerate(values):
            process.owned(f"value-{number}").complete(value)
            replayed = processes.start().answer(f"value-{number}")
            assert (type(replayed), replayed) == (type(value), value)

    def test_replay_of_a_refusal(self, processes: Processes) -> None:
        """P2: a definite refusal is an answer, too, and is replayed."""
        process = processes.start()
        process.owned().fail(Result(ResultKind.HTTP, b"no funds", 402))
        replay = processes.start().begin()
        assert (replay.stored.status, replay.stored.body) == (402, b"no funds")
        assert process.lookup().state is State.FAILED

    def test_mismatch(self, processes: Processes) -> None:
        """P3: another request under the same key is told so, whatever became of the first, and changes nothing."""
        process, other = processes.start(), processes.start()
        one: dict[str, Any] = {"request": {"amount": 1}, "policy": RERUN}
        two: dict[str, Any] = {"request": {"amount": 2}, "policy": RERUN}
        process.owned(**one)
        self._is_mismatch(other, two)
        processes.lapse()
        self._is_mismatch(other, two)
        retaken = other.owned(**one)
        self._is_mismatch(process, two)
        retaken.complete(1)
        self._is_mismatch(process, two)
        assert process.answer(**one) == 1
        assert process.answer() == 1, "who compares nothing gets the answer"

    @staticmethod
    def _is_mismatch(process: Process, options: dict[str, Any]) -> None:
        before = process.lookup().record
        assert isinstance(process.begin(**options), Mismatch)
        assert process.lookup().record == before

    def test_waiting(self, processes: Processes) -> None:
        """P4: a duplicate may wait for the answer, for a bounded time, and compares its request when it wakes, too."""
        process = processes.start()
        process.owned("slow")
        assert isinstance(process.begin("slow", policy=policy(wait=20)), InProgress)
        assert process.clock.monotonic() >= 20
        operation = process.owned("quick", request=1)
        patient = policy(wait=1_000)
        parts = (
            lambda: process.begin("quick", request=1, policy=patient),
            lambda: process.begin("quick", request=2, policy=patient),
            lambda: operation.complete("answer"),
        )
        same, other, _ = at_once(3, lambda number: parts[number]())
        assert same.result == "answer"
        assert isinstance(other, Mismatch)

    def test_waiting_for_a_key_that_is_freed(self, processes: Processes) -> None:
        """P4, P10: when an operation is freed, one of those who wait for it owns it, and the others go on waiting."""
        process = processes.start()
        operation = process.owned()
        patient = policy(wait=200)

        def wait_or_free(number: int) -> object:
            return process.begin(policy=patient) if number else operation.abandon()

        _, *outcomes = at_once(4, wait_or_free)
        assert sorted(owns(outcome) for outcome in outcomes) == [False, False, True]
        assert all(owns(outcome) or isinstance(outcome, InProgress) for outcome in outcomes)

    def test_namespaces(self, processes: Processes) -> None:
        """P11: nobody sees, blocks or overwrites the keys of another namespace."""
        process = processes.start()
        names = ("", "ana", "Ana", "ana ", "ben")
        owned = {name: process.owned(namespace=name, request=name) for name in names}
        for name, operation in owned.items():
            operation.complete(f"for {name}")
        for name in names:
            assert process.answer(namespace=name, request=name) == f"for {name}"
        assert process.lookup(namespace="eve") is None
        assert len(list(process.guard.within("ana").operations())) == 1
        assert len(list(process.guard.operations(all_namespaces=True))) == len(names)

    def test_lookup(self, processes: Processes) -> None:
        """P12: an operation can be looked up by scope and key; one that is not there is said to be absent."""
        process, other = processes.start(), processes.start()
        assert other.lookup() is None
        operation = process.owned()
        view = other.lookup()
        assert (view.state, view.lapsed, view.unresolved, view.operation) == (
            State.IN_PROGRESS,
            False,
            False,
            operation.operation,
        )
        processes.lapse()
        assert other.lookup().unresolved
        operation.complete("answer")
        view = other.lookup()
        assert (view.state, view.unresolved, view.answered) == (State.COMPLETED, False, True)
        assert other.lookup("another") is None

    def test_a_record_that_cannot_be_read(self, processes: Processes) -> None:
        """P14: a record that this release can't read is refused, never taken for absent, and never changed."""
        process = processes.start()
        operation = process.owned()
        record = process.lookup().record
        with processes.engine.opened() as store:
            processes.engine.damage_record(store, record.namespace, record.id)
        with pytest.raises(UnsupportedRecord):
            process.begin(policy=RERUN)
        with pytest.raises(UnsupportedRecord):
            process.lookup()
        with pytest.raises((UnsupportedRecord, OwnershipLost)):
            operation.complete(1)
