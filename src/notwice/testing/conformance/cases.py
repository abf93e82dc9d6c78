"""The suite as classes: for stores and for guards on them, each for blocking ones and for those of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

import pytest

from notwice.model import Get, Insert, Unresolved
from notwice.stores.port import Store
from notwice.testing.conformance.engine import AsyncEngine, Engine, OnLoop
from notwice.testing.conformance.guard_cases import DuplicateCases, OwnerCases, RecoveryCases
from notwice.testing.conformance.guard_faults import FreeingCases, StoreTroubleCases
from notwice.testing.conformance.histories import HistoryCases
from notwice.testing.conformance.loads import LoadCases
from notwice.testing.conformance.processes import LEASE, Processes, blocking_face, loop_face, processes_of
from notwice.testing.conformance.promises import ClockCases, PromiseCases
from notwice.testing.conformance.records import followed, insert, new_record, stored
from notwice.testing.conformance.scans import ScanCases
from notwice.testing.faulty import Pause


class StoreCases(PromiseCases, ClockCases, ScanCases, LoadCases, HistoryCases):
    """Every case for a blocking store. A subclass has a fixture `engine` that gives an `Engine`."""

    @pytest.fixture
    def engine(self) -> Engine:
        """How to open and treat the stores of this engine; made anew for each case."""
        raise NotImplementedError("give the class a fixture `engine` that returns an Engine")

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[Store]:
        """An empty store."""
        with engine.opened() as store:
            yield store


class AsyncStoreCases(StoreCases):
    """Every case for a store of an event loop. A subclass has a fixture `async_engine` that gives an `AsyncEngine`."""

    @pytest.fixture
    def async_engine(self) -> AsyncEngine:
        """How to open and treat the stores of this engine; made anew for each case."""
        raise NotImplementedError("give the class a fixture `async_engine` that returns an AsyncEngine")

    @pytest.fixture
    def engine(self, async_engine: AsyncEngine) -> Iterator[Engine]:
        """The same engine, its stores driven in one loop."""
        with async_engine.on_loop() as engine:
            yield engine

    def test_blocking_face(self, store: Store) -> None:
        """The blocking face of an async store has the same records."""
        assert isinstance(store, OnLoop)
        blocking = store.inner.blocking
        first = new_record()
        insert(store, first)
        second = followed(stored(blocking, first))
        assert blocking.apply([Insert(new_record("b"))])[0].won
        assert store.apply([Get(first.namespace, "idem_b")])[0].record is not None
        assert stored(store, first)._replace(etag=second.etag) == second

    def test_cancelled_call(self, store: Store) -> None:
        """A call that is cancelled may or may not have been carried out; the store and the other calls go on."""
        assert isinstance(store, OnLoop)
        inner = store.inner

        async def cancel_one(number: int) -> None:
            doomed = asyncio.ensure_future(inner.apply([Insert(new_record(f"doomed-{number}"))]))
            others = [inner.apply([Insert(new_record(f"other-{number}-{which}"))]) for which in range(3)]
            settled = asyncio.gather(*others)
            for _ in range(number):
                await asyncio.sleep(0)
            doomed.cancel()
            assert all(reply.won for (reply,) in await settled)
            await asyncio.gather(doomed, return_exceptions=True)

        for number in range(8):
            store.run(cancel_one(number))
        assert stored(store, new_record("other-7-2"))


class GuardCases(OwnerCases, RecoveryCases, DuplicateCases, StoreTroubleCases, FreeingCases):
    """What a guard promises, on a blocking store. A subclass has a fixture `engine` that gives an `Engine`."""

    @pytest.fixture
    def engine(self) -> Engine:
        """How to open and treat the stores of this engine; made anew for each case."""
        raise NotImplementedError("give the class a fixture `engine` that returns an Engine")

    @pytest.fixture
    def processes(self, engine: Engine) -> Iterator[Processes]:
        """Guards of several processes on the same records."""
        with processes_of(engine, blocking_face) as processes:
            yield processes


class AsyncGuardCases(GuardCases):
    """What a guard for event loops promises. A subclass has a fixture `async_engine` that gives an `AsyncEngine`."""

    @pytest.fixture
    def async_engine(self) -> AsyncEngine:
        """How to open and treat the stores of this engine; made anew for each case."""
        raise NotImplementedError("give the class a fixture `async_engine` that returns an AsyncEngine")

    @pytest.fixture
    def engine(self, async_engine: AsyncEngine) -> Iterator[Engine]:
        """The same engine, its stores driven in one loop."""
        with async_engine.on_loop() as engine:
            yield engine

    @pytest.fixture
    def processes(self, engine: Engine) -> Iterator[Processes]:
        """Guards of several processes on the same records."""
        with processes_of(engine, loop_face) as processes:
            yield processes

    @pytest.mark.parametrize("applied", [False, True])
    def test_cancelled_begin(self, processes: Processes, applied: bool) -> None:  # noqa: FBT001 - a parameter of the case
        """P13: a begin that is cancelled, before or after its claim was carried out, leaves no owner behind."""
        process = processes.start()
        process.plan.add(pause := Pause(applied=applied))
        begin = partial(process.guard.inner.begin, ("refund", "ord_1"), "k", request=1)
        process.guard.drive(_cancelled(begin, pause.reached))
        process.clock.advance(LEASE)
        assert processes.start().owned(request=2).attempt == 1

    def test_cancelled_handler(self, processes: Processes) -> None:
        """P10: a handler that is cancelled says nothing: the operation is unresolved, and its key is not freed."""
        process = processes.start()

        entered = threading.Event()

        async def handle() -> None:
            entered.set()
            await asyncio.Event().wait()

        run = partial(process.guard.inner.run, handle, scope=("refund", "ord_1"), key="k")
        process.guard.drive(_cancelled(run, entered))
        assert isinstance(processes.start().begin(), Unresolved)

    def test_cancelled_complete(self, processes: Processes) -> None:
        """P9: a completion that is cancelled while it is under way is repeated, and found by every duplicate."""
        process = processes.start()
        operation = process.owned()
        process.plan.add(pause := Pause())
        process.guard.drive(_cancelled(partial(operation.inner.complete, "answer"), pause.reached))
        process.clock.advance(LEASE)
        assert processes.start().answer() == "answer"


async def _cancelled(call: Callable[[], Coroutine[object, object, object]], reached: threading.Event) -> None:
    """Start a call, and cancel it once it has got where it waits."""
    task = asyncio.ensure_future(call())
    assert await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
