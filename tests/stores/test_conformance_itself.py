"""The suite passes a sound store, catches broken ones by the case that names the promise, and leaves no promise out."""

import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from notwice.stores import port
from notwice.testing import VirtualClock
from notwice.testing.conformance import Engine, StoreCases
from notwice.testing.conformance.histories import histories
from notwice.testing.conformance.machine import store_machine
from notwice.testing.conformance.promises import PromiseCases
from tests.stores.broken import (
    CAUGHT_BY,
    AcknowledgesBeforeItsCommit,
    Disk,
    ForgetsAField,
    InsertsOverwrite,
    KeepsAnOldField,
    KeepsOldExpiry,
    LostInsertSaysWon,
    NeverStampsCreation,
    NoFence,
    PurgesWhatIsTerminal,
    RepliesSorted,
    Sound,
    StampsOnce,
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
    )


class TestSound(StoreCases):
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
