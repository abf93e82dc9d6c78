"""The auditor: each way to break a promise is found in a history made by hand, and what is allowed is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from notwice.testing import auditor
from notwice.testing.auditor import Kind
from notwice.testing.history import Outcome, Produced, parse
from tests import sources
from tests.simulation.sound_tales import GOOD, LAPSED, OPEN
from tests.simulation.tales import HOLD, OK, ORDER, RERUN, Tale
from tests.simulation.unsound_tales import BAD


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_is_not_reported(name: str) -> None:
    """A history that keeps all promises has no violations."""
    assert [str(each) for each in auditor.audit(GOOD[name].told())] == []


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_found(name: str) -> None:
    """A history with one thing wrong is reported as just that, with events that prove it."""
    tale, kinds = BAD[name]
    found = auditor.audit(tale.told())
    assert {each.kind for each in found} == kinds, "\n".join(map(str, found))
    assert all(each.proof and set(each.proof) <= set(tale.events) for each in found)
    assert auditor.audit(parse(tale.told().lines())) == found


def test_each_kind_is_found_somewhere() -> None:
    """No kind of violation is a mere name."""
    found = {kind for _, kinds in BAD.values() for kind in kinds}
    assert found | {Kind.UNSETTLED} == set(Kind)


SETTLED: dict[str, tuple[Callable[[], Tale], set[Kind]]] = {
    "finished": (lambda: Tale().works("a").dies("a").calm().repeats("b"), set()),
    "hold, and unresolved": (
        lambda: Tale().works("a").dies("a").calm().later(LAPSED).asks("b").gets("b", Outcome.UNRESOLVED),
        set(),
    ),
    "rerun, and unresolved": (
        lambda: Tale(RERUN).works("a").dies("a").calm().later(LAPSED).asks("b").gets("b", Outcome.UNRESOLVED),
        {Kind.UNSETTLED},
    ),
    "still told to come back": (
        lambda: Tale(RERUN).works("a").dies("a").calm().asks("b").gets("b", Outcome.IN_PROGRESS, retry_after=1),
        {Kind.UNSETTLED},
    ),
    "still refused": (lambda: Tale().calm().asks("b").gets("b", Outcome.REFUSED, code="x"), {Kind.UNSETTLED}),
    "still in progress": (lambda: Tale().works("a").dies("a").calm().shows(OPEN), {Kind.UNSETTLED}),
    "hold, and its lease is over": (lambda: Tale().works("a").dies("a").calm().shows(OPEN, lapsed=True), set()),
    "still waiting": (lambda: Tale().calm().asks("a"), {Kind.UNBOUNDED_WAIT}),
    "its handler still runs": (lambda: Tale().works("a").calm(), {Kind.UNBOUNDED_WAIT}),
}


@pytest.mark.parametrize("name", SETTLED)
def test_what_does_not_settle_is_found(name: str) -> None:
    """Liveness: once the faults are over, all comes to its end; without that demand it need not."""
    make, kinds = SETTLED[name]
    assert {each.kind for each in auditor.audit(make().told(), settled=True)} == kinds
    assert auditor.audit(make().told()) == ()


def test_hold_and_rerun_differ_in_what_they_allow() -> None:
    """The same second run is a double effect under hold and what was asked for under rerun."""
    held, rerun = (Tale(policy).works("a").dies("a").later(LAPSED).finishes("b", 2) for policy in (HOLD, RERUN))
    assert {each.kind for each in auditor.audit(held.told())} == {Kind.DOUBLE_EFFECT, Kind.UNLAWFUL_RUN}
    assert auditor.audit(rerun.told()) == ()


def test_a_violation_shows_its_proof() -> None:
    """As text, a violation names the operation and gives the events that prove it, each as its line of JSON."""
    (found, *_) = auditor.audit(Tale().works("a").charges("a").told())
    assert str(found).startswith(f"double effect of {tuple(ORDER)}: one call caused it twice\n")
    assert str(found).count('"is":"Effect"') == 2


@pytest.mark.parametrize(
    "events",
    [
        [Produced(at_ns=0, call="nobody")],
        [Tale().asks("a").events[0], Tale().asks("a").events[0]],
        Tale().repeats("a").gets("a", Outcome.REPLAY, OK).events,
    ],
    ids=["nobody's call", "asked twice", "answered twice"],
)
def test_a_history_that_contradicts_itself_is_refused(events: list[Produced]) -> None:
    """A mistake of the recorder is an error, and not a verdict."""
    tale = Tale()
    tale.events.extend(events)
    with pytest.raises(ValueError, match="call"):
        auditor.audit(tale.told())


def test_the_auditor_knows_neither_rules_nor_guards() -> None:
    """Whatever the auditor imports of the package, directly or not, the rules and the guards are not among it."""
    modules = {source.name: source for source in sources.package_sources().values()}
    seen: set[str] = set()
    ahead = {"testing.auditor"}
    while ahead:
        name = ahead.pop()
        seen.add(name)
        found = sources.imported_modules(modules[name]) if name in modules else set()
        ahead |= {each for each in found if each} - seen
    assert "testing.history" in seen
    assert not seen & {
        "core",
        "flows",
        "guard",
        "async_guard",
        "guard_base",
        "operation",
        "waiting",
        "heart",
        "runtime",
    }
