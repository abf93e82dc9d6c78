"""A week of traffic: nothing unresolved is ever lost, and the store keeps no more than what retention says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    Guard,
    NotApplied,
    NotwiceError,
    Operation,
    Policy,
    RecordView,
    core,
    hold,
    reconcile,
    rerun,
)
from notwice.recovery import Round
from notwice.stores.memory import MemoryStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock

MINUTE, HOUR, DAY = 60, 3600, 86_400
RETENTION = DAY
ENDINGS = ["done"] * 10 + ["refused", "not applied", "raises", "dies", "dies", "dies after the effect"]


class Week:
    """A shop whose processes die, with a worker every twenty minutes and a purge every hour."""

    def __init__(self, store: Callable[[VirtualClock], Store], seed: int) -> None:
        self.clock = VirtualClock()
        self.store = store(self.clock)
        self.chance = random.Random(seed)
        self.effects: dict[str, int] = {}
        self.asking = Policy(recovery=reconcile(self.what_became_of), retention=RETENTION)
        self.policies = [
            Policy(recovery=hold, retention=RETENTION),
            Policy(recovery=rerun, retention=RETENTION),
            self.asking,
        ]
        self.guard = Guard(self.store, policy=self.asking, clock=self.clock)
        self.guard.recovers("{any}", policy=self.asking)(lambda operation, any: self.handle(operation))  # noqa: A006 - the template's field
        self.begun = 0
        self.open: set[str] = set()
        self.rounds: list[Round] = []

    def what_became_of(self, operation: Operation) -> object:
        if self.chance.random() < 0.3:
            return UNKNOWN
        return Applied("found") if self.effects.get(operation.key) else NOT_APPLIED

    def handle(self, operation: Operation) -> str:
        ending = self.chance.choice(ENDINGS)
        if ending == "dies":
            self.die(operation)
        elif ending == "not applied":
            raise NotApplied
        elif ending == "raises":
            raise ConnectionError("no answer")
        self.effects[operation.key] = self.effects.get(operation.key, 0) + 1
        if ending == "dies after the effect":
            self.die(operation)
        if ending == "refused":
            operation.fail("refused")
        return "done"

    def die(self, operation: Operation) -> None:
        """The process is gone: no heartbeat and no last move."""
        self.guard._runtime.heart.remove(operation._hold)
        operation._own.ended = True
        raise Dead

    def customer(self) -> None:
        """Somebody begins an operation, and perhaps repeats it."""
        key, policy = f"k-{self.begun}", self.chance.choice(self.policies)
        self.begun += 1
        self.open.add(key)
        for _ in range(self.chance.randint(1, 2)):
            self.attempt(key, policy)

    def attempt(self, key: str, policy: Policy) -> None:
        try:
            outcome = self.guard.begin("shop", key, policy=policy)
            if isinstance(outcome, Operation):
                with outcome:
                    value = self.handle(outcome)
                    if not outcome.ended:
                        outcome.complete(value)
        except (Dead, NotApplied, NotwiceError, ConnectionError):
            pass

    def hour(self) -> None:
        for _ in range(3):
            for _ in range(2):
                self.customer()
                self.clock.advance(10 * MINUTE)
            self.rounds.append(self.recover())
        self.guard.purge()

    def recover(self) -> Round:
        try:
            return self.guard.recover()
        except Dead:  # the worker died with its operation; another one goes on the next time
            return Round()

    def look(self) -> None:
        """Everything that is not finished is there, and nothing that is finished stays beyond its retention."""
        views = {view.record.key: view for view in self.guard.operations() if isinstance(view, RecordView)}
        gone = self.open - views.keys()
        freed = {key for key in gone if not self.effects.get(key)}
        assert gone == freed, f"lost with an effect: {sorted(gone - freed)}"
        self.open -= freed | {key for key, view in views.items() if view.record.terminal}
        assert all(views[key].unresolved or not views[key].record.terminal for key in self.open)
        kept_ms = (RETENTION + HOUR) * 1000
        assert not [view for view in views.values() if view.expired and view.now_ms - view.written_ms > kept_ms]


class Dead(BaseException):
    """The process ended here."""


def in_memory(clock: VirtualClock) -> Store:
    return MemoryStore(clock)


def test_a_week_of_traffic() -> None:
    """P6, P7: seven days of deaths, errors, retries, workers and purges: no unresolved operation is ever lost, all that
    may be finished is, the rest is held and listed, and what is finished leaves after its retention.
    """
    week = Week(in_memory, seed=1)
    sizes = []
    for hour in range(7 * 24):
        week.hour()
        if hour % 4 == 3:
            week.look()
        if hour % 24 == 23:
            sizes.append(finished_of(week))
    assert week.begun == 7 * 24 * 6
    assert max(sizes) <= (RETENTION + HOUR) / HOUR * 6
    for _ in range(24 * 6):  # nobody comes any more: all that may be finished is
        week.clock.advance(10 * MINUTE)
        last = week.recover()
    views = [view for view in week.guard.operations(unresolved=True) if isinstance(view, RecordView)]
    assert (last.finished, last.failed, last.waiting, last.unhandled) == (0, 0, 0, 0)
    assert last.held == len(views) == sum(map(core.held, views)) > 0
    assert sum(found.finished for found in week.rounds) > 50
    week.clock.advance(2 * DAY)
    while week.guard.purge():
        pass
    assert {view.record.key for view in week.guard.operations() if isinstance(view, RecordView)} == {
        view.record.key for view in views
    }


def finished_of(week: Week) -> int:
    return sum(1 for view in week.guard.operations() if isinstance(view, RecordView) and view.record.terminal)


def test_the_file_of_a_week_stays_as_large_as_a_days_worth(tmp_path: Path) -> None:
    """P6: a SQLite file grows to what retention keeps, and no further than what is unresolved needs."""
    path = tmp_path / "week.db"

    def on_disk(clock: VirtualClock) -> Store:
        return SqliteStore(path, clock=clock)

    week = Week(on_disk, seed=3)
    sizes: list[int] = []
    for hour in range(7 * 24):
        week.hour() if hour % 4 == 0 else week.clock.advance(HOUR)
        if hour % 24 == 23:
            sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    unresolved: list[Any] = list(week.guard.operations(unresolved=True))
    print(sizes, len(unresolved))
    assert sizes[-1] <= 1.2 * sizes[2] + 3000 * len(unresolved)
    week.guard.close()
