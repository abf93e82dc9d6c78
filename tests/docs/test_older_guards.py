"""The page on the older guards and the tests that it names."""

import re

from tests.sources import ROOT

PAGE = ROOT / "docs" / "older-guards.md"
TESTS = ROOT / "tests" / "unit" / "test_older_guards.py"


def test_every_rule_is_shown_by_a_test() -> None:
    """Each test that the page names exists, and each test of the older guards is named there."""
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named == set(re.findall(r"^def (test_\w+)", TESTS.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_rule_has_a_place_and_a_test() -> None:
    """No row of the rules' tables leaves out where the rule is now, or what shows it."""
    rows = [
        line.strip("|").split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")
    ]
    assert len(rows) > 30
    assert [row for row in rows if not all(cell.strip() for cell in row)] == []
