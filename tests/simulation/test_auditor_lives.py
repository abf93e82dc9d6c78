"""What runs of the simulator have taught the auditor: which life of an operation an event belongs to."""

from __future__ import annotations

import pytest

from notwice.model import Released, State
from notwice.testing.auditor import Kind, audit
from notwice.testing.history import Answer, Disturbance, Outcome, Verdict
from tests.simulation.tales import HOLD, LEASE_MS, OK, RECONCILE, RERUN, Tale, terms

LAPSED = LEASE_MS + 1
LOOKED_UP = Answer(b"looked up", 200)
SHORT = terms(RERUN.recovery, retention_ms=1_000)

SOUND: dict[str, Tale] = {
    "the first owner hears of its claim after a forced release and a second claim": Tale(RERUN, whole=True)
    .asks("a")
    .writes("a", State.IN_PROGRESS)
    .released(forced=True)
    .writes("", State.ACCEPTED, released=Released.OPERATOR)
    .asks("b")
    .writes("b", State.IN_PROGRESS, 2)
    .gets("b", Outcome.OWNED, attempt=2)
    .gets("a", Outcome.OWNED, attempt=1),
    "an answer expires by the terms of a first claim that nobody heard of": Tale(SHORT, whole=True)
    .asks("a")
    .writes("a", State.IN_PROGRESS)
    .dies("a")
    .later(LAPSED)
    .asks("b", policy=RERUN)
    .writes("b", State.IN_PROGRESS, 2)
    .runs("b", 2)
    .charges("b")
    .makes("b")
    .writes("b", State.COMPLETED, 2, answer=OK)
    .gets("b", Outcome.DONE, OK)
    .later(1_002)
    .asks("c")
    .writes("c", State.IN_PROGRESS)
    .runs("c")
    .charges("c")
    .makes("c")
    .writes("c", State.COMPLETED, answer=OK)
    .gets("c", Outcome.DONE, OK),
    "an operator's answer expires, and another one is replayed from then on": Tale(SHORT, whole=True)
    .asks("a")
    .writes("a", State.IN_PROGRESS)
    .dies("a")
    .resolved(LOOKED_UP)
    .writes("", State.COMPLETED, answer=LOOKED_UP)
    .repeats("b", LOOKED_UP)
    .later(1_002)
    .asks("c")
    .writes("c", State.IN_PROGRESS)
    .runs("c")
    .charges("c")
    .makes("c")
    .writes("c", State.COMPLETED, answer=OK)
    .gets("c", Outcome.DONE, OK)
    .repeats("d", OK),
    "a creator takes its claim back in a second life": Tale(SHORT, whole=True)
    .asks("a")
    .writes("a", State.IN_PROGRESS)
    .runs("a")
    .charges("a")
    .makes("a")
    .writes("a", State.COMPLETED, answer=OK)
    .gets("a", Outcome.DONE, OK)
    .later(1_002)
    .asks("b")
    .writes("b", State.IN_PROGRESS)
    .gets("b", Outcome.CANCELLED)
    .writes("", State.ACCEPTED, released=Released.AS_NEW),
    "rerun: its time is not over by a wall clock that was set back": Tale(terms(RERUN.recovery, rerun_within_ms=2_000))
    .works("a", key="k")
    .dies("a")
    .breaks(Disturbance.CLOCK_STEP, by_ms=-60_000)
    .later(3_000)
    .finishes("b", 2),
    "a process is stopped again just when its caller is told": Tale()
    .asks("a", answer_within_ms=100)
    .runs("a")
    .charges("a")
    .makes("a")
    .breaks(Disturbance.PAUSED, "a")
    .later(3_000)
    .gets("a", Outcome.DONE, OK)
    .breaks(Disturbance.RESUMED, "a"),
    "reconcile: an owner acts after all had been silent for long": Tale(RECONCILE)
    .asks("a")
    .gets("a", Outcome.OWNED, attempt=1)
    .runs("a")
    .later(2 * LAPSED)
    .asks("b")
    .charges("a", key="k")
    .makes("a", None, error="TimeoutError")
    .verdict("b", Verdict.NOT_APPLIED)
    .runs("b", 2)
    .charges("b", key="k"),
}


@pytest.mark.parametrize("tale", SOUND.values(), ids=SOUND.keys())
def test_what_looks_odd_is_allowed(tale: Tale) -> None:
    """A history that only looks as if a promise was broken is not reported."""
    assert not audit(tale.told()), "\n".join(map(str, audit(tale.told())))


def test_a_first_attempt_has_one_owner_whoever_hears_of_it_late() -> None:
    """Two callers that both wrote a first attempt into one life break the fence, in whatever order they hear of it."""
    tale = (
        Tale(RERUN, whole=True)
        .asks("a")
        .asks("b")
        .writes("a", State.IN_PROGRESS)
        .writes("b", State.IN_PROGRESS)
        .gets("b", Outcome.OWNED, attempt=1)
        .gets("a", Outcome.OWNED, attempt=1)
    )
    assert Kind.BROKEN_FENCE in {violation.kind for violation in audit(tale.told())}


def test_a_record_must_last_as_its_own_terms_say() -> None:
    """A new life before the retention that stands in the record is over is a broken promise, whatever others asked."""
    tale = (
        Tale(HOLD, whole=True)
        .asks("a")
        .writes("a", State.IN_PROGRESS)
        .runs("a")
        .charges("a")
        .makes("a")
        .writes("a", State.COMPLETED, answer=OK)
        .gets("a", Outcome.DONE, OK)
        .later(5_000)
        .asks("b", policy=SHORT)
        .writes("b", State.IN_PROGRESS)
    )
    assert {violation.kind for violation in audit(tale.told())} & {Kind.BROKEN_FENCE, Kind.FREED_KEY}
