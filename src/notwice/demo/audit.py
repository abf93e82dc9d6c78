"""The accounting: what was meant, what the clients were told, and what the ledger says happened.

Pure: it looks at the three lists and at nothing else, so that a made-up ledger can test it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from notwice.demo.orders import Order
from notwice.demo.service import Charge

Name = tuple[str, str]


class Standing(StrEnum):
    """Where the guard's record of an order stands when the storm is over."""

    ABSENT = "absent"  # there is none, or it is free to run: a repeat would charge
    PENDING = "pending"  # running or unresolved: somebody still has to say what became of it
    FINISHED = "finished"  # every repeat gets the stored answer, nobody will charge any more


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one side when its storm is over."""

    orders: Sequence[Order]
    ledger: Sequence[Charge]
    receipts: Mapping[Name, set[bytes]]  # the different success bodies that an order's clients were given
    standings: Mapping[Name, Standing] = field(default_factory=dict[Name, Standing])


@dataclass(frozen=True, slots=True)
class Accounts:
    """What became of the orders of one side."""

    intended: int
    charged: int  # rows in the ledger
    double: int  # rows beyond the first with an order's own amount
    other_amount: int  # rows with an amount that was never the order's, or of no order at all
    lost: int  # not in the ledger, though the client was told success or nobody will charge it any more
    pending: int  # not in the ledger, and the guard says that this is not known yet
    not_charged: int  # not in the ledger, nobody was told otherwise, and a repeat would charge it
    contradicted: int  # orders whose clients were given different receipts
    times: tuple[int, ...]  # for each order, how often it was charged; a lost one has -1

    @property
    def sound(self) -> bool:
        """Whether no money moved that was not meant to, and none that was promised is missing."""
        return not (self.double or self.other_amount or self.lost or self.contradicted)

    @property
    def complete(self) -> bool:
        """Whether each order came to its end."""
        return not (self.pending or self.not_charged)


def account(evidence: Evidence) -> Accounts:
    """Compare what was meant with what happened."""
    right = _rows_with_the_right_amount(evidence)
    missing = [order for order in evidence.orders if not right[order.name]]
    lost = {order.name for order in missing if _is_lost(order, evidence)}
    pending = {order.name for order in missing if _standing(order, evidence) is Standing.PENDING} - lost
    return Accounts(
        intended=len(evidence.orders),
        charged=len(evidence.ledger),
        double=sum(count - 1 for count in right.values() if count > 1),
        other_amount=len(evidence.ledger) - right.total(),
        lost=len(lost),
        pending=len(pending),
        not_charged=len(missing) - len(lost) - len(pending),
        contradicted=sum(len(bodies) > 1 for bodies in evidence.receipts.values()),
        times=tuple(-1 if order.name in lost else right[order.name] for order in evidence.orders),
    )


def _rows_with_the_right_amount(evidence: Evidence) -> Counter[Name]:
    amounts = {order.name: order.amount for order in evidence.orders}
    names = (((charge.account, charge.reference), charge.amount) for charge in evidence.ledger)
    return Counter(name for name, amount in names if amounts.get(name) == amount)


def _is_lost(order: Order, evidence: Evidence) -> bool:
    told = bool(evidence.receipts.get(order.name))
    return told or _standing(order, evidence) is Standing.FINISHED


def _standing(order: Order, evidence: Evidence) -> Standing:
    return evidence.standings.get(order.name, Standing.ABSENT)
