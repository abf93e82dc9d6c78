"""An abandon frees its key only if nothing was begun under the claim, also by branches that are still at work."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, NotApplied, Operation, OperationEnded, current_operation
from notwice.model import Op, Reply
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from tests.unit.worlds import Notebook

SCOPE, KEY = "charge", "k"


class Meanwhile(MemoryStore):
    """A store during whose next call something else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], None] | None = None

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().apply(ops)


class Unhurried(AsyncMemoryStore):
    """A store whose answers come some turns of the loop later."""

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().apply(ops)


def owned(guard: Guard) -> Operation:
    operation = guard.begin(SCOPE, KEY)
    assert isinstance(operation, Operation)
    return operation


@pytest.mark.parametrize("begun", ["downstream_key", "downstream_uuid", "checkpoint", "step"])
def test_what_begins_while_an_abandon_waits_for_its_turn_keeps_the_key(begun: str) -> None:
    """P10: the abandon is judged when it is written, and the observer hears that the key was not freed."""
    notebook = Notebook()
    guard = Guard(MemoryStore(), observer=notebook)
    operation = owned(guard)
    move = operation._abandoning()
    begin: Any = getattr(operation, begun)
    begin(*{"checkpoint": ("point",), "step": ("charge", lambda: 1)}.get(begun, ()))
    operation._move(move)
    view: Any = guard.lookup(SCOPE, KEY)
    assert (view.unresolved, operation.freed) == (True, False)
    assert notebook.events[-1].name == "not_freed"


@pytest.mark.parametrize("begun", ["downstream_key", "downstream_uuid", "checkpoint", "step"])
def test_nothing_begins_while_an_abandon_is_written(begun: str) -> None:
    """P10: its record frees the key, so who takes a key or begins a step from then on is refused."""
    store, ran = Meanwhile(), list[str]()
    guard = Guard(store)
    operation = owned(guard)

    def meanwhile() -> None:
        with pytest.raises(OperationEnded, match="is being abandoned"):
            operation._touch()
        ran.append(begun)

    store.happens = meanwhile
    operation.abandon()
    assert (operation.freed, ran) == (True, [begun])
    begin: Any = getattr(operation, begun)
    with pytest.raises(OperationEnded):
        begin(*{"checkpoint": ("point",), "step": ("charge", lambda: ran.append("charged"))}.get(begun, ()))
    assert ran == [begun]
    assert isinstance(guard.begin(SCOPE, KEY), Operation)


def test_a_branch_that_charges_after_another_has_given_up_keeps_the_key() -> None:
    """P10: gather leaves the other branches at work; the next begin must not charge once more."""

    async def main() -> tuple[list[str], Any]:
        guard, charged, branches = AsyncGuard(Unhurried()), list[str](), list[asyncio.Task[None]]()

        async def pay() -> None:
            operation: Any = current_operation()

            async def charge() -> None:
                charged.append("charged")

            await operation.confirm()
            await operation.step("charge", charge)

        async def check() -> None:
            raise NotApplied("closed")

        async def handler() -> None:
            branches.append(asyncio.ensure_future(pay()))
            await asyncio.gather(branches[0], check())

        with pytest.raises(NotApplied):
            await guard.run(handler, scope=SCOPE, key=KEY)
        await asyncio.gather(*branches, return_exceptions=True)
        return charged, await guard.lookup(SCOPE, KEY)

    charged, view = asyncio.run(main())
    assert not (charged and view.record.released)
