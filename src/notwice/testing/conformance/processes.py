"""Guards as if each were in a process of its own, on one set of records; both faces look the same to the cases."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from notwice import AsyncGuard, Guard, Policy, Replay
from notwice.stores.port import Store
from notwice.testing.clock import VirtualClock
from notwice.testing.conformance.engine import Engine, OnLoop
from notwice.testing.faulty import AsyncFaultyStore, FaultPlan, FaultyStore

LEASE: Final = 1.0
"""Seconds; short, since engines with a clock of their own make the cases wait for real."""

STEPS_PER_LEASE: Final = 12

Face = Callable[[Store, FaultPlan, VirtualClock], Any]
"""Makes a guard on a store, as a `Guard` or as something that looks like one."""


class Process:
    """A guard with a clock and a plan of faults of its own.

    Its clock moves only while it is named in `Processes.wait`: a process that is not named is paused, or dead, and
    sends no heartbeats.
    """

    def __init__(self, store: Store, face: Face) -> None:
        self._store = store
        self.clock = VirtualClock()
        self.plan = FaultPlan(clock=self.clock)
        self.guard = face(store, self.plan, self.clock)

    def begin(self, key: str = "k", **options: Any) -> Any:  # noqa: ANN401 - either face's outcome
        """Begin the operation that the cases are about."""
        return self.guard.begin(("refund", "ord_1"), key, **options)

    def owned(self, key: str = "k", **options: Any) -> Any:  # noqa: ANN401 - either face's operation
        """Begin it and insist on owning it."""
        outcome = self.begin(key, **options)
        assert owns(outcome), f"not owned, but {outcome}"
        return outcome

    def answer(self, key: str = "k", **options: Any) -> object:  # noqa: ANN401 - as of begin
        """Begin it and insist on being given the first answer."""
        outcome = self.begin(key, **options)
        assert isinstance(outcome, Replay), f"no replay, but {outcome}"
        return outcome.result

    def deliver(self) -> None:
        """Let the store carry out what the plan has kept back as ``late``."""
        FaultyStore(self._store, self.plan).deliver()

    def lookup(self, key: str = "k", **options: Any) -> Any:  # noqa: ANN401 - a RecordView or None
        """What is stored of it."""
        return self.guard.lookup(("refund", "ord_1"), key, **options)

    def unresolved(self) -> list[str]:
        """The keys of the operations that are listed as unresolved."""
        return [view.record.key for view in self.guard.operations(unresolved=True)]


class Processes:
    """Makes processes on the records of one engine, and lets time pass."""

    def __init__(self, engine: Engine, face: Face, stores: list[Store]) -> None:
        self.engine = engine
        self._face = face
        self._stores = stores

    def start(self) -> Process:
        """One more process; its store is its own where the engine can open the records again."""
        if not self._stores or "reopen" not in self.engine.cannot:
            self._stores.append(self.engine.open())
        return Process(self._stores[-1], self._face)

    def wait(self, seconds: float, *alive: Process) -> None:
        """Let time pass for the store and for those processes that are `alive`: they send their heartbeats."""
        steps = max(1, min(400, round(seconds / LEASE * STEPS_PER_LEASE)))
        for _ in range(steps):
            self.engine.advance(seconds / steps)
            for process in alive:
                process.clock.advance(seconds / steps)

    def lapse(self) -> None:
        """Let a whole lease pass without a sign of life of anybody."""
        self.engine.advance(LEASE * 1.1)


@contextmanager
def processes_of(engine: Engine, face: Face) -> Generator[Processes, None, None]:
    """Processes on one engine; their stores are closed in the end."""
    stores: list[Store] = []
    try:
        yield Processes(engine, face, stores)
    finally:
        for store in stores:
            store.close()


def policy(**options: Any) -> Policy:  # noqa: ANN401 - the options of Policy, checked by it
    """A policy with a short lease, which waits for a busy engine as long as it takes."""
    options.setdefault("lease", LEASE)
    options.setdefault("store_timeout", 60)
    return Policy(**options)


def blocking_face(store: Store, plan: FaultPlan, clock: VirtualClock) -> Guard:
    """A `Guard`."""
    return Guard(FaultyStore(store, plan), policy=policy(), clock=clock)


def loop_face(store: Store, plan: FaultPlan, clock: VirtualClock) -> Driven:
    """An `AsyncGuard`, each call of which is run in the store's loop."""
    assert isinstance(store, OnLoop)
    return Driven(AsyncGuard(AsyncFaultyStore(store.inner, plan), policy=policy(), clock=clock), store)


class Driven:
    """Whatever has coroutine methods, as if it had blocking ones. Operations that it gives are driven, too."""

    def __init__(self, inner: Any, driver: OnLoop) -> None:  # noqa: ANN401 - an AsyncGuard or an AsyncOperation
        self.inner = inner
        self._driver = driver

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as of what is driven
        found = getattr(self.inner, name)
        return self._called(found) if inspect.ismethod(found) else found

    def drive(self, call: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - as of the call
        """Run a coroutine in the loop and wait for it."""
        return self._driver.run(call)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - as of what is driven
            handed = (_coroutine(each) if inspect.isfunction(each) else each for each in args)
            found = self._driver.run(_finished(partial(method, *handed, **options)))
            return Driven(found, self._driver) if owns(found) or isinstance(found, AsyncGuard) else found

        return call


def _coroutine(handler: Callable[[], Any]) -> Callable[[], Coroutine[Any, Any, Any]]:
    """The same handler for an event loop."""

    async def handle() -> Any:  # noqa: ANN401 - as of the handler
        return handler()

    return handle


async def _finished(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - as of the call
    """Make a call in the loop, and give what comes of it."""
    found = call()
    if inspect.isasyncgen(found):
        return [item async for item in found]
    return await found if inspect.isawaitable(found) else found


def owns(outcome: object) -> bool:
    """Whether a begin ended in an operation, of either face."""
    return hasattr(outcome, "complete")
