"""The wall clock is set at every step of an operation's life: no live lease is taken over, and a lapsed one is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from notwice import Guard, InProgress, Mismatch, Operation, OwnershipLost, Policy, Replay, rerun
from notwice.model import Op, Page, Query, Reply
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock

LEASE = 10.0
TICK = 0.001
STEPS = (-3_600, -120, 120, 3_600)
POLICY = Policy(lease=LEASE, recovery=rerun, attempts_max=None, rerun_within=None)
KINDS: dict[str, Callable[[Path, VirtualClock], Store]] = {
    "memory": lambda _, clock: MemoryStore(clock),
    "sqlite": lambda path, clock: SqliteStore(path, clock=clock),
}


class Stepping:
    """A store before whose call of one number the wall clock is set."""

    def __init__(self, inner: Store, clock: VirtualClock, *, at_call: int, step: float) -> None:
        self.inner = inner
        self.clock = clock
        self.calls_left = at_call
        self.step = step

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.clock.step_wall(self.step)
        return self.inner.apply(ops)

    def scan(self, query: Query) -> Page:
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)

    def close(self) -> None:
        self.inner.close()


class AgesByTheWall(Stepping):
    """The control: a store that tells how old a record is by the wall clock."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        replies = super().apply(ops)
        return [reply._replace(age_ms=max(reply.now_ms - reply.written_ms, 0)) for reply in replies]


def live(store: Store, clock: VirtualClock) -> Iterator[str]:
    """One operation from its claim to its replay, with rivals that come too early; tells of each that is not refused.

    The guards have clocks that stand still, so that owners send no heartbeats but those that are made here.
    """
    owner, taker = (Guard(store, policy=POLICY, clock=VirtualClock()) for _ in range(2))
    first = owner.begin("pay", "1", request=1)
    assert isinstance(first, Operation)
    for move in (first.heartbeat, first.confirm, lambda: first.checkpoint("charge", 1)):
        clock.advance(LEASE - TICK)
        if not isinstance(taker.begin("pay", "1", request=1), InProgress):
            yield "early"
            return
        assert isinstance(taker.begin("pay", "1", request=2), Mismatch)
        move()
    clock.advance(LEASE)
    second = taker.begin("pay", "1", request=1)
    if not isinstance(second, Operation):
        yield "late"
        return
    with pytest.raises(OwnershipLost):
        first.complete("first")
    second.complete("second")
    replay = owner.begin("pay", "1", request=1)
    assert isinstance(replay, Replay)
    assert replay.result == "second"


def calls_made(folder: Path, kind: str) -> int:
    """How many calls of the store an undisturbed life takes."""
    clock = VirtualClock()
    counting = Stepping(KINDS[kind](folder / "undisturbed.db", clock), clock, at_call=0, step=0)
    assert list(live(counting, clock)) == []
    counting.close()
    return -counting.calls_left


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_of_the_wall_clock_ends_a_lease_or_draws_it_out(kind: str, folder: Path) -> None:
    """P1, P5: two minutes or an hour, back or forth, before every call: no early take-over, and none that is late."""
    calls = calls_made(folder, kind)
    for step, call in itertools.product(STEPS, range(1, calls + 1)):
        clock = VirtualClock()
        store = KINDS[kind](folder / f"{step}-{call}.db", clock)
        assert list(live(Stepping(store, clock, at_call=call, step=step), clock)) == [], (step, call)
        store.close()
    print(f"{len(STEPS) * calls} lives with a step each, none with an early take-over")


@pytest.mark.parametrize("step", STEPS)
def test_a_lease_by_the_wall_clock_is_noticed(step: float) -> None:
    """The control: where age is told by the wall clock, each step takes a live lease over or draws a lapsed one out."""
    told = {
        sign
        for call in range(1, 16)
        for clock in [VirtualClock()]
        for sign in live(AgesByTheWall(MemoryStore(clock), clock, at_call=call, step=step), clock)
    }
    assert told == {"early" if step > 0 else "late"}


class OneTickEarly(Stepping):
    """The control: a store whose records are a millisecond older than they are."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        return [reply._replace(age_ms=reply.age_ms + 1) for reply in super().apply(ops)]


def test_a_lease_that_ends_one_tick_early_is_noticed() -> None:
    """The control: a rival that comes a millisecond before the end of a lease is let in by such a store."""
    clock = VirtualClock()
    assert list(live(OneTickEarly(MemoryStore(clock), clock, at_call=0, step=0), clock)) == ["early"]
