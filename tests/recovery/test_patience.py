"""How long a worker waits where nothing ran: an attempt is used up all the same."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import AsyncGuard, AsyncOperation, NotApplied, Operation, Policy, rerun
from notwice.recovery import Round
from notwice.stores.memory import MemoryStore
from notwice.testing import VirtualClock
from tests.unit.worlds import KEY, SCOPE, World

AGAIN = Policy(recovery=rerun)


def nothing_sent(operation: Operation) -> None:
    raise NotApplied("the provider can't be reached")


def other_steps(operation: Operation) -> None:
    operation.step("another", lambda: None)


@pytest.mark.parametrize("handler", [nothing_sent, other_steps])
def test_an_outage_in_which_nothing_ran_uses_up_no_attempts_in_seconds(handler: Any) -> None:
    """T08: where nothing was sent, or the steps don't fit, a worker waits five minutes: an outage and a release end."""
    world = World()
    first = world.own(policy=AGAIN)
    first.step("charge", world.effect)
    world.crash(first)
    for _ in range(9):
        world.guard.recover({SCOPE: handler})
        world.clock.advance(60)
    assert world.view().record.attempt == 3
    world.clock.advance(60)
    assert world.guard.recover({SCOPE: lambda operation: operation.step("charge", world.effect)}) == Round(finished=1)
    assert len(world.effects) == 1


def test_a_callers_own_retry_is_not_kept_waiting_for_long() -> None:
    """The pause of five minutes is a worker's: what a caller's own retry found not applied waits for seconds."""
    world = World()
    world.crashed(policy=AGAIN)
    with pytest.raises(NotApplied), world.own(policy=AGAIN) as operation:
        nothing_sent(operation)
    assert world.view().record.pause_ms == 2_000


async def test_a_gateways_worker_is_as_patient() -> None:
    """T08: in an event loop, and where the handler abandons by itself, as the HTTP faces do, it is the same pause."""
    guard = AsyncGuard(MemoryStore(clock=(clock := VirtualClock())), policy=AGAIN, clock=clock)
    first = await guard.begin(SCOPE, KEY)
    assert isinstance(first, AsyncOperation)
    await first.suspend("the upstream was lost")

    async def refused(operation: AsyncOperation) -> None:
        await operation.abandon()

    assert await guard.recover({SCOPE: refused}) == Round(failed=1)
    view = await guard.lookup(SCOPE, KEY)
    assert view is not None
    assert (view.record.pause_ms, view.record.error) == (300_000, "the upstream was lost; since then: abandoned")
