"""How many unresolved operations each namespace has, as far as this process knows: for ``Policy.unresolved_max``.

A count is a scan that ends at the limit, so it costs no more than the limit says, on any engine. It is made by one
caller at a time, at most every `COUNT_SECONDS`, and less often where it takes long, so that all counting takes no more
than a twentieth of the time. In between, what this process itself leaves unresolved is added to it.

So the limit is not exact. A namespace may go beyond it by what is at work when it gets full, and by what *other*
processes left unresolved since the last count; it is held full for as long after a person has resolved something.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

COUNT_SECONDS: Final = 5.0
COUNT_TIMES: Final = 20  # a count that took a second is good for twenty
NAMESPACES_MAX: Final = 10_000  # tenants whose count is remembered; beyond them all are counted anew
PAGE_MAX: Final = 500


class _Count(NamedTuple):
    known: int
    until: float
    counting: bool


class Backlog:
    """The counts of one process. Any number of threads and loops may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, _Count] = {}

    def must_count(self, namespace: str, now: float) -> bool:
        """Say whether the caller has to count now; nobody else is told so until it has."""
        with self._lock:
            count = self._counts.get(namespace)
            if count is not None and (count.counting or now < count.until):
                return False
            if len(self._counts) >= NAMESPACES_MAX:
                self._counts.clear()
            self._counts[namespace] = _Count(0 if count is None else count.known, now, counting=True)
            return True

    def counted(self, namespace: str, known: int | None, *, began: float, ended: float) -> None:
        """Take a count that was made; ``None``: it failed, and the last one goes on."""
        with self._lock:
            last = self._counts.get(namespace, _Count(0, ended, counting=False))
            until = ended + max(COUNT_SECONDS, COUNT_TIMES * (ended - began))
            self._counts[namespace] = _Count(last.known if known is None else known, until, counting=False)

    def add(self, namespace: str) -> None:
        """This process has left one more unresolved."""
        with self._lock:
            count = self._counts.get(namespace)
            if count is not None:
                self._counts[namespace] = count._replace(known=count.known + 1)

    def full(self, namespace: str, limit: int) -> bool:
        """Whether there are as many as `limit`, as far as is known."""
        with self._lock:
            count = self._counts.get(namespace)
            return count is not None and count.known >= limit
