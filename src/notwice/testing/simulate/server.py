"""The store of a simulated world, as its processes reach it, and what it held at each moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from notwice.errors import StoreUnavailable
from notwice.model import Get, Op, Page, Query, Record, RecordView, Reply, Swap
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Store, StoreClock
from notwice.testing.history import Event, Held, Name, OperatorMoved, kept_of
from notwice.testing.simulate.weather import Weather

if TYPE_CHECKING:
    from notwice.testing.simulate.world import World


class KeptStore(MemoryStore):
    """The reference store, which tells when a record goes."""

    def __init__(self, clock: StoreClock) -> None:
        super().__init__(clock)
        self.on_drop: Callable[[Record], None] = _ignore

    def _drop(self, name: tuple[str, str]) -> None:
        kept = self._kept.get(name)
        super()._drop(name)
        if kept is not None:
            self.on_drop(kept[0])

    def restart(self) -> None:
        """Start the store anew. Nothing of it is lost."""


def _ignore(_: Record) -> None:
    """Nobody listens."""


class Server:
    """Where all messages arrive: carries them out one at a time, and notes each write that took effect.

    Arguments:
        world: in which it stands.
        store: what keeps the records.
        weather: how messages fare on their way.
    """

    def __init__(self, world: World, store: Store, weather: Weather) -> None:
        self.world: Final = world
        self.store: Final = store
        self.weather: Final = weather
        self.down = False
        self.writes = 0
        self.written_us = 0
        """How many writes took effect, and when the last one did."""
        self._awaited: list[tuple[int, Callable[[], None]]] = []
        self._awaited_batch: list[Callable[[], None]] = []
        self.callers: Final[dict[bytes, str]] = {}
        """By which call each etag was drawn."""
        self.operators: Final[dict[str, OperatorMoved]] = {}
        """What operators are about to do, by the names of their calls."""
        if isinstance(store, KeptStore):
            store.on_drop = self._dropped

    def after_writes(self, count: int, function: Callable[[], None]) -> None:
        """Have `function` called once `count` more writes have taken effect."""
        self._awaited.append((self.writes + count, function))

    def after_batch(self, function: Callable[[], None]) -> None:
        """Have `function` called once a batch of several writes has been carried out."""
        self._awaited_batch.append(function)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that arrived."""
        self._check_up()
        if not ops:
            return ()
        replies = self.store.apply(ops) if len(ops) == 1 else self._apply_in_any_order(ops)
        for op, reply in zip(ops, replies, strict=True):
            if reply.won and not isinstance(op, Get):
                self._written(op, reply)
        if len(ops) > 1:
            while self._awaited_batch:
                self._awaited_batch.pop()()
        return replies

    def _apply_in_any_order(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """A batch's operations are about different records, and no order of theirs is promised."""
        first = self.world.choices.below(len(ops))
        replies = self.store.apply([*ops[first:], *ops[:first]])
        return [*replies[-first:], *replies[:-first]] if first else replies

    def scan(self, query: Query) -> Page:
        """Give a page."""
        self._check_up()
        return self.store.scan(query)

    def purge(self, limit: int) -> int:
        """Drop what has expired."""
        self._check_up()
        return self.store.purge(limit)

    def _check_up(self) -> None:
        if self.down:
            raise StoreUnavailable("simulated: the store is down")

    def restart(self) -> None:
        """Start the store anew, which loses what its engine had not made durable."""
        restart = getattr(self.store, "restart", None)
        if restart is not None:
            restart()

    def _written(self, op: Op, reply: Reply) -> None:
        record = reply.record
        if not isinstance(record, Record):
            return
        self.writes += 1
        self.written_us = self.world.now_us
        for awaited in [each for each in self._awaited if each[0] <= self.writes]:
            self._awaited.remove(awaited)
            awaited[1]()
        call = self.callers.get(record.etag, "")
        if call.endswith(" "):  # of a call about many operations
            call += "/".join(_name(record))
        moved = self.operators.pop(call, None)
        if moved is not None:
            self._note(replace(moved, at_ns=self.world.now_ns))
        self._note(
            Held(
                at_ns=self.world.now_ns,
                name=_name(record),
                kept=kept_of(RecordView(record, *reply[2:])),
                write=True,
                call="" if moved else call,
                replaced=op.expected_etag if isinstance(op, Swap) else None,
            )
        )

    def _dropped(self, record: Record) -> None:
        self._note(Held(at_ns=self.world.now_ns, name=_name(record), kept=None, write=True, replaced=record.etag))

    def _note(self, event: Event) -> None:
        self.world.events.append(event)


def _name(record: Record) -> Name:
    return Name(record.namespace, record.scope, record.key)
