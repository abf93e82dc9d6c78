"""One run of the demo: the same storm over the bare service and over the guarded one, and what became of the orders."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from notwice.demo.audit import Accounts, Evidence, Standing, account
from notwice.demo.journal import Journal
from notwice.demo.orders import Kill, Order, draw_kills, draw_orders
from notwice.demo.reconcile import Reconciler
from notwice.demo.sides import Killer, Side
from notwice.demo.storm import Storm

SETTLE_S_MAX = 20

Show = Callable[[Journal], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one seed stands for."""

    seed: int
    orders: tuple[Order, ...]
    kills: tuple[Kill, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one side."""

    accounts: Accounts
    journal: Journal
    resolved: int = 0
    released: int = 0
    unresolved: int = 0

    @property
    def held(self) -> int:
        """How often an operation had to be decided by what the ledger says, or still has to be."""
        return self.resolved + self.released + self.unresolved


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides after the same storm."""

    plan: Plan
    bare: Outcome
    guarded: Outcome
    took_s: float = field(compare=False)

    @property
    def sound(self) -> bool:
        """Whether the guarded side has no charge too many and none too few."""
        return self.guarded.accounts.sound

    @property
    def complete(self) -> bool:
        """Whether each guarded order came to its end."""
        return self.guarded.accounts.complete and not self.guarded.unresolved


def draw_plan(seed: int, *, orders: int, kills: int) -> Plan:
    """The storm that a seed stands for."""
    return Plan(seed, tuple(draw_orders(orders, seed=seed)), tuple(draw_kills(kills, orders, seed=seed)))


def run_bare(side: Side, plan: Plan, show: Show) -> Outcome:
    """The storm over the service alone."""
    journal = _weather(side, plan, show)
    return Outcome(account(Evidence(plan.orders, side.ledger(), journal.receipts)), journal)


def run_guarded(side: Side, plan: Plan, show: Show, *, reconciler: Reconciler) -> Outcome:
    """The storm over the gateway, while what the kills leave open is reconciled."""

    def tick(journal: Journal) -> None:
        reconciler.round()
        show(journal)

    journal = _weather(side, plan, tick)
    _settle(reconciler)
    evidence = Evidence(plan.orders, side.ledger(), journal.receipts, reconciler.standings())
    return Outcome(
        account(evidence),
        journal,
        resolved=reconciler.resolved,
        released=reconciler.released,
        unresolved=reconciler.left(),
    )


def _weather(side: Side, plan: Plan, show: Show) -> Journal:
    journal = Journal()
    storm = Storm(plan.orders, side.port, journal)
    with ThreadPoolExecutor(1) as background:
        killing = background.submit(Killer(side, plan.kills, journal).run)

        def tick() -> None:
            if killing.done():
                killing.result()  # what went wrong there ends the storm
            show(journal)

        try:
            storm.run(tick)
        finally:
            journal.close()
        killing.result()
    return journal


def _settle(reconciler: Reconciler) -> None:
    """Go on until nothing is unresolved: what a killed gateway was at work on is known as such after one lease."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while _is_open(reconciler) and time.monotonic() < deadline:
        time.sleep(0.2)
        reconciler.round()


def _is_open(reconciler: Reconciler) -> bool:
    return Standing.PENDING in reconciler.standings().values()
