"""The blocking face, on botocore."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from notwice.errors import StoreUnavailable
from notwice.model import Get, Op, Page, Query, Record, RecordView, Reply, Unreadable
from notwice.stores.clocks import Moment, SystemStoreClock, TrustedClock
from notwice.stores.dynamodb import checks
from notwice.stores.dynamodb.items import ABSENT, Item, Kept, item_of, key_of, names, write_of
from notwice.stores.dynamodb.link import Link
from notwice.stores.dynamodb.place import Ask, ConditionFailed, Place
from notwice.stores.dynamodb.scans import Look, Purge
from notwice.stores.dynamodb.sightings import Sightings, sightings_of
from notwice.stores.dynamodb.threads import Threads
from notwice.stores.findings import Finding, heed
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.port import StoreClock
from notwice.stores.shared import Name, name_of, refuse_repeated_names, replies_or_raise, reply_of, stamped


class DynamoStore:
    """A `Store` in a DynamoDB table, for threads.

    Each operation is one request, and the requests of a batch go side by side. Leases are judged by what this process
    has seen, retention by the wall clocks of those who write and read.

    Arguments:
        place: the table and its limits.
        clock: of this host.
        sightings: what is known of the table's open records; by default what this process has seen.
    """

    def __init__(self, place: Place, *, clock: StoreClock | None = None, sightings: Sightings | None = None) -> None:
        self._clock = TrustedClock(clock or SystemStoreClock())
        self._clock_turn = threading.Lock()
        self._sightings = sightings or sightings_of(place[:3])
        self._link = Link(place, None if place.safe == "ignore" else partial(_heed, place))
        self._purge = Purge(self._link)
        self.threads = Threads(place.pool, place.timeout)
        stand_still_at_forks(self)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice."""
        if len(ops) == 1:
            return [self.carry_out(ops[0])]
        refuse_repeated_names(ops)
        futures = [self.threads.submit(partial(self.carry_out, op)) for op in ops]
        return replies_of([future.exception() or future.result() for future in futures])

    def carry_out(self, op: Op) -> Reply:
        """Carry out one operation, in one request."""
        if isinstance(op, Get):
            name = name_of(op)
            found = self._link.call("get_item", Key=key_of(name), ConsistentRead=True).get("Item")
            return self._found(found, name, looks=True)
        moment = self._now()
        request, record = write_of(op, moment.stamp_ms)
        try:
            self._link.call("put_item", **request)
        except ConditionFailed as refusal:
            return self._found(refusal.item, name_of(op), looks=False)
        self._made(record, self._now())
        return reply_of((True, record, moment.stamp_ms, moment.now_ms, 0))

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        return Look(self._link, query, partial(self._view, self._now())).page()

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records, going on where the last purge stopped.

        The table's own expiry drops them, too. 0 says that there were none, or none among those that were looked at
        within the time-out.
        """
        return self._purge.run(limit, self._now().now_ms)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times."""
        futures = [self.threads.submit(partial(self._take_in, view)) for view in views]
        failures = [error for error in map(Future.exception, futures) if error is not None]  # all of them are awaited
        if failures:
            raise failures[0]
        return [future.result() for future in futures]

    def findings(self) -> list[Finding]:
        """The table's settings that break promises."""
        return checks.findings(self._link.call)

    def close(self) -> None:
        """Close the connections and let the threads end. Closing twice is harmless."""
        self.threads.close()
        self._link.close()

    def before_fork(self) -> None:
        """Let nobody read the clock while the process is copied."""
        self._clock_turn.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._clock_turn.release()

    def after_fork_in_child(self) -> None:
        """Go on: the host and its clocks are the same."""
        self._clock_turn = threading.Lock()

    def _now(self) -> Moment:
        with self._clock_turn:
            return self._clock.read()

    def _take_in(self, view: RecordView) -> bool:
        written_ms = view.written_ms
        record = stamped(view.record, written_ms)
        try:
            self._link.call(
                "put_item",
                Item=item_of(record, written_ms),
                ConditionExpression=ABSENT,
                ExpressionAttributeNames=names("pk"),
            )
        except ConditionFailed:
            return False
        self._made(record, self._now().at(written_ms))
        return True

    def _made(self, record: Record, moment: Moment) -> None:
        if not record.terminal:
            self._sightings.made((record.namespace, record.id), record.etag, moment)

    def _found(self, item: Item | None, name: Name, *, looks: bool) -> Reply:
        """The answer to an operation that changed nothing."""
        moment = self._now()
        if item is None:
            return reply_of((False, None, 0, moment.now_ms, 0))
        kept = Kept.of(item, name)
        return reply_of((False, kept.record, kept.written_ms, moment.now_ms, self._age_ms(kept, moment, looks=looks)))

    def _view(self, moment: Moment, kept: Kept) -> RecordView | Unreadable:
        """What a scan gives."""
        if isinstance(kept.record, Unreadable):
            return kept.record
        return RecordView(kept.record, kept.written_ms, moment.now_ms, self._age_ms(kept, moment, looks=True))

    def _age_ms(self, kept: Kept, moment: Moment, *, looks: bool) -> int:
        """How old a record is. A finished one has no lease, so the wall clocks will do."""
        if isinstance(kept.record, Unreadable) or kept.record.terminal:
            return max(0, moment.now_ms - kept.written_ms)
        ages = self._sightings.see(kept.name, kept.record.etag, moment, written_ms=kept.written_ms)
        return ages.guessed_ms if looks else ages.observed_ms


def replies_of(outcomes: Sequence[Reply | BaseException]) -> list[Reply]:
    """The replies to a batch whose operations went side by side. Raises `PartlyDone`, or what is no store's error."""
    told: list[Reply | StoreUnavailable] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, StoreUnavailable):
            raise outcome
        told.append(outcome)
    return replies_or_raise(told)


def _heed(place: Place, ask: Ask) -> None:
    heed(checks.findings(ask), safe=place.safe, shown=place.shown)
