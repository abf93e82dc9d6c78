"""The pages' Python runs, their commands exist, their links lead somewhere."""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from notwice.cli.arguments import parser
from notwice.demo import command
from notwice.stores import _ENGINES
from tests.docs.pages import PAGES, PAPERS, Block, blocks_of
from tests.sources import ROOT

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"#+ (?P<title>.+)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
BETWEEN_COMMANDS = {"|", "&", "&&", ";", ">", "do"}
LANGUAGES = {"python", "sh", "text", "json", "toml", "http", "javascript", "mermaid", "run"}


def shown(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Every Python block of a page runs, after those before it, and so does the hidden code that checks them."""
    if not any(block.runs for block in blocks_of(page)):
        return
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs.pages", str(page)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_blocks_of_a_page_are_of_a_known_kind(page: Path) -> None:
    """Every block says its language, and one that is not run says why in a whole sentence."""
    for block in blocks_of(page):
        assert block.language in LANGUAGES, block.place
        assert not block.fragment or len(block.fragment.split()) > 2, block.place


def commands(block: Block) -> Iterator[list[str]]:
    """The words after ``notwice`` in each command of a block that begins with it."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        ends = [index for index, word in enumerate(words) if word in BETWEEN_COMMANDS]
        for start, end in pairwise([-1, *ends, len(words)]):
            if words[start + 1 : start + 2] == ["notwice"]:
                yield words[start + 2 : end]


ALL_COMMANDS = [
    (f"{block.place} {' '.join(words)}", words)
    for page in [*PAGES, *PAPERS]
    for block in blocks_of(page)
    if block.language == "sh"
    for words in commands(block)
]


@pytest.mark.parametrize("words", [words for _, words in ALL_COMMANDS], ids=[name for name, _ in ALL_COMMANDS])
def test_commands_in_a_page_exist(words: list[str]) -> None:
    """Every `notwice` command line in a page is one that the command line takes."""
    if words[0] == "demo":
        assert isinstance(command._parse(words[1:]), argparse.Namespace)
    else:
        assert parser().parse_args(words).command == words[0]


def slug(title: str) -> str:
    """The anchor that a heading is given where pages are shown."""
    plain = re.sub(r"[`*_]", "", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return {slug(found["title"]) for line in text.splitlines() if (found := HEADING.fullmatch(line))}


@pytest.mark.parametrize("page", [*PAGES, *PAPERS], ids=shown)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every link to a file of the project finds it, and the heading in it that it names."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for found in LINK.finditer(text):
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("http://", "https://")):
            continue
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(other), f"{page.name} links to {found['target']}"


def test_every_page_can_be_reached() -> None:
    """Every page of the documentation is linked from the README, which is their one index."""
    linked = {found["target"].partition("#")[0] for found in LINK.finditer((ROOT / "README.md").read_text())}
    assert {shown(page) for page in PAGES if page.parent != ROOT} <= linked


ENGINES = [page for page in PAGES if page.parent.name == "engines"]


def sections(page: Path) -> dict[str, str]:
    """The text of a page's sections, by their titles."""
    _, *parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: text for title, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize("page", ENGINES, ids=shown)
def test_an_engines_page_says_what_every_other_says(page: Path) -> None:
    """URL and options, what is promised after the same four disasters, settings, what was tried and what was not."""
    found = sections(page)
    common = ["URL and options", "What a call is", "What is promised", "Settings", "Tried and not tried"]
    assert [title for title in found if title in common] == common
    for disaster in ("process of yours is killed", "power cut", "fail-over", "partition"):
        assert disaster in found["What is promised"], disaster
    for word in ("\nTried, ", "\nNot tried: "):
        assert word in found["Tried and not tried"], word
    assert "| option | default | what it says |" in found["URL and options"]


def test_every_store_is_in_the_tables_of_stores() -> None:
    """The README and the page of stores name the URL of every engine that can be opened."""
    for page in (ROOT / "README.md", ROOT / "docs" / "stores.md"):
        text = page.read_text(encoding="utf-8")
        assert [scheme for scheme in _ENGINES if f"`{scheme}://" not in text] == [], shown(page)


def test_extras_are_installed_in_one_way() -> None:
    """Each page says it for a clone, with an extra that exists; the way of a release stands where a reader begins."""
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"pip install '\.\[(\w+)\]'", text)) <= extras, shown(page)
        assert ("pip install 'notwice[" in text) == (page.name == "quickstart.md"), shown(page)
