"""Histories with one thing wrong in each, and what that is called."""

from __future__ import annotations

from notwice.model import Released, State
from notwice.testing.auditor import Kind
from notwice.testing.history import Answer, Disturbance, Move, Outcome, Verdict
from tests.simulation.sound_tales import DONE, LAPSED, NEW, OPEN, OTHER, SHORT
from tests.simulation.tales import HOLD, LEASE_MS, OK, RECONCILE, RERUN, Tale, terms

BAD: dict[str, tuple[Tale, set[Kind]]] = {
    "a handler has its effect twice": (Tale().works("a").charges("a"), {Kind.DOUBLE_EFFECT}),
    "hold: what a crash left is run again": (
        Tale().works("a").dies("a").later(LAPSED).finishes("b", 2),
        {Kind.DOUBLE_EFFECT, Kind.UNLAWFUL_RUN},
    ),
    "hold, asked by a laxer caller": (
        Tale().works("a").dies("a").later(LAPSED).asks("b", policy=RERUN).runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "rerun, asked by a stricter caller": (
        Tale(RERUN).works("a").dies("a").later(LAPSED).asks("b", policy=HOLD).runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "rerun: a step that was confirmed": (
        Tale(RERUN)
        .asks("a")
        .gets("a", Outcome.OWNED, attempt=1)
        .charges("a", step="charge")
        .moves("a", Move.CHECKPOINT, point="charge")
        .dies("a")
        .later(LAPSED)
        .asks("b")
        .runs("b", 2)
        .charges("b", step="charge"),
        {Kind.DOUBLE_EFFECT},
    ),
    "rerun: another downstream key": (
        Tale(RERUN).works("a", key="k1").dies("a").later(LAPSED).works("b", 2, key="k2"),
        {Kind.DOUBLE_EFFECT},
    ),
    "rerun: finished, and claimed again": (
        Tale(RERUN).finishes("a").repeats("b").later(LAPSED).works("c", 2),
        {Kind.BROKEN_FENCE, Kind.DOUBLE_EFFECT},
    ),
    "rerun: attempts used up": (
        Tale(terms(RERUN.recovery, attempts_max=2))
        .works("a")
        .dies("a")
        .later(LAPSED)
        .works("b", 2)
        .dies("b")
        .later(LAPSED)
        .asks("c")
        .runs("c", 3),
        {Kind.UNLAWFUL_RUN},
    ),
    "rerun: time used up": (
        Tale(terms(RERUN.recovery, rerun_within_ms=2_000)).works("a").dies("a").later(3_000).asks("b").runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "one tick before the lease ends": (
        Tale(RERUN).asks("a").gets("a", Outcome.OWNED, attempt=1).later(LEASE_MS - 3).asks("b").runs("b", 2),
        {Kind.EARLY_TAKEOVER},
    ),
    "within the lease of an owner that beats": (
        Tale(RERUN)
        .asks("a")
        .gets("a", Outcome.OWNED, attempt=1)
        .later(900)
        .moves("a", Move.CONFIRM)
        .later(LEASE_MS - 10)
        .asks("b")
        .runs("b", 2),
        {Kind.EARLY_TAKEOVER},
    ),
    "reconcile: nobody was asked": (
        Tale(RECONCILE).works("a").dies("a").later(LAPSED).asks("b").runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "reconcile: before all had settled": (
        Tale(terms(RECONCILE.recovery, settle_ms=9_000))
        .asks("a")
        .runs("a")
        .dies("a")
        .later(LAPSED)
        .asks("b")
        .verdict("b", Verdict.NOT_APPLIED)
        .runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "reconcile: at once after a reboot, with the owner's call on its way": (
        Tale(RECONCILE)
        .asks("a")
        .runs("a")
        .dies("a")
        .breaks(Disturbance.REBOOT)
        .asks("b")
        .verdict("b", Verdict.NOT_APPLIED)
        .runs("b", 2),
        {Kind.UNLAWFUL_RUN},
    ),
    "reconcile: the taker acts though its owner just had": (
        Tale(RECONCILE)
        .works("a")
        .dies("a")
        .later(LAPSED)
        .asks("b")
        .verdict("b", Verdict.NOT_APPLIED)
        .runs("b", 2)
        .charges("b"),
        {Kind.DOUBLE_EFFECT},
    ),
    "two owners at once": (
        Tale().works("a").asks("b").runs("b").charges("b"),
        {Kind.BROKEN_FENCE, Kind.DOUBLE_EFFECT},
    ),
    "two owners of a second attempt": (
        Tale(RERUN).works("a").dies("a").later(LAPSED).asks("b").asks("c").runs("b", 2).runs("c", 2),
        {Kind.BROKEN_FENCE},
    ),
    "a zombie completes": (
        Tale(RERUN)
        .asks("a")
        .gets("a", Outcome.OWNED, attempt=1)
        .later(LAPSED)
        .asks("b")
        .gets("b", Outcome.OWNED, attempt=2)
        .moves("a", Move.COMPLETE),
        {Kind.BROKEN_FENCE},
    ),
    "two are told that theirs is the answer": (
        Tale(RERUN).works("a").later(LAPSED).works("b", 2).moves("b", Move.COMPLETE).moves("a", Move.FAIL),
        {Kind.BROKEN_FENCE},
    ),
    "an exception frees the key": (
        Tale().asks("a").runs("a").makes("a", None, error="TimeoutError").gets("a", Outcome.RAISED).asks("b").runs("b"),
        {Kind.FREED_KEY},
    ),
    "an abandon on a second attempt frees the first one's effect": (
        Tale(RERUN).works("a").dies("a").later(LAPSED).asks("b").runs("b", 2).moves("b", Move.ABANDON).works("c", 1),
        {Kind.FREED_KEY, Kind.DOUBLE_EFFECT},
    ),
    "an abandon after a checkpoint frees": (
        Tale()
        .asks("a")
        .gets("a", Outcome.OWNED, attempt=1)
        .moves("a", Move.CHECKPOINT, point="charge")
        .moves("a", Move.ABANDON)
        .asks("b")
        .gets("b", Outcome.OWNED, attempt=1),
        {Kind.FREED_KEY},
    ),
    "a finished record is dropped too early": (
        Tale(SHORT).finishes("a").later(4_000).finishes("b"),
        {Kind.FREED_KEY, Kind.DOUBLE_EFFECT},
    ),
    "an unresolved record expires": (
        Tale(SHORT).works("a").dies("a").shows(OPEN).later(9_000).shows(None),
        {Kind.VANISHED_RECORD},
    ),
    "nothing is stored of what was owned": (
        Tale().asks("a").gets("a", Outcome.OWNED, attempt=1).shows(None),
        {Kind.VANISHED_RECORD},
    ),
    "a confirmed end is not there": (
        Tale().works("a").moves("a", Move.COMPLETE).shows(OPEN),
        {Kind.VANISHED_RECORD},
    ),
    "a finished record is open again": (Tale().finishes("a").shows(DONE).shows(OPEN), {Kind.VANISHED_RECORD}),
    "an unresolved record is a younger one": (
        Tale().works("a").dies("a").shows(State.ACCEPTED, created_ms=1).shows(OPEN, created_ms=9),
        {Kind.VANISHED_RECORD},
    ),
    "success without an effect": (
        Tale().asks("a").runs("a").makes("a").gets("a", Outcome.DONE, OK),
        {Kind.LOST_EFFECT},
    ),
    "a replay of success without an effect": (
        Tale().asks("a").runs("a").makes("a").dies("a").repeats("b"),
        {Kind.LOST_EFFECT},
    ),
    "completed without an effect": (Tale().asks("a").shows(DONE), {Kind.LOST_EFFECT}),
    "a replay of nobody's answer": (Tale().finishes("a").repeats("b", Answer(b"refun", 201)), {Kind.WRONG_REPLAY}),
    "a replay with another status": (Tale().finishes("a").repeats("b", Answer(b"refunded", 200)), {Kind.WRONG_REPLAY}),
    "a replay with a header of its own": (
        Tale().finishes("a").repeats("b", Answer(b"refunded", 201, headers=(("x", "1"),))),
        {Kind.WRONG_REPLAY},
    ),
    "a replay that does not say so": (Tale().finishes("a").repeats("b", marked=False), {Kind.WRONG_REPLAY}),
    "another answer than the handler's": (Tale().works("a").gets("a", Outcome.DONE, NEW), {Kind.WRONG_REPLAY}),
    "an answer without a run": (Tale().asks("a").gets("a", Outcome.DONE, OK), {Kind.WRONG_REPLAY}),
    "a completed answer is overwritten": (
        Tale(RERUN).works("a").later(LAPSED).finishes("b", 2, NEW).repeats("c", NEW).repeats("d", OK),
        {Kind.WRONG_REPLAY},
    ),
    "another principal's answer": (
        Tale().finishes("a").asks("b", name=OTHER).gets("b", Outcome.REPLAY, OK),
        {Kind.FOREIGN_REPLAY},
    ),
    "another request's answer": (
        Tale().finishes("a").asks("b", request="s").gets("b", Outcome.REPLAY, OK),
        {Kind.FOREIGN_REPLAY},
    ),
    "another request runs": (
        Tale(RERUN).works("a").dies("a").later(LAPSED).asks("b", request="s").runs("b", 2),
        {Kind.FOREIGN_RUN},
    ),
    "refused, and run": (
        Tale().works("a").gets("a", Outcome.REFUSED, code="store_unavailable"),
        {Kind.UNGUARDED_RUN},
    ),
    "run without a guard against the policy": (
        Tale().asks("a").runs("a", guarded=False),
        {Kind.UNGUARDED_RUN},
    ),
    "a mismatch with itself": (Tale().finishes("a").asks("b").gets("b", Outcome.MISMATCH), {Kind.WRONG_REFUSAL}),
    "come back at once": (
        Tale().works("a").asks("b").gets("b", Outcome.IN_PROGRESS, retry_after=0),
        {Kind.WRONG_REFUSAL},
    ),
    "an answer that comes late": (
        Tale().asks("a", answer_within_ms=100).later(200).gets("a", Outcome.IN_PROGRESS, retry_after=1),
        {Kind.UNBOUNDED_WAIT},
    ),
    "an answer that never comes": (
        Tale().asks("a", answer_within_ms=100).later(200).asks("b").gets("b", Outcome.CANCELLED),
        {Kind.UNBOUNDED_WAIT},
    ),
    "all writes: one names another record": (
        Tale(whole=True).asks("a").writes("a", OPEN).writes("a", DONE, replaced=b"another"),
        {Kind.BROKEN_FENCE, Kind.LOST_EFFECT},
    ),
    "all writes: an insert over a record": (
        Tale(whole=True).asks("a").writes("a", OPEN).asks("b").writes("b", OPEN, replaced=None),
        {Kind.BROKEN_FENCE},
    ),
    "all writes: the same etag twice": (
        Tale(whole=True).asks("a").writes("a", OPEN).writes("a", OPEN, etag=b"etag-1"),
        {Kind.BROKEN_FENCE},
    ),
    "all writes: a finished record is overwritten": (
        Tale(RERUN, whole=True).asks("a").writes("a", OPEN).charges("a").writes("a", DONE).writes("b", DONE),
        {Kind.BROKEN_FENCE},
    ),
    "all writes: a take-over one tick early": (
        Tale(RERUN, whole=True).asks("a").writes("a", OPEN).later(LEASE_MS - 2).asks("b").writes("b", OPEN, 2),
        {Kind.EARLY_TAKEOVER},
    ),
    "all writes: an open record is purged": (
        Tale(SHORT, whole=True).asks("a").writes("a", OPEN).later(9_000).writes("", None),
        {Kind.VANISHED_RECORD},
    ),
    "all writes: a finished record is purged early": (
        Tale(SHORT, whole=True)
        .asks("a")
        .writes("a", OPEN)
        .charges("a")
        .writes("a", DONE)
        .later(4_000)
        .writes("", None),
        {Kind.VANISHED_RECORD},
    ),
    "all writes: another record than was written": (
        Tale(whole=True).asks("a").writes("a", OPEN).writes("a", OPEN).shows(OPEN, etag=b"etag-1"),
        {Kind.VANISHED_RECORD},
    ),
    "all writes: told before it is stored": (
        Tale(whole=True).asks("a").gets("a", Outcome.OWNED, attempt=1),
        {Kind.UNGUARDED_RUN},
    ),
    "all writes: an end is told before it is stored": (
        Tale(whole=True).asks("a").writes("a", OPEN).runs("a").charges("a").makes("a").moves("a", Move.COMPLETE),
        {Kind.VANISHED_RECORD},
    ),
    "all writes: freed by a second attempt": (
        Tale(RERUN, whole=True)
        .asks("a")
        .writes("a", OPEN)
        .later(LAPSED)
        .writes("b", OPEN, 2)
        .writes("b", State.ACCEPTED, 2, released=Released.AS_NEW),
        {Kind.FREED_KEY},
    ),
    "all writes: a claimed record becomes a new one": (
        Tale(RERUN, whole=True).asks("a").writes("a", OPEN).later(LAPSED).writes("b", OPEN, 2).writes("c", OPEN, 1),
        {Kind.FREED_KEY},
    ),
    "all writes: another's fingerprint": (
        Tale(whole=True)
        .asks("a")
        .writes("a", OPEN, request="r")
        .gets("a", Outcome.OWNED, attempt=1)
        .writes("b", OPEN, request="s"),
        {Kind.FOREIGN_RUN},
    ),
    "all writes: told that its own claim is another's": (
        Tale(whole=True).asks("a").writes("a", OPEN).gets("a", Outcome.IN_PROGRESS, retry_after=1),
        {Kind.WRONG_REFUSAL},
    ),
    "all writes: a stored end told as lost": (
        Tale(whole=True)
        .asks("a")
        .writes("a", OPEN)
        .runs("a")
        .charges("a")
        .writes("a", DONE)
        .moves("a", Move.COMPLETE, "ownership_lost"),
        {Kind.WRONG_REFUSAL},
    ),
}
