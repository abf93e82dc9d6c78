"""Moves that were called and not awaited: the handler that forgot them is not believed."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Iterator
from types import CoroutineType
from typing import Any, cast
from unittest import mock

import anyio.from_thread
import anyio.to_thread
import pytest
from fastapi import FastAPI

import notwice
from notwice import AsyncGuard, AsyncOperation, Guard, NotAwaited, NotCompleted, Replay, State, Unresolved, rerun
from notwice.http import SHARED
from notwice.http.asgi import IdempotencyMiddleware
from notwice.stores.memory import MemoryStore
from tests.http.harness import KEY as HEADER
from tests.http.harness import asgi_request
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.worlds import KEY, SCOPE

Called = Coroutine[Any, Any, Any]
Move = Callable[[AsyncOperation], Called]


async def charge() -> str:
    return "charged"


MOVES: dict[str, Move] = {
    "step": lambda op: op.step("charge", charge),
    "checkpoint": lambda op: op.checkpoint("charged"),
    "confirm": lambda op: op.confirm(),
    "heartbeat": lambda op: op.heartbeat(),
    "fail": lambda op: op.fail("declined"),
    "suspend": lambda op: op.suspend("no answer"),
}


def current() -> AsyncOperation:
    return cast("AsyncOperation", notwice.current_operation())


@pytest.fixture
def forgotten() -> Iterator[list[Called]]:
    """Calls that nobody awaits, held so that the interpreter's own warning doesn't come in the middle of a test."""
    calls: list[Called] = []
    yield calls
    for call in calls:
        call.close()


@pytest.mark.parametrize("name", [name for name in MOVES if name != "heartbeat"])
async def test_a_forgotten_move_is_no_success(name: str, forgotten: list[Called]) -> None:
    """T08: a handler that called a move and did not await it is told which, and its operation is suspended."""
    world = AsyncWorld()

    async def handler() -> str:
        forgotten.append(MOVES[name](current()))
        return "done"

    with pytest.raises(NotAwaited, match=f"'{name}' of operation .* never ran, .* `await op.{name}"):
        await world.guard.run(handler, scope=SCOPE, key=KEY)
    outcome = await world.begin()
    assert isinstance(outcome, Unresolved)
    assert outcome.view.record.error.startswith("NotAwaited: ")


async def test_a_heartbeat_that_had_no_turn_makes_no_answer_untrue(forgotten: list[Called]) -> None:
    """T08: it says nothing of what happened, so the operation is finished without it."""
    operation = await AsyncWorld().begin()
    async with operation:
        forgotten.append(operation.heartbeat())
        await operation.complete("done")
    assert operation.view.record.state == "completed"


@pytest.mark.parametrize("finish", ["complete", "fail", "omit"])
async def test_no_last_move_finishes_what_was_left_out(finish: str, forgotten: list[Called]) -> None:
    """T08: whichever way it is finished, nothing is; the call that was forgotten can still be awaited."""
    operation = await AsyncWorld().begin()
    async with operation:
        forgotten.append(operation.step("charge", charge))
        with pytest.raises(NotAwaited, match="'step'"):
            await getattr(operation, finish)()
        assert not operation.ended
        assert await forgotten[0] == "charged"
        await getattr(operation, finish)()
    assert operation.view.record.terminal


async def test_a_final_error_does_not_end_what_was_left_out(forgotten: list[Called]) -> None:
    """T08: by the error alone it would have failed; it speaks of a way that was not gone, so it is suspended."""
    world = AsyncWorld(final_errors=(ValueError,))

    async def handler() -> None:
        forgotten.append(current().step("charge", charge))
        raise ValueError("no such card")

    with pytest.raises(ValueError, match="no such card"):
        await world.guard.run(handler, scope=SCOPE, key=KEY)
    assert isinstance(await world.begin(), Unresolved)


async def test_no_list_of_errors_makes_an_answer_of_it(forgotten: list[Called]) -> None:
    """T08: it is no answer, whatever is declared: what else the handler did may have had effects."""
    world = AsyncWorld(final_errors=(NotAwaited,))

    async def handler() -> None:
        forgotten.append(current().step("charge", charge))

    with pytest.raises(NotAwaited):
        await world.guard.run(handler, scope=SCOPE, key=KEY)
    assert isinstance(await world.begin(), Unresolved)


async def test_a_complete_that_was_not_awaited(forgotten: list[Called]) -> None:
    """It is suspended as one that was left without an answer, and its owner is told to await."""
    operation = await AsyncWorld().begin()
    with pytest.raises(NotCompleted, match="'complete' was called and not awaited"):
        async with operation:
            forgotten.append(operation.complete("done"))
    assert operation.view.state is State.ACCEPTED


async def test_one_of_many_is_found() -> None:
    """However many were awaited before and after it, the one that was not is found, and few are remembered."""
    operation = await AsyncWorld().begin()
    await operation.step("first", charge)
    forgotten = operation.confirm()
    for number in range(20):
        await operation.step(f"step {number}", charge)
    assert len(operation._called) == 2
    with pytest.raises(NotAwaited, match="'confirm'"):
        await operation.complete()
    await forgotten
    await operation.complete()


async def test_steps_side_by_side() -> None:
    """Steps that are gathered, in tasks, and under a time limit are awaited, and so is what was cancelled in time."""
    operation = await AsyncWorld().begin()
    await asyncio.gather(*(operation.step(f"gathered {number}", charge) for number in range(50)))
    task = asyncio.create_task(operation.step("task", charge))
    async with asyncio.TaskGroup() as group:
        group.create_task(operation.step("group", charge))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(operation.step, "started soon", charge)
    await asyncio.wait_for(operation.step("timed", charge), 5)
    cancelled = asyncio.create_task(operation.confirm())
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await task == "charged"
    await operation.complete()


async def test_a_task_that_had_no_turn_yet() -> None:
    """A step in a task that never had its turn has not run, so nothing may be finished before it."""
    operation = await AsyncWorld().begin()
    task = asyncio.create_task(operation.step("charge", charge))
    with pytest.raises(NotAwaited, match="await each task"):
        await operation.complete()
    assert await task == "charged"
    await operation.complete()


@pytest.mark.parametrize("name", MOVES)
async def test_without_an_event_loop_the_call_is_refused(name: str) -> None:
    """In a thread that runs no event loop a move raises at once, instead of giving what nobody can await there."""
    operation = await AsyncWorld().begin()
    move: Any = MOVES[name]
    with pytest.raises(NotAwaited, match=rf"'{name}' .* no event loop runs here.*from_thread.run\(op.{name}, ...\)"):
        await asyncio.to_thread(move, operation)
    await operation.complete()


async def test_a_thread_can_have_its_loop_run_a_step() -> None:
    """What the refusal says to do works: from the thread of a plain function, the step runs in the loop."""
    world, threads = AsyncWorld(), []

    def blocking() -> Any:
        threads.append(anyio.from_thread.run(current().step, "charge", charge))
        return "done"

    async def handler() -> Any:
        return await anyio.to_thread.run_sync(blocking)

    assert await world.guard.run(handler, scope=SCOPE, key=KEY) == "done"
    outcome = await world.begin()
    assert isinstance(outcome, Replay)
    assert [point for point, _ in outcome.view.record.progress] == ["charge"]
    assert threads == ["charged"]


def endpoints(calls: list[Called]) -> dict[str, Callable[[], Any]]:
    """Endpoints that charge nothing, and one that does."""

    def plain() -> str:
        current().step("charge", charge)  # type: ignore[unused-coroutine]  # the fault that is to be found
        return "charged"

    async def forgetful() -> str:
        calls.append(current().step("charge", charge))
        return "charged"

    def through_the_loop() -> str:
        return anyio.from_thread.run(current().step, "charge", charge)

    return {"plain": plain, "forgetful": forgetful, "through_the_loop": through_the_loop}


async def asked(endpoint: Callable[[], Any]) -> tuple[list[tuple[int, str]], Any]:
    """Send one request twice; gives status and code of each answer, and the record."""
    store, app = MemoryStore(), FastAPI()
    app.add_middleware(IdempotencyMiddleware, guard=AsyncGuard(store), principal=SHARED)
    app.post("/pay", status_code=201)(endpoint)
    answers: list[tuple[int, str]] = []
    for _ in range(2):
        try:
            answer = await asgi_request(app, "/pay", [HEADER])
        except NotAwaited:  # as a server sees it, which says 500
            answers.append((500, "raised"))
        else:
            body = json.loads(answer.body)
            answers.append((answer.status, body["code"] if isinstance(body, dict) else body))
    return answers, next(Guard(store).operations())


@pytest.mark.parametrize(("kind", "code"), [("plain", "raised"), ("forgetful", "not_awaited")])
async def test_an_endpoint_that_forgot_a_step_is_not_believed(kind: str, code: str, forgotten: list[Called]) -> None:
    """T08: its answer is neither stored nor given, and a retry is told that the outcome is not known."""
    answers, view = await asked(endpoints(forgotten)[kind])
    assert answers == [(500, code), (409, "unresolved")]
    assert (view.unresolved, view.record.error.split(":")[0]) == (True, "NotAwaited")


async def test_a_plain_endpoint_that_has_its_loop_run_the_step(forgotten: list[Called]) -> None:
    """The same endpoint through its loop charges once, and its answer is replayed."""
    answers, view = await asked(endpoints(forgotten)["through_the_loop"])
    assert answers == [(201, "charged")] * 2
    assert [point for point, _ in view.record.progress] == ["charge"]


async def test_a_worker_leaves_alone_what_forgot_a_step(forgotten: list[Called]) -> None:
    """A worker's handler is not believed either; it counts as failed, and is tried again with patience."""
    world = AsyncWorld(recovery=rerun)

    async def handler(operation: AsyncOperation) -> str:
        forgotten.append(operation.step("charge", charge))
        return "done"

    await (await world.begin()).suspend()
    world.clock.advance(60)
    done = await world.guard.recover({SCOPE: handler})
    assert (done.failed, done.finished) == (1, 0)
    assert (await world.begin()).retry_after == 300


def test_moves_are_coroutine_functions_to_those_who_ask() -> None:
    """A mock of an operation has moves that can be awaited, and a move keeps its name, words and signature."""
    fake = mock.create_autospec(AsyncOperation)
    assert isinstance(fake.step, mock.AsyncMock)
    assert asyncio.coroutines.iscoroutinefunction(AsyncOperation.step)
    assert AsyncOperation.step.__qualname__ == "AsyncOperation.step"
    assert list(inspect.signature(AsyncOperation.step).parameters) == ["self", "name", "function"]


async def test_a_call_is_the_coroutine_itself() -> None:
    """Nothing stands between a caller and its coroutine: it can be closed, and has the name of its move."""
    operation = await AsyncWorld().begin()
    call = operation.confirm()
    assert isinstance(call, CoroutineType)
    assert call.__name__ == "confirm"
    call.close()
    await operation.complete()
