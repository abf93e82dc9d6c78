"""A sound store of a few lines, and stores that each break one promise of it: what the suite must catch."""

import itertools
import threading
from collections import deque
from collections.abc import Sequence

from notwice.model import Get, Insert, Op, Page, Query, Record, RecordView, Released, Reply, State, Swap, Unreadable
from notwice.stores.port import Store
from notwice.testing import VirtualClock
from notwice.testing.conformance.reference import Kept, ReferenceStore, matches

Name = tuple[str, str]


def name_of(op: Op) -> Name:
    return (op.namespace, op.id) if isinstance(op, Get) else (op.record.namespace, op.record.id)


class Disk:
    """What survives a store: the records, and which of them are damaged."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.records = ReferenceStore(clock)
        self.damaged: set[Name] = set()
        self.loaded: set[Name] = set()
        self.lock = threading.RLock()


class Sound:
    """A store that keeps every promise. Broken ones override one of its parts."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.closed = False

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self.check_open()
        if len({name_of(op) for op in ops}) < len(ops):
            raise ValueError("a batch names each id once")
        with self.disk.lock:
            return [self.carry_out(op) for op in ops]

    def carry_out(self, op: Op) -> Reply:
        if name_of(op) in self.disk.damaged:
            return Reply(False, Unreadable(*name_of(op), "damaged"))
        return self.disk.records.apply([op])[0]

    def scan(self, query: Query) -> Page:
        self.check_open()
        with self.disk.lock:
            views = self.views()
        items = self.selected(views, query)
        start = next(
            (place for place, item in enumerate(items) if query.cursor is None or place_of(item) > query.cursor), None
        )
        page = [] if start is None else items[start : start + query.limit]
        rest = start is not None and start + query.limit < len(items)
        return Page(tuple(self.shown(view) for view in page), place_of(page[-1]) if rest else None)

    def views(self) -> list[RecordView]:
        items = self.disk.records.scan(Query(limit=1_000_000)).items
        return [item for item in items if isinstance(item, RecordView)]

    def selected(self, views: list[RecordView], query: Query) -> list[RecordView]:
        return [view for view in views if matches(view, query)]

    def shown(self, view: RecordView) -> RecordView | Unreadable:
        name = (view.record.namespace, view.record.id)
        return Unreadable(*name, "damaged") if name in self.disk.damaged else view

    def purge(self, limit: int) -> int:
        self.check_open()
        with self.disk.lock:
            expired = [view.record for view in self.views() if view.expired]
            return self.drop([each for each in expired if (each.namespace, each.id) not in self.disk.damaged][:limit])

    def drop(self, records: Sequence[Record]) -> int:
        gone = [self.disk.records._kept.pop((record.namespace, record.id), None) for record in records]
        return sum(kept is not None for kept in gone)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        self.check_open()
        with self.disk.lock:
            return [self.take_in(view) for view in views]

    def take_in(self, view: RecordView) -> bool:
        name = (view.record.namespace, view.record.id)
        if name in self.disk.records._kept:
            return False
        clock = self.disk.clock
        boot_ms = clock.boot_ms() - max(clock.wall_ms() - view.written_ms, 0)
        self.disk.records._kept[name] = Kept(view.record, view.written_ms, clock.boot_id(), boot_ms)
        return True

    def close(self) -> None:
        self.closed = True

    def check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this store is closed")


def place_of(view: RecordView) -> str:
    return f"{view.record.created_ms:020} {view.record.namespace} {view.record.id}"


class InsertsOverwrite(Sound):
    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Insert):
            self.disk.records._kept.pop(name_of(op), None)
        return super().carry_out(op)


class LostInsertSaysWon(Sound):
    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        return reply._replace(won=True) if isinstance(op, Insert) else reply


class NoFence(Sound):
    def carry_out(self, op: Op) -> Reply:
        there = super().carry_out(Get(*name_of(op))).record
        if isinstance(op, Swap) and isinstance(there, Record):
            op = op._replace(expected_etag=there.etag)
        return super().carry_out(op)


class EtagCut(Sound):
    def carry_out(self, op: Op) -> Reply:
        there = super().carry_out(Get(*name_of(op))).record
        if isinstance(op, Swap) and isinstance(there, Record) and there.etag[:8] == op.expected_etag[:8]:
            op = op._replace(expected_etag=there.etag)
        return super().carry_out(op)


class ForgetsAField(Sound):
    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Swap):
            op = op._replace(record=op.record._replace(fingerprint=None))
        return super().carry_out(op)


class KeepsAnOldField(Sound):
    def carry_out(self, op: Op) -> Reply:
        there = super().carry_out(Get(*name_of(op))).record
        if isinstance(op, Swap) and isinstance(there, Record):
            op = op._replace(record=op.record._replace(result=op.record.result or there.result))
        return super().carry_out(op)


class ReadThenWrite(Sound):
    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self.check_open()
        return [
            self.insert_slowly(op) if isinstance(op, Insert) else super(ReadThenWrite, self).apply([op])[0]
            for op in ops
        ]

    def insert_slowly(self, op: Insert) -> Reply:
        there = super().apply([Get(*name_of(op))])[0]
        threading.Event().wait(0.002)
        if there.record is not None:
            return there
        self.disk.records._kept.pop(name_of(op), None)
        return super().apply([op])[0]


class AcknowledgesBeforeItsCommit(Sound):
    """Tells what a batch will find, and carries it out with the next one."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.owed: deque[Op] = deque()

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        while self.owed:
            super().apply([self.owed.popleft()])
        self.owed.extend(op for op in ops if not isinstance(op, Get))
        return [self.promised(op) for op in ops]

    def promised(self, op: Op) -> Reply:
        there = super().apply([Get(*name_of(op))])[0]
        due = isinstance(op, Insert) and there.record is None
        due = due or (
            isinstance(op, Swap) and isinstance(there.record, Record) and there.record.etag == op.expected_etag
        )
        return there._replace(won=True, record=op.record) if due and not isinstance(op, Get) else there


class HidesFailure(Sound):
    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        if self.closed:
            return [Reply(False, None) for _ in ops]
        return super().apply(ops)


class RefusalFails(Sound):
    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        if isinstance(op, Insert) and not reply.won:
            raise KeyError("UNIQUE constraint failed")
        return reply


class AllOrNothing(Sound):
    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        before = dict(self.disk.records._kept)
        replies = super().apply(ops)
        if not all(reply.won for reply, op in zip(replies, ops, strict=True) if not isinstance(op, Get)):
            self.disk.records._kept = before
            return [reply._replace(won=False) for reply in replies]
        return replies


class RepliesSorted(Sound):
    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        if len({name_of(op) for op in ops}) < len(ops):
            raise ValueError("a batch names each id once")
        return super().apply(sorted(ops, key=name_of))


class TakesDoubleNames(Sound):
    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        return [super(TakesDoubleNames, self).apply([op])[0] for op in ops]


class NeverStampsCreation(Sound):
    def carry_out(self, op: Op) -> Reply:
        return self.unstamped(super().carry_out(op))

    def unstamped(self, reply: Reply) -> Reply:
        return reply._replace(record=reply.record._replace(created_ms=0)) if isinstance(reply.record, Record) else reply


class StampsOnce(Sound):
    """A swap leaves the time of the insert in place."""

    def carry_out(self, op: Op) -> Reply:
        kept = self.disk.records._kept
        before = kept.get(name_of(op))
        reply = super().carry_out(op)
        if isinstance(op, Swap) and reply.won and before is not None:
            kept[name_of(op)] = before._replace(record=kept[name_of(op)].record)
            return super().carry_out(Get(*name_of(op)))._replace(won=True)
        return reply


class AgesByTheWall(Sound):
    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        return reply._replace(age_ms=max(0, reply.now_ms - reply.written_ms))


class ForgetsTheBoot(Sound):
    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        return reply._replace(age_ms=min(reply.age_ms, reply.now_ms - reply.written_ms))


class KeepsOldExpiry(Sound):
    """An expiry that was set once stays."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.expiries: dict[Name, int] = {}

    def carry_out(self, op: Op) -> Reply:
        reply = super().carry_out(op)
        if reply.won and isinstance(reply.record, Record) and reply.record.expires_after_ms is not None:
            self.expiries[name_of(op)] = reply.written_ms + reply.record.expires_after_ms
        return reply

    def purge(self, limit: int) -> int:
        now_ms = self.disk.clock.wall_ms()
        late = [
            view.record
            for view in self.views()
            if self.expiries.get((view.record.namespace, view.record.id), now_ms) < now_ms
        ]
        return super().purge(limit) + self.drop(late[:limit])


class PurgesWhatIsTerminal(Sound):
    def purge(self, limit: int) -> int:
        return self.drop([view.record for view in self.views() if view.record.terminal][:limit])


class EvictsOpenRecords(Sound):
    """Drops whatever is old, finished or not."""

    def purge(self, limit: int) -> int:
        old = [view.record for view in self.views() if view.now_ms - view.written_ms > 50]
        kept = [record for record in old if record.state is not State.ACCEPTED or record.released is Released.AS_NEW]
        return self.drop(kept[:limit])


class PurgesByAnOldList(Sound):
    """Looks first, and drops what it saw without looking again."""

    def purge(self, limit: int) -> int:
        with self.disk.lock:
            expired = [view.record for view in self.views() if view.expired][:limit]
        threading.Event().wait(0.002)
        with self.disk.lock:
            return self.drop(expired)


class DamagedIsAbsent(Sound):
    def carry_out(self, op: Op) -> Reply:
        if name_of(op) in self.disk.damaged and isinstance(op, Get):
            return Reply(False, None)
        return super().carry_out(op)


class DamagedIsOverwritten(Sound):
    def carry_out(self, op: Op) -> Reply:
        if isinstance(op, Swap):
            self.disk.damaged.discard(name_of(op))
        return super().carry_out(op)


class DamagedIsPurged(Sound):
    def purge(self, limit: int) -> int:
        return self.drop([view.record for view in self.views() if view.expired][:limit])


class FoldsCase(Sound):
    def carry_out(self, op: Op) -> Reply:
        folded = name_of(op)[1].lower()
        if isinstance(op, Get):
            return super().carry_out(op._replace(id=folded))
        return super().carry_out(op._replace(record=op.record._replace(id=folded)))


class StripsBlanks(Sound):
    def carry_out(self, op: Op) -> Reply:
        stripped = name_of(op)[0].rstrip()
        if isinstance(op, Get):
            return super().carry_out(op._replace(namespace=stripped))
        return super().carry_out(op._replace(record=op.record._replace(namespace=stripped)))


class CutsBodies(Sound):
    def carry_out(self, op: Op) -> Reply:
        if not isinstance(op, Get) and op.record.result and op.record.result.body:
            result = op.record.result._replace(body=op.record.result.body[:65_535])
            op = op._replace(record=op.record._replace(result=result))
        return super().carry_out(op)


class KeepsWhatIsTooLarge(Sound):
    """It has a limit, and says nothing of what is over it."""


class PrefixIsAPattern(Sound):
    def selected(self, views: list[RecordView], query: Query) -> list[RecordView]:
        prefix = (query.scope_prefix or "").lower()
        loose = [view for view in views if view.record.scope.lower().startswith(prefix)]
        return super().selected(loose, query._replace(scope_prefix=None))


class IgnoresUnresolved(Sound):
    def selected(self, views: list[RecordView], query: Query) -> list[RecordView]:
        return super().selected(views, query._replace(unresolved=None))


class LapsedIsResolved(Sound):
    def selected(self, views: list[RecordView], query: Query) -> list[RecordView]:
        fresh = [view._replace(age_ms=0) for view in views]
        return super().selected(fresh, query)


class ScansByOffset(Sound):
    def scan(self, query: Query) -> Page:
        start = int(query.cursor or 0)
        items = self.selected(self.views(), query)
        page = tuple(map(self.shown, items[start : start + query.limit]))
        return Page(page, str(start + query.limit) if start + query.limit < len(items) else None)


class ScansUnordered(Sound):
    def selected(self, views: list[RecordView], query: Query) -> list[RecordView]:
        return super().selected(sorted(views, key=lambda view: view.record.id), query)


class ScansWithoutTimes(Sound):
    def shown(self, view: RecordView) -> RecordView | Unreadable:
        shown = super().shown(view)
        return shown._replace(age_ms=0) if isinstance(shown, RecordView) else shown


class HidesDamaged(Sound):
    def scan(self, query: Query) -> Page:
        page = super().scan(query)
        return page._replace(items=tuple(item for item in page.items if isinstance(item, RecordView)))


class PurgesWithoutBound(Sound):
    def purge(self, limit: int) -> int:
        return super().purge(1_000_000)


class StaysOpen(Sound):
    def check_open(self) -> None:
        pass


class LoadsOver(Sound):
    def take_in(self, view: RecordView) -> bool:
        self.disk.records._kept.pop((view.record.namespace, view.record.id), None)
        return super().take_in(view)


class LoadsAsWrittenNow(Sound):
    def take_in(self, view: RecordView) -> bool:
        return super().take_in(view._replace(written_ms=self.disk.clock.wall_ms()))


class LoadsForEver(Sound):
    def take_in(self, view: RecordView) -> bool:
        self.disk.loaded.add((view.record.namespace, view.record.id))
        return super().take_in(view)

    def drop(self, records: Sequence[Record]) -> int:
        return super().drop([each for each in records if (each.namespace, each.id) not in self.disk.loaded])


class LoadsUnderAFreshEtag(Sound):
    def take_in(self, view: RecordView) -> bool:
        return super().take_in(view._replace(record=view.record._replace(etag=b"fresh")))


class WrongAfterThree(Sound):
    """Gives a stale reply to a third call in one namespace: only histories of some length see it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self.calls: dict[str, itertools.count[int]] = {}

    def carry_out(self, op: Op) -> Reply:
        count = self.calls.setdefault(name_of(op)[0], itertools.count(1))
        reply = super().carry_out(op)
        return reply._replace(won=not reply.won) if next(count) == 3 and isinstance(op, Swap) else reply


class LoserOfALargeBatchWins(Sound):
    """Takes the loser of a large batch for a winner: only histories side by side see it."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        replies = super().apply(ops)
        large = len(ops) > 64
        return [reply._replace(won=large or reply.won) for reply in replies]


CAUGHT_BY: dict[type[Store], str] = {
    KeepsWhatIsTooLarge: "test_too_large",
    InsertsOverwrite: "test_insert",
    LostInsertSaysWon: "test_insert",
    NoFence: "test_swap",
    EtagCut: "test_swap",
    ForgetsAField: "test_get",
    KeepsAnOldField: "test_get",
    ReadThenWrite: "test_rivals",
    AcknowledgesBeforeItsCommit: "test_durability",
    HidesFailure: "test_failure",
    RefusalFails: "test_failure",
    AllOrNothing: "test_batch",
    RepliesSorted: "test_batch",
    TakesDoubleNames: "test_double_name",
    NeverStampsCreation: "test_stamps",
    StampsOnce: "test_stamps",
    AgesByTheWall: "test_age_after_a_step",
    ForgetsTheBoot: "test_age_after_a_boot",
    KeepsOldExpiry: "test_expiry",
    PurgesWhatIsTerminal: "test_purge",
    EvictsOpenRecords: "test_purge",
    PurgesByAnOldList: "test_purge",
    DamagedIsAbsent: "test_unreadable",
    DamagedIsOverwritten: "test_unreadable",
    DamagedIsPurged: "test_unreadable",
    FoldsCase: "test_bytes",
    StripsBlanks: "test_bytes",
    CutsBodies: "test_bytes",
    PrefixIsAPattern: "test_scan_filters",
    IgnoresUnresolved: "test_scan_filters",
    LapsedIsResolved: "test_scan_lapsed",
    ScansByOffset: "test_scan_while_written",
    ScansUnordered: "test_scan_order",
    ScansWithoutTimes: "test_scan_gives_views",
    HidesDamaged: "test_scan_unreadable",
    PurgesWithoutBound: "test_purge_is_bounded",
    StaysOpen: "test_close",
    LoadsOver: "test_load_keeps_what_is_there",
    LoadsForEver: "test_load_expires",
    LoadsAsWrittenNow: "test_load_keeps_times",
    LoadsUnderAFreshEtag: "test_load_keeps_times",
    WrongAfterThree: "test_all_short_histories",
    LoserOfALargeBatchWins: "test_all_short_histories_at_once",
}
