"""Every choice of a simulation is a small whole number, so that a run is its list of numbers.

The numbers come from a seed, or from a list: then the run is repeated, and what the list does not say is 0. Whoever
chooses puts what is harmless first, so that fewer and smaller numbers make a simpler run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")


class Table(Generic[_T]):
    """What can be chosen, the first of it by 0, with how often each is: ``Table(("ok", 30), ("lost", 1))``."""

    __slots__ = ("items", "size")

    def __init__(self, *weighted: tuple[_T, int]) -> None:
        self.items: Final = [item for item, weight in weighted for _ in range(weight)]
        self.size: Final = len(self.items)


class Choices:
    """Gives the numbers of one run, and keeps them in `made`."""

    def __init__(self, seed: int, listed: Sequence[int] | None = None) -> None:
        self.seed: Final = seed
        self.made: list[int] = []
        self._listed = listed
        self._random = random.Random(seed).random  # noqa: S311 - chosen faults must be repeatable, not secret
        self._etags = 0
        self._salt = seed.to_bytes(16, "big", signed=True)

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        made = self.made
        if self._listed is None:
            number = int(self._random() * limit)  # of all methods, this one gives the same in every release of Python
        else:
            at = len(made)
            number = self._listed[at] % limit if at < len(self._listed) else 0
        made.append(number)
        return number

    def of(self, table: Table[_T]) -> _T:
        """One item of a table."""
        return table.items[self.below(table.size)]

    def one(self, items: Sequence[_T]) -> _T:
        """One of the items, all being equally likely."""
        return items[self.below(len(items))]

    def etag(self) -> bytes:
        """The next etag of the run. It is no choice: in a shorter run it is still what it was."""
        self._etags += 1
        return sha256(self._salt + self._etags.to_bytes(8, "big")).digest()[:16]
