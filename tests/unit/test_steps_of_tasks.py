"""Steps of tasks: branches that run at the same time, in an order that is never the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from notwice import AsyncOperation, State, StepRunning, StepsChanged, current_step, rerun
from tests.unit.test_async_guard import AsyncWorld

SEEDS = 300


class Killed(BaseException):
    """The process ends here."""


class AsyncShop:
    """A world whose handlers run in steps; `effects` counts how often each downstream key was used."""

    def __init__(self, **policy: Any) -> None:
        self.world = AsyncWorld(**{"recovery": rerun, "attempts_max": None, **policy})
        self.effects: list[str] = []

    async def own(self) -> AsyncOperation:
        operation = await self.world.begin()
        assert isinstance(operation, AsyncOperation), operation
        return operation

    async def crash(self, operation: AsyncOperation) -> AsyncOperation:
        """The process dies; gives the operation as the next one has it."""
        self.world.guard._runtime.heart.remove(operation._hold)
        self.world.clock.advance(300)
        return await self.own()

    def effect(self, value: object = "done", *, turns: int = 0) -> Callable[[], Awaitable[Any]]:
        async def function() -> object:
            for _ in range(turns):
                await asyncio.sleep(0)
            self.effects.append(current_step().downstream_key())
            return value

        return function


async def test_branches_with_names_of_their_own_run_at_the_same_time() -> None:
    """C47: steps that are gathered run together, are kept each by itself, and are skipped when recovered."""
    shop = AsyncShop()
    operation = await shop.own()
    names = [f"pay {number}" for number in range(5)]
    calls = [operation.step(name, shop.effect(name, turns=5 - place)) for place, name in enumerate(names)]
    assert await asyncio.gather(*calls) == names
    again = await shop.crash(operation)
    assert await asyncio.gather(*(again.step(name, shop.effect()) for name in reversed(names))) == names[::-1]
    assert len(shop.effects) == 5
    await again.complete()


async def test_two_unfinished_steps_of_one_name_are_refused() -> None:
    """C47: of two gathered steps of one name the second is refused; one after the other they are two occurrences."""
    shop = AsyncShop()
    operation = await shop.own()
    outcomes = await asyncio.gather(
        operation.step("pay", shop.effect(1, turns=3)), operation.step("pay", shop.effect(2)), return_exceptions=True
    )
    assert (outcomes[0], type(outcomes[1])) == (1, StepRunning)
    assert await operation.step("pay", shop.effect(2)) == 2
    assert list(operation.progress) == ["pay", "pay#2"]


@pytest.mark.parametrize("done", ["a", "b"])
async def test_a_branch_with_a_new_step_waits_for_the_others(done: str) -> None:
    """C47: whichever branch was done at the crash, the other one runs its new step only after that was asked for."""
    shop = AsyncShop()
    first = await shop.own()
    async with asyncio.TaskGroup() as group:
        group.create_task(first.step(done, shop.effect(done)))
    again = await shop.crash(first)
    async with again:
        found = await asyncio.gather(*(again.step(name, shop.effect(name)) for name in ("a", "b")))
        assert found == ["a", "b"]
        await again.complete()
    assert len(shop.effects) == 2


async def test_the_handler_itself_waits_for_a_branch_of_its_own() -> None:
    """C47: the task that runs the handler waits with its new step for a task that is about to ask for a kept one."""
    shop = AsyncShop()
    first = await shop.own()
    await asyncio.gather(first.step("branch", shop.effect("b")))
    again = await shop.crash(first)
    async with again:
        branch = asyncio.ensure_future(again.step("branch", shop.effect()))
        assert await again.step("main", shop.effect("m")) == "m"
        assert await branch == "b"
        await again.complete()
    assert len(shop.effects) == 2


async def test_what_ended_after_the_step_around_it_is_not_asked_for() -> None:
    """A task that a step started and did not wait for ends in its own time; the step is done all the same."""
    shop = AsyncShop()
    first = await shop.own()
    late: list[asyncio.Task[object]] = []

    async def starts_a_task() -> str:
        late.append(asyncio.ensure_future(first.step("log", shop.effect(turns=20))))
        return "started"

    await first.step("a/b", starts_a_task)
    await late[0]
    assert list(first.progress) == ["a\\/b", "a\\/b/log"]
    again = await shop.crash(first)
    assert [await again.step("a/b", shop.effect()), await again.step("mail", shop.effect())] == ["started", "done"]
    await again.complete()


async def test_a_branch_that_has_gone_is_noticed() -> None:
    """A release that gathers other steps runs none of the new ones, and the operation stays unresolved."""
    shop = AsyncShop()
    first = await shop.own()
    await asyncio.gather(first.step("a", shop.effect()), first.step("b", shop.effect()))
    again = await shop.crash(first)

    async def handler() -> None:
        async with again:
            await asyncio.gather(*(again.step(name, shop.effect()) for name in ("a", "c")))

    with pytest.raises(StepsChanged):
        await handler()
    assert len(shop.effects) == 2
    view = await shop.world.guard.lookup(again.scope, again.key)
    assert view is not None
    assert (view.unresolved, view.record.error.split(":")[0]) == (True, "StepsChanged")


async def test_a_step_that_waits_ends_with_its_operation() -> None:
    """A branch that waits for another when the operation ends is told that it is over."""
    shop = AsyncShop()
    first = await shop.own()
    await asyncio.gather(first.step("a", shop.effect()))
    again = await shop.crash(first)
    waiting = asyncio.ensure_future(again.step("b", shop.effect()))
    await asyncio.sleep(0)
    await again.suspend("given up")
    with pytest.raises(Exception, match="is over"):
        await waiting
    assert len(shop.effects) == 1


async def test_a_cancelled_step_leaves_no_result() -> None:
    """T07: a step whose task was cancelled counts as unknown: it runs again, under the same downstream key."""
    shop = AsyncShop()
    operation = await shop.own()
    entered = asyncio.Event()

    async def hangs() -> None:
        shop.effects.append(current_step().downstream_key())
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(operation.step("pay", hangs))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert operation.progress == {}
    again = await shop.crash(operation)
    assert await again.step("pay", shop.effect()) == "done"
    assert shop.effects[0] == shop.effects[1]


async def test_plain_functions_are_steps_of_tasks_too() -> None:
    """A function that is no coroutine function runs as it is."""
    shop = AsyncShop()
    operation = await shop.own()
    plain: Any = lambda: 7  # noqa: E731 - what callers without types may give
    assert await operation.step("sum", plain) == 7


# -- programs by chance -----------------------------------------------------------------------------------------------

Program = tuple[Any, ...]
"""``("step", name)``, ``("within", name, program)``, ``("loop", name, times)``, ``("row" or "beside", *programs)``."""


def program(chance: random.Random, depth: int, names: list[int]) -> Program:
    """A handler's steps: in a row, beside one another, in a loop, or one within another."""
    names[0] += 1
    kind = chance.choice(["step", "loop", "within", "row", "row", "beside", "beside"]) if depth else "step"
    match kind:
        case "step":
            return ("step", f"s{names[0]}")
        case "loop":
            return ("loop", f"l{names[0]}", chance.randint(1, 3))
        case "within":
            return ("within", f"w{names[0]}", program(chance, depth - 1, names))
        case _:
            return (kind, *(program(chance, depth - 1, names) for _ in range(chance.randint(2, 3))))


class Handler:
    """Runs a program; the process ends before or after the effect of a step, by chance."""

    def __init__(self, operation: AsyncOperation, chance: random.Random, *, rate: float) -> None:
        self.operation = operation
        self.chance = chance
        self.rate = rate
        self.dead = False
        self.effects: list[str] = []

    async def pause(self) -> None:
        for _ in range(self.chance.randint(0, 8)):
            await asyncio.sleep(0)

    def may_die(self) -> None:
        if self.dead or self.chance.random() < self.rate:
            self.dead = True
            raise Killed

    async def effect(self) -> str:
        await self.pause()
        self.may_die()
        key = current_step().label
        self.effects.append(key)
        await self.pause()
        self.may_die()
        return f"result of {key}"

    async def run(self, part: Program) -> Any:
        await self.pause()
        match part:
            case ("step", name):
                return await self.operation.step(name, self.effect)
            case ("loop", name, times):
                return [await self.operation.step(name, self.effect) for _ in range(times)]
            case ("within", name, inner):
                return await self.operation.step(name, lambda: self.run(inner))
            case ("row", *parts):
                return [await self.run(each) for each in parts]
            case _:
                return await self.beside(part[1:])

    async def beside(self, parts: tuple[Program, ...]) -> list[Any]:
        tasks = [asyncio.ensure_future(self.run(each)) for each in parts]
        self.chance.shuffle(order := list(tasks))
        found = await asyncio.gather(*order, return_exceptions=True)
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        return [task.result() for task in tasks]


async def _attempt(operation: AsyncOperation, steps: Program, handler: Handler) -> Any:
    try:
        operation._home = asyncio.current_task()
        result = await handler.run(steps)
        await operation.complete(result)
    except Killed:
        return Killed
    return result


@pytest.mark.parametrize("first", range(0, SEEDS, 100))
async def test_programs_by_chance_that_are_killed_by_chance(first: int) -> None:
    """C47, T08: whatever a handler's steps are, however its branches interleave and wherever it is killed: it ends, no
    step that was kept runs again, all results are those of a run without a kill, and no change is seen where none is.
    """
    kills = 0
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        steps = program(chance, 3, [0])
        calm = AsyncShop()
        quiet = Handler(await calm.own(), random.Random(seed), rate=0)
        wanted = await _attempt(quiet.operation, steps, quiet)
        shop = AsyncShop()
        operation = await shop.own()
        rate, seen = 0.3, Counter[str]()
        while True:
            handler = Handler(operation, chance, rate=rate)
            kept = {label for label, _ in operation.view.record.progress}
            found = await _attempt(operation, steps, handler)
            assert not kept & set(handler.effects), f"seed {seed}"
            seen.update(handler.effects)
            if found is not Killed:
                break
            kills += 1
            rate *= 0.7
            operation = await shop.crash(operation)
        assert found == wanted, f"seed {seed}"
        assert set(seen) == set(quiet.effects), f"seed {seed}"
        view = await shop.world.guard.lookup(operation.scope, operation.key)
        assert view is not None
        assert view.state is State.COMPLETED
    assert kills > 100
