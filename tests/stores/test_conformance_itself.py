"""The suite passes a sound store, catches broken ones by the case that names the promise, and leaves no promise out."""

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from notwice import NotwiceError, core
from notwice.model import Record, Released, State
from notwice.stores import port
from notwice.testing import VirtualClock
from notwice.testing.conformance import Engine, GuardCases, StoreCases
from notwice.testing.conformance.histories import companies, histories
from notwice.testing.conformance.machine import store_machine
from notwice.testing.conformance.processes import blocking_face, processes_of
from notwice.testing.conformance.promises import PromiseCases
from tests.stores.broken import (
    CAUGHT_BY,
    AcknowledgesBeforeItsCommit,
    CutsBodies,
    DamagedIsAbsent,
    DamagedIsOverwritten,
    Disk,
    EvictsOpenRecords,
    ForgetsAField,
    InsertsOverwrite,
    KeepsAnOldField,
    KeepsOldExpiry,
    KeepsWhatIsTooLarge,
    LapsedIsResolved,
    LostInsertSaysWon,
    NeverStampsCreation,
    NoFence,
    PurgesWhatIsTerminal,
    ReadThenWrite,
    RepliesSorted,
    Sound,
    StampsOnce,
    StripsBlanks,
)


def engine_of(kind: type[Sound], history_length: int = 2) -> Engine:
    """An engine with stores of one kind, on one disk and one virtual clock."""
    clock = VirtualClock()
    disk = Disk(clock)
    return Engine(
        open=lambda: kind(disk),
        damage=lambda _, namespace, operation: disk.damaged.add((namespace, operation)),
        clock=clock,
        history_length=history_length,
        body_bytes_max=1_000 if kind is KeepsWhatIsTooLarge else None,
    )


class TestSound(StoreCases, GuardCases):
    """The whole suite on the sound store."""

    @pytest.fixture
    def engine(self) -> Engine:
        return engine_of(Sound)


def case_runner(name: str, engine: Engine) -> Callable[[], None]:
    """One case of the suite, to be run on an engine."""
    case = getattr(StoreCases(), name)
    wanted = inspect.signature(case).parameters
    given = {"engine": engine, "store": engine.open()}
    return lambda: case(**{parameter: given[parameter] for parameter in wanted})


@pytest.mark.parametrize(("kind", "name"), CAUGHT_BY.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_is_caught(kind: type[Sound], name: str) -> None:
    """P16, T19, T21, C28: a store that breaks a promise fails the case of that promise."""
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        case_runner(name, engine_of(kind))()


SEEN_BY_HISTORIES = [
    *(InsertsOverwrite, LostInsertSaysWon, NoFence, ForgetsAField, KeepsAnOldField, AcknowledgesBeforeItsCommit),
    *(RepliesSorted, NeverStampsCreation, StampsOnce, KeepsOldExpiry, PurgesWhatIsTerminal),
]


@pytest.mark.parametrize("kind", SEEN_BY_HISTORIES, ids=lambda kind: kind.__name__)
def test_short_histories_catch_it_too(kind: type[Sound]) -> None:
    """P16: a fault that shows in one thread shows in some history of three steps."""
    with pytest.raises((AssertionError, KeyError)):
        case_runner("test_all_short_histories", engine_of(kind, history_length=3))()


@pytest.mark.parametrize("kind", [NoFence, KeepsOldExpiry], ids=lambda kind: kind.__name__)
def test_chosen_programs_catch_it_too(kind: type[Sound]) -> None:
    """P16: the state machine of hypothesis passes a sound store and finds what is wrong with a broken one."""
    once = settings(max_examples=60, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    run_state_machine_as_test(store_machine(lambda: nullcontext(engine_of(Sound))), settings=once)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(store_machine(lambda: nullcontext(engine_of(kind))), settings=once)


def test_there_are_as_many_histories_as_there_should_be() -> None:
    """P16: all sequences of length 1 to 3 over 18 operations are 6,174."""
    assert len(set(histories(3, timed=True))) == 18 + 18**2 + 18**3
    assert len(set(histories(2, timed=False))) == 16 + 16**2
    side_by_side = [names for company in companies(3, 50, timed=True) for names in company]
    assert sorted(side_by_side) == sorted(histories(3, timed=True))


def test_every_case_has_caught_something() -> None:
    """No case of the suite passes whatever the store does: for each there is a broken store that it catches."""
    cases = {name for name in dir(StoreCases) if name.startswith("test_")}
    assert cases == set(CAUGHT_BY.values())


def test_each_promise_of_a_store_is_one_case_in_its_words() -> None:
    """P16: the bullets of the port's docstring and the cases match one to one."""
    bullets = re.findall(r"^- (.+?)$", inspect.getdoc(port.Store) or "", flags=re.MULTILINE)
    cases = [case for name, case in vars(PromiseCases).items() if name.startswith("test_")]
    assert [inspect.getdoc(case) for case in cases] == bullets


def test_an_inability_is_a_skip_with_its_reason() -> None:
    """An engine that can't have a record damaged says why; one that says nothing fails."""
    silent = Engine(open=engine_of(Sound).open, clock=VirtualClock())
    with pytest.raises(pytest.fail.Exception, match="damage"):
        case_runner("test_unreadable", silent)()
    excused = Engine(open=engine_of(Sound).open, clock=VirtualClock(), cannot={"damage": "its records are sealed"})
    with pytest.raises(pytest.skip.Exception, match="its records are sealed"):
        case_runner("test_unreadable", excused)()


def guard_case(name: str, engine: Engine) -> None:
    """Run one case about guards, with the first of its parameters."""
    case = getattr(GuardCases(), name)
    given = {"loss": "lost", "trouble": "lost", "sends": 3}
    with processes_of(engine, blocking_face) as processes:
        options = {
            parameter: given[parameter] for parameter in inspect.signature(case).parameters if parameter in given
        }
        case(processes, **options)


RULES = {
    core.owns: "test_lost_begin",
    core._over: "test_an_expired_record_begins_anew",
    core._other_request: "test_mismatch",
    core._finished: "test_mismatch",
    core._orphaned: "test_the_next_begin_after_one_without_an_answer",
    core._released: "test_a_release_is_used_up_by_a_claim",
    core._running: "test_one_owner",
}


@pytest.mark.parametrize(("rule", "name"), RULES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_guard_without_a_rule_is_caught(
    rule: Callable[..., object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1 to P5, P13: without any one rule of begin, a case about guards fails."""
    monkeypatch.setattr(core, "BEGIN", tuple(each for each in core.BEGIN if each is not rule))
    monkeypatch.setattr(core, rule.__name__, lambda *_: None)
    with pytest.raises((AssertionError, NotwiceError)):
        guard_case(name, engine_of(Sound))


UNDER_GUARDS = {
    NoFence: "test_a_late_owner",
    ReadThenWrite: "test_one_owner",
    ForgetsAField: "test_mismatch",
    KeepsOldExpiry: "test_an_expired_record_begins_anew",
    EvictsOpenRecords: "test_open_records_stay",
    CutsBodies: "test_replay",
    DamagedIsOverwritten: "test_a_record_that_cannot_be_read",
    DamagedIsAbsent: "test_a_record_that_cannot_be_read",
    StripsBlanks: "test_namespaces",
    LapsedIsResolved: "test_hold",
}


@pytest.mark.parametrize(("kind", "name"), UNDER_GUARDS.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_broken_store_under_a_guard_is_caught(kind: type[Sound], name: str) -> None:
    """P1 to P14: a store that breaks its promises breaks the guard's, and the case about that one fails."""
    with pytest.raises((AssertionError, NotwiceError, pytest.fail.Exception)):
        guard_case(name, engine_of(kind))


def frees_everything(record: Record, etag: bytes, **_: object) -> Record:
    return record._replace(etag=etag, state=State.ACCEPTED, released=Released.AS_NEW)


def keeps_the_etag(ask: core.Ask, decision: core.Reclaim, etag: bytes) -> Record:
    return decision.view.record._replace(attempt=2)


BROKEN_MOVES = {
    "abandoned": (frees_everything, "test_abandon_frees_no_earlier_attempt"),
    "reclaimed": (keeps_the_etag, "test_a_late_owner"),
    "needs_force": (lambda _: False, "test_an_operator_resolves"),
}


@pytest.mark.parametrize("move", BROKEN_MOVES)
def test_a_broken_move_is_caught(move: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P5, P10: a move that writes the wrong record, or asks too little, is caught."""
    change, case = BROKEN_MOVES[move]
    monkeypatch.setattr(core, move, change)
    with pytest.raises((AssertionError, NotwiceError, pytest.fail.Exception)):
        guard_case(case, engine_of(Sound))


def test_each_promise_of_a_guard_has_a_case() -> None:
    """P16: every promise that touches a store, P1 to P14, is named by a case about guards."""
    cases = [inspect.getdoc(getattr(GuardCases, name)) or "" for name in dir(GuardCases) if name.startswith("test_")]
    named = {promise for text in cases for promise in re.findall(r"P\d+", text.partition(":")[0])}
    assert named == {f"P{number}" for number in range(1, 15)}
