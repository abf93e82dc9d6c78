"""What must hold at each isolation level of a server: what others commit meanwhile, and what is set for the caller."""

from collections.abc import Callable
from typing import Any

import pytest

from notwice import Guard, InProgress, Replay
from notwice.errors import ContentionError
from tests.stores.transactions.ledgers import Ledger
from tests.stores.transactions.moves import ATOMIC, begun, pay

SNAPSHOT = "SELECT count(*) FROM business"


class AtEachLevel:
    """The scenarios; a subclass has the fixture ``ledger`` for each ``level``."""

    def test_a_rival_comes_between_reading_and_writing(
        self, ledger: Ledger, guard: Guard, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C14: a key that is claimed in the very moment between is answered, too, and the transaction goes on."""
        rivals: list[Callable[[], object]] = [lambda: begun(guard, key)]
        store: Any = type(guard._runtime.store._store)  # type: ignore[attr-defined]  # the one behind what shares trips
        apply = store.apply

        def read_and_wait(store: Any, ops: Any) -> Any:
            replies = apply(store, ops)
            if type(ops[0]).__name__ == "Get" and rivals:
                rivals.pop()()
            return replies

        monkeypatch.setattr(store, "apply", read_and_wait)
        with ledger.transaction() as transaction:
            ledger.execute(transaction, SNAPSHOT)
            ledger.insert(transaction, key)
            assert isinstance(guard.begin("s", key, transaction=transaction), InProgress)
            assert ledger.execute(transaction, "SELECT 1") == [(1,)]
        assert rivals == []
        assert ledger.count(key) == 1

    def test_begun_after_its_transaction(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """C14, P5: what was begun after the snapshot is completed there, or, unseen, in the next one."""
        with ledger.transaction() as transaction:
            ledger.execute(transaction, SNAPSHOT)
            operation = begun(guard, key, policy=ATOMIC)
            try:
                operation.complete("done", transaction=transaction)
            except ContentionError:
                assert not operation.ended
            else:
                ledger.insert(transaction, key)
        with operation:
            if not ledger.count(key):
                pay(ledger, operation)
        assert ledger.count(key) == 1
        assert isinstance(guard.begin("s", key), Replay)

    def test_the_callers_settings_are_as_before(self, ledger: Ledger, guard: Guard, key: str) -> None:
        """The short wait for locks holds for the guard's own statements only, won or refused."""
        tell, ask, answer = ledger.patience
        running = begun(guard, f"{key}1", policy=ATOMIC)
        with ledger.transaction() as transaction:
            ledger.execute(transaction, tell)
            begun(guard, key, transaction=transaction).complete("done")
            guard.begin("s", f"{key}1", transaction=transaction)
            assert ledger.execute(transaction, ask) == [(answer,)]
            with ledger.transaction() as rival:
                begun(guard, f"{key}2", transaction=rival)
                assert isinstance(guard.begin("s", f"{key}2", transaction=transaction), InProgress)
            running.complete("done", transaction=transaction)
            assert ledger.execute(transaction, ask) == [(answer,)]
