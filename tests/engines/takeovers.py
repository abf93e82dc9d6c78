"""Pairs of servers of which the second takes over: once the first is gone, or while neither can hear the other.

An engine's own test is a class with one fixture, `paired`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from notwice import Guard, InProgress, Operation, Policy, StoreUnavailable
from notwice.stores import open_store
from tests.engines.claims import Claims, missing_in
from tests.engines.private import TIMES, Server
from tests.engines.proxy import Proxy

ROUNDS = 2 * TIMES
KEYS = 16
LATE_CLAIMS = 50


@dataclass(frozen=True)
class Pair:
    """A server, and one that follows it and may take over.

    Attributes:
        first: the server that is written to.
        link: what the second one hears the first one through.
        near: the URL of a store on the first.
        far: the URL of the same store on the second.
        promote: makes the second one take writes.
    """

    first: Server
    link: Proxy
    near: str
    far: str
    promote: Callable[[], None]


Paired = Callable[[bool], AbstractContextManager[Pair]]
"""Starts a pair. If it is given true, a write counts once both have it."""


class TakeOverCases:
    """P1: where writes wait for the server that takes over, it grants no key again. The control grants some."""

    @pytest.fixture
    def paired(self) -> Paired:
        raise NotImplementedError("give the class a fixture `paired`")

    @pytest.mark.slow
    @pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
    def test_fail_overs(self, paired: Paired, waits: bool) -> None:
        """P1: no acknowledged claim is lost in a fail-over; where writes don't wait for the second server, some are."""
        assert (sum(lost_in_a_fail_over(paired, waits=waits) for _ in range(ROUNDS)) == 0) is waits

    @pytest.mark.slow
    @pytest.mark.parametrize("waits", [True, False], ids=["waits", "control"])
    def test_partitions(self, paired: Paired, waits: bool) -> None:
        """P1, P8: of two servers that can't hear each other one grants a key; both do, where writes don't wait."""
        assert (sum(granted_twice_in_a_partition(paired, waits=waits) for _ in range(ROUNDS)) == 0) is waits


def lost_in_a_fail_over(paired: Paired, *, waits: bool) -> int:
    """How many acknowledged claims the second server has not, once it has taken over."""
    with paired(waits) as pair:
        claims = Claims(pair.near)
        assert claims.enough.wait(30)
        if not waits:
            pair.link.black_hole = True  # the second falls behind, as it may
            claims.wait_for(len(claims.acknowledged) + LATE_CLAIMS)
        acknowledged = list(claims.acknowledged)
        pair.first.kill()
        claims.join()
        pair.promote()
        store = open_store(pair.far)
        lost = missing_in(store, acknowledged)
        store.close()
    print(f"{lost} of {len(acknowledged)} claims lost")
    return lost


def granted_twice_in_a_partition(paired: Paired, *, waits: bool) -> int:
    """How many keys both servers grant. Who is near the first one asks twice for each."""
    policy = Policy(store_timeout=1)
    with (
        paired(waits) as pair,
        Guard.open(pair.near, policy=policy) as near,
        Guard.open(pair.far, policy=policy) as far,
        ThreadPoolExecutor(KEYS) as pool,
    ):
        assert isinstance(near.begin("s", "before"), Operation)
        pair.link.black_hole = True
        asked = [*range(KEYS), *range(KEYS)]
        granted = [key for key in pool.map(lambda key: key if grants(near, key) else None, asked) if key is not None]
        assert waits or sorted(granted) == list(range(KEYS))
        pair.promote()
        assert isinstance(far.begin("s", "before"), InProgress) or not waits
        twice = sum(pool.map(lambda key: grants(far, key), granted))
        pair.first.kill()  # whoever waits for it waits no longer
    print(f"{twice} keys granted twice")
    return twice


def grants(guard: Guard, key: int) -> bool:
    """Whether a guard lets somebody own a key."""
    try:
        return isinstance(guard.begin("s", str(key)), Operation)
    except StoreUnavailable:
        return False
