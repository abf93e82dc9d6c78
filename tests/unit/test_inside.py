"""A call inside of the handler of the very operation that it asks for: it does not wait for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from notwice import UNKNOWN, Guard, InProgress, OperationInProgress, Policy, Replay, reconcile
from notwice.policy import Verdict
from notwice.stores.memory import MemoryStore
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.worlds import KEY, SCOPE, World

WAIT = 30


class Nested(World):
    """A world whose clock fails a test that waits."""

    def __init__(self, **policy: Any) -> None:
        super().__init__(**{"wait": WAIT, **policy})
        self.began = self.clock.monotonic()

    def inner(self, **options: Any) -> Any:
        """Ask for the operation once more; gives what came, and how long that took."""
        with pytest.raises(OperationInProgress) as refused:
            self.run(self.effect, **options)
        return refused.value


@pytest.mark.parametrize("between", [0, 1, 3])
def test_its_own_handler_is_told_so_at_once(between: int) -> None:
    """P1: nothing runs twice, nobody waits for himself, and the sentence says what to do, however deep it is."""
    world = Nested()

    def handler(depth: int) -> Any:
        if depth < between:
            return world.guard.run(lambda: handler(depth + 1), scope=("between", depth), key=KEY)
        return world.inner()

    error = world.run(lambda: str(handler(0)))
    assert "this call is made inside of its own handler, so it would wait for itself" in error
    assert "give the inner operation a scope of its own" in error
    assert (world.clock.monotonic(), world.effects) == (world.began, [])


def test_begin_gives_in_progress_at_once() -> None:
    """A nested begin does not wait either, and gives what any duplicate of a running operation gets."""
    world = Nested()
    with world.own() as operation:
        assert isinstance(world.begin(), InProgress)
        operation.complete(1)
    assert world.clock.monotonic() == world.began
    assert isinstance(world.begin(), Replay)


def test_a_decorated_function_that_calls_itself() -> None:
    """A function that comes to itself with the same key is told so, in place of being told to wait."""
    guard = Guard(MemoryStore(), policy=Policy(wait=WAIT))

    @guard.idempotent(scope="refund:{order}", key="{order}")
    def refund(order: str) -> str:
        return refund(order)

    with pytest.raises(OperationInProgress, match="inside of its own handler"):
        refund("7")


def test_a_reconcile_function_that_asks_for_its_own_operation() -> None:
    """While it is asked about an operation it is that operation's owner, and so are the handlers that it runs."""
    world = Nested()
    errors: list[str] = []

    def ask(_operation: object) -> Verdict:
        errors.append(str(world.inner(policy=Policy(wait=WAIT))))
        world.guard.run(lambda: errors.append(str(world.inner())), scope="between", key=KEY)
        return UNKNOWN

    policy = Policy(recovery=reconcile(ask))
    world.own(policy=policy).suspend()
    world.begin(policy=policy)
    assert ["inside of its own handler" in error for error in errors] == [True, True]
    assert world.clock.monotonic() == world.began


@pytest.mark.parametrize("other", [{"namespace": "shop-8"}, {"key": "k2"}, {"scope": "refund:ord_2"}], ids=str)
def test_what_is_another_operation_is_not_its_own(other: dict[str, str]) -> None:
    """Another namespace, another key, another scope: that one runs as it always does."""
    world = Nested()
    inner = {"scope": SCOPE, "key": KEY, **other}
    assert world.run(lambda: world.guard.run(lambda: "inner", **inner)) == "inner"


def test_another_guard_s_operation_of_the_same_name_is_not_its_own() -> None:
    """What runs in another store under the same names is waited for."""
    world, other = Nested(), Nested()
    other.own()
    with pytest.raises(OperationInProgress, match="is running elsewhere"):
        world.run(lambda: other.run(other.effect))
    assert other.clock.monotonic() - other.began >= WAIT


def test_once_it_has_ended_it_is_no_longer_inside() -> None:
    """After its last move a handler is given its own answer like any duplicate."""
    world = Nested()
    with world.own() as operation:
        operation.complete("done")
        assert world.begin().result == "done"


def test_another_owner_is_waited_for() -> None:
    """P5: who has lost the operation to another is no longer its handler, and waits for that one like others."""
    world = Nested()
    told: list[str] = []

    def handler() -> None:
        world.guard.release(world.view(), who="ann", why="stuck", force=True)
        world.kept.append(world.own(guard=world.another()))
        told.append(str(world.inner()))

    with pytest.raises(OperationInProgress):
        world.run(handler)
    assert (["is running elsewhere" in each for each in told], world.kept[-1].attempt) == ([True], 2)
    assert world.clock.monotonic() - world.began >= WAIT


async def test_in_tasks() -> None:
    """A task that a handler starts and awaits is inside of it; one that never was is not, and waits."""
    world = AsyncWorld(wait=WAIT)
    inside, reached = asyncio.Event(), asyncio.Event()

    async def handler() -> str:
        reached.set()
        await inside.wait()
        with pytest.raises(OperationInProgress, match="inside of its own handler"):
            await asyncio.create_task(world.guard.run(handler, scope=SCOPE, key=KEY))
        return "done"

    first = asyncio.create_task(world.guard.run(handler, scope=SCOPE, key=KEY))
    await reached.wait()
    second = asyncio.create_task(world.guard.run(handler, scope=SCOPE, key=KEY))
    await asyncio.sleep(0)
    began = world.clock.monotonic()
    inside.set()
    assert [await first, await second] == ["done", "done"]
    assert world.clock.monotonic() == began
