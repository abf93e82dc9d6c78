"""What `make mutate` says of a survivor: explained by a row, a matter of words, or a test that is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import SURVIVED, Mutant, explanations, is_explained, is_in_words
from tests.sources import package_sources, type_of_function

PAGE = (Path(__file__).parent / "survivors.md").read_text(encoding="utf-8")


def functions_of(module: str) -> set[str]:
    """The functions and methods of a module, as mutmut names them."""
    body = package_sources()[module].tree.body
    found = {node.name for node in body if isinstance(node, type_of_function)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= {f"xǁ{node.name}ǁ{each.name}" for each in node.body if isinstance(each, type_of_function)}
    return found


def test_every_row_is_of_a_function_that_is_there() -> None:
    """A row goes with what it explains; whoever moves a function moves its rows."""
    places = [place.rpartition(".") for place in explanations(PAGE)]
    assert places
    assert [f"{module}.{name}" for module, _, name in places if name not in functions_of(module)] == []


@pytest.mark.parametrize(
    ("was", "became", "words_alone"),
    [
        ('-    raise E("no such key; give one")', '+    raise E("XXno such key; give oneXX")', True),
        ('-    raise E("no such key; give one")', '+    raise E("NO SUCH KEY; GIVE ONE")', True),
        ('-    raise E("no such key; give one")', "+    raise E(None)", False),
        ('-    raise E("no such key; give one")', '+    raise E("some other sentence here")', False),
        ('-    name = "etag"', '+    name = "XXetagXX"', False),
        ("-    if left < right and not done:", "+    if left <= right and not done:", False),
        ('-    return cast("_T", found)', "+    return cast(None, found)", True),
        ('-    return cast("_T", found)', '+    return cast("_T", None)', False),
    ],
)
def test_a_sentence_that_is_spelled_otherwise_is_a_matter_of_words(was: str, became: str, words_alone: bool) -> None:
    """Sentences for people are not tested letter by letter; that they are said, and what is in them, is."""
    assert is_in_words(was, became) is words_alone


def test_a_row_stands_for_its_change_and_no_other() -> None:
    """The place and the new line must be the row's; an ellipsis in a row stands for any text."""
    rows = explanations("| `m.f` | `` return a(…, 2) `` | why |\n| `m.g` | `` x \\| y `` | why |\n")
    assert is_explained(Mutant("m.f", "-  return a(1, 1)", "+  return a(1, 2)", SURVIVED), rows)
    assert is_explained(Mutant("m.g", "-  x", "+  x | y", SURVIVED), rows)
    assert not is_explained(Mutant("m.f", "-  return a(1, 1)", "+  return a(1, 3)", SURVIVED), rows)
    assert not is_explained(Mutant("m.g", "-  return a(1, 1)", "+  return a(1, 2)", SURVIVED), rows)
