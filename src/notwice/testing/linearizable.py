"""Whether what callers of a store saw can be explained by its operations happening one after the other.

Each record is judged by itself. An operation took effect at one moment between its call and its reply; one without a
reply took effect at any moment after its call, or never. The search for an order in which all replies are right is that
of Wing and Gong (1993), with the memory of what was tried that Lowe (2017) added: depth first over which operation was
next, of those that were called before the first reply among the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from notwice.model import Get, Insert, Op, Record, Reply

__all__ = ["UNKNOWN", "Name", "Seen", "seen", "unexplained"]

Name = tuple[str, str]
"""Namespace and id of a record."""

UNKNOWN: Final = -1
"""The time of a reply that never came."""


class Seen(NamedTuple):
    """One store operation as its caller saw it, in terms of etags, which are never used twice.

    ``writes`` is ``None`` for a get, ``expects`` is ``None`` for an insert. ``found`` is the etag in the reply,
    ``None`` for nothing stored. ``replied_ns`` of `UNKNOWN`: no reply came, so ``won`` and ``found`` mean nothing.
    """

    called_ns: int
    replied_ns: int
    writes: bytes | None
    expects: bytes | None = None
    won: bool = False
    found: bytes | None = None


def seen(op: Op, reply: Reply | None, *, called_ns: int, replied_ns: int = UNKNOWN) -> tuple[Name, Seen]:
    """What a caller saw of one operation of a batch; without a reply, its outcome is unknown."""
    if isinstance(op, Get):
        name, writes, expects = (op.namespace, op.id), None, None
    else:
        name, writes = (op.record.namespace, op.record.id), op.record.etag
        expects = None if isinstance(op, Insert) else op.expected_etag
    if reply is None:
        return name, Seen(called_ns, UNKNOWN, writes, expects)
    found = reply.record.etag if isinstance(reply.record, Record) else None
    return name, Seen(called_ns, replied_ns, writes, expects, reply.won, found)


def unexplained(operations: Iterable[Seen]) -> tuple[Seen, ...]:
    """The operations on one record that no order explains; nothing if there is one.

    They are what was left, in the order of their calls, when the search had explained as many as it could. Takes time
    in proportion to their number as a rule, and exponentially more in the worst case: keep the histories of one record
    to some hundreds of operations.
    """
    by_call = sorted(each for each in operations if each.replied_ns != UNKNOWN or each.writes is not None)
    return _Search(by_call).run()


class _Search:
    """A list of all calls and replies by time, from which those are taken out that have found their place.

    The places of operation ``i`` are ``2 i + 1`` for its call and ``2 i + 2`` for its reply; 0 is the head.
    """

    def __init__(self, operations: Sequence[Seen]) -> None:
        self._operations = operations
        places = [(each.called_ns, 0, 2 * index + 1) for index, each in enumerate(operations)]
        known = [(index, each) for index, each in enumerate(operations) if each.replied_ns != UNKNOWN]
        places += [(each.replied_ns, 1, 2 * index + 2) for index, each in known]
        order = [0, *(place for _, _, place in sorted(places))]
        self._after = [0] * (2 * len(operations) + 3)
        self._before = [0] * (2 * len(operations) + 3)
        for one, other in zip(order, [*order[1:], 0], strict=True):
            self._after[one], self._before[other] = other, one
        self._replies = len(known)

    def run(self) -> tuple[Seen, ...]:
        """Search; gives what no order explains."""
        state: bytes | None = None
        placed, taken, tried = 0, list[tuple[int, bytes | None]](), set[tuple[int, bytes | None]]()
        best, left = -1, tuple[Seen, ...]()
        place = self._after[0]
        while self._replies:
            if place % 2:  # a call: may this one be next?
                right, next_state = _step(state, self._operations[place // 2])
                position = (placed | 1 << (place // 2), next_state)
                if right and position not in tried:
                    tried.add(position)
                    taken.append((place, state))
                    placed, state = position
                    self._take(place)
                    place = self._after[0]
                else:
                    place = self._after[place]
                continue
            if len(taken) > best:  # a reply: whatever is next was called before it, and nothing fits
                best, left = len(taken), self._rest(placed)
            if not taken:
                return left
            place, state = taken.pop()
            placed &= ~(1 << (place // 2))
            self._put_back(place)
            place = self._after[place]
        return ()

    def _rest(self, placed: int) -> tuple[Seen, ...]:
        return tuple(each for index, each in enumerate(self._operations) if not placed >> index & 1)

    def _has_reply(self, call: int) -> bool:
        return self._operations[call // 2].replied_ns != UNKNOWN

    def _take(self, call: int) -> None:
        for place in (call, call + 1) if self._has_reply(call) else (call,):
            self._after[self._before[place]] = self._after[place]
            self._before[self._after[place]] = self._before[place]
        self._replies -= self._has_reply(call)

    def _put_back(self, call: int) -> None:
        for place in (call + 1, call) if self._has_reply(call) else (call,):
            self._after[self._before[place]] = place
            self._before[self._after[place]] = place
        self._replies += self._has_reply(call)


def _step(stored: bytes | None, each: Seen) -> tuple[bool, bytes | None]:
    """Carry out one operation: whether its reply is right, and what is stored then."""
    writes = each.writes is not None and stored == each.expects
    after = each.writes if writes else stored
    if each.replied_ns == UNKNOWN:
        return writes, after  # an unknown write that changes nothing need not be placed
    return each.won == writes and each.found == after, after
