"""Tables for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from notwice.cli.terminal import Screen, fitted, width_of

GAP: Final = "  "
CELLS_MIN: Final = (20, 14, 9)  # all columns are cut to the first of these before one is cut to the next
OPERATIONS: Final = ("OPERATION", "NAMESPACE", "SCOPE", "STATE", "RECOVERY", "LAST WRITTEN")

_COLOURS: Final = {
    "held": "red",
    "unresolved": "yellow",
    "released": "blue",
    "failed": "magenta",
    "completed": "green",
    "unreadable": "red",
}
"""The colour of a cell that holds one of these words; the first one decides."""


class Table:
    """Rows under headings, given page by page: columns grow, and never shrink. What is too wide for a terminal is cut.

    `cut` are the columns that are cut, in that order, down to each of `CELLS_MIN`. A row's colour, if it has one, is
    that of its cell in the column `coloured`.
    """

    def __init__(self, headings: Sequence[str], screen: Screen, *, cut: Sequence[int], coloured: int) -> None:
        self._headings = headings
        self._screen = screen
        self._cut = cut
        self._coloured = coloured
        self._widths = [0] * len(headings)

    def lines(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """The lines of a page; the headings stand over the first one."""
        first = not any(self._widths)
        for row in (self._headings, *rows):
            self._widths = list(map(max, self._widths, map(width_of, row)))
        widths = self._fitted()
        if first:
            yield GAP.join(map(fitted, self._headings, widths)).rstrip()
        for row in rows:
            cells = list(map(fitted, row, widths))
            colour = next((_COLOURS[word] for word in _COLOURS if word in row[self._coloured]), "")
            cells[-1] = cells[-1].rstrip()
            cells[self._coloured] = self._screen.coloured(cells[self._coloured], colour)
            yield GAP.join(cells).rstrip()

    def _fitted(self) -> Sequence[int]:
        widths = list(self._widths)
        if self._screen.width is not None:
            over = sum(widths) + len(GAP) * (len(widths) - 1) - self._screen.width
            for least, column in product(CELLS_MIN, self._cut):
                taken = max(0, min(over, widths[column] - least))
                widths[column] -= taken
                over -= taken
        return widths


def of_operations(screen: Screen) -> Table:
    """The table of operations: names give way first, then what is said of recovery."""
    return Table(OPERATIONS, screen, cut=(2, 1, 4), coloured=3)
