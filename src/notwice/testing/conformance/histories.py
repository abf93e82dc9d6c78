"""All short histories of two operations in one store, compared with the reference reply for reply."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from notwice.model import Get, Insert, Op, Record, Released, Reply, State, Swap
from notwice.stores.port import Store
from notwice.testing.clock import VirtualClock
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.records import ANSWER, TERMS, new_record
from notwice.testing.conformance.reference import ReferenceStore

_SHORT = TERMS._replace(retention_ms=1_000_000, lease_ms=1_500_000)
_FOR_EVER = TERMS._replace(retention_ms=None)

COMPANY: Final = 128
"""How many histories go on side by side, each of their steps in one batch of all of them."""


@dataclass(frozen=True, slots=True)
class Twins:
    """A store and the reference, which are asked the same. Without a `clock` of both, no times are compared."""

    store: Store
    reference: ReferenceStore
    clock: VirtualClock | None

    def apply(self, ops: Sequence[Op]) -> tuple[Sequence[Reply], list[object], list[object]]:
        """Carry the batch out on both sides: the reference's replies, and what is to be compared of both."""
        self.let_go()
        expected, found = self.reference.apply(ops), self.store.apply(ops)
        assert len(found) == len(ops), "as many replies as operations"
        return expected, self._comparable(ops, found), self._comparable(ops, expected)

    def let_go(self) -> None:
        """Take out of the reference what is expired and what the store has dropped by itself, as any store may."""
        if not (expired := self.reference.expired()):
            return
        for name, reply in zip(expired, self.store.apply([Get(*name) for name in expired]), strict=True):
            if reply.record is None:
                self.reference.drop(name)

    def purge(self) -> None:
        """Purge both sides and compare how many went."""
        self.let_go()
        expected, found = self.reference.purge(10_000), self.store.purge(10_000)
        assert self.clock is None or found == expected, f"{found} purged, not {expected}"

    def _comparable(self, ops: Sequence[Op], replies: Sequence[Reply]) -> list[object]:
        return [self._of_one(op, reply) for op, reply in zip(ops, replies, strict=True)]

    def _of_one(self, op: Op, reply: Reply) -> object:
        won = None if isinstance(op, Get) else reply.won
        record = reply.record
        if self.clock is None and isinstance(record, Record):
            record = record._replace(created_ms=0)
        if self.clock is None or record is None:
            return won, record
        return won, record, *reply[2:]


@dataclass
class History:
    """What is asked in one namespace, and the etags that the reference has seen there."""

    namespace: str
    names: Sequence[str] = ()
    made: int = 0
    etags: dict[str, list[bytes]] = field(default_factory=dict)

    def etag(self, name: str, back: int = 1) -> bytes:
        """The etag that `name` has (1), or had before that (2); one that nothing has, if there is none."""
        known = self.etags.get(name, [])
        return known[-back] if len(known) >= back else b"nobody has this!"

    def saw(self, replies: Sequence[Reply]) -> None:
        """Learn the etags of what was written."""
        for reply in replies:
            if reply.won and isinstance(reply.record, Record):
                self.etags.setdefault(reply.record.key, []).append(reply.record.etag)

    def record(self, name: str, state: State, **changes: object) -> Record:
        """The next record of `name`. Its etag follows from the history, so that a history can be repeated."""
        self.made += 1
        etag = hashlib.sha256(f"{self.namespace} {self.made}".encode()).digest()[:16]
        return new_record(name, namespace=self.namespace, state=state, etag=etag, **{"terms": _FOR_EVER, **changes})


Step = Callable[[History], Sequence[Op]]


def _put(name: str, state: State, **changes: object) -> Step:
    return lambda history: [Insert(history.record(name, state, **changes))]


def _move(name: str, state: State, *, back: int = 1, by: str = "", **changes: object) -> Step:
    return lambda history: [Swap(history.record(name, state, **changes), history.etag(by or name, back))]


def _look(name: str) -> Step:
    return lambda history: [Get(history.namespace, f"idem_{name}")]


def _swap_batch(history: History) -> Sequence[Op]:
    return [*_ASKED["fail b"](history), *_ASKED["insert a"](history)]


_ASKED: dict[str, Step] = {
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
}
_PURGE = "purge"
_WAITS: dict[str, float] = {"wait 10 min": 600, "wait 20 min": 1_200}


def histories(length: int, *, timed: bool) -> Iterator[tuple[str, ...]]:
    """The names of the steps of every history of up to `length` steps."""
    steps = [*_ASKED, _PURGE, *(_WAITS if timed else ())]
    for size in range(1, length + 1):
        yield from itertools.product(steps, repeat=size)


def companies(length: int, size: int, *, timed: bool) -> Iterator[Sequence[tuple[str, ...]]]:
    """The histories in companies of up to `size` that can go on side by side: all of one wait at the same steps.

    Those without a wait come last: they are many, and stay in the store.
    """
    alike: dict[tuple[float, ...], list[tuple[str, ...]]] = defaultdict(list)
    for names in histories(length, timed=timed):
        alike[tuple(_WAITS.get(name, 0) for name in names)].append(names)
    for waits in sorted(alike, key=any, reverse=True):
        for start in range(0, len(alike[waits]), size):
            yield alike[waits][start : start + size]


class HistoryCases:
    """Every short history gives the replies that the reference gives."""

    def test_all_short_histories(self, store: Store, engine: Engine) -> None:
        """Every sequence of up to three operations on two ids is answered as the reference answers it."""
        length = engine.history_length if engine.alone_length is None else engine.alone_length
        for number, names in enumerate(histories(length, timed=engine.clock is not None)):
            _compare(store, engine, [History(f"history-{number}", names)])

    def test_all_short_histories_at_once(self, store: Store, engine: Engine) -> None:
        """So is every such sequence in the company of others, each step of theirs in one batch."""
        store.apply([Get("", "idem_none")])  # what the first call makes is there
        for number, company in enumerate(companies(engine.history_length, COMPANY, timed=not engine.waits)):
            _compare(store, engine, [History(f"{number}-{which}", names) for which, names in enumerate(company)])


def _compare(store: Store, engine: Engine, members: Sequence[History]) -> None:
    """Go on with some histories side by side, step by step, and compare what is there in the end."""
    clock = engine.clock or VirtualClock()
    twins = Twins(store, ReferenceStore(clock), engine.clock)
    for step in range(len(members[0].names)):
        names = [history.names[step] for history in members]
        if names[0] in _WAITS:
            _pass(engine, clock, _WAITS[names[0]])
            continue
        _ask(twins, members, [_ASKED.get(name) for name in names], upto=step + 1)
        if _PURGE in names:
            twins.purge()
    _ask(twins, members, [_look_at_both] * len(members), upto=None)
    if engine.clock is not None:  # for the next ones to start with none
        clock.advance(2_000)
        twins.purge()


def _look_at_both(history: History) -> Sequence[Op]:
    return [*_ASKED["get a"](history), *_ASKED["get b"](history)]


def _pass(engine: Engine, clock: VirtualClock, seconds: float) -> None:
    engine.advance(seconds)
    if clock is not engine.clock:
        clock.advance(seconds)


def _ask(twins: Twins, members: Sequence[History], steps: Sequence[Step | None], *, upto: int | None) -> None:
    """Have each history do its step, all in one batch, and compare the replies to each."""
    asked = [step(history) if step else () for history, step in zip(members, steps, strict=True)]
    if not any(asked):
        return
    expected, found, wanted = twins.apply([op for ops in asked for op in ops])
    end = 0
    for history, ops in zip(members, asked, strict=True):
        mine, end = slice(end, end + len(ops)), end + len(ops)
        history.saw(expected[mine])
        assert found[mine] == wanted[mine], f"after {' · '.join(history.names[:upto])}"
