"""The thirteen seeded bugs: mistakes that guards and stores were really made with, each built in on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from notwice import core
from notwice.heart import TICKS_PER_SECOND
from notwice.model import TERMINAL, Insert, Op, Record, RecordView, Released, Reply, State, Swap
from notwice.stores.clocks import Moment
from notwice.testing.simulate.choices import Choices
from notwice.testing.simulate.server import KeptStore


class NoFenceInComplete(KeptStore):
    """A last move is written whatever the record's etag is."""

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        if isinstance(op, Swap) and op.record.state in TERMINAL:
            op = matching(self, op)
        return super()._carry_out(op, moment)


class TakesOverByReadThenWrite(KeptStore):
    """Whoever has read an unresolved record writes its claim, whatever has become of the record since."""

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        if isinstance(op, Swap) and op.record.state is State.IN_PROGRESS and op.record.attempt > 1:
            op = matching(self, op)
        return super()._carry_out(op, moment)


class OverwritesCompleted(KeptStore):
    """A swap of a stale etag is refused, unless the record is completed."""

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        kept = kept_of(self, op)
        if isinstance(op, Swap) and kept is not None and kept.state is State.COMPLETED:
            op = matching(self, op)
        return super()._carry_out(op, moment)


class PurgesUnresolved(KeptStore):
    """Purges whatever is old."""

    def purge(self, limit: int) -> int:
        moment = self._now()
        old = [
            name
            for name, (record, written_ms, *_) in self._kept.items()
            if record.state not in TERMINAL and moment.now_ms - written_ms > record.terms.lease_ms
        ]
        for name in old[:limit]:
            self._drop(name)
        return len(old[:limit])


class Forgetful(KeptStore):
    """Acknowledges some writes before they are durable: unless they were followed by others, a restart undoes them."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.unsynced: dict[tuple[str, str], Any] = {}

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        before = {place_of(op): self._kept.get(place_of(op)) for op in ops}
        replies = super().apply(ops)
        for place in before:
            self.unsynced.pop(place, None)
        if self.is_lazy(ops):
            self.unsynced |= before
        return replies

    def is_lazy(self, ops: Sequence[Op]) -> bool:
        raise NotImplementedError

    def restart(self) -> None:
        for place, kept in self.unsynced.items():
            if kept is None:
                self._kept.pop(place, None)
            else:
                self._kept[place] = kept
        self.unsynced = {}
        self._order = None


class AcknowledgesClaimsEarly(Forgetful):
    """A claim is acknowledged before its commit."""

    def is_lazy(self, ops: Sequence[Op]) -> bool:
        return any(isinstance(op, Insert) for op in ops)


class AcknowledgesBatchesEarly(Forgetful):
    """A batch is acknowledged before its commit."""

    def is_lazy(self, ops: Sequence[Op]) -> bool:
        return len(ops) > 1


class DecidesByAffectedRows(KeptStore):
    """The row was found, so the write has won: a driver that counts matched rows says so even of a stale etag."""

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        reply = super()._carry_out(op, moment)
        return reply._replace(won=reply.record is not None) if isinstance(op, Swap) else reply


class CutsBodies(KeptStore):
    """A column that is too short cuts the stored answer."""

    def _carry_out(self, op: Op, moment: Moment) -> Reply:
        if isinstance(op, Swap) and op.record.result is not None and op.record.result.body is not None:
            cut = op.record.result._replace(body=op.record.result.body[:64])
            op = Swap(op.record._replace(result=cut), op.expected_etag)
        return super()._carry_out(op, moment)


def place_of(op: Any) -> tuple[str, str]:
    named = getattr(op, "record", op)
    return named.namespace, named.id


def kept_of(store: KeptStore, op: Op) -> Record | None:
    kept = store._kept.get(place_of(op))
    return None if kept is None else kept[0]


def matching(store: KeptStore, op: Swap) -> Swap:
    """The same swap without its fence."""
    kept = kept_of(store, op)
    return op if kept is None else Swap(op.record, kept.etag)


# -- mistakes of the guard itself -------------------------------------------------------------------------------------


def lapsed_a_tick_early(view: RecordView) -> bool:
    return (
        view.record.state is State.IN_PROGRESS and view.age_ms >= view.record.terms.lease_ms - 1000 / TICKS_PER_SECOND
    )


def same_etag_when_reclaimed(original: Callable[..., Record]) -> Callable[..., Record]:
    def reclaimed(ask: Any, decision: Any, etag: bytes) -> Record:
        return original(ask, decision, decision.view.record.etag)

    return reclaimed


def each_etag_twice(original: Callable[[Choices], bytes]) -> Callable[[Choices], bytes]:
    last: dict[Choices, bytes] = {}

    def etag(choices: Choices) -> bytes:
        if choices in last:
            return last.pop(choices)
        last.clear()
        last[choices] = original(choices)
        return last[choices]

    return etag


def frees_whatever_its_attempt(record: Record, etag: bytes, **_: object) -> Record:
    return record._replace(etag=etag, state=State.ACCEPTED, released=Released.AS_NEW, pause_ms=0)


@contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    with patch.object(target, name, value):
        yield


def _nothing() -> Any:
    return replaced(core, "READS_MAX", core.READS_MAX)


@dataclass(frozen=True)
class Bug:
    """A bug, and within how many seeds the simulator finds it."""

    name: str
    seeds: int
    store: Callable[[Any], KeptStore] = KeptStore
    patched: Callable[[], Any] = _nothing


BUGS = (
    Bug("no fence in complete", 300, NoFenceInComplete),
    Bug("take-over by read-then-write", 300, TakesOverByReadThenWrite),
    Bug(
        "early take-over",
        300,
        patched=lambda: replaced(RecordView, "lapsed", property(lapsed_a_tick_early)),
    ),
    Bug(
        "fingerprint not compared",
        300,
        patched=lambda: replaced(core, "BEGIN", tuple(rule for rule in core.BEGIN if rule is not core._other_request)),
    ),
    Bug("completed overwritten", 300, OverwritesCompleted),
    Bug(
        "etag not renewed",
        300,
        patched=lambda: replaced(core, "reclaimed", same_etag_when_reclaimed(core.reclaimed)),
    ),
    Bug("the same etag for two sends", 300, patched=lambda: replaced(Choices, "etag", each_etag_twice(Choices.etag))),
    Bug("purge deletes an unresolved record", 1000, PurgesUnresolved),
    Bug("claim acknowledged before the commit", 300, AcknowledgesClaimsEarly),
    Bug("batch acknowledged before its commit", 5000, AcknowledgesBatchesEarly),
    Bug("winner decided by affected rows", 300, DecidesByAffectedRows),
    Bug("reply body cut at a size limit", 300, CutsBodies),
    Bug(
        "an abandon on a second attempt that frees the first one's effect",
        300,
        patched=lambda: replaced(core, "abandoned", frees_whatever_its_attempt),
    ),
)
