"""What the storm will do, drawn from a seed before it starts: the orders, their clients' misbehaviour, the kills."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import NamedTuple

ACCOUNTS = ("north", "south", "east", "west")

# What part of the orders meets each trouble; at least one order meets each.
IMPATIENT = 0.30  # the client times out before the charge is done, and repeats
TWINS = 0.20  # two clients send the same key at once
REPEATED = 0.20  # the client has its answer, forgets it, and sends the same again
REUSED = 0.10  # the client sends another amount under the same key

PATIENCE_MS = 8_000
IMPATIENCE_MS = (30, 90)


@dataclass(frozen=True, slots=True)
class Order:
    """One charge that somebody means to happen once, and the ways in which its clients put that at risk."""

    account: str
    key: str
    amount: int
    patience_ms: int = PATIENCE_MS  # of the first try; all others wait for PATIENCE_MS
    twins: bool = False
    repeats: int = 0
    other_amount: int | None = None

    @property
    def name(self) -> tuple[str, str]:
        """Account and key: what the ledger and the guard know the order by."""
        return self.account, self.key


class Kill(NamedTuple):
    """One SIGKILL: at whom, after how many finished orders, and how long after that moment."""

    service: bool
    gateway: bool
    after: int
    delay_ms: int


def draw_orders(count: int, *, seed: int) -> list[Order]:
    """The orders of a storm. Keys repeat from account to account, as those of strangers do."""
    drawn = random.Random(seed)  # noqa: S311 - a storm is drawn, not a secret
    orders = [_order(number, drawn) for number in range(count)]
    for index in _some(IMPATIENT, count, drawn):
        orders[index] = replace(orders[index], patience_ms=drawn.randint(*IMPATIENCE_MS))
    for index in _some(TWINS, count, drawn):
        orders[index] = replace(orders[index], twins=True)
    for index in _some(REPEATED, count, drawn):
        orders[index] = replace(orders[index], repeats=drawn.randint(1, 2))
    for index in _some(REUSED, count, drawn):
        orders[index] = replace(orders[index], other_amount=orders[index].amount * 10)
    return orders


def _order(number: int, drawn: random.Random) -> Order:
    account = ACCOUNTS[number % len(ACCOUNTS)]
    return Order(account, key=f"order-{number // len(ACCOUNTS) + 1:04}", amount=drawn.randint(500, 20_000))


def _some(share: float, count: int, drawn: random.Random) -> list[int]:
    return drawn.sample(range(count), max(1, round(share * count)))


def draw_kills(count: int, orders: int, *, seed: int) -> list[Kill]:
    """The kills of a storm, spread over it: in turn the service, the gateway, and both at once."""
    drawn = random.Random(seed)  # noqa: S311 - a storm is drawn, not a secret
    return [
        Kill(
            service=number % 3 != 1,
            gateway=number % 3 != 0,
            after=(number + 1) * orders // (count + 2),
            delay_ms=drawn.randint(0, 60),
        )
        for number in range(count)
    ]
