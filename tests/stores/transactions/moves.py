"""What the tests do with operations on the caller's transactions."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from notwice import Guard, Operation, Policy
from notwice.model import RecordView
from tests.stores.transactions.ledgers import Ledger

ATOMIC = Policy(atomic=True)
BRIEF = Policy(atomic=True, lease=0.05)
WAIT_S = 20


class RolledBack(Exception):
    """Raised to leave a transaction."""


class Crash(Exception):
    """Raised in a handler."""


def begun(guard: Guard, key: str, **options: Any) -> Operation:
    outcome = guard.begin("s", key, **options)
    assert isinstance(outcome, Operation), outcome
    return outcome


def view_of(guard: Guard, key: str) -> RecordView:
    view = guard.lookup("s", key)
    assert view is not None
    return view


def pay(ledger: Ledger, operation: Operation) -> None:
    """Commit one row together with the operation's result."""
    with ledger.transaction() as transaction:
        ledger.insert(transaction, operation.key)
        operation.complete("done", transaction=transaction)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a server's clock, or another connection, brings about."""
    pause = threading.Event()
    for _ in range(WAIT_S * 100):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("it did not come about")


def refused_there(guard: Guard, operation: Operation, connection: Any, sentence: str) -> None:
    """Whether nothing can be committed together on a connection, and it is said why; it is closed then."""
    with closing(connection):
        with pytest.raises(ValueError, match=sentence):
            operation.complete("done", transaction=connection)
        with pytest.raises(ValueError, match=sentence):
            guard.begin("s", "new", transaction=connection)


def completed_and_undone(ledger: Ledger, operation: Operation, transaction: Any) -> None:
    """Complete it in a nested block that is then rolled back."""
    with suppress(RolledBack), ledger.nested(transaction):
        operation.complete("undone", transaction=transaction)
        raise RolledBack
