"""A begin that is interrupted before it has given its operation to anybody: nothing ran, so its key is free."""

import asyncio

import pytest

from notwice import AsyncGuard, AsyncOperation, Event, Guard, Operation
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import VirtualClock
from tests.stores.interrupts import interruptions

SCOPE, KEY = "charge", "k"
HOLDERS = ("Guard.begin", "Guard._claim", "AsyncGuard.begin", "AsyncGuard._claim")
"""They have been given the operation: an interrupt in there is one of whoever holds it."""


class Stopping:
    """Ends the program, or is where a signal's handler ends it, when it hears of a claim."""

    def __init__(self) -> None:
        self.heard = 0

    def on_event(self, event: Event) -> None:
        """Interrupt the first claim."""
        self.heard += event.name == "claimed"
        if self.heard == 1:
            raise KeyboardInterrupt


def test_a_begin_that_is_interrupted_anywhere_frees_its_key() -> None:
    """P13: at each point where Python lets an interrupt in; the next begin has the key at once."""
    caught = 0
    for interruption in interruptions(HOLDERS, "notwice"):
        guard = Guard(MemoryStore(), clock=VirtualClock())
        interruption.run(lambda guard=guard: guard.begin(SCOPE, KEY))  # type: ignore[misc]  # a default is not inferred
        if interruption.caught is not None:
            caught += 1
            assert isinstance(guard.begin(SCOPE, KEY), Operation), interruption.where
    assert caught > 50


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # interrupted before its await
def test_a_begin_of_a_task_that_is_interrupted_anywhere_frees_its_key() -> None:
    """P13: the same in an event loop."""
    caught = 0
    for interruption in interruptions(HOLDERS, "notwice"):
        guard = AsyncGuard(AsyncMemoryStore(), clock=VirtualClock())
        with asyncio.Runner() as runner:
            interruption.run(lambda r=runner, g=guard: r.run(g.begin(SCOPE, KEY)))  # type: ignore[misc]  # as above
            if interruption.caught is not None:
                caught += 1
                assert isinstance(runner.run(guard.begin(SCOPE, KEY)), AsyncOperation), interruption.where
    assert caught > 50


def test_an_observer_that_ends_the_program_at_a_claim_leaves_no_owner_behind() -> None:
    """P13: what is no `Exception` passes through an observer, and through the begin that told it."""
    guard = Guard(MemoryStore(), clock=VirtualClock(), observer=Stopping())
    with pytest.raises(KeyboardInterrupt):
        guard.begin(SCOPE, KEY)
    assert isinstance(guard.begin(SCOPE, KEY), Operation)
