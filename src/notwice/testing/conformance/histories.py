"""All short histories of two operations in one store, compared with the reference reply for reply."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from notwice.model import Get, Insert, Op, Record, Released, Reply, State, Swap
from notwice.stores.port import Store
from notwice.testing.clock import VirtualClock
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.records import ANSWER, TERMS, new_record
from notwice.testing.conformance.reference import ReferenceStore

_SHORT = TERMS._replace(retention_ms=1_000, lease_ms=1_500)
_FOR_EVER = TERMS._replace(retention_ms=None)


@dataclass
class History:
    """One history under way: the store, the reference, and the etags that the reference has seen."""

    store: Store
    reference: ReferenceStore
    namespace: str
    clock: VirtualClock | None
    steps: int = 0
    etags: dict[str, list[bytes]] = field(default_factory=dict)

    def etag(self, name: str, back: int = 1) -> bytes:
        """The etag that `name` has (1), or had before that (2); one that nothing has, if there is none."""
        known = self.etags.get(name, [])
        return known[-back] if len(known) >= back else b"nobody has this!"

    def apply(self, *ops: Op) -> None:
        """Carry the batch out on both sides and compare."""
        self.let_go()
        expected = self.reference.apply(ops)
        for reply in expected:
            if reply.won and isinstance(reply.record, Record):
                self.etags.setdefault(reply.record.key, []).append(reply.record.etag)
        assert self.seen(ops, self.store.apply(ops)) == self.seen(ops, expected)

    def seen(self, ops: Sequence[Op], replies: Sequence[Reply]) -> list[object]:
        """What can be compared of the replies: all of them if both sides have one clock, else all but the times."""
        assert len(replies) == len(ops), "as many replies as operations"
        return [self._comparable(op, reply) for op, reply in zip(ops, replies, strict=True)]

    def _comparable(self, op: Op, reply: Reply) -> object:
        won = None if isinstance(op, Get) else reply.won
        record = reply.record
        if self.clock is None and isinstance(record, Record):
            record = record._replace(created_ms=0)
        if self.clock is None or record is None:
            return won, record
        return won, record, *reply[2:]

    def let_go(self) -> None:
        """Take out of the reference what is expired and what the store has dropped by itself, as any store may."""
        for namespace, operation in self.reference.expired():
            if self.store.apply([Get(namespace, operation)])[0].record is None:
                self.reference.drop((namespace, operation))

    def purge(self) -> None:
        """Purge both sides and compare how many went."""
        self.let_go()
        expected, found = self.reference.purge(10_000), self.store.purge(10_000)
        assert self.clock is None or found == expected

    def end(self) -> None:
        """Compare what is there in the end, and purge what may be purged, for the next history to start with none."""
        for name in ("a", "b"):
            self.apply(Get(self.namespace, f"idem_{name}"))
        if self.clock is not None:
            self.clock.advance(2)
            self.purge()

    def record(self, name: str, state: State, **changes: object) -> Record:
        """The next record of `name`. Its etag follows from the history, so that a history can be repeated."""
        self.steps += 1
        etag = hashlib.sha256(f"{self.namespace} {self.steps}".encode()).digest()[:16]
        return new_record(name, namespace=self.namespace, state=state, etag=etag, **{"terms": _FOR_EVER, **changes})


Step = Callable[[History], None]


def _swap_batch(history: History) -> None:
    failure = Swap(history.record("b", State.FAILED, result=ANSWER), history.etag("b"))
    history.apply(failure, Insert(history.record("a", State.IN_PROGRESS)))


def _put(name: str, state: State, **changes: object) -> Step:
    return lambda history: history.apply(Insert(history.record(name, state, **changes)))


def _move(name: str, state: State, *, back: int = 1, by: str = "", **changes: object) -> Step:
    return lambda history: history.apply(Swap(history.record(name, state, **changes), history.etag(by or name, back)))


def _look(name: str) -> Step:
    return lambda history: history.apply(Get(history.namespace, f"idem_{name}"))


def _wait(seconds: float) -> Step:
    def step(history: History) -> None:
        assert history.clock is not None
        history.clock.advance(seconds)

    return step


_PLAIN: dict[str, Step] = {
    "insert a": _put("a", State.IN_PROGRESS),
    "insert b": _put("b", State.IN_PROGRESS),
    "insert a finished": _put("a", State.COMPLETED, result=ANSWER, terms=_SHORT),
    "claim a": _move("a", State.IN_PROGRESS, attempt=2),
    "complete a": _move("a", State.COMPLETED, result=ANSWER, terms=_SHORT),
    "complete a for ever": _move("a", State.COMPLETED, result=ANSWER),
    "suspend a": _move("a", State.ACCEPTED, result=ANSWER, error="lost", silent_ms=5),
    "free a": _move("a", State.ACCEPTED, released=Released.AS_NEW, terms=_SHORT),
    "fail b": _move("b", State.FAILED, result=ANSWER, terms=_SHORT),
    "complete a by its last etag but one": _move("a", State.COMPLETED, back=2, result=ANSWER),
    "complete a by b's etag": _move("a", State.COMPLETED, by="b", result=ANSWER),
    "claim b by an etag of nobody": _move("b", State.IN_PROGRESS, by="nobody"),
    "get a": _look("a"),
    "get b": _look("b"),
    "fail b and insert a": _swap_batch,
    "purge": History.purge,
}
_TIMED: dict[str, Step] = {"wait 0.6 s": _wait(0.6), "wait 1.2 s": _wait(1.2)}


def histories(length: int, *, timed: bool) -> Iterator[tuple[str, ...]]:
    """The names of the steps of every history of up to `length` steps."""
    steps = [*_PLAIN, *(_TIMED if timed else ())]
    for size in range(1, length + 1):
        yield from itertools.product(steps, repeat=size)


class HistoryCases:
    """Every short history gives the replies that the reference gives."""

    def test_all_short_histories(self, store: Store, engine: Engine) -> None:
        """Every sequence of up to three operations on two ids is answered as the reference answers it."""
        for number, names in enumerate(histories(engine.history_length, timed=engine.clock is not None)):
            reference = ReferenceStore(engine.clock or VirtualClock())
            history = History(store, reference, f"history-{number}", engine.clock)
            try:
                for name in names:
                    (_PLAIN.get(name) or _TIMED[name])(history)
                history.end()
            except AssertionError as error:
                raise AssertionError(f"after {' · '.join(names)}: {error}") from error
