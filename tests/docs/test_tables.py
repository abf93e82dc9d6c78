"""What the pages say of options, codes, events, commands and states is what the code has."""

from pathlib import Path

import pytest

from tests.docs import tables
from tests.docs.pages import PAGES
from tests.docs.test_pages import shown


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_tables_of_a_page_are_those_of_the_code(page: Path) -> None:
    """Every table that is made from the code is up to date; `python -m tests.docs.tables` writes them anew."""
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- made: ") == text.count("<!-- end -->")
    assert tables.remade(text) == text


def test_every_table_is_shown() -> None:
    """Each table that can be made stands in a page: no option, code, event, command or state is left out."""
    found = [tables.used(page.read_text(encoding="utf-8")) for page in PAGES]
    assert set().union(*found) == set(tables.MAKERS)
