"""The search itself, bounded: it goes the same way each time, and `make fuzz` goes further."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.engines.private import missing
from tests.fuzz.search import Bounds, Found, search
from tests.fuzz.target import Target
from tests.fuzz.targets import EVERY, TARGETS

BOUNDS = Bounds(runs=20_000, seconds=2)


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """What the searches came to: all of them in one process, for it takes a while to count branches."""
    if find_spec("atheris") is None:
        missing("the fuzzer")
    return search(list(EVERY.values()), BOUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_no_input_that_the_search_comes_upon_breaks_the_parser_s_word(target: Target, found: dict[str, Found]) -> None:
    """P14, P15: thousands of inputs, each grown from one that reached a new branch; the seed is 1."""
    result = found[target.name]
    print(f"{target.name}: seed {BOUNDS.seed}, {result.runs} inputs, {result.branches} branches")
    assert result.failing is None, f"put this line into {target.file}:\n{result.failing}\n{result.told}"
    assert result.branches > 0, "no branch was counted, so nothing guided the search"


@pytest.mark.slow
def test_the_search_finds_what_is_there(found: dict[str, Found]) -> None:
    """The control: a fault behind five branches, which chance alone would take 2**40 inputs to come upon."""
    assert found["control"].failing is not None
    assert found["control"].failing.startswith("twice")
