"""New records pay for expired ones: an engine without expiry of its own drops some every so often, so none pile up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from notwice.model import Insert, Op, Reply

INSERTS_PER_SWEEP: Final = 256
SWEPT_MAX: Final = 2 * INSERTS_PER_SWEEP
"""After so many new records, up to twice as many expired ones leave: one more trip in hundreds."""


class Sweeping:
    """Counts new records. Threads may race for the count: a sweep comes a little sooner or later then."""

    __slots__ = ("_unswept",)

    def __init__(self) -> None:
        self._unswept = 0

    def is_due(self, ops: Sequence[Op], replies: Sequence[Reply]) -> bool:
        """Count what `ops` made, and say whether it is time to sweep."""
        self._unswept += sum(reply.won and isinstance(op, Insert) for op, reply in zip(ops, replies, strict=True))
        if self._unswept < INSERTS_PER_SWEEP:
            return False
        self._unswept = 0
        return True
