"""Rows that somebody's open transaction has locked: the same for every engine with transactions.

An engine's own test is a class with one fixture, `locks`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import pytest

from notwice import Guard, InProgress, Operation, Replay, StoreUnavailable
from notwice.model import Insert, Record, State, Swap
from notwice.stores.port import Store
from notwice.stores.shared import KeyLocked
from notwice.testing.conformance.records import followed, get, insert, new_record, stored, swap


@dataclass(frozen=True)
class Locks:
    """One engine with locks.

    Attributes:
        url: makes the URL of a store that nobody has used yet.
        opened: makes the bare store of a URL, without shared trips.
        held: locks a record of a store meanwhile, by its operation's id.
    """

    url: Callable[[], str]
    opened: Callable[[str], Store]
    held: Callable[[str, str], AbstractContextManager[object]]


class LockCases:
    """Nobody waits for a lock for long, and nobody is told what is not so."""

    @pytest.fixture
    def locks(self) -> Locks:
        raise NotImplementedError("give the class a fixture `locks`")

    def test_a_claim_on_a_locked_row(self, locks: Locks) -> None:
        """T22: a claim on a row that somebody is changing is told that somebody is at work, and may come again."""
        url, record = locks.url(), new_record()
        taken = followed(record, attempt=2)
        with closing(locks.opened(url)) as store:
            insert(store, record)
            with locks.held(url, record.id):
                reply = swap(store, taken, record.etag)
                assert not reply.won
                assert isinstance(reply.record, Record)
                assert reply.record.state is State.IN_PROGRESS
                assert reply.record.etag not in (record.etag, taken.etag)
                assert reply.age_ms == 0
            assert swap(store, taken, record.etag).won

    def test_an_owners_move_on_a_locked_row(self, locks: Locks) -> None:
        """P5, P9: an owner whose row somebody has locked is told that the store was busy, never that it lost it."""
        url = locks.url()
        with Guard.open(url) as guard:
            owned = guard.begin("refund", "k")
            assert isinstance(owned, Operation)
            with locks.held(url, owned.operation):
                with pytest.raises(StoreUnavailable, match="nothing was done"):
                    owned.checkpoint("charged")
                assert isinstance(guard.begin("refund", "k"), InProgress)
            owned.complete("paid")
            assert isinstance(guard.begin("refund", "k"), Replay)

    def test_a_locked_key_in_a_batch(self, locks: Locks) -> None:
        """T22: a batch with a locked key raises that nothing was done, so that it can be split; and nothing was."""
        url, records = locks.url(), [new_record(key) for key in "abc"]
        with closing(locks.opened(url)) as store:
            for record in records:
                insert(store, record)
            with locks.held(url, "idem_b"):
                with pytest.raises(KeyLocked):
                    store.apply([*(Swap(followed(record), record.etag) for record in records), Insert(new_record("d"))])
                assert [stored(store, record).etag for record in records] == [record.etag for record in records]
                assert get(store, new_record("d")).record is None
                assert swap(store, followed(records[0]), records[0].etag).won
