"""What goes on behind the callers: heartbeats, and the settling of writes that nobody confirmed."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import ReferenceType

from notwice import core, flows
from notwice.core import Claim
from notwice.errors import NotwiceError, RecordTooLarge, StoreUnavailable
from notwice.flows import Change, NewEtag, Ownership
from notwice.model import Get, Op, Reply
from notwice.observe import Event, Observer, tell
from notwice.stores.port import KeyLocked, PartlyDone, Store
from notwice.waiting import Alarm, Clock, Gate, Place

BATCH_MAX: Final = 256
TICKS_PER_SECOND: Final = 20  # heartbeats are due at whole ticks, so that those of one tick share a trip
ORPHANS_MAX: Final = 10_000  # operations; about 5 MB. Past it the oldest is left to its lease
RETRY_FIRST: Final = 0.25  # seconds until a write that nobody confirmed is looked after
RETRY_LONGEST: Final = 30.0
NOT_KNOWN: Final = "whether it wrote is not known. Repeat the same call under the same key"
TOLERANCE: Final = 0.001  # seconds by which a clock may call too early

_R = TypeVar("_R")


class Listener(Protocol):
    """Whoever wants to know what happens to operations behind their owners."""

    def on_lost(self, own: Ownership) -> None:
        """Another owner has the operation."""
        ...

    def on_end(self, own: Ownership) -> None:
        """A last move was confirmed."""
        ...


class Hold:
    """An operation as the heart sees it: who owns it, the gate before its moves, and when its lease is to be renewed.

    `listener` hears of it once another owner has it, and once a last move was confirmed behind its caller. An
    operation that nobody holds any more lapses, and shows as unresolved. ``confirmed_at`` is when the last write was
    sent that the store has confirmed, a time of the clock. ``last`` makes the last record of an owner who was
    interrupted before it was sent.
    """

    __slots__ = (
        "beat_seconds",
        "confirmed_at",
        "forgiving",
        "gate",
        "last",
        "listener",
        "operation",
        "own",
        "removed",
        "run_until",
        "tick",
    )

    def __init__(
        self,
        own: Ownership,
        listener: Listener,
        *,
        operation: ReferenceType[Any],
        beat_seconds: float,
        run_until: float,
        confirmed_at: float = 0.0,
    ) -> None:
        self.own = own
        self.operation = operation
        self.listener = listener
        self.gate = Gate()
        self.beat_seconds = beat_seconds
        self.run_until = run_until
        self.confirmed_at = confirmed_at
        self.forgiving = False
        self.last: Change = core.beaten
        self.removed = False  # for good: a beat that is under way must not put it back
        self.tick = 0


def drive_together(
    flows_: Iterable[Generator[Op, Reply, _R]], apply: Callable[[list[Op]], Iterable[Reply]]
) -> list[_R | NotwiceError]:
    """Drive many flows at once, with one store call for what all of them ask next. Gives what each ended in.

    Whatever the store does, and whichever flow fails: the others have leases, too.
    """
    running = list(flows_)
    ended: dict[int, _R | NotwiceError] = {}
    asks: dict[int, Op] = {}
    for index, flow in enumerate(running):
        _step(partial(next, flow), index, asks=asks, ended=ended)
    while asks:
        batch = _distinct(asks)
        for index in batch:
            del asks[index]
        for index, reply in zip(batch, _answers(list(batch.values()), apply), strict=True):
            flow = running[index]
            advance = partial(flow.throw, reply) if isinstance(reply, StoreUnavailable) else partial(flow.send, reply)
            _step(advance, index, asks=asks, ended=ended)
    return [ended[index] for index in range(len(running))]


def _answers(ops: list[Op], apply: Callable[[list[Op]], Iterable[Reply]]) -> list[Reply | StoreUnavailable]:
    """What became of each operation of a batch. If one of them stopped all, each by itself: the others have leases.

    So each waits for the locks of others twice at most, and whatever got through at first is not sent again.
    """
    try:
        return [reply for _, reply in zip(ops, apply(ops), strict=True)]
    except PartlyDone as error:
        return list(error.outcomes) if len(error.outcomes) == len(ops) else [error] * len(ops)
    except (KeyLocked, RecordTooLarge) as error:
        if len(ops) == 1:
            return [error]
        return [outcome for op in ops for outcome in _answers([op], apply)]
    except Exception as error:  # noqa: BLE001 - whatever a store raises or leaves out, its answer is missing
        return [unavailable(error)] * len(ops)


def _step(advance: Callable[[], Op], index: int, *, asks: dict[int, Op], ended: dict[int, Any]) -> None:
    try:
        asks[index] = advance()
    except StopIteration as stop:
        ended[index] = stop.value
    except Exception as error:  # noqa: BLE001 - one flow must not end the others
        ended[index] = error if isinstance(error, NotwiceError) else unavailable(error)


def _distinct(asks: Mapping[int, Op]) -> dict[int, Op]:
    """As many of the asked operations as may share a batch: each record once."""
    batch: dict[int, Op] = {}
    seen: set[Place] = set()
    for index, op in asks.items():
        named = op if isinstance(op, Get) else op.record
        place = (named.namespace, named.id)
        if place not in seen and len(batch) < BATCH_MAX:
            seen.add(place)
            batch[index] = op
    return batch


def unavailable(error: BaseException) -> StoreUnavailable:
    """What a store raised, as the error that says: its answer is missing."""
    if isinstance(error, StoreUnavailable):
        return error
    failure = StoreUnavailable(f"the store failed ({type(error).__name__}); {NOT_KNOWN}")
    failure.__cause__ = error
    return failure


def _heard(tells: Callable[[], object]) -> None:
    """Tell what reaches an observer. One that ends its thread, or cancels it, would end every lease."""
    with contextlib.suppress(BaseException):  # in a thread of the guard's own, so nobody asked to interrupt it
        tells()


class Heart:
    """Renews the leases of this process's operations, all that are due in one trip.

    Most operations end before any beat is due: they come and go without a lock. Whatever a sweep finds lies in buckets
    from then on, by the tick at which it is due, so that no sweep looks at what is due later.
    """

    def __init__(self, store: Store, clock: Clock, *, observer: Observer | None, new_etag: NewEtag) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._new_etag = new_etag
        self.forget()

    def forget(self) -> None:
        """Drop all operations, as after a fork: they are the parent's."""
        self._lock = threading.Lock()
        self._young: dict[
            Hold, None
        ] = {}  # added since the last sweep; each change of it is one step of the interpreter
        self._buckets: dict[int, dict[Hold, None]] = {}  # in the order in which they came
        self._alarm = Alarm(self._clock, self.sweep)

    def add(self, hold: Hold, due: float) -> None:
        """Renew the lease of `hold` from `due` on, a time of the clock."""
        hold.tick = tick = int(due * TICKS_PER_SECOND) + 1
        self._young[hold] = None
        soonest = self._alarm.at
        if soonest is None or tick / TICKS_PER_SECOND < soonest:
            self._alarm.by(tick / TICKS_PER_SECOND)

    def remove(self, hold: Hold) -> None:
        """Renew it no longer. A beat that is under way goes on; the gate keeps it apart from other moves."""
        hold.removed = True  # first: whoever has it in hand meanwhile, a sweep or a beat, sees it
        if hold in self._young:
            self._young.pop(hold, None)
            return
        with self._lock:
            tick = hold.tick
            bucket = self._buckets.get(tick)
            if bucket is not None:
                bucket.pop(hold, None)
                if not bucket:
                    del self._buckets[tick]

    def _again(self, hold: Hold, due: float) -> None:
        """Go on renewing it, unless it was removed meanwhile."""
        self.add(hold, due)
        if hold.removed:  # before this; or after it, and whoever did so has looked for it, too
            self.remove(hold)

    def _sort_young(self) -> None:
        for hold in list(self._young):
            self._young.pop(hold, None)
            if not hold.removed:
                self._buckets.setdefault(hold.tick, {})[hold] = None

    def sweep(self) -> None:
        """Beat for whoever is due."""
        with self._lock:
            self._sort_young()
            now = int(self._clock.monotonic() * TICKS_PER_SECOND + 0.5)
            due = [hold for tick in sorted(self._buckets) if tick <= now for hold in self._buckets.pop(tick)]
        try:
            for first in range(0, len(due), BATCH_MAX):
                self._beat(due[first : first + BATCH_MAX])
        finally:
            with self._lock:
                soonest = min(self._buckets, default=None)
            if soonest is not None:
                self._alarm.by(soonest / TICKS_PER_SECOND)

    def _beat(self, due: list[Hold]) -> None:
        now = self._clock.monotonic()
        inside: list[Hold] = []
        for hold in due:
            gone = hold.removed or hold.operation() is None  # it was removed since, or nobody holds it
            if gone or hold.own.ended or hold.own.pending is not None:
                continue
            if hold.run_until <= now:
                self._tell("heartbeat_stopped", hold)
            elif hold.gate.acquire(blocking=False):
                inside.append(hold)
            else:  # a move is under way: it renews the lease, if it succeeds
                self._again(hold, now + hold.beat_seconds / 4)
        try:
            beats = [
                flows.move(hold.own, core.beaten, ends=False, forgiving=False, new_etag=self._new_etag, sends_max=1)
                for hold in inside
            ]
            results = drive_together(beats, self._store.apply)
        finally:
            for hold in inside:
                hold.gate.release()
        for hold, result in zip(inside, results, strict=True):
            self._after(hold, result, sent_at=now)

    def _after(self, hold: Hold, result: object, *, sent_at: float) -> None:
        if hold.own.lost:
            _heard(partial(hold.listener.on_lost, hold.own))
        elif hold.own.ended or hold.own.pending is not None or hold.removed:
            return
        elif isinstance(result, NotwiceError):
            self._tell("heartbeat_failed", hold, type(result).__name__)
            self._again(hold, self._clock.monotonic() + hold.beat_seconds / 4)
        else:
            hold.confirmed_at = sent_at
            self._again(hold, self._clock.monotonic() + hold.beat_seconds)

    def _tell(self, name: str, hold: Hold, detail: str = "") -> None:
        record = hold.own.record
        if self._observer is not None:
            _heard(partial(tell, self._observer, Event(name, record.id, record.namespace, record.attempt, detail)))


class _Job:
    """One thing to settle: the claims of a begin that ended without an answer, or an owner's unconfirmed last move."""

    __slots__ = ("due", "pause", "until")

    def __init__(self, now: float, until: float) -> None:
        self.pause = RETRY_FIRST
        self.due = now + RETRY_FIRST
        self.until = until

    def later(self, now: float) -> None:
        self.due = now + self.pause
        self.pause = min(self.pause * 2, RETRY_LONGEST)


class Unanswered:
    """The process's list of begins that ended without an answer, and of last moves that nobody confirmed.

    Settles both behind their callers, with pauses that grow to half a minute, while the process lives. A claim's
    etags stay on the list after the settling has given up, for a later begin to find.
    """

    def __init__(self, store: Store, clock: Clock, *, new_etag: NewEtag) -> None:
        self._store = store
        self._clock = clock
        self._new_etag = new_etag
        self.forget()

    def forget(self) -> None:
        """Start anew, as after a fork: the list is the parent's, and who has taken an etag off can't be known."""
        self._lock = threading.Lock()
        self._claims: OrderedDict[Place, dict[bytes, Claim]] = OrderedDict()
        self._begins: dict[Place, _Job] = {}
        self._ends: dict[Hold, _Job] = {}
        self._alarm = Alarm(self._clock, self.settle)

    def of(self, namespace: str, operation: str) -> Container[bytes]:
        """The etags that are on the list for this operation."""
        if not self._claims:
            return flows.NOTHING
        with self._lock:
            return frozenset(self._claims.get((namespace, operation), ()))

    def take(self, namespace: str, operation: str, etag: bytes) -> Claim | None:
        """Take one etag off the list: for one caller only, ``None`` for all others."""
        with self._lock:
            claims = self._claims.get((namespace, operation))
            claim = None if claims is None else claims.pop(etag, None)
            if not claims:
                self._claims.pop((namespace, operation), None)
            return claim

    def put(self, namespace: str, operation: str, claims: Mapping[bytes, Claim]) -> None:
        """Put etags on the list."""
        with self._lock:
            self._claims.setdefault((namespace, operation), {}).update(claims)
            while len(self._claims) > ORPHANS_MAX:
                dropped, _ = self._claims.popitem(last=False)
                self._begins.pop(dropped, None)

    def settle_begin(self, place: Place, claims: Mapping[bytes, Claim], within: float) -> None:
        """Free the record of a begin that ended without an answer, as soon as the store shows it.

        It is looked for during `within` seconds.
        """
        self.put(*place, claims)
        now = self._clock.monotonic()
        with self._lock:
            self._begins[place] = _Job(now, now + within)
        self._alarm.by(self._clock.monotonic() + RETRY_FIRST)

    def settle_end(self, hold: Hold) -> None:
        """Repeat the last move of `hold` until the store confirms or refuses it."""
        with self._lock:
            if hold in self._ends:
                return
            self._ends[hold] = _Job(self._clock.monotonic(), float("inf"))
        self._alarm.by(self._clock.monotonic() + RETRY_FIRST)

    def settle(self) -> None:
        """Look after whatever is due."""
        now = self._clock.monotonic() + TOLERANCE
        with self._lock:
            begins = [place for place, job in self._begins.items() if job.due <= now]
            ends = [hold for hold, job in self._ends.items() if job.due <= now]
        try:
            self._settle_begins(begins)
            self._settle_ends(ends)
        finally:
            with self._lock:
                soonest = min((job.due for jobs in (self._begins, self._ends) for job in jobs.values()), default=None)
            if soonest is not None:
                self._alarm.by(soonest)

    def _settle_begins(self, places: list[Place]) -> None:
        results = drive_together(
            (flows.disown(*place, orphans=self, new_etag=self._new_etag) for place in places), self._store.apply
        )
        now = self._clock.monotonic()
        with self._lock:
            for place, result in zip(places, results, strict=True):
                job = self._begins.get(place)
                if result is True or place not in self._claims or (job is not None and job.until <= now):
                    self._begins.pop(place, None)
                elif job is not None:
                    job.later(now)

    def _settle_ends(self, ends: list[Hold]) -> None:
        inside = [hold for hold in ends if hold.gate.acquire(blocking=False)]
        open_ = [hold for hold in inside if not hold.own.ended]
        try:
            drive_together((self._repeat(hold) for hold in open_), self._store.apply)
        finally:
            for hold in inside:
                hold.gate.release()
        now = self._clock.monotonic()
        for hold in ends:
            with self._lock:
                if hold.own.ended:
                    self._ends.pop(hold, None)
                else:
                    self._ends[hold].later(now)
            if hold.own.lost:
                _heard(partial(hold.listener.on_lost, hold.own))
            elif hold.own.ended:
                _heard(partial(hold.listener.on_end, hold.own))

    def _repeat(self, hold: Hold) -> Generator[Op, Reply, object]:
        return flows.move(
            hold.own, hold.last, ends=True, forgiving=hold.forgiving, new_etag=self._new_etag, sends_max=1
        )
