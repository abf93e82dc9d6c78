"""The rules alone, each called as the pure function that it is: what is decided, and every field of what is written."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import core
from notwice.codec import encode_step
from notwice.core import Adopt, Ask, Claim, Own, Reclaim, Refuse, Replace
from notwice.model import (
    AGE_UNKNOWN_MS,
    Fingerprint,
    InProgress,
    Mismatch,
    Note,
    Record,
    RecordView,
    RecoveryKind,
    Released,
    Replay,
    Reply,
    Result,
    ResultKind,
    State,
    Terms,
    Unreadable,
    Unresolved,
)
from notwice.results import decode_result

TERMS = Terms(
    lease_ms=60_000,
    retention_ms=1_000_000,
    recovery=RecoveryKind.RERUN,
    rerun_within_ms=500_000,
    attempts_max=5,
    settle_ms=60_000,
    deduplicated=False,
)
ANSWER = Result(ResultKind.HTTP, b"sorry", 500, (("content-type", "text/plain"),))
DONE = Result(ResultKind.VALUE, b"j1")
FULL = Record(
    namespace="n",
    id="idem_1",
    scope="refund:1",
    key="k",
    state=State.IN_PROGRESS,
    etag=b"before",
    fingerprint=Fingerprint("value-1", b"digest"),
    terms=TERMS,
    attempt=2,
    generation=3,
    created_ms=10_000,
    rerun_from_ms=20_000,
    rerun_from_attempt=1,
    pause_ms=2_000,
    silent_ms=7_000,
    released=Released.OPERATOR,
    recovery_point="mail",
    progress=(("charge", b"j1"), ("mail", b"j2")),
    result=ANSWER,
    error="TimeoutError",
    audit=(Note("ann", 1, "released", "checked"),),
    request=b"jnull",
)
PLAIN = Record("n", "idem_1", "refund:1", "k", State.IN_PROGRESS, b"before", FULL.fingerprint, TERMS, created_ms=10_000)
ASK = Ask("n", "idem_1", "refund:1", "k", FULL.fingerprint, None, TERMS, can_ask=False)
NOW_MS = 100_000


def view_of(record: Record, age_ms: int = 0, **times: int) -> RecordView:
    return RecordView(record, times.get("written_ms", 90_000), times.get("now_ms", NOW_MS), age_ms)


def settle(record: Record | Unreadable | None, age_ms: int = 0, *, ask: Ask = ASK, **options: Any) -> Any:
    reply = Reply(options.pop("won", False), record, 90_000, options.pop("now_ms", NOW_MS), age_ms)
    return core.settle(ask, reply, options.pop("sent", ()), **options)


def accepted(**fields: Any) -> Record:
    return PLAIN._replace(state=State.ACCEPTED, **fields)


def of(kind: RecoveryKind, **fields: Any) -> Record:
    return accepted(terms=TERMS._replace(recovery=kind), **fields)


# -- begin: what is decided -------------------------------------------------------------------------------------------


def test_a_begin_finds_nothing_or_what_it_can_not_judge() -> None:
    """P14: rules 1 and 2: absent is a new record; unreadable or sealed is refused with its reason, never absent."""
    assert settle(None) == Replace(None)
    assert settle(Unreadable("n", "idem_1", "newer")) == Refuse("newer")
    sealed = settle(PLAIN._replace(sealed=b"e"), won=True, sent=(PLAIN.etag,))
    assert isinstance(sealed, Refuse)
    assert sealed.reason


def test_a_begin_owns_what_it_has_written_and_nothing_else() -> None:
    """P1, P13: rule 0: in progress, by an acknowledged write or under an etag that this begin sent."""
    assert settle(PLAIN, won=True) == Own(PLAIN)
    assert settle(PLAIN, sent=(PLAIN.etag,)) == Own(PLAIN)
    assert isinstance(settle(PLAIN, sent=(b"other",)), InProgress)
    freed = accepted(released=Released.AS_NEW)
    assert settle(freed, won=True, sent=(freed.etag,)) == Replace(freed)


def test_what_is_over_is_replaced_before_anything_else_is_looked_at() -> None:
    """P6: rule 3: expired and terminal, or released as new; never an open record, however old."""
    other = ASK._replace(fingerprint=Fingerprint("value-1", b"another"))
    done = PLAIN._replace(state=State.COMPLETED, result=DONE)
    assert settle(done, ask=other, now_ms=1_090_001) == Replace(done)
    assert isinstance(settle(done, ask=other, now_ms=1_090_000), Mismatch)
    assert settle(accepted(released=Released.AS_NEW), ask=other) == Replace(accepted(released=Released.AS_NEW))
    assert isinstance(settle(accepted(), ask=other, now_ms=10**15), Mismatch)


def test_another_request_is_told_apart_by_the_recipe_of_the_stored_one() -> None:
    """P3: rule 4: before state and lease; both absent and one absent are equal; an unknown recipe is refused."""
    other = Fingerprint("value-1", b"another")
    asked: list[str] = []

    def older(recipe: str) -> Fingerprint | None:
        asked.append(recipe)
        return {"old-1": Fingerprint("old-1", b"digest"), "old-2": Fingerprint("old-2", b"else")}.get(recipe)

    for age_ms in (0, 60_000):
        mismatch = settle(PLAIN, age_ms, ask=ASK._replace(fingerprint=other, by_recipe=older))
        assert mismatch == Mismatch(view_of(PLAIN, age_ms))
    assert not asked
    for one, two in ((None, other), (FULL.fingerprint, None), (None, None)):
        assert isinstance(settle(PLAIN._replace(fingerprint=one), ask=ASK._replace(fingerprint=two)), InProgress)
    knows = ASK._replace(by_recipe=older)
    assert isinstance(settle(PLAIN._replace(fingerprint=Fingerprint("old-1", b"digest")), ask=knows), InProgress)
    assert isinstance(settle(PLAIN._replace(fingerprint=Fingerprint("old-2", b"digest")), ask=knows), Mismatch)
    for ask in (knows, ASK):
        refused = settle(PLAIN._replace(fingerprint=Fingerprint("new-9", b"digest")), ask=ask)
        assert isinstance(refused, Refuse)
        assert "'new-9'" in refused.reason
    assert asked == ["old-1", "old-2", "new-9"]


def test_a_finished_operation_is_replayed() -> None:
    """P2: rule 5: completed and failed, with the decoder of results; an etag on the list changes nothing."""
    for state in (State.COMPLETED, State.FAILED):
        done = PLAIN._replace(state=state, result=DONE)
        replay = settle(done, orphaned=(done.etag,))
        assert replay == Replay(view_of(done), decode_result)
        assert replay.result == 1


def test_an_orphaned_claim_is_adopted_only_while_it_is_in_progress() -> None:
    """P13: rule 5: under an etag of the process's list; the fingerprint still comes first."""
    assert settle(PLAIN, orphaned=(PLAIN.etag,)) == Adopt(PLAIN)
    assert settle(PLAIN, 60_000, orphaned=(PLAIN.etag,)) == Adopt(PLAIN)
    assert isinstance(settle(PLAIN, orphaned=(b"other",)), InProgress)
    assert isinstance(settle(of(RecoveryKind.HOLD), orphaned=(PLAIN.etag,)), Unresolved)
    other = ASK._replace(fingerprint=Fingerprint("value-1", b"another"))
    assert isinstance(settle(PLAIN, ask=other, orphaned=(PLAIN.etag,)), Mismatch)


def test_what_an_operator_released_is_claimed_anew_whatever_its_policy() -> None:
    """P10: rule 6."""
    freed = of(RecoveryKind.HOLD, released=Released.OPERATOR)
    assert settle(freed) == Reclaim(view_of(freed), anew=True, asks=False)


@pytest.mark.parametrize(
    ("runs_ms", "seconds"), [(0, 1), (1_000, 1), (1_001, 2), (9_000, 9), (29_001, 30), (30_000, 30), (90_000, 30)]
)
def test_a_duplicate_waits_as_long_as_the_first_has_run(runs_ms: int, seconds: int) -> None:
    """P4: rule 7: from 1 to 30 seconds, rounded up; until the lease is over."""
    view = view_of(PLAIN, 59_999, now_ms=10_000 + runs_ms)
    assert settle(PLAIN, 59_999, now_ms=10_000 + runs_ms) == InProgress(view, seconds)
    assert isinstance(settle(PLAIN, 60_000, now_ms=10_000 + runs_ms), Reclaim)


STRICTER = [RecoveryKind.HOLD, RecoveryKind.RECONCILE, RecoveryKind.RERUN]


@pytest.mark.parametrize("stored", STRICTER)
@pytest.mark.parametrize("asked", STRICTER)
@pytest.mark.parametrize("can_ask", [True, False])
def test_the_stricter_of_the_stored_and_the_asked_policy_counts(
    stored: RecoveryKind, asked: RecoveryKind, can_ask: bool
) -> None:
    """P5, P7: rule 8: hold before reconcile before rerun; reconcile without a function to ask is hold."""
    kind = min(stored, asked, key=STRICTER.index)
    ask = ASK._replace(terms=TERMS._replace(recovery=asked), can_ask=can_ask)
    for record, age_ms in ((of(stored), 0), (of(stored)._replace(state=State.IN_PROGRESS), 60_000)):
        view = view_of(record, age_ms)
        expected: object = Unresolved(view)
        if kind is RecoveryKind.RERUN:
            expected = Reclaim(view)
        elif kind is RecoveryKind.RECONCILE and can_ask:
            expected = Reclaim(view, asks=True)
        assert settle(record, age_ms, ask=ask) == expected


@pytest.mark.parametrize(
    ("age_ms", "seconds"), [(0, 5), (500, 5), (1_000, 4), (4_999, 1), (5_000, None), (9_000, None)]
)
def test_a_paused_operation_is_left_alone_until_its_time(age_ms: int, seconds: int | None) -> None:
    """P7: rule 8: a rerun and a question both wait until the pause after the last write is over."""
    rerun = of(RecoveryKind.RERUN, pause_ms=5_000)
    view = view_of(rerun, age_ms)
    assert settle(rerun, age_ms) == (Reclaim(view) if seconds is None else InProgress(view, seconds))
    asked = of(RecoveryKind.RECONCILE, pause_ms=5_000)
    view, can_ask = view_of(asked, age_ms), ASK._replace(can_ask=True)
    decision = settle(asked, age_ms, ask=can_ask)
    assert decision == (Reclaim(view, asks=True) if seconds is None else Unresolved(view, seconds))
    answered = asked._replace(result=ANSWER)
    if seconds is not None:
        assert settle(answered, age_ms, ask=can_ask) == Replay(view_of(answered, age_ms), decode_result)
        assert settle(asked, age_ms) == Unresolved(view, None)


def test_a_held_operation_gives_its_kept_answer() -> None:
    """P2: rule 8: the answer that was sent, else unresolved; nothing is written."""
    held = of(RecoveryKind.HOLD, result=ANSWER)
    replay = settle(held)
    assert replay == Replay(view_of(held), decode_result)
    assert replay.stored == ANSWER
    assert replay.decode is decode_result


def test_an_atomic_claim_that_lapsed_is_taken_over_whatever_the_policy() -> None:
    """P5: rule 8: its end was to be committed with the caller's rows, and was not; not so once it has an answer."""
    terms = TERMS._replace(recovery=RecoveryKind.HOLD, atomic=True)
    open_one = PLAIN._replace(terms=terms)
    assert settle(open_one, 60_000) == Reclaim(view_of(open_one, 60_000))
    assert isinstance(settle(accepted(terms=terms, result=ANSWER)), Replay)
    assert isinstance(settle(accepted(terms=terms, pause_ms=1_000)), InProgress)


@pytest.mark.parametrize(
    ("stored", "asked", "exhausted"),
    [
        ({}, None, False),
        ({"attempts_max": 2}, None, True),
        ({"attempts_max": 3}, None, False),
        ({"attempts_max": None, "rerun_within_ms": None}, None, False),
        ({"rerun_within_ms": 80_000}, None, True),
        ({"rerun_within_ms": 80_001}, None, False),
        ({}, {"attempts_max": 2}, True),
        ({}, {"rerun_within_ms": 80_000}, True),
        ({}, {"attempts_max": None, "rerun_within_ms": None}, False),
        ({"attempts_max": 2}, {"attempts_max": None}, True),
    ],
)
def test_a_rerun_has_limits_of_attempts_and_of_time(
    stored: dict[str, Any], asked: dict[str, Any] | None, exhausted: bool
) -> None:
    """P7: the stricter of the stored and the asked limits, counted from the first claim or the last release."""
    record = FULL._replace(state=State.ACCEPTED, terms=TERMS._replace(**stored), released=Released.NO, pause_ms=0)
    terms = None if asked is None else TERMS._replace(**asked)
    assert core.rerun_exhausted(view_of(record), terms) is exhausted
    ask = ASK._replace(terms=terms or TERMS._replace(attempts_max=None, rerun_within_ms=None))
    assert isinstance(settle(record, ask=ask), Replay if exhausted else Reclaim)
    created = record._replace(rerun_from_ms=0, created_ms=20_000)
    assert core.rerun_exhausted(view_of(created), terms) is exhausted
    later = record._replace(attempt=7, rerun_from_attempt=6)
    assert core.rerun_exhausted(view_of(later), terms) is exhausted


def test_an_operation_waits_for_a_person_if_no_policy_goes_on_with_it() -> None:
    """P7: held, or out of attempts; not while it runs, was released, or lets its end be proved by a transaction."""
    assert core.held(view_of(of(RecoveryKind.HOLD)))
    assert core.held(view_of(of(RecoveryKind.HOLD)._replace(state=State.IN_PROGRESS), 60_000))
    assert not core.held(view_of(of(RecoveryKind.HOLD)._replace(state=State.IN_PROGRESS), 59_999))
    assert not core.held(view_of(of(RecoveryKind.HOLD, released=Released.OPERATOR)))
    assert not core.held(view_of(of(RecoveryKind.RECONCILE, attempt=9)))
    assert not core.held(view_of(of(RecoveryKind.RERUN)))
    assert core.held(view_of(of(RecoveryKind.RERUN, attempt=5)))
    atomic = of(RecoveryKind.HOLD)._replace(terms=TERMS._replace(recovery=RecoveryKind.HOLD, atomic=True))
    assert not core.held(view_of(atomic))
    assert core.held(view_of(atomic._replace(result=ANSWER)))


# -- begin: what is written -------------------------------------------------------------------------------------------


def test_a_new_record_has_what_was_asked_and_nothing_else() -> None:
    """P1: rules 1 and 3; the store stamps the time of its creation."""
    assert core.fresh(ASK, b"new") == PLAIN._replace(etag=b"new", created_ms=0)
    assert core.fresh(ASK._replace(request=b"j1"), b"new") == PLAIN._replace(etag=b"new", created_ms=0, request=b"j1")


def test_a_reclaimed_record_keeps_its_steps_and_loses_its_answer_and_its_mark() -> None:
    """P5: rules 6 and 8: one attempt more, the taker's lease; after a release the limits count anew."""
    ask = ASK._replace(terms=TERMS._replace(lease_ms=5_000, recovery=RecoveryKind.HOLD, settle_ms=1, attempts_max=1))
    taken = FULL._replace(
        etag=b"new",
        attempt=3,
        terms=TERMS._replace(lease_ms=5_000),
        pause_ms=0,
        silent_ms=None,
        released=Released.NO,
        result=None,
    )
    view = view_of(FULL._replace(state=State.ACCEPTED), 1_000)
    assert core.reclaimed(ask, Reclaim(view), b"new") == taken
    assert core.reclaimed(ask, Reclaim(view, anew=True), b"new") == taken._replace(
        rerun_from_ms=NOW_MS, rerun_from_attempt=3
    )


@pytest.mark.parametrize(
    ("before_ms", "age_ms", "silent_ms"),
    [(None, 1_000, 1_000), (0, 1_000, 1_000), (7_000, 1_000, 8_000), (7_000, AGE_UNKNOWN_MS, 7_000)],
)
def test_a_question_counts_the_silence_of_owners_whose_handler_ran(
    before_ms: int | None, age_ms: int, silent_ms: int
) -> None:
    """P5: each reclaim that asks adds the time since the last sign of life; past a boot nobody knows that time."""
    view = view_of(FULL._replace(silent_ms=before_ms), age_ms)
    assert core.reclaimed(ASK, Reclaim(view, asks=True), b"new").silent_ms == silent_ms


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_a_taker_without_a_transaction_takes_the_proof_away(stored: bool, asked: bool) -> None:
    """P5: the stored terms stay, but for the lease; what was atomic and ends otherwise keeps the stricter policy."""
    before = TERMS._replace(atomic=stored, recovery=RecoveryKind.RERUN)
    terms = TERMS._replace(atomic=asked, recovery=RecoveryKind.RECONCILE, lease_ms=1, settle_ms=2, retention_ms=3)
    ask = ASK._replace(terms=terms)
    after = core.reclaimed(ask, Reclaim(view_of(FULL._replace(terms=before))), b"new").terms
    loses = stored and not asked
    assert after == before._replace(
        lease_ms=1,
        atomic=stored and asked,
        recovery=RecoveryKind.RECONCILE if loses else RecoveryKind.RERUN,
    )
    laxer = ASK._replace(terms=terms._replace(recovery=RecoveryKind.RERUN))
    strict = FULL._replace(terms=before._replace(recovery=RecoveryKind.HOLD))
    assert core.reclaimed(laxer, Reclaim(view_of(strict)), b"new").terms.recovery is RecoveryKind.HOLD


@pytest.mark.parametrize(
    ("silent_ms", "stored", "asked", "runs"),
    [
        (None, {}, {}, True),
        (59_999, {}, {}, False),
        (60_000, {}, {}, True),
        (60_000, {"settle_ms": 60_001}, {}, False),
        (60_000, {}, {"settle_ms": 60_001}, False),
        (0, {"recovery": RecoveryKind.RERUN}, {"deduplicated": True}, True),
        (0, {"recovery": RecoveryKind.RECONCILE}, {"deduplicated": True}, False),
        (0, {"recovery": RecoveryKind.RECONCILE, "deduplicated": True}, {"deduplicated": True}, True),
        (0, {"deduplicated": True}, {}, False),
    ],
)
def test_not_applied_runs_it_where_the_provider_deduplicates_or_all_owners_settled(
    silent_ms: int | None, stored: dict[str, Any], asked: dict[str, Any], runs: bool
) -> None:
    """P5: both say that the provider de-duplicates, or the longer settle has passed."""
    record = FULL._replace(silent_ms=silent_ms, terms=TERMS._replace(**stored))
    assert core.may_run(record, TERMS._replace(**asked)) is runs


# -- the owner's moves ------------------------------------------------------------------------------------------------


def test_signs_of_life_change_the_etag_and_nothing_else() -> None:
    """P1: a heartbeat; and the start of a handler, from when on its silence counts."""
    assert core.beaten(FULL, b"new") == FULL._replace(etag=b"new")
    assert core.started(FULL, b"new") == FULL._replace(etag=b"new", silent_ms=None)


def test_a_checkpoint_is_added_or_takes_the_place_of_its_name() -> None:
    """P7: the point becomes the recovery point; other points stay in their order."""
    added = core.checkpointed(FULL, b"new", point="ship", data=b"j3")
    assert added == FULL._replace(etag=b"new", recovery_point="ship", progress=(*FULL.progress, ("ship", b"j3")))
    again = core.checkpointed(FULL, b"new", point="charge", data=b"j2")
    assert again == FULL._replace(etag=b"new", recovery_point="charge", progress=(("mail", b"j2"), ("charge", b"j2")))


def test_a_step_takes_the_place_of_the_steps_within_it() -> None:
    """P7: those below its label go; those whose names only begin alike stay, and so does what was checkpointed."""
    step = encode_step(1, at_home=True)
    record = FULL._replace(progress=(("a/1", step), ("ab", step), ("a/2/x", step), ("a/3", b"checkpoint")))
    done = core.stepped(record, b"new", label="a", data=step)
    kept = (("ab", step), ("a/3", b"checkpoint"), ("a", step))
    assert done == record._replace(etag=b"new", recovery_point="a", progress=kept)


def test_progress_has_limits_of_points_and_of_bytes() -> None:
    """A record may keep 1,000 points and a megabyte of names and results, and not one more."""
    points = tuple((f"{number:03}", b"") for number in range(core.PROGRESS_POINTS_MAX))
    assert not core.too_full(points)
    assert core.too_full((*points, ("one more", b"")))
    assert not core.too_full((("name", bytes(core.PROGRESS_BYTES_MAX - 4)),))
    assert core.too_full((("name", bytes(core.PROGRESS_BYTES_MAX - 3)),))


def test_a_finished_record_has_its_answer_and_no_request() -> None:
    """P2: state, result and error are the last ones; steps and audit stay."""
    done = core.finished(FULL, b"new", state=State.FAILED, result=DONE)
    expected = FULL._replace(etag=b"new", state=State.FAILED, result=DONE, error="", silent_ms=None, request=None)
    assert done == expected
    assert type(done) is Record
    failed = core.finished(FULL, b"new", state=State.COMPLETED, result=DONE, error="why")
    assert failed == expected._replace(state=State.COMPLETED, error="why")


@pytest.mark.parametrize(
    ("attempt", "pause_ms"), [(1, 0), (2, 2_000), (3, 4_000), (8, 128_000), (9, 256_000), (10, 300_000), (60, 300_000)]
)
def test_a_suspended_record_waits_longer_after_each_rerun(attempt: int, pause_ms: int) -> None:
    """P7: the first rerun comes at once, later ones after 2, 4, 8 and at most 300 seconds; the error is cut."""
    record = FULL._replace(attempt=attempt)
    suspended = core.suspended(record, b"new", error="e" * 501, answer=None)
    assert suspended == record._replace(
        etag=b"new", state=State.ACCEPTED, error="e" * 500, result=None, pause_ms=pause_ms
    )
    assert core.suspended(record, b"new", error="", answer=ANSWER).result == ANSWER
    patient = core.suspended(record, b"new", error="", answer=None, patient=True).pause_ms
    assert patient == (300_000 if attempt > 1 else 0)


def test_what_proves_nothing_is_not_atomic_any_more() -> None:
    """T22: where the rows may be committed, an unfinished record is no proof; its terms stay as they are else."""
    record = FULL._replace(terms=FULL.terms._replace(atomic=True))
    assert core.suspended(record, b"new", error="", answer=None).terms == record.terms
    assert core.suspended(record, b"new", error="", answer=None, proves=True).terms == record.terms
    unproven = core.suspended(record, b"new", error="", answer=None, proves=False).terms
    assert unproven == record.terms._replace(atomic=False)
    assert unproven.atomic is False


def test_an_abandoned_claim_of_a_worker_is_tried_again_later() -> None:
    """P7: what is in the way won't be gone in seconds, so no attempts are used up in seconds."""
    record, later = FULL._replace(attempt=2), Claim(created=False, prior=FULL)
    at_once, patient = (
        core.abandoned(record, b"new", claim=later, touched=False, patient=patient) for patient in (False, True)
    )
    assert (at_once.pause_ms, patient.pause_ms) == (2_000, core.PAUSE_MAX_MS)


def test_a_result_is_left_out_but_for_its_status() -> None:
    """P9: only what has a body can be; kind, status and headers stay, and the error says why, if it is empty."""
    assert core.has_body(FULL)
    for result in (None, DONE._replace(body=None), DONE._replace(body=b"")):
        assert core.has_body(FULL._replace(result=result)) is False
    assert core.omitting(FULL) == FULL._replace(result=ANSWER._replace(body=None))
    assert core.omitting(FULL._replace(error="")).error == core.TOO_LARGE


def test_two_last_moves_are_alike_if_they_say_the_same() -> None:
    """P9: the same state and result, or the first one's left out."""
    done = FULL._replace(state=State.COMPLETED)
    assert core.ends_alike(done, done)
    assert core.ends_alike(core.omitting(done), done)
    assert not core.ends_alike(done, core.omitting(done))
    assert not core.ends_alike(done._replace(state=State.FAILED), done)
    assert not core.ends_alike(done._replace(result=DONE), done)
    assert core.ends_alike(done._replace(result=None), done._replace(result=None))


def test_what_could_not_be_reconciled_is_put_back_for_a_while() -> None:
    """P7: unknown: not asked for again for 30 seconds; the silence that was counted stays."""
    assert core.put_back(FULL._replace(error=""), b"new", error="e" * 501) == FULL._replace(
        etag=b"new", state=State.ACCEPTED, error="e" * 500, pause_ms=30_000
    )


def test_what_comes_after_an_error_does_not_overwrite_it() -> None:
    """P7: the error that left the outcome unknown stays, with the newest word of what came of it, within the limit."""
    later = Claim(created=False, prior=FULL)
    failed = FULL._replace(error="TimeoutError: no answer from the bank")
    first = core.abandoned(failed, b"1", claim=later, touched=False, why="NotSent: refused")
    assert first.error == "TimeoutError: no answer from the bank; since then: abandoned: NotSent: refused"
    second = core.put_back(first, b"2", error="the ledger does not say")
    assert second.error == "TimeoutError: no answer from the bank; since then: the ledger does not say"
    assert core.put_back(FULL._replace(error="unknown"), b"1", error="unknown").error == "unknown"
    assert core.put_back(FULL._replace(error=""), b"1", error="unknown").error == "unknown"
    long = core.put_back(FULL._replace(error="c" * 500), b"1", error="e" * 500).error
    assert (len(long), long[:250], long[-200:]) == (500, "c" * 250, "e" * 200)


ABANDONED = FULL._replace(
    etag=b"new",
    state=State.ACCEPTED,
    error="TimeoutError; since then: abandoned",
    result=None,
    released=Released.NO,
)


@pytest.mark.parametrize("touched", [True, False])
@pytest.mark.parametrize("mark", list(Released))
def test_an_abandoned_claim_undoes_itself_and_no_more(touched: bool, mark: Released) -> None:
    """P10: only the claim that created the record frees it, and only untouched; another gives back the mark it took."""
    created = core.abandoned(FULL, b"new", claim=Claim(created=True), touched=touched)
    freed = FULL._replace(etag=b"new", state=State.ACCEPTED, released=Released.AS_NEW, pause_ms=0, request=None)
    assert created == (ABANDONED if touched else freed._replace(error=ABANDONED.error))
    later = Claim(created=False, prior=FULL._replace(released=mark))
    assert core.abandoned(FULL, b"new", claim=later, touched=touched) == ABANDONED._replace(
        released=Released.NO if touched else mark
    )


def test_a_begin_that_ended_without_an_answer_is_undone_at_once() -> None:
    """P13: nothing ran under it: free as new, or open without a pause; a later begin takes it as new, or frees it."""
    created, later = Claim(created=True), Claim(created=False, prior=FULL._replace(released=Released.OPERATOR))
    freed = FULL._replace(etag=b"new", state=State.ACCEPTED, released=Released.AS_NEW, pause_ms=0, request=None)
    open_again = ABANDONED._replace(released=Released.OPERATOR, pause_ms=0, error=FULL.error)
    assert core.disowned(FULL, b"new", claim=created) == freed
    assert core.disowned(FULL, b"new", claim=later) == open_again
    assert core.adopted(ASK, FULL, b"new", claim=created) == core.fresh(ASK, b"new")
    assert core.adopted(ASK, FULL, b"new", claim=later) == open_again


# -- an operator's moves ----------------------------------------------------------------------------------------------


def test_a_resolved_record_has_the_person_s_answer() -> None:
    """P10: who, when and why stay in it; mark, pause, silence and request go."""
    resolved = core.resolved(view_of(FULL), b"new", state=State.FAILED, result=DONE, who="bob", why="saw it")
    assert resolved == FULL._replace(
        etag=b"new",
        state=State.FAILED,
        result=DONE,
        released=Released.NO,
        pause_ms=0,
        silent_ms=None,
        request=None,
        audit=(*FULL.audit, Note("bob", NOW_MS, "resolved as failed", "saw it")),
    )


@pytest.mark.parametrize(
    ("from_start", "new_key", "action"),
    [
        (False, False, "released"),
        (True, False, "released, from its start"),
        (False, True, "released, with a new downstream key"),
        (True, True, "released, from its start, with a new downstream key"),
    ],
)
def test_a_released_record_may_run_again(from_start: bool, new_key: bool, action: str) -> None:
    """P10: the answer goes and the fingerprint stays; steps and generation as the person chose."""
    released = core.released(
        view_of(FULL._replace(released=Released.NO)),
        b"new",
        who="bob",
        why="saw it",
        from_start=from_start,
        new_downstream_key=new_key,
    )
    assert released == FULL._replace(
        etag=b"new",
        state=State.ACCEPTED,
        released=Released.OPERATOR,
        generation=4 if new_key else 3,
        recovery_point="" if from_start else "mail",
        progress=() if from_start else FULL.progress,
        pause_ms=0,
        silent_ms=None,
        result=None,
        audit=(*FULL.audit, Note("bob", NOW_MS, action, "saw it")),
    )
    assert type(released.generation) is int


def test_the_audit_trail_keeps_its_last_lines() -> None:
    """P10: fifty of them."""
    notes = tuple(Note("ann", number, "released", "") for number in range(core.AUDIT_NOTES_MAX))
    view = view_of(FULL._replace(audit=notes))
    audit = core.resolved(view, b"new", state=State.FAILED, result=DONE, who="bob", why="").audit
    assert audit == (*notes[1:], Note("bob", NOW_MS, "resolved as failed", ""))


@pytest.mark.parametrize(
    ("record", "age_ms", "needs"),
    [
        (PLAIN, 59_999, True),
        (PLAIN, 60_000, False),
        (accepted(), 0, False),
        (accepted(released=Released.OPERATOR), 0, False),
        (accepted(released=Released.AS_NEW), 0, True),
        (PLAIN._replace(state=State.COMPLETED), 0, True),
        (PLAIN._replace(state=State.FAILED), 0, True),
    ],
)
def test_force_is_needed_for_what_is_alive_finished_or_free(record: Record, age_ms: int, needs: bool) -> None:
    """P10: a person is told before a live owner is cut off, an answer is changed, or a freed key is taken back."""
    assert core.needs_force(view_of(record, age_ms)) is needs
