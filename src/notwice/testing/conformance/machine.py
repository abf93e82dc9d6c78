"""Histories of any length, chosen by hypothesis and compared with the reference. It needs hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from hypothesis import strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from notwice.model import Get, Insert, Op, Query, Record, Released, Result, ResultKind, State, Swap
from notwice.testing.clock import VirtualClock
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.histories import History, Twins
from notwice.testing.conformance.records import TERMS
from notwice.testing.conformance.reference import ReferenceStore

_NAMES = strategies.sampled_from(("a", "b", "c"))
_BODIES = strategies.none() | strategies.binary(max_size=64)
_TERMS = strategies.builds(
    TERMS._replace,
    lease_ms=strategies.sampled_from((1, 1_000, 300_000)),
    retention_ms=strategies.sampled_from((0, 1, 1_000, 3_600_000, None)),
)
_CHANGES = strategies.fixed_dictionaries(
    {
        "terms": _TERMS,
        "released": strategies.sampled_from(Released),
        "created_ms": strategies.sampled_from((0, 1, 1_700_000_000_000)),
        "result": strategies.builds(Result, strategies.sampled_from(ResultKind), _BODIES, strategies.integers(0, 599)),
        "attempt": strategies.integers(1, 9),
        "recovery_point": strategies.text(max_size=8),
    }
)
_STATES = strategies.sampled_from(State)


class StoreMachine(RuleBasedStateMachine):
    """One program: operations on three ids of one namespace, and time that passes."""

    opened: Callable[[], AbstractContextManager[Engine]]

    @initialize()
    def open(self) -> None:
        """Start with an empty store."""
        self.resources = self.opened()
        engine = self.resources.__enter__()
        self.store = engine.open()
        self.engine = engine
        reference = ReferenceStore(engine.clock or VirtualClock())
        self.twins = Twins(self.store, reference, engine.clock)
        self.history = History("machine")

    @rule(name=_NAMES, state=_STATES, changes=_CHANGES)
    def insert(self, name: str, state: State, changes: dict[str, object]) -> None:
        """Insert under a name."""
        self._ask(Insert(self.history.record(name, state, **changes)))

    @rule(name=_NAMES, state=_STATES, changes=_CHANGES, back=strategies.sampled_from((1, 1, 1, 2)))
    def swap(self, *, name: str, state: State, changes: dict[str, object], back: int) -> None:
        """Swap by the etag that the name has, or had before."""
        self._ask(self._swap(name, back, self.history.record(name, state, **changes)))

    @rule(names=strategies.permutations("abc"), state=_STATES, changes=_CHANGES)
    def batch(self, names: list[str], state: State, changes: dict[str, object]) -> None:
        """Insert, swap and get in one batch."""
        first, second, third = names
        self._ask(
            Insert(self.history.record(first, state, **changes)),
            self._swap(second, 1, self.history.record(second, state, **changes)),
            Get(self.history.namespace, f"idem_{third}"),
        )

    @rule(name=_NAMES)
    def get(self, name: str) -> None:
        """Get."""
        self._ask(Get(self.history.namespace, f"idem_{name}"))

    @rule()
    def purge(self) -> None:
        """Purge all that is expired."""
        self.twins.purge()

    @rule(seconds=strategies.sampled_from((0.001, 1, 2, 4_000)))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        if self.engine.clock is not None:
            self.engine.clock.advance(seconds)

    @rule(
        unresolved=strategies.sampled_from((None, True, False)),
        states=strategies.none() | strategies.frozensets(_STATES),
    )
    def scan(self, unresolved: bool | None, states: frozenset[State] | None) -> None:  # noqa: FBT001 - a field
        """Compare what a scan gives."""
        if self.engine.clock is None:
            return
        self.twins.let_go()
        query = Query(namespace=self.history.namespace, unresolved=unresolved, states=states)
        assert self.store.scan(query).items == self.twins.reference.scan(query).items

    def teardown(self) -> None:
        """Close the store."""
        if hasattr(self, "store"):
            self.store.close()
            self.resources.__exit__(None, None, None)

    def _ask(self, *ops: Op) -> None:
        expected, found, wanted = self.twins.apply(ops)
        self.history.saw(expected)
        assert found == wanted

    def _swap(self, name: str, back: int, record: Record) -> Op:
        return Swap(record, self.history.etag(name, back))


def store_machine(opened: Callable[[], AbstractContextManager[Engine]]) -> type[StoreMachine]:
    """A hypothesis state machine for the engine that `opened` gives, anew for each program that is tried.

    Its ``TestCase`` attribute is what pytest collects: ``TestPrograms = store_machine(opened).TestCase``.
    """
    return type("StoreMachine", (StoreMachine,), {"opened": staticmethod(opened)})
