"""The suite passes a sound store, catches broken ones by the case that names the promise, and leaves no promise out."""

import inspect
import re
from collections.abc import Callable

import pytest

from notwice.stores import port
from notwice.testing import VirtualClock
from notwice.testing.conformance import Engine, StoreCases
from notwice.testing.conformance.promises import PromiseCases
from tests.stores.broken import CAUGHT_BY, Disk, Sound


def engine_of(kind: type[Sound]) -> Engine:
    """An engine with stores of one kind, on one disk and one virtual clock."""
    clock = VirtualClock()
    disk = Disk(clock)
    return Engine(
        open=lambda: kind(disk),
        damage=lambda _, namespace, operation: disk.damaged.add((namespace, operation)),
        clock=clock,
        history_length=2,
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
