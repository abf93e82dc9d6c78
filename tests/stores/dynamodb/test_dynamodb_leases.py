"""Leases where the server has no clock: each process judges them by what it has seen itself."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from notwice import Guard, InProgress, Operation, Policy, Replay, rerun
from notwice.model import State
from notwice.stores.clocks import Moment
from notwice.stores.dynamodb.sightings import SKEW_MS, Sightings
from notwice.stores.dynamodb.store import DynamoStore
from notwice.testing import VirtualClock
from tests.engines.dynamodb import Table

LEASE_S = 300
POLICY = Policy(recovery=rerun, lease=LEASE_S)
STEPS_S = (120, -120, 3_600, -3_600)


class Hosts:
    """Guards as if each were in a process of its own, with clocks of its own."""

    def __init__(self, table: Table, stack: ExitStack) -> None:
        self._table = table
        self._stack = stack
        self.clocks: list[VirtualClock] = []

    def start(self, skew_s: float = 0) -> tuple[Guard, VirtualClock]:
        """One more host, whose wall clock is ahead by so much."""
        clock = VirtualClock()
        clock.step_wall(skew_s)
        store = DynamoStore(self._table.place, clock=clock, sightings=Sightings())
        guard = self._stack.enter_context(Guard(store, policy=POLICY, clock=VirtualClock()))
        self.clocks.append(clock)
        return guard, clock

    def wait(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


@pytest.fixture
def hosts(table: Table) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(table, stack)


def test_a_lease_has_to_be_seen_as_a_whole(hosts: Hosts) -> None:
    """P1, P5: who has just started waits a whole lease, however long the owner has been silent; then it takes over."""
    dead, _ = hosts.start()
    late = dead.begin("pay", "k")
    assert isinstance(late, Operation)
    hosts.wait(100 * LEASE_S)
    taker, clock = hosts.start()
    assert isinstance(taker.begin("pay", "k"), InProgress)
    clock.advance(LEASE_S - 0.001)
    assert isinstance(taker.begin("pay", "k"), InProgress)
    clock.advance(0.001)
    operation = taker.begin("pay", "k")
    assert isinstance(operation, Operation)
    assert operation.attempt == 2
    operation.complete("taken")
    replay = dead.begin("pay", "k")
    assert isinstance(replay, Replay)
    assert replay.result == "taken"


@pytest.mark.parametrize("skew_s", STEPS_S)
def test_a_wrong_wall_clock_takes_nothing_over(hosts: Hosts, skew_s: float) -> None:
    """P1: wall clocks that are minutes or hours apart, or are set, take no live lease over."""
    owner, _ = hosts.start()
    operation = owner.begin("pay", "k")
    assert isinstance(operation, Operation)
    other, clock = hosts.start(skew_s)
    for step_s in (0, *STEPS_S):
        clock.step_wall(step_s)
        for _ in range(3):
            assert isinstance(other.begin("pay", "k"), InProgress)
            hosts.wait(LEASE_S / 3)
        operation.heartbeat()
    operation.complete(1)
    assert isinstance(other.begin("pay", "k"), Replay)


def test_a_beating_owner_is_never_taken_over(hosts: Hosts) -> None:
    """P1: each sign of life is another etag, so whoever watches begins to count anew."""
    owner, _ = hosts.start()
    other, _ = hosts.start()
    operation = owner.begin("pay", "k")
    assert isinstance(operation, Operation)
    for _ in range(5):
        assert isinstance(other.begin("pay", "k"), InProgress)
        hosts.wait(LEASE_S - 1)
        operation.heartbeat()
    hosts.wait(LEASE_S - 1)
    assert isinstance(other.begin("pay", "k"), InProgress), "it has seen the last etag only now"


def test_what_is_unresolved_is_listed_at_once(hosts: Hosts) -> None:
    """P7: a process that only looks goes by the wall clocks, less a minute; a look takes nothing over."""
    dead, _ = hosts.start()
    assert isinstance(dead.begin("pay", "k"), Operation)
    hosts.wait(LEASE_S + SKEW_MS / 1000 - 1)
    early, _ = hosts.start(LEASE_S + SKEW_MS / 1000 - 1)
    assert list(early.operations(unresolved=True)) == []
    looker, _ = hosts.start(LEASE_S + SKEW_MS / 1000)
    (view,) = looker.operations(unresolved=True)
    shown = looker.lookup("pay", "k")
    assert shown is not None
    assert shown.lapsed
    assert isinstance(looker.begin("pay", "k"), InProgress)
    looker.resolve(shown, "found", who="ana", why="asked the provider")
    assert getattr(view, "state", None) is State.IN_PROGRESS


def test_a_listing_counts_as_seeing(hosts: Hosts) -> None:
    """P5, P7: a worker that lists what is open every now and then may take over a lease after the first listing."""
    dead, _ = hosts.start()
    assert isinstance(dead.begin("pay", "k"), Operation)
    worker, clock = hosts.start()
    assert len(list(worker.operations(state="in_progress"))) == 1
    clock.advance(LEASE_S)
    assert isinstance(worker.begin("pay", "k"), Operation)


def test_what_is_remembered_is_bounded() -> None:
    """What was not seen for the longest time is forgotten, and counts as seen for the first time again."""
    sightings = Sightings(2)

    def age_ms(name: str, boot_ms: int) -> int:
        return sightings.see(("n", name), b"e", Moment(0, 0, boot_ms, "boot"), written_ms=0).observed_ms

    assert [age_ms(name, 1_000) for name in "ab"] == [0, 0]
    assert age_ms("a", 2_000) == 1_000
    assert age_ms("c", 3_000) == 0
    assert age_ms("a", 4_000) == 3_000
    assert age_ms("b", 5_000) == 0
    assert age_ms("c", 6_000) == 0, "it had to make room for b"


def test_a_clock_that_went_back() -> None:
    """No age is negative, whatever order sightings come in."""
    sightings = Sightings()
    sightings.see(("n", "a"), b"e", Moment(0, 0, 5_000, "boot"), written_ms=9_000)
    ages = sightings.see(("n", "a"), b"e", Moment(0, 0, 4_000, "boot"), written_ms=9_000)
    assert ages == (0, 0)
