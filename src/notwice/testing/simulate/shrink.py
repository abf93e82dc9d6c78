"""Makes a failing run simpler: fewer choices, and more of them harmless, as long as it goes on failing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

TRIES_MAX: Final = 4_000  # at a few milliseconds each

Fails = Callable[[Sequence[int]], bool]


def shrink(choices: Sequence[int], fails: Fails) -> tuple[int, ...]:
    """Give a simpler list of choices that still fails. `fails` runs a list and says whether it does."""
    shrinking = _Shrinking(tuple(choices), fails)
    before: tuple[int, ...] = ()
    while shrinking.best != before and shrinking.tries < TRIES_MAX:
        before = shrinking.best
        for make_simpler in (shrinking.clear, shrinking.drop):
            size = len(shrinking.best) // 2 or 1
            while size:
                make_simpler(size)
                size //= 2
        shrinking.lower()
    return shrinking.best


class _Shrinking:
    """The simplest list so far, and how many were tried."""

    def __init__(self, choices: tuple[int, ...], fails: Fails) -> None:
        self._fails = fails
        self.best = choices
        self.tries = 0

    def clear(self, size: int) -> None:
        """Set each block of this size to zero that can be, from the end on: all else stays in its place."""
        for start in range(len(self.best) - size, -1, -size):
            block = self.best[start : start + size]
            if any(block):
                self._takes((*self.best[:start], *[0] * len(block), *self.best[start + size :]))

    def drop(self, size: int) -> None:
        """Take each block of this size out that can be, from the end on: what follows means something else then."""
        for start in range(len(self.best) - size, -1, -size):
            if start < len(self.best):
                self._takes((*self.best[:start], *self.best[start + size :]))

    def lower(self) -> None:
        """Make single numbers as small as they can be."""
        for place in range(len(self.best) - 1, -1, -1):
            while place < len(self.best) and (value := self.best[place]) > 1:
                head, tail = self.best[:place], self.best[place + 1 :]
                if not (self._takes((*head, value // 2, *tail)) or self._takes((*head, value - 1, *tail))):
                    break

    def _takes(self, candidate: tuple[int, ...]) -> bool:
        if self.tries >= TRIES_MAX:
            return False
        self.tries += 1
        if not self._fails(candidate):
            return False
        self.best = _stripped(candidate)
        return True


def _stripped(choices: tuple[int, ...]) -> tuple[int, ...]:
    """The list without the zeros at its end, for what is missing is 0."""
    length = len(choices)
    while length and choices[length - 1] == 0:
        length -= 1
    return choices[:length]
