"""The search for an order that explains what callers of a store saw."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest

from notwice.model import Get, Reply, Swap, Unreadable
from notwice.testing.conformance.records import new_record
from notwice.testing.linearizable import UNKNOWN, Seen, seen, unexplained

A, B, C = b"a", b"b", b"c"


def insert(called: int, replied: int, writes: bytes, *, found: bytes | None = None) -> Seen:
    """An insert that won, unless it found another."""
    return Seen(called, replied, writes, None, found is None, found or writes)


def swap(called: int, replied: int, writes: bytes, expects: bytes, *, found: bytes | None = None) -> Seen:
    return Seen(called, replied, writes, expects, found is None, found or writes)


def get(called: int, replied: int, found: bytes | None) -> Seen:
    return Seen(called, replied, None, None, won=False, found=found)


EXPLAINED = {
    "nothing": [],
    "one after the other": [insert(1, 2, A), swap(3, 4, B, A), get(5, 6, B)],
    "two at once, of which one wins": [insert(1, 5, A, found=B), insert(2, 4, B)],
    "a get beside a write sees either": [insert(1, 2, A), swap(3, 9, B, A), get(4, 5, A), get(6, 7, B)],
    "an unknown write that happened": [insert(1, UNKNOWN, A), get(2, 3, A)],
    "an unknown write that never happened": [insert(1, UNKNOWN, A), get(2, 3, None)],
    "an unknown write that happened late": [insert(1, UNKNOWN, A), get(2, 3, None), get(4, 5, A)],
    "an unknown get": [get(1, UNKNOWN, None), insert(2, 3, A)],
    "replies in the opposite order": [insert(1, 9, A), swap(2, 8, B, A), swap(3, 7, C, B), get(4, 6, C)],
    "a call at the moment of a reply": [insert(1, 5, A), get(5, 6, None)],
}
UNEXPLAINED = {
    "a confirmed write is lost": [insert(1, 2, A), get(3, 4, None)],
    "a write is undone": [insert(1, 2, A), swap(3, 4, B, A), get(5, 6, A)],
    "two winners": [insert(1, 4, A), insert(2, 3, B)],
    "two swaps of one etag": [insert(1, 2, A), swap(3, 6, B, A), swap(4, 5, C, A)],
    "a swap past the fence": [insert(1, 2, A), swap(3, 4, B, A), swap(5, 6, C, A)],
    "a winner told that it lost": [insert(1, 2, A, found=A)],
    "a get of what nobody wrote": [get(1, 2, A)],
    "a get that goes back": [insert(1, 2, A), swap(3, 9, B, A), get(4, 5, B), get(6, 7, A)],
    "an unknown write cannot happen twice": [insert(1, UNKNOWN, A), get(2, 3, A), get(4, 5, None)],
    "found before it was called": [get(1, 2, A), insert(3, 4, A)],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_what_one_order_explains_is_accepted(name: str) -> None:
    """Operations that overlap may have happened either way; unknown ones at any time, or never."""
    assert unexplained(EXPLAINED[name]) == ()


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_what_no_order_explains_is_found(name: str) -> None:
    """What contradicts every order is reported, with operations among it that can't be placed."""
    left = unexplained(UNEXPLAINED[name])
    assert left
    assert set(left) <= set(UNEXPLAINED[name])


def explained_by_trying_all(operations: Sequence[Seen]) -> bool:
    """The same by trying every order of every selection: slow, and beyond doubt."""
    known = [each for each in operations if each.replied_ns != UNKNOWN]
    unknown = [each for each in operations if each.replied_ns == UNKNOWN and each.writes is not None]
    chosen = ([each for bit, each in enumerate(unknown) if choice >> bit & 1] for choice in range(1 << len(unknown)))
    return any(in_order(order) for some in chosen for order in permutations([*known, *some]))


def in_order(order: Sequence[Seen]) -> bool:
    for place, later in enumerate(order):
        if any(later.replied_ns != UNKNOWN and later.replied_ns < each.called_ns for each in order[:place]):
            return False
    stored: bytes | None = None
    for each in order:
        won = each.writes is not None and stored == each.expects
        stored = each.writes if won else stored
        if each.replied_ns != UNKNOWN and (each.won, each.found) != (won, stored):
            return False
    return True


def random_history(chance: random.Random, clients: int, length: int, *, lies: float) -> list[Seen]:
    """What clients of a true store would see, but that some replies are lost and some are false."""
    stored: bytes | None = None
    under_way: list[Seen] = []
    done: list[Seen] = []
    for now in range(1, 3 * length):
        if under_way and (len(under_way) == clients or chance.random() < 0.5):
            each = under_way.pop(chance.randrange(len(under_way)))
            done.append(each if chance.random() < 0.2 else each._replace(replied_ns=now))
        elif len(done) + len(under_way) < length:
            writes = chance.choice([None, now.to_bytes(4, "big")])
            expects = chance.choice([None, stored, A]) if writes else None
            won = writes is not None and stored == expects
            stored = writes if won else stored
            told = (not won, A) if chance.random() < lies else (won, stored)
            under_way.append(Seen(now, UNKNOWN, writes, expects, *told))
    return done


def test_it_agrees_with_trying_all_orders() -> None:
    """On short histories, true and false ones, the search says what the trial of all orders says."""
    verdicts = Counter[bool]()
    for seed in range(400):
        chance = random.Random(seed)
        history = random_history(chance, 3, chance.randrange(2, 7), lies=chance.choice([0, 0.15]))
        verdict = unexplained(history) == ()
        assert verdict == explained_by_trying_all(history), seed
        verdicts[verdict] += 1
    assert min(verdicts.values()) > 50


def test_long_histories_take_no_more_than_their_length() -> None:
    """Some thousands of operations of eight clients on one record are explained in time proportional to them."""
    history = random_history(random.Random(1), 8, 4_000, lies=0)
    assert len(history) > 3_000
    assert unexplained(history) == ()


def test_operations_of_a_batch_are_seen_one_by_one() -> None:
    """What a caller saw is made of the operation and its reply; without a reply its outcome is unknown."""
    record = new_record()
    name = (record.namespace, record.id)
    swapped = Swap(record, b"before")
    assert seen(swapped, Reply(True, record), called_ns=1, replied_ns=2) == (
        name,
        Seen(1, 2, record.etag, b"before", won=True, found=record.etag),
    )
    assert seen(swapped, None, called_ns=1) == (name, Seen(1, UNKNOWN, record.etag, b"before"))
    assert seen(Get(*name), Reply(False, Unreadable(*name, "damaged")), called_ns=1, replied_ns=2)[1].found is None
