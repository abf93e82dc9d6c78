"""A guard on a memory store that loses messages on demand, under a clock that moves only when told to."""

from __future__ import annotations

from typing import Any

from notwice import CountingObserver, Event, Guard, Operation, Policy, RecordView
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Joined
from notwice.testing import FaultPlan, FaultyStore, VirtualClock

SCOPE, KEY = "refund:ord_1", "k1"


class Notebook(CountingObserver):
    """Counts events, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        self.events.append(event)


class InADatabase(FaultyStore):
    """A store that atomic operations can be begun in; none is completed there."""

    def join(self, transaction: object) -> Joined:
        message = f"{transaction!r} is no transaction of this store"
        raise ValueError(message)


class World:
    """One guard, its store and its clock. `effects` is what handlers did."""

    def __init__(self, **policy: Any) -> None:
        self.clock = VirtualClock()
        self.memory = MemoryStore(self.clock)
        self.store = InADatabase(self.memory, FaultPlan(clock=self.clock))
        self.notebook = Notebook()
        self.effects: list[object] = []
        self.kept: list[Operation] = []  # an operation that nobody holds renews no lease
        self.guard: Any = self.another(**policy)  # tests know what each begin gives

    def another(self, **policy: Any) -> Guard:
        """A guard of another process on the same store: it knows nothing of this one's unanswered writes."""
        return Guard(self.store, policy=Policy(**policy), clock=self.clock, observer=self.notebook)

    def begin(self, request: object = 1, *, guard: Guard | None = None, **options: Any) -> Any:
        return (guard or self.guard).begin(SCOPE, KEY, request=request, **options)

    def own(self, request: object = 1, **options: Any) -> Operation:
        operation = self.begin(request, **options)
        assert isinstance(operation, Operation), operation
        self.kept.append(operation)
        return operation

    def crash(self, operation: Operation) -> None:
        """The owner is gone: no heartbeat any more, and a whole lease passes."""
        self.guard._runtime.heart.remove(operation._hold)
        self.clock.advance(operation.view.record.terms.lease_ms / 1000)

    def crashed(self, request: object = 1, **options: Any) -> Operation:
        operation = self.own(request, **options)
        self.crash(operation)
        return operation

    def view(self) -> RecordView:
        view: RecordView = self.guard.lookup(SCOPE, KEY)
        return view

    def faults(self, *faults: Any) -> None:
        """What becomes of the next calls of the store."""
        self.store.script(*faults)

    def run(self, handler: Any, request: object = 1, **options: Any) -> Any:
        return self.guard.run(handler, scope=SCOPE, key=KEY, request=request, **options)

    def effect(self, value: object = "done") -> object:
        """A handler's side effect."""
        self.effects.append(value)
        return value
