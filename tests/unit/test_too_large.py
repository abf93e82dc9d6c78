"""What becomes of results that are too large for the store: they are left out, and no key stays open for them."""

from collections.abc import Sequence

import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Guard,
    Operation,
    RecordTooLarge,
    Replay,
    Result,
    ResultKind,
    ResultOmitted,
    State,
    StoreUnavailable,
    Unresolved,
)
from notwice.codec import encode_record
from notwice.model import Get, Op, Reply
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import FaultPlan, FaultyStore, VirtualClock

BYTES_MAX = 2_000
LARGE = Result(ResultKind.HTTP, bytes(5_000), 201, (("location", "/1"),))
KEPT = LARGE._replace(body=None)


class Small(MemoryStore):
    """A store that keeps small records only."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        for op in ops:
            if not isinstance(op, Get) and len(encode_record(op.record)) > BYTES_MAX:
                raise RecordTooLarge("it is too large")
        return super().apply(ops)


def begun(guard: Guard, key: str = "k") -> Operation:
    operation = guard.begin("pay", key)
    assert isinstance(operation, Operation)
    return operation


def test_a_result_that_is_too_large() -> None:
    """T12: an answer that the store can't keep completes all the same; a replay has its status, marked as omitted."""
    guard = Guard(Small())
    for move in ("complete", "fail"):
        operation = begun(guard, move)
        getattr(operation, move)(LARGE)
        replay = guard.begin("pay", move)
        assert isinstance(replay, Replay)
        assert replay.stored == KEPT
        assert not operation.lost
    assert guard.run(lambda: "x" * 5_000, scope="pay", key="value") == "x" * 5_000
    with pytest.raises(ResultOmitted):
        guard.run(lambda: "again", scope="pay", key="value")


async def test_a_result_that_is_too_large_for_tasks() -> None:
    """T12: the same for an event loop."""
    guard = AsyncGuard(AsyncMemoryStore(Small()))
    operation = await guard.begin("pay", "k")
    assert isinstance(operation, AsyncOperation)
    await operation.complete(LARGE)
    replay = await guard.begin("pay", "k")
    assert isinstance(replay, Replay)
    assert replay.stored == KEPT


def test_an_answer_of_an_unknown_outcome() -> None:
    """T12: what is kept of a suspended operation loses its body, too, and nothing else."""
    guard = Guard(Small())
    begun(guard).suspend("timed out", LARGE)
    replay = guard.begin("pay", "k")
    assert isinstance(replay, Replay)
    assert (replay.stored, replay.view.state) == (KEPT, State.ACCEPTED)


def test_a_checkpoint_that_is_too_large() -> None:
    """A checkpoint that the store can't keep is refused; the operation goes on without it."""
    guard = Guard(Small())
    operation = begun(guard)
    operation.checkpoint("small", 1)
    with pytest.raises(RecordTooLarge):
        operation.checkpoint("large", "x" * 5_000)
    assert operation.progress == {"small": 1}
    operation.complete("done")
    assert guard.run(lambda: "again", scope="pay", key="k") == "done"


def test_an_end_that_is_too_large_without_a_result() -> None:
    """If even the end without its result is too large, the operation is not over: it can be ended otherwise."""
    guard = Guard(Small())
    operation = begun(guard)
    with pytest.raises(RecordTooLarge):
        operation.complete(Result(ResultKind.HTTP, b"", 200, (("x", "y" * 5_000),)))
    operation.suspend("too large")
    assert isinstance(guard.begin("pay", "k"), Unresolved)


def test_an_unanswered_end_without_its_result() -> None:
    """P9: an end that was left without its result and without an answer may be repeated as it was asked for."""
    plan = FaultPlan(clock=VirtualClock())
    guard = Guard(FaultyStore(Small(), plan), clock=plan.clock)
    operation = begun(guard)
    plan.add("ok", "lost", "lost", "lost")
    with pytest.raises(StoreUnavailable):
        operation.complete(LARGE)
    with pytest.raises(StoreUnavailable, match="only the same"):
        operation.complete("another")
    operation.complete(LARGE)
    replay = guard.begin("pay", "k")
    assert isinstance(replay, Replay)
    assert replay.stored == KEPT
