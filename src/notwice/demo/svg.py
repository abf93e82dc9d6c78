"""The same picture as an SVG. Its layout depends on nothing but the numbers in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from notwice.demo.picture import COLUMNS, TITLES
from notwice.demo.report import Row, rows
from notwice.demo.run import Comparison

CELL = 12
MARGIN = 28
PANEL = COLUMNS * CELL
WIDTH = 2 * PANEL + 3 * MARGIN
HEAD = 92
LINE = 22
XMLNS = "http://www.w3.org/2000/svg"
FONT = 'font-family="ui-sans-serif, system-ui, sans-serif"'
INK, FAINT, RULE, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"
ONCE, MORE, NONE = "#2da44e", "#cf222e", "#bf8700"


def draw(comparison: Comparison) -> str:
    """The document."""
    table = rows(comparison)
    cells_high = -(-comparison.guarded.accounts.intended // COLUMNS) * CELL
    height = HEAD + cells_high + MARGIN + LINE * (len(table) + 1) + MARGIN
    lines = [
        f'<svg xmlns="{XMLNS}" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" {FONT}>',
        f"<title>{escape(_headline(comparison))}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{PAPER}"/>',
        _text(MARGIN, 32, _headline(comparison), size=16, weight=600),
        _text(MARGIN, 52, "One cell for each order: green charged once, red more than once (how often)", fill=FAINT),
        *_panel(MARGIN, TITLES[0], comparison.bare.accounts.times),
        *_panel(2 * MARGIN + PANEL, TITLES[1], comparison.guarded.accounts.times),
        *_table(HEAD + cells_high + MARGIN, table),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _headline(comparison: Comparison) -> str:
    kills = comparison.guarded.journal.kills
    return f"{comparison.guarded.accounts.intended} orders, impatient clients, {kills} kills in mid-charge"


def _panel(x: int, title: str, times: Sequence[int]) -> Iterator[str]:
    yield _text(x, HEAD - 12, title, weight=600)
    for index, count in enumerate(times):
        row, column = divmod(index, COLUMNS)
        yield from _cell(x + column * CELL, HEAD + row * CELL, count)


def _cell(x: int, y: int, times: int) -> Iterator[str]:
    side = CELL - 2
    fill = ONCE if times == 1 else NONE if times == 0 else MORE
    yield f'<rect x="{x}" y="{y}" width="{side}" height="{side}" rx="2" fill="{fill}"/>'
    if times != 1:
        mark = "!" if times < 0 else "?" if times == 0 else str(times)
        yield _text(x + side / 2, y + side - 1.5, mark, size=9, weight=700, fill=PAPER, anchor="middle")


def _table(top: int, table: Sequence[Row]) -> Iterator[str]:
    for column, title in enumerate(TITLES):
        yield _text(_column(column), top, title, weight=600, anchor="end")
    for number, row in enumerate(table, start=1):
        y = top + number * LINE
        yield f'<line x1="{MARGIN}" x2="{_column(1)}" y1="{y - 16}" y2="{y - 16}" stroke="{RULE}"/>'
        yield _text(MARGIN + 16 * row.indent, y, row.label)
        for column, value in enumerate([row.bare, row.guarded]):
            yield _text(_column(column), y, "-" if value is None else str(value), fill=_ink(row, value), anchor="end")


def _column(number: int) -> int:
    """Where a side's numbers end: at the right edge of its panel."""
    return (number + 1) * (MARGIN + PANEL)


def _ink(row: Row, value: int | None) -> str:
    if value is None:
        return FAINT
    if not row.bad:
        return INK
    return MORE if value else ONCE


def _text(
    x: float, y: float, words: str, *, size: int = 13, weight: int = 400, fill: str = INK, anchor: str = "start"
) -> str:
    look = f'font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {look}>{escape(words)}</text>'
