"""The picture for a terminal: one cell for each order, which says how often it was charged, and the table below it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from notwice.demo.report import Row, rows
from notwice.demo.run import Comparison

COLUMNS = 30
GAP = "      "
LABEL = 30
TITLES = ("without", "with notwice")

GREEN, RED, YELLOW, BOLD, DIM, PLAIN = "\x1b[32m", "\x1b[1;31m", "\x1b[33m", "\x1b[1m", "\x1b[2m", "\x1b[0m"


class Style(NamedTuple):
    """What the terminal can show."""

    color: bool
    unicode: bool

    def paint(self, text: str, color: str) -> str:
        """The text, in color where there is one."""
        return f"{color}{text}{PLAIN}" if self.color and text.strip() else text

    def cell(self, times: int) -> str:
        """One order: a square for once, the number of times for more, ``!`` for lost, ``?`` for not charged."""
        if times == 1:
            return self.paint("■" if self.unicode else "o", GREEN)
        if times == 0:
            return self.paint("?", YELLOW)
        return self.paint("!" if times < 0 else str(min(times, 9)), RED)


def draw(comparison: Comparison, style: Style) -> str:
    """The whole picture."""
    once = style.cell(1)
    legend = f"one cell for each order: {once} charged once, {style.cell(2)} twice, {style.cell(-1)} lost"
    return "\n".join(["", legend, "", *_grids(comparison, style), "", *_table(rows(comparison), style), ""])


def _grids(comparison: Comparison, style: Style) -> list[str]:
    sides = [comparison.bare.accounts.times, comparison.guarded.accounts.times]
    left, right = ([*_grid(times, style)] for times in sides)
    heads = GAP.join(style.paint(title.ljust(COLUMNS), BOLD) for title in TITLES)
    return [heads, *(GAP.join(pair) for pair in zip_longest(left, right, fillvalue=""))]


def _grid(times: Sequence[int], style: Style) -> list[str]:
    lines = (times[start : start + COLUMNS] for start in range(0, len(times), COLUMNS))
    return ["".join(map(style.cell, line)) + " " * (COLUMNS - len(line)) for line in lines]


def _table(lines: Sequence[Row], style: Style) -> list[str]:
    head = " " * LABEL + "".join(title.rjust(14) for title in TITLES)
    return [style.paint(head, DIM), *(_line(row, style) for row in lines)]


def _line(row: Row, style: Style) -> str:
    label = "  " * row.indent + row.label
    return label.ljust(LABEL) + _number(row.bare, row, style) + _number(row.guarded, row, style)


def _number(value: int | None, row: Row, style: Style) -> str:
    text = ("-" if value is None else str(value)).rjust(14)
    if not row.bad or value is None:
        return text
    return style.paint(text, RED if value else GREEN)


def verdict(comparison: Comparison, style: Style) -> str:
    """The last word in one sentence."""
    accounts = comparison.guarded.accounts
    if not comparison.sound:
        return style.paint("The guarded side is NOT sound: a charge is double, wrong or lost.", RED)
    if not comparison.complete:
        return style.paint("Not every guarded order came to its end in time.", YELLOW)
    sentence = f"{accounts.intended} orders, {accounts.charged} charges: each exactly once, through every kill."
    return style.paint(sentence, GREEN)
