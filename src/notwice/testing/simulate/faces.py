"""One way to write simulated calls for both faces of the guard: as coroutines that tasks and threads can run.

In a task they are awaited. In a thread nothing in them ever waits, for all that they call blocks: so they come to
their end in one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from notwice.guard_base import Done
from notwice.model import InProgress, Mismatch, Replay, Unresolved
from notwice.operation import AsyncOperation, Operation
from notwice.policy import Policy
from notwice.stores.async_batching import SharedTrips
from notwice.testing.simulate.link import Road

if TYPE_CHECKING:
    from notwice.testing.simulate.process import Process
    from notwice.testing.simulate.provider import Provider

_T = TypeVar("_T")
_FOR_EVER_S: Final = (
    10**6
)  # its time-outs are measured by real time; here the guard's own ones, and the link's, bound it
Handler = Callable[[], Coroutine[Any, Any, object]]
AnyOperation = Operation | AsyncOperation
Begun = AnyOperation | Replay | InProgress | Unresolved | Mismatch


def at_once(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that waits for nothing. Raises what it raises."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: _T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine of a thread waited; use the face's own ways to wait")


class Face(Protocol):
    """A process's guard, and what its handlers can do."""

    @property
    def blocking(self) -> bool:
        """Whether calls run in threads."""
        ...

    def start(self, call: Coroutine[Any, Any, None]) -> Callable[[], object] | None:
        """Run a call. Gives what cancels it, where that can be done."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    async def ask(self, provider: Provider, ask: Callable[[], _T]) -> _T:
        """Send a message to the provider and wait for its answer."""
        ...

    async def call(self, handler: Handler, **options: Any) -> Done:  # noqa: ANN401 - the options of a guard's call
        """Run the handler by the guard."""
        ...

    async def begin(self, *names: Any, **options: Any) -> Begun:  # noqa: ANN401 - those of a guard's begin
        """Begin an operation."""
        ...

    async def inside(self, operation: AnyOperation, handler: Handler) -> None:
        """Run the handler inside of its operation."""
        ...

    async def move(self, move: Callable[[], Awaitable[None] | None]) -> None:
        """Make an owner's move."""
        ...

    async def step(self, operation: AnyOperation, name: str, function: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a step."""
        ...

    async def recover(self, handlers: Mapping[str, Callable[..., Coroutine[Any, Any, object]]], policy: Policy) -> None:
        """Run a round of recovery."""
        ...


class TaskFace:
    """Calls run as tasks of an event loop."""

    blocking = False

    def __init__(self, process: Process) -> None:
        self._process = process
        shares = process.world.choices.below(2) == 1
        self._guard = process.guard(SharedTrips(process.store, timeout=_FOR_EVER_S) if shares else None)

    def start(self, call: Coroutine[Any, Any, None]) -> Callable[[], object] | None:
        """Run a call."""
        return self._process.task(call).cancel

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def ask(self, provider: Provider, ask: Callable[[], _T]) -> _T:
        """Send a message to the provider and wait for its answer."""
        answer: _T = await Road(self._process, provider).ask(ask)
        return answer

    async def call(self, handler: Handler, **options: Any) -> Done:  # noqa: ANN401 - the options of a guard's call
        """Run the handler by the guard."""
        return await self._guard.call(handler, **options)

    async def begin(self, *names: Any, **options: Any) -> Begun:  # noqa: ANN401 - those of a guard's begin
        """Begin an operation."""
        return await self._guard.begin(*names, **options)

    async def inside(self, operation: AnyOperation, handler: Handler) -> None:
        """Run the handler inside of its operation."""
        assert isinstance(operation, AsyncOperation)
        async with operation:
            await handler()

    async def move(self, move: Callable[[], Awaitable[None] | None]) -> None:
        """Make an owner's move."""
        waited = move()
        assert waited is not None
        await waited

    async def step(self, operation: AnyOperation, name: str, function: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a step."""
        assert isinstance(operation, AsyncOperation)
        return await operation.step(name, function)

    async def recover(self, handlers: Mapping[str, Callable[..., Coroutine[Any, Any, object]]], policy: Policy) -> None:
        """Run a round of recovery."""
        await self._guard.recover(handlers, policy=policy, all_namespaces=True)


class ThreadFace:
    """Calls run as threads."""

    blocking = True

    def __init__(self, process: Process) -> None:
        self._process = process
        self._guard = process.blocking_guard()

    def start(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call."""
        self._process.thread(partial(at_once, call))

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        self._process.sleep(seconds)

    async def ask(self, provider: Provider, ask: Callable[[], _T]) -> _T:
        """Send a message to the provider and wait for its answer."""
        answer: _T = Road(self._process, provider).ask_blocking(ask)
        return answer

    async def call(self, handler: Handler, **options: Any) -> Done:  # noqa: ANN401 - the options of a guard's call
        """Run the handler by the guard."""
        return self._guard.call(lambda: at_once(handler()), **options)

    async def begin(self, *names: Any, **options: Any) -> Begun:  # noqa: ANN401 - those of a guard's begin
        """Begin an operation."""
        return self._guard.begin(*names, **options)

    async def inside(self, operation: AnyOperation, handler: Handler) -> None:
        """Run the handler inside of its operation."""
        assert isinstance(operation, Operation)
        with operation:
            at_once(handler())

    async def move(self, move: Callable[[], Awaitable[None] | None]) -> None:
        """Make an owner's move."""
        move()

    async def step(self, operation: AnyOperation, name: str, function: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run a step."""
        assert isinstance(operation, Operation)
        return operation.step(name, lambda: at_once(function()))

    async def recover(self, handlers: Mapping[str, Callable[..., Coroutine[Any, Any, object]]], policy: Policy) -> None:
        """Run a round of recovery."""
        blocking = {scope: _blocking(handler) for scope, handler in handlers.items()}
        self._guard.recover(blocking, policy=policy, all_namespaces=True)


def _blocking(handler: Callable[..., Coroutine[Any, Any, object]]) -> Callable[..., object]:
    return lambda *args, **values: at_once(handler(*args, **values))
