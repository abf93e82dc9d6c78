"""The documentation's pages and what is in them: fenced blocks, hidden code, links.

A page's Python blocks run one after another in one namespace, in a process and a folder of their own
(``python -m tests.docs.pages PAGE``). Two comments of the page's source speak to this module:

- ``<!-- fragment: reason -->`` right above a block: it is not run, for this reason.
- ``<!-- run`` … ``-->``: Python that runs with the page's blocks, and that the reader doesn't see.
"""

import ast
import asyncio
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from notwice import AsyncGuard, Guard
from tests.sources import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAPERS = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]

FRAGMENT = re.compile(r"<!-- fragment: (?P<reason>.+) -->")
FENCE = re.compile(r"```(?P<language>\w*)\s*")
HIDDEN = "<!-- run"


class Block(NamedTuple):
    """A fenced block, or hidden code (of the language ``run``). ``line`` is where its first line stands."""

    page: Path
    line: int
    language: str
    text: str
    fragment: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language in ("python", "run") and not self.fragment


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in their order."""
    lines = enumerate(page.read_text(encoding="utf-8").splitlines(), start=1)
    before = ""
    for number, line in lines:
        fence = FENCE.fullmatch(line)
        if fence:
            reason = FRAGMENT.fullmatch(before)
            text = _until(lines, "```")
            yield Block(page, number + 1, fence["language"], text, reason["reason"] if reason else "")
        elif line == HIDDEN:
            yield Block(page, number + 1, "run", _until(lines, "-->"))
        before = line


def _until(lines: Iterator[tuple[int, str]], end: str) -> str:
    taken: list[str] = []
    for _, line in lines:
        if line == end:
            return "\n".join(taken) + "\n"
        taken.append(line)
    raise AssertionError(f"a block has no end: {taken[:3]}")


def run(page: Path) -> None:
    """Run a page's Python, so that a traceback names the page and its line."""
    module = types.ModuleType("page")
    module.__file__ = str(page)
    sys.modules["page"] = module  # classes that a page defines are found again by name
    with asyncio.Runner() as runner:
        for block in blocks_of(page):
            if block.runs:
                code = compile(
                    "\n" * (block.line - 1) + block.text,
                    str(page),
                    "exec",
                    flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                )
                outcome = eval(code, module.__dict__)
                if inspect.iscoroutine(outcome):
                    runner.run(outcome)
        runner.run(_close(module))


async def _close(module: types.ModuleType) -> None:
    for value in vars(module).values():
        if isinstance(value, Guard):
            value.close()
        elif isinstance(value, AsyncGuard):
            await value.close()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
