"""What is shown on stderr while the storm runs: one living line in a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import TextIO

from notwice.demo.journal import Journal

WIDTH = 24


class Progress:
    """The progress of one side."""

    def __init__(self, stream: TextIO, title: str, *, orders: int) -> None:
        self._stream = stream
        self._title = title
        self._orders = orders
        self._alive = stream.isatty()
        self._said = (0, 0)

    def show(self, journal: Journal) -> None:
        """Bring the line up to date."""
        line = self._line(journal)
        if self._alive:
            self._write(f"\r{line}\x1b[K")
        elif self._milestone(journal) != self._said:
            self._said = self._milestone(journal)
            self._write(line + "\n")

    def end(self) -> None:
        """Leave the line as it is."""
        if self._alive:
            self._write("\n")

    def _milestone(self, journal: Journal) -> tuple[int, int]:
        return 4 * journal.finished // self._orders, journal.kills

    def _line(self, journal: Journal) -> str:
        filled = WIDTH * journal.finished // self._orders
        seen = journal.seen
        troubles = f"{seen['timed_out']} timed out, {seen['cut']} cut, {journal.replays} replays"
        return (
            f"{self._title:<13}|{'#' * filled:<{WIDTH}}| {journal.finished}/{self._orders} orders, "
            f"{journal.kills} kills, {troubles}"
        )

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
