"""Draws what spin prints along the trail of a violation as a sequence diagram in text."""

# ruff: noqa: INP001  (a part of the script beside it, not of a package)

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

COLUMN: Final = 24  # characters from one lifeline to the next
INDENT: Final = 4
STATES: Final = ("nothing", "in_progress", "accepted", "finished")
MARKS: Final = ("", ", released by an operator", ", released as new: free for any request")
WORLD: Final = {
    "lapses": "the lease runs out",
    "expires": "retention ends",
    "purged": "purged",
    "jumps_back": "the clock jumps back",
    "spent": "the time for re-runs is over",
}


def words(folder: Path, first: str, last: str) -> dict[int, str]:
    """The numbers of the model's words, from one to another, as they are defined there."""
    text = "".join((folder / name).read_text() for name in ("record.pml", "rules.pml"))
    defined = re.findall(r"^#define (\w+) (\d+)\b", text, flags=re.MULTILINE)
    names = [name for name, _ in defined]
    return {int(number): name.lower() for name, number in defined[names.index(first) : names.index(last) + 1]}


@dataclass
class Diagram:
    """The lines drawn so far. One lifeline for each caller, and the last one for the store."""

    callers: int
    writes: Mapping[int, str]
    decisions: Mapping[int, str]
    lines: list[str] = field(default_factory=list)

    def row(self, beside: str = "", **marks: str) -> None:
        """One row: the lifelines, what stands at a caller's (``at1=``), and what stands beside the store's."""
        line = list("".join(f"{'':{INDENT}}|".ljust(COLUMN) for _ in range(self.callers + 1)).rstrip())
        for name, text in marks.items():
            start = int(name[2:]) * COLUMN + INDENT + 2
            line[start : start + len(text)] = text
        self.lines.append(f"{''.join(line)}   {beside}".rstrip())

    def arrow(self, caller: int, label: str, beside: str, *, arrives: bool = True) -> None:
        """A write on its way from a caller to the store, or to nowhere."""
        start, end = caller * COLUMN + INDENT + 1, self.callers * COLUMN + INDENT
        line = list("".join(f"{'':{INDENT}}|".ljust(COLUMN) for _ in range(self.callers + 1)).rstrip())
        shaft = f"-- {label} ".ljust(end - start - 1, "-") + (">" if arrives else "x")
        line[start:end] = shaft
        self.lines.append(f"{''.join(line)}   {beside}".rstrip())

    def event(self, name: str, *numbers: int) -> None:
        """Draw one event of the model."""
        at = f"at{numbers[0]}" if numbers else ""
        match name, numbers:
            case "begins", (_, request):
                self.row(**{at: f"begins (request {request})"})
            case "store", (kind, caller, expected, left, won, state, etag, mark, _):
                label = self.writes[kind] + (f", if etag {expected}" if expected else "")
                found = f"{STATES[state]}{MARKS[mark]}{f' (etag {etag})' if state else ''}"
                self.arrow(caller, label, found if won else f"refuses etag {left}: {found}")
            case "owns", (_, etag):
                self.row(**{at: f"owns it by etag {etag}"})
            case "effect", _:
                self.row(**{at: "HAS ITS EFFECT"})
            case "late", (caller, kind, _, left):
                self.arrow(caller, f"{self.writes[kind]} (etag {left})", "on its way, no answer", arrives=False)
            case "dropped", (caller, kind):
                self.arrow(caller, self.writes[kind], "lost", arrives=False)
            case "arrives", (caller, kind):
                self.row(f"caller {'ABC'[caller]}'s {self.writes[kind]} arrives late:")
            case "unanswered", _:
                self.row(**{at: "gets no answer"})
            case "told", (_, decision):
                self.row(**{at: f"is told: {self.decisions[decision]}"})
            case "operator", (kind, state, etag, mark):
                self.row(f"an operator's {self.writes[kind]}: {STATES[state]}{MARKS[mark]} (etag {etag})")
            case _ if name in WORLD:
                self.row(WORLD[name])
            case _:
                self.row(" ".join([name.replace("_", " "), *map(str, numbers)]))


def drawn(trace: str, promise: str, folder: Path) -> str:
    """The diagram of a trace; the row below the write that broke it names the promise."""
    events = [(name, tuple(map(int, numbers.split()))) for name, numbers in re.findall(r"@ (\w+)((?: \d+)*)", trace)]
    callers = 1 + max(numbers[0] for name, numbers in events if name in ("begins", "owns"))
    diagram = Diagram(callers, words(folder, "INSERT", "RESTART"), words(folder, "INSERTS", "HELD"))
    names = [f"caller {'ABC'[index]}" for index in range(callers)] + ["store"]
    diagram.lines.append("".join(name.ljust(COLUMN) for name in names).rstrip())
    for name, numbers in events:
        diagram.event(name, *numbers)
    diagram.row(f"{promise} is broken")
    return "\n".join(diagram.lines)
