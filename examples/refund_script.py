"""Refunds from a file, safe to stop and to start again: python refund_script.py refunds.csv.

Each line is `order,amount`. Kill it anywhere: the next run replays what is done, asks the provider about what was left
open, and goes on with the rest.
"""

import csv
import json
import sys
from pathlib import Path

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    Guard,
    Operation,
    OperationInProgress,
    OperationUnresolved,
    Policy,
    current_operation,
    reconcile,
)

PROVIDER = Path("provider.json")  # stands in for a payment provider's books


def books() -> dict[str, int]:
    """Give what the provider has booked, by the key that it was called with."""
    return json.loads(PROVIDER.read_text()) if PROVIDER.exists() else {}


def pay_back(amount: int, key: str) -> str:
    """Move the money. This provider does not de-duplicate: it books whatever it is told."""
    PROVIDER.write_text(json.dumps({**books(), key: amount}))
    return f"paid {amount}"


def ask_provider(operation: Operation) -> object:
    """Say what became of a refund that was left open: the provider knows it by its downstream key."""
    try:
        booked = books()
    except (OSError, ValueError):
        return UNKNOWN  # the provider can't be asked: it stays as it is
    amount = booked.get(operation.downstream_key("refund"))
    return NOT_APPLIED if amount is None else Applied(f"paid {amount}")


def refund(guard: Guard, order: str, amount: int) -> str:
    """Pay one order back, once."""

    def effect() -> str:
        return pay_back(amount, current_operation().downstream_key("refund"))

    try:
        done = guard.call(effect, scope=("refund", order), key="full", request={"amount": amount})
    except OperationInProgress:
        return "another run is at it"
    except OperationUnresolved as error:
        return f"unresolved, look it up: notwice show {error.operation}"
    return f"{done.result}, as before" if done.replayed else str(done.result)


def main(path: str) -> None:
    """Pay back what the file says."""
    policy = Policy(recovery=reconcile(ask_provider), lease=5)  # short, to try it; the default is 300 s
    with Guard.open("sqlite:///refunds.db", policy=policy) as guard, Path(path).open(newline="") as file:
        for order, amount in csv.reader(file):
            print(f"{order}: {refund(guard, order, int(amount))}")


if __name__ == "__main__":
    main(sys.argv[1])
