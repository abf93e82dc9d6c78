"""Calls that share trips: what a caller waits for, and which of those that wait make a batch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from notwice.errors import RecordTooLarge, StoreUnavailable
from notwice.model import Op, Reply
from notwice.stores.shared import KeyLocked, Name, PartlyDone, name_of, replies_or_raise

BATCH_MAX: Final = 256
"""How many operations share a commit at most: so many take a few milliseconds beside the sync that they share."""

PENDING_MAX: Final = 10_000
"""How many calls may be pending: a second of work for a quick disk. More are refused at once."""

WATCHES: Final = 4
"""How often within its time-out a loop looks for calls that have waited too long."""

_LOOKED_AT_MAX = 4 * BATCH_MAX
"""How many pending calls are looked at for a batch when many of them name the same id."""


_NOTHING_DONE: Final = (KeyLocked, RecordTooLarge)
"""Errors about one record, on account of which nothing was done for any other of the batch."""


class Call:
    """One call under way."""

    __slots__ = ("error", "given_up", "names", "ops", "replies", "taken")

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.names: Sequence[Name] = tuple(map(name_of, ops))
        self.replies: Sequence[Reply] | None = None
        self.error: BaseException | None = None
        self.taken = False  # it is, or was, part of a batch
        self.given_up = False  # nobody waits for it any longer

    @property
    def answered(self) -> bool:
        """Whether its batch is done."""
        return self.replies is not None or self.error is not None

    def result(self) -> Sequence[Reply]:
        """The replies; or what became of the batch, as an error of this caller's own."""
        if self.error is not None:
            if isinstance(self.error, PartlyDone):
                raise PartlyDone(self.error.outcomes) from self.error
            kinds = (kind for kind in _NOTHING_DONE if isinstance(self.error, kind))
            raise next(kinds, StoreUnavailable)(_told(self.error)) from self.error
        assert self.replies is not None
        return self.replies

    def too_late(self, timeout: float) -> StoreUnavailable:
        """The error of a caller that waits no longer."""
        known = "whether it was carried out is not known" if self.taken else "nothing was done"
        return StoreUnavailable(f"the store was busy for {timeout:g} s; {known}")


class LoopCall(Call):
    """A call whose caller waits in an event loop."""

    __slots__ = ("future", "loop", "since")

    def __init__(self, ops: Sequence[Op]) -> None:
        super().__init__(ops)
        self.since = time.monotonic()
        self.loop = loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = loop.create_future()

    def is_awaited_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a task of `loop` waits for an answer."""
        return self.loop is loop and not self.given_up and not self.answered


C = TypeVar("C", bound=Call)


def take(pending: deque[C], size_max: int, busy: Iterable[Name] = ()) -> list[C]:
    """Take a batch of up to `size_max` operations off what is pending, in order.

    A call that names an id of the batch, of a call that has to wait, or of those that are `busy`, has to wait.
    """
    batch: list[C] = []
    deferred: list[C] = []
    names = set(busy)
    size = looked_at = 0
    for call in pending:
        if len(batch) + len(deferred) == _LOOKED_AT_MAX or (batch and size + len(call.ops) > size_max):
            break
        looked_at += 1
        if call.given_up:
            continue
        if names.isdisjoint(call.names):
            call.taken = True
            batch.append(call)
            size += len(call.ops)
        else:
            deferred.append(call)
        names.update(call.names)
    for _ in range(looked_at):
        pending.popleft()
    pending.extendleft(reversed(deferred))
    return batch


def may_be_split(error: BaseException, batch: Sequence[Call]) -> bool:
    """Whether the error says that nothing was done, and each call of the batch can be carried out by itself."""
    return isinstance(error, _NOTHING_DONE) and len(batch) > 1


def operations_of(batch: Iterable[Call]) -> list[Op]:
    """What all calls of a batch ask for, in order."""
    return [op for call in batch for op in call.ops]


def share_out(batch: Iterable[Call], replies: Sequence[Reply], error: BaseException | None) -> None:
    """Give each call of a batch its part of the replies, or the error; of a batch that is partly done, what is its."""
    start = 0
    for call in batch:
        end = start + len(call.ops)
        if error is None:
            call.replies = replies[start:end]
        elif isinstance(error, PartlyDone):
            call.replies, call.error = _told_apart(error.outcomes[start:end])
        else:
            call.error = error
        start = end


def _told_apart(outcomes: Sequence[Reply | StoreUnavailable]) -> tuple[Sequence[Reply] | None, StoreUnavailable | None]:
    """One call's part: replies, or what it raises."""
    try:
        return replies_or_raise(outcomes), None
    except StoreUnavailable as error:
        return None, error


def settle(calls: Iterable[LoopCall]) -> None:
    """Wake callers, from within their loop."""
    for call in calls:
        future = call.future
        if not future.done():
            future.set_result(None)


def _told(error: BaseException) -> str:
    if isinstance(error, StoreUnavailable):
        return str(error)
    return f"the commit that this call shared with others failed ({error!r}); whether it was carried out is not known"
