"""Histories that keep all promises."""

from __future__ import annotations

from notwice.model import Released, State
from notwice.testing.history import Answer, Disturbance, Move, Name, Outcome, Verdict
from tests.simulation.tales import LEASE_MS, OK, RECONCILE, RERUN, Tale, terms

OTHER = Name("another shop", "refund:1", "k")
NO = Answer(b"no such order", 404, failed=True)
BROKEN = Answer(b"oops", 500, failed=True)
NEW = Answer(b"refunded again", 201)
LAPSED = LEASE_MS + 1
SHORT = terms(retention_ms=5_000)
OPEN, DONE = State.IN_PROGRESS, State.COMPLETED

GOOD: dict[str, Tale] = {
    "one caller": Tale().finishes("a"),
    "a duplicate is given the first answer": Tale().finishes("a").repeats("b").repeats("c"),
    "a replay without its body, and with fewer headers": Tale()
    .finishes("a", answer=Answer(b"large", 200, headers=(("x", "1"), ("y", "2"))))
    .repeats("b", Answer(None, 200, headers=(("x", "1"),))),
    "a duplicate while it runs": Tale()
    .works("a")
    .asks("b")
    .gets("b", Outcome.IN_PROGRESS, retry_after=1)
    .gets("a", Outcome.DONE, OK),
    "a refusal is replayed, too": Tale()
    .asks("a")
    .runs("a")
    .makes("a", NO)
    .gets("a", Outcome.DONE, NO)
    .repeats("b", NO),
    "another request is told so": Tale().finishes("a").asks("b", request="s").gets("b", Outcome.MISMATCH),
    "equal keys of two principals": Tale()
    .finishes("a")
    .asks("b", name=OTHER)
    .runs("b")
    .charges("b")
    .makes("b", NEW)
    .gets("b", Outcome.DONE, NEW),
    "hold: what a crash left is unresolved": Tale()
    .works("a")
    .dies("a")
    .later(LAPSED)
    .asks("b")
    .gets("b", Outcome.UNRESOLVED),
    "hold: an operator releases it, and the paused owner acts, too": Tale()
    .asks("a")
    .runs("a")
    .breaks(Disturbance.PAUSED, "a")
    .released()
    .finishes("b", 2)
    .breaks(Disturbance.RESUMED, "a")
    .charges("a"),
    "hold: the kept answer of a broken attempt, then the operator's": Tale()
    .asks("a")
    .runs("a")
    .charges("a")
    .makes("a", BROKEN, final=False)
    .gets("a", Outcome.DONE, BROKEN)
    .repeats("b", BROKEN)
    .resolved(NEW)
    .repeats("c", NEW),
    "hold: a late owner finishes": Tale()
    .works("a")
    .breaks(Disturbance.PAUSED, "a")
    .later(LAPSED)
    .asks("b")
    .gets("b", Outcome.UNRESOLVED)
    .breaks(Disturbance.RESUMED, "a")
    .moves("a", Move.COMPLETE)
    .gets("a", Outcome.DONE, OK)
    .repeats("c"),
    "rerun: what a crash left is run again": Tale(RERUN).works("a", key="k").dies("a").later(LAPSED).finishes("b", 2),
    "rerun: an exception is followed at once": Tale(RERUN)
    .asks("a")
    .runs("a")
    .charges("a", key="k")
    .makes("a", None, error="TimeoutError")
    .gets("a", Outcome.RAISED)
    .works("b", 2, key="k")
    .gets("b", Outcome.DONE, OK),
    "rerun: a zombie acts, and loses": Tale(RERUN)
    .asks("a")
    .runs("a")
    .breaks(Disturbance.PAUSED, "a")
    .later(LAPSED)
    .finishes("b", 2)
    .breaks(Disturbance.RESUMED, "a")
    .charges("a")
    .makes("a", NEW)
    .gets("a", Outcome.REPLAY, OK),
    "rerun: the provider remembers the downstream key": Tale(RERUN)
    .works("a", key="k")
    .dies("a")
    .later(LAPSED)
    .asks("b")
    .runs("b", 2)
    .charges("b", key="k", applied=False)
    .makes("b")
    .gets("b", Outcome.DONE, OK),
    "rerun: an owner that beats keeps its lease": Tale(RERUN)
    .asks("a")
    .gets("a", Outcome.OWNED, attempt=1)
    .later(900)
    .moves("a", Move.HEARTBEAT)
    .later(LAPSED)
    .asks("b")
    .gets("b", Outcome.OWNED, attempt=2),
    "rerun: a reboot ends all leases": Tale(RERUN).works("a").dies("a").breaks(Disturbance.REBOOT).finishes("b", 2),
    "reconcile: the function says what happened": Tale(RECONCILE)
    .works("a")
    .dies("a")
    .later(LAPSED)
    .asks("b")
    .verdict("b", Verdict.APPLIED)
    .makes("b")
    .gets("b", Outcome.REPLAY, OK),
    "reconcile: nothing had happened": Tale(RECONCILE)
    .asks("a")
    .runs("a")
    .dies("a")
    .later(LAPSED)
    .asks("b")
    .verdict("b", Verdict.NOT_APPLIED)
    .runs("b", 2)
    .charges("b")
    .makes("b")
    .gets("b", Outcome.DONE, OK),
    "atomic: an unfinished record proves that nothing happened": Tale(terms(atomic=True))
    .asks("a")
    .runs("a")
    .dies("a")
    .later(LAPSED)
    .finishes("b", 2),
    "the creator proves that nothing happened": Tale()
    .asks("a")
    .runs("a")
    .makes("a", None, error="NotApplied", proves=True)
    .gets("a", Outcome.RAISED)
    .finishes("b"),
    "an answer's time is over": Tale(SHORT).finishes("a").later(5_002).finishes("b", answer=NEW).repeats("c", NEW),
    "an answer's time is over by the wall clock": Tale(SHORT)
    .finishes("a")
    .breaks(Disturbance.CLOCK_STEP, by_ms=5_000)
    .finishes("b"),
    "a step of an earlier attempt is skipped": Tale(RERUN)
    .asks("a")
    .gets("a", Outcome.OWNED, attempt=1)
    .charges("a", step="charge")
    .moves("a", Move.CHECKPOINT, point="charge")
    .dies("a")
    .later(LAPSED)
    .asks("b")
    .runs("b", 2)
    .charges("b", step="mail")
    .makes("b")
    .gets("b", Outcome.DONE, OK),
    "a paused caller takes its time": Tale()
    .asks("a", answer_within_ms=100)
    .breaks(Disturbance.PAUSED, "a")
    .later(5_000)
    .breaks(Disturbance.RESUMED, "a")
    .gets("a", Outcome.REFUSED, code="store_unavailable"),
    "without a guard, by the policy's leave": Tale()
    .asks("a", proceed=True)
    .runs("a", guarded=False)
    .charges("a")
    .makes("a")
    .gets("a", Outcome.UNGUARDED, OK)
    .finishes("b"),
    "all writes: claim, heartbeat, complete, purge, anew": Tale(SHORT, whole=True)
    .asks("a")
    .writes("a", OPEN)
    .runs("a")
    .charges("a")
    .writes("a", OPEN)
    .makes("a")
    .moves("a", Move.HEARTBEAT)
    .writes("a", DONE)
    .moves("a", Move.COMPLETE)
    .gets("a", Outcome.DONE, OK)
    .shows(DONE, etag=b"etag-3")
    .later(5_002)
    .writes("", None)
    .asks("b")
    .writes("b", OPEN, replaced=None)
    .gets("b", Outcome.OWNED, attempt=1),
    "all writes: a claim undone": Tale(whole=True)
    .asks("a")
    .writes("a", OPEN)
    .gets("a", Outcome.OWNED, attempt=1)
    .writes("a", State.ACCEPTED, released=Released.AS_NEW)
    .moves("a", Move.ABANDON)
    .asks("b", request="s")
    .writes("b", OPEN)
    .gets("b", Outcome.OWNED, attempt=1),
    "all writes: a released record runs again": Tale(whole=True)
    .asks("a")
    .writes("a", OPEN)
    .gets("a", Outcome.OWNED, attempt=1)
    .dies("a")
    .later(LAPSED)
    .released()
    .writes("", State.ACCEPTED, released=Released.OPERATOR)
    .asks("b")
    .writes("b", OPEN, 2)
    .gets("b", Outcome.OWNED, attempt=2),
}
