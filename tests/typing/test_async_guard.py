"""The asynchronous face as type checkers see it. mypy and pyright read this file; pytest runs it."""

from typing import Any, assert_never, assert_type

import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    InProgress,
    Mismatch,
    RecordView,
    Replay,
    Unreadable,
    Unresolved,
    current_operation,
)
from notwice.recovery import Round


async def charge() -> int:
    assert_type(await attempt(), int)
    return 7


async def attempt() -> int:
    return current_operation().attempt


async def test_the_value_of_run_has_the_type_that_the_coroutine_gives() -> None:
    """`AsyncGuard.open` is not awaited; `run` is, and gives what the coroutine function gives."""
    async with AsyncGuard.open("memory://") as guard:
        assert_type(guard, AsyncGuard)
        assert_type(guard.within("tenant-7"), AsyncGuard)
        assert_type(await guard.run(charge, scope=("refund", "7"), key="k"), int)
        assert_type(await guard.lookup("refund", "k"), RecordView | None)
        async for item in guard.operations():
            assert_type(item, RecordView | Unreadable)


async def test_a_decorated_coroutine_function_keeps_its_signature() -> None:
    """What was awaited without the decorator is awaited with it, and gives the same type."""
    async with AsyncGuard.open("memory://") as guard:

        @guard.idempotent(scope="refund:{order}", key="{key}")
        async def refund(order: str, amount: int, *, key: str) -> float:
            return amount / len(order)

        assert_type(await refund("ab", 1, key="k"), float)


async def told(outcome: AsyncOperation | Replay | InProgress | Unresolved | Mismatch) -> str:
    match outcome:
        case AsyncOperation() as operation:
            async with operation:
                assert_type(await operation.complete("done"), None)
            return "ran"
        case Replay():
            return "replayed"
        case InProgress() | Unresolved() | Mismatch():
            return "refused"
        case _:
            assert_never(outcome)


async def test_a_match_over_the_outcomes_is_exhaustive() -> None:
    """`begin` gives one of five outcomes, and a checker knows that there is no sixth."""
    async with AsyncGuard.open("memory://") as guard:
        told_each = [await told(await guard.begin("refund", "k", request=request)) for request in (1, 1, 2)]
    assert told_each == ["ran", "replayed", "refused"]


async def test_a_step_gives_what_its_coroutine_gives() -> None:
    """`step` is awaited, and has the type that the coroutine function gives."""
    async with AsyncGuard.open("memory://") as guard:
        operation = await guard.begin("s", "k")
        assert isinstance(operation, AsyncOperation)
        async with operation:
            assert_type(await operation.step("charge", charge), int)
            await operation.complete()
        assert_type(await guard.recover(), Round)


async def test_what_begin_gives_can_t_be_entered_unseen() -> None:
    """A checker refuses it, for it may be a duplicate's outcome; that says so itself where nobody has checked."""
    async with AsyncGuard.open("memory://") as guard:
        async with await guard.begin("refund", "k", request=1) as operation:  # type: ignore[union-attr]  # the checker must see that
            assert isinstance(operation, AsyncOperation)
            with pytest.raises(TypeError, match=r"this is InProgress\(...\) and no"):
                await entered(await guard.begin("refund", "k", request=1))
            await operation.complete(7)
        with pytest.raises(TypeError, match=r"this is Mismatch\(...\) and no"):
            await entered(await guard.begin("refund", "k", request=2))


async def entered(outcome: Any) -> None:
    async with outcome:
        pytest.fail("it ran")
