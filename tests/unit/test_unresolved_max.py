"""``Policy.unresolved_max``: no tenant fills the store with what nobody knows the outcome of."""

import threading
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, Policy, Replay, StoreUnavailable, Unresolved, UnresolvedFull, rerun
from notwice.backlog import COUNT_SECONDS, COUNT_TIMES, NAMESPACES_MAX, Backlog
from notwice.model import Page, Query
from notwice.policy import reconcile
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import FaultPlan, FaultyStore, VirtualClock
from tests.unit.worlds import Notebook

LIMITED = Policy(unresolved_max=3)


class Counted(MemoryStore):
    """A memory store that notes what is scanned, and whose scans may take time or fail."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.virtual = clock
        self.scans: list[Query] = []
        self.seconds = 0.0
        self.off = False

    def scan(self, query: Query) -> Page:
        self.scans.append(query)
        self.virtual.advance(self.seconds)
        if self.off:
            raise OSError
        return super().scan(query)


class Town:
    """A guard with a limit on a store that counts."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = Counted(self.clock)
        self.notebook = Notebook()
        self.guard: Any = self.another()

    def another(self, policy: Policy = LIMITED) -> Any:
        return Guard(self.store, policy=policy, clock=self.clock, observer=self.notebook)

    def suspend(self, *keys: str, guard: Any = None) -> None:
        for key in keys:
            (guard or self.guard).begin("s", key).suspend("lost")


@pytest.fixture
def town() -> Town:
    return Town()


def test_a_full_namespace_takes_in_nothing_new(town: Town) -> None:
    """At the limit a new operation is refused, 429 `unresolved_full`; nothing is written, nothing runs, it is told."""
    town.suspend("a", "b", "c")
    with pytest.raises(UnresolvedFull, match="Nothing ran") as caught:
        town.guard.run(lambda: pytest.fail("it ran"), scope="s", key="new")
    error = caught.value
    assert (error.code, error.http_status, error.retry_after, error.safe_new_key) == ("unresolved_full", 429, 30, True)
    assert error.problem().status == 429
    assert ("retry-after", "30") in error.problem().headers
    assert town.guard.lookup("s", "new") is None
    assert town.notebook.counts["unresolved_full"] == 1


def test_what_is_there_already_goes_on(town: Town) -> None:
    """In a full namespace duplicates get what they always get, and what may be re-run is: that empties it."""
    town.guard.run(lambda: 7, scope="s", key="done")
    redo = Policy(unresolved_max=3, recovery=rerun)
    town.guard.begin("s", "again", policy=redo).suspend("lost")
    town.suspend("a", "b")
    assert isinstance(town.guard.begin("s", "done"), Replay)
    assert isinstance(town.guard.begin("s", "a"), Unresolved)
    assert town.guard.run(lambda: 8, scope="s", key="again", policy=redo) == 8


def test_a_freed_or_expired_key_is_a_new_operation(town: Town) -> None:
    """What a begin would replace counts as new: it is refused, too."""
    town.guard.begin("s", "freed").abandon()
    town.guard.run(lambda: 1, scope="s", key="old", policy=Policy(retention=60))
    town.clock.advance(61)
    town.suspend("a", "b", "c")
    for key in ("freed", "old"):
        with pytest.raises(UnresolvedFull):
            town.guard.begin("s", key)


def test_namespaces_are_counted_apart(town: Town) -> None:
    """C21: one tenant's unresolved operations refuse nothing to another one."""
    town.suspend("a", "b", "c")
    assert town.guard.within("other").run(lambda: 1, scope="s", key="new") == 1
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new")


def test_a_claim_on_a_transaction_is_refused_too(town: Town) -> None:
    """The limit comes before the question where the claim would be written."""
    town.suspend("a", "b", "c")
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new", transaction=object())


def test_how_exact_it_is(town: Town) -> None:
    """A process knows its own at once; what another one left, or a person resolved, it learns within five seconds."""
    other = town.another(Policy())
    town.suspend("a")
    town.suspend("b", "c", guard=other)
    town.guard.begin("s", "slips through").complete(1)
    town.clock.advance(COUNT_SECONDS)
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new")
    town.guard.resolve(town.guard.lookup("s", "a"), 1, who="ana", why="in the ledger")
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new")
    town.clock.advance(COUNT_SECONDS)
    town.guard.begin("s", "new").complete(1)


def test_crashed_owners_count(town: Town) -> None:
    """What lapsed is unresolved: a process that is killed again and again fills its namespace, and then stops."""
    for key in ("a", "b", "c"):
        town.guard._runtime.heart.remove(town.guard.begin("s", key)._hold)
    town.guard.begin("s", "all live").complete(1)
    town.clock.advance(301)
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new")


def test_a_count_is_bounded_and_shared(town: Town) -> None:
    """A count ends at the limit, however many there are, and is made once in five seconds for all callers."""
    town.suspend(*(f"k{number}" for number in range(50)), guard=town.another(Policy()))
    assert town.store.scans == []
    for _ in range(20):
        with pytest.raises(UnresolvedFull):
            town.guard.begin("s", "new")
    (query,) = town.store.scans
    assert (query.unresolved, query.limit, query.namespace) == (True, 3, "")


def test_a_slow_count_is_made_less_often(town: Town) -> None:
    """All counting takes at most a twentieth of the time."""
    town.store.seconds = 1.0
    town.guard.begin("s", "a").complete(1)
    town.clock.advance(COUNT_TIMES - 1)
    town.guard.begin("s", "b").complete(1)
    assert len(town.store.scans) == 1
    town.clock.advance(1)
    town.guard.begin("s", "c").complete(1)
    assert len(town.store.scans) == 2


def test_a_count_that_fails_refuses_nothing(town: Town) -> None:
    """Whether a store that can't be scanned takes a claim is the claim's affair; the last count goes on."""
    town.store.off = True
    town.guard.begin("s", "a").complete(1)
    town.store.off = False
    town.clock.advance(COUNT_SECONDS)
    town.suspend("b", "c", "d")
    town.store.off = True
    town.clock.advance(COUNT_SECONDS)
    with pytest.raises(UnresolvedFull):
        town.guard.begin("s", "new")


def test_a_store_that_does_not_answer() -> None:
    """P8: without a store the claim says what it always says, be the namespace full or not."""
    clock = VirtualClock()
    plan = FaultPlan(clock=clock)
    guard: Any = Guard(FaultyStore(MemoryStore(clock), plan), policy=LIMITED, clock=clock)
    for key in ("a", "b", "c"):
        guard.begin("s", key).suspend("lost")
    plan.down = True
    with pytest.raises(StoreUnavailable):
        guard.begin("s", "new")


async def test_the_async_face() -> None:
    """An `AsyncGuard` counts and refuses alike."""
    memory = MemoryStore()
    guard = AsyncGuard(AsyncMemoryStore(memory), policy=Policy(unresolved_max=1))
    operation: Any = await guard.begin("s", "a")
    await operation.suspend("lost")
    with pytest.raises(UnresolvedFull):
        await guard.begin("s", "new")
    assert isinstance(await guard.begin("s", "a"), Unresolved)


def test_reconcile_in_a_full_namespace(town: Town) -> None:
    """What can be found out is asked for, however full the namespace is."""
    asking = Policy(unresolved_max=3, recovery=reconcile(lambda _: None))
    town.guard.begin("s", "a", policy=asking).suspend("lost")
    town.suspend("b", "c")
    assert isinstance(town.guard.begin("s", "a", policy=asking), Unresolved)
    assert town.notebook.counts["reconcile_unknown"] == 1


def test_one_caller_counts() -> None:
    """Of many threads one is told to count, and again only once the time has come; many tenants are bounded."""
    backlog = Backlog()
    told = []
    threads = [threading.Thread(target=lambda: told.append(backlog.must_count("t", 0.0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False] * 7 + [True]
    assert not backlog.must_count("t", 1000.0), "it is still counting"
    backlog.counted("t", 4, began=0.0, ended=0.5)
    assert backlog.full("t", 4)
    assert not backlog.full("t", 5)
    assert not backlog.must_count("t", 10.4)
    assert backlog.must_count("t", 10.5)
    for number in range(NAMESPACES_MAX + 5):
        backlog.must_count(str(number), 0.0)
    assert len(backlog._counts) <= NAMESPACES_MAX


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_bad_limits(value: Any) -> None:
    """Whatever is no whole number from 1 on is refused with a sentence."""
    with pytest.raises(ValueError, match="unresolved_max must be a whole number from 1 on"):
        Policy(unresolved_max=value)
