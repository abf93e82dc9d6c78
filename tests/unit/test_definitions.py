"""Which functions are two, and which are one that was defined again."""

from __future__ import annotations

import functools
import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard
from notwice.stores.memory import MemoryStore

REFUSED = pytest.raises(ValueError, match=r"in line \d+ of .* is used by|is used by .* in line \d+ of")


@pytest.fixture
def guard() -> Guard:
    """A guard that lives longer than the modules whose functions it guards."""
    return Guard(MemoryStore())


def guarded(guard: Guard) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return guard.idempotent(scope="pay:{x}", key="{x}")


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of somebody's."""

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


def test_a_function_that_takes_the_name_of_another_is_another(guard: Guard) -> None:
    """C24: both may be kept by a router, and would be given each other's answers."""

    @guarded(guard)
    def pay(x: str) -> str:
        return "one" + x

    assert pay("1") == "one1"
    with REFUSED:

        @guarded(guard)
        def pay(x: str) -> str:
            return "two" + x


def test_so_it_is_under_a_decorator_that_keeps_names(guard: Guard) -> None:
    """C24: what is guarded is then one wrapper's code, and what it wraps tells."""

    @guarded(guard)
    @twice
    def pay(x: str) -> str:
        return "one" + x

    with REFUSED:

        @guarded(guard)
        @twice
        def pay(x: str) -> str:
            return "two" + x


def test_so_it_is_if_both_come_out_of_functions_that_were_made_side_by_side(guard: Guard) -> None:
    """C24: factories of one name, which have returned."""

    def make() -> Callable[[str], str]:
        def pay(x: str) -> str:
            return "one" + x

        return pay

    guarded(guard)(make())

    def make() -> Callable[[str], str]:  # type: ignore[no-redef]  # that is the point
        def pay(x: str) -> str:
            return "two" + x

        return pay

    with REFUSED:
        guarded(guard)(make())


def test_a_definition_that_runs_again_is_the_same_function(guard: Guard) -> None:
    """C24: in a loop or a factory; what else differs has to be a part of the scope."""

    def make() -> Callable[[str], str]:
        @guarded(guard)
        def pay(x: str) -> str:
            return x

        return pay

    assert [make()("1") for _ in range(3)] == ["1", "1", "1"]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes a module and loads it, anew if it was there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text: str) -> Any:
        (tmp_path / "shop_of_a_test.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        known = sys.modules.get("shop_of_a_test")
        return importlib.import_module("shop_of_a_test") if known is None else importlib.reload(known)

    yield load
    sys.modules.pop("shop_of_a_test", None)


KEPT = "from tests.unit.test_definitions import kept\n"
SCOPE = 'kept[0].idempotent(scope="pay:{x}", key="{x}")'
kept: list[Guard] = []
"""The guard that outlives the modules."""


@pytest.fixture
def outliving(guard: Guard) -> Iterator[None]:
    kept.append(guard)
    yield
    kept.clear()


@pytest.mark.usefixtures("outliving")
@pytest.mark.parametrize("form", ["@{0}\ndef pay(x):\n    return {1}\n", "pay = {0}(lambda x: {1})\n"])
def test_a_module_that_is_edited_and_loaded_anew_defines_its_functions_again(
    module: Callable[[str], Any], form: str
) -> None:
    """T14: at the same place, at another one, and back; but a second one beside it is another."""
    for number, before in enumerate(["", "", "\n\n", "limit = 5\n", ""]):
        loaded = module(KEPT + before + form.format(SCOPE, f"{number} + x"))
        assert loaded.pay(number) == 2 * number
    with REFUSED:
        module(KEPT + form.format(SCOPE, "1 + x") + form.format(SCOPE, "2 + x"))


def test_what_is_typed_in_again_is_an_edit_only_if_it_has_a_name(guard: Guard) -> None:
    """T14: a cell of a notebook that is run again defines its function again; two lambdas of a shell are two."""
    for number in range(2):
        exec(compile(f"def pay(x):\n    return {number}", f"<cell {number}>", "exec"), made := {"__name__": "shell"})
        guarded(guard)(made["pay"])  # type: ignore[arg-type]  # it is the function
    lambdas = Guard(MemoryStore())
    one, other = (eval(f"lambda x: {number}") for number in range(2))
    guarded(lambdas)(one)
    with REFUSED:
        guarded(lambdas)(other)
