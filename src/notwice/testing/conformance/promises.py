"""The promises of `notwice.stores.port.Store`, one case each, in its words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from notwice.errors import RecordTooLarge
from notwice.model import (
    AGE_UNKNOWN_MS,
    Get,
    Insert,
    Op,
    Query,
    Record,
    RecordView,
    Released,
    Reply,
    Result,
    ResultKind,
    State,
    Swap,
    Unreadable,
)
from notwice.stores.port import Store
from notwice.testing.conformance import records
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.records import (
    at_once,
    finished,
    followed,
    full_record,
    get,
    insert,
    new_etag,
    new_record,
    one,
    sparse_record,
    stored,
    swap,
    unstamped,
)

RIVALS = 8
ROUNDS = 6
LOOKALIKES = (
    "Ab",
    "aB",
    "ab",
    "Ab ",
    " Ab",
    "straße",
    "strasse",
    "caf\u00e9",
    "cafe\u0301",
    "%",
    "_",
    "日本",
    "🔑",
    "a'b\"c\\d",
)


class PromiseCases:
    """One case for each promise of a store."""

    def test_insert(self, store: Store) -> None:
        """An insert stores the record if nothing is there, else changes nothing and gives what is there."""
        first, second = new_record(), new_record(attempt=9)
        won = one(store, Insert(first))
        lost = one(store, Insert(second))
        assert won.won
        assert not lost.won
        assert won.record == lost.record == stored(store, first)
        assert unstamped(stored(store, first)) == first

    def test_swap(self, store: Store) -> None:
        """A swap acts only on a record with exactly the expected etag, else changes nothing and gives what is there."""
        first = new_record(etag=b"\xffetag A etag A\x00\x00")
        absent = swap(store, followed(first), first.etag)
        assert (absent.won, absent.record) == (False, None)
        insert(store, first)
        wrong = [
            first.etag[:15],
            first.etag[:8],
            first.etag[:8] + bytes(8),
            first.etag.lower(),
            first.etag + b"\x00",
            b"",
        ]
        for etag in wrong:
            refused = swap(store, followed(first, attempt=2), etag)
            assert not refused.won, f"{etag!r} passed for {first.etag!r}"
            assert refused.record == stored(store, first)
        assert unstamped(stored(store, first)) == first
        second = followed(first, attempt=2)
        assert swap(store, second, first.etag).won
        assert not swap(store, followed(first), first.etag).won, "an etag that was replaced is no longer expected"
        assert unstamped(stored(store, first)) == second

    def test_get(self, store: Store, engine: Engine) -> None:
        """A get gives what is there, as the last acknowledged write left it."""
        assert get(store, new_record()).record is None
        looks = (full_record(), sparse_record(), full_record(), new_record(fingerprint=None, created_ms=1))
        for number, first in enumerate(looks):
            last = first._replace(id=f"idem_{number}")
            insert(store, last)
            assert stored(store, last) == last
            for look in looks:
                following = followed(look, id=last.id)
                assert swap(store, following, last.etag).won
                assert stored(store, last) == following, "a swap sets and clears every field"
                last = following
            with engine.handles(2) as (_, other):
                assert "reopen" in engine.cannot or stored(other, last) == last

    def test_rivals(self, engine: Engine) -> None:
        """Of any number of rivals for one write, one wins."""
        with engine.handles(RIVALS) as stores:
            for number in range(ROUNDS):
                claims = [new_record(f"race-{number}", attempt=rival + 1) for rival in range(RIVALS)]
                first = _winner(_race(stores, [Insert(claim) for claim in claims]), claims)
                heirs = [followed(first, attempt=rival + 100) for rival in range(RIVALS)]
                last = _winner(_race(stores, [Swap(heir, first.etag) for heir in heirs]), heirs)
                assert unstamped(stored(stores[0], first)) == last

    def test_durability(self, store: Store, engine: Engine) -> None:
        """A reply is given only once the write is as durable as the store can make it."""
        engine.needs("reopen")
        first = new_record()
        store.apply([Insert(first), Insert(new_record("b")), Insert(new_record("c"))])
        with engine.opened() as other:
            assert [unstamped(stored(other, new_record(name))).key for name in "abc"] == ["a", "b", "c"]
        second = followed(first)
        swap(store, second, first.etag)
        with engine.opened() as other:
            assert unstamped(stored(other, first)) == second

    def test_failure(self, engine: Engine) -> None:
        """A write that fails raises, and may or may not have been applied; a refusal is no failure."""
        first = new_record()
        store = engine.open()
        insert(store, first)
        assert [one(store, op).won for op in (Insert(new_record()), Swap(followed(first), new_etag()))] == [
            False,
            False,
        ]
        store.close()
        for op in (Insert(new_record("b")), Swap(followed(first), first.etag), Get(first.namespace, first.id)):
            with pytest.raises(Exception):  # noqa: B017, PT011 - which error it is, the engine decides
                store.apply([op])

    def test_batch(self, store: Store) -> None:
        """Each operation of a batch succeeds or fails alone, and replies come in the order of the batch."""
        a, b, c, d, e = (new_record(name) for name in "abcde")
        for record in (a, b, c):
            insert(store, record)
        next_b, next_c = followed(b), followed(c)
        foreign = new_record("c", namespace="another")
        batch: list[Op] = [
            Swap(followed(a), new_etag()),
            Swap(next_b, b.etag),
            Insert(foreign),
            Insert(d),
            Swap(followed(e), e.etag),
            Swap(next_c, c.etag),
            Insert(new_record("f", id=a.id, namespace="another")),
        ]
        replies = store.apply(batch)
        assert [reply.won for reply in replies] == [False, True, True, True, False, True, True]
        expected = [a, next_b, foreign, d, None, next_c]
        assert [reply.record and _readable(reply).etag for reply in replies[:6]] == [
            each and each.etag for each in expected
        ]
        again = store.apply([Insert(e), Get(d.namespace, d.id), Insert(new_record("b"))])
        assert [again[0].won, again[2].won] == [True, False]
        assert [_readable(reply).etag for reply in again] == [e.etag, d.etag, next_b.etag]
        assert list(store.apply([])) == []

    def test_double_name(self, store: Store) -> None:
        """A batch that names an id twice is refused with `ValueError` before anything is written."""
        first, other = new_record(), new_record("b")
        pairs: list[list[Op]] = [[Insert(first), Insert(new_record())], [Insert(first), Get(first.namespace, first.id)]]
        for pair in pairs:
            with pytest.raises(ValueError, match=r"\w"):
                store.apply([Insert(other), *pair])
            assert get(store, first).record is None
            assert get(store, other).record is None
        assert all(reply.won for reply in store.apply([Insert(first), Insert(first._replace(namespace="another"))]))

    def test_stamps(self, store: Store, engine: Engine) -> None:
        """Each write is stamped with the store's time; a ``created_ms`` of 0 is replaced by that time."""
        first = new_record()
        reply = insert(store, first)
        written_ms = reply.written_ms
        assert written_ms == reply.now_ms
        assert _readable(reply).created_ms == written_ms
        assert reply.age_ms == 0
        engine.advance(0.05)
        later = get(store, first)
        assert (later.written_ms, later.record) == (written_ms, reply.record)
        assert later.now_ms - written_ms >= 50
        assert later.age_ms >= 50
        kept = swap(store, followed(_readable(reply)), first.etag)
        assert kept.written_ms == kept.now_ms >= later.now_ms
        assert (_readable(kept).created_ms, kept.age_ms) == (written_ms, 0)
        renewed = swap(store, followed(first), _readable(kept).etag)
        assert _readable(renewed).created_ms == renewed.written_ms
        if engine.clock is not None:
            assert (written_ms + 50, later.age_ms) == (later.now_ms, 50) == (engine.clock.wall_ms(), 50)

    def test_expiry(self, store: Store, engine: Engine) -> None:
        """Each write sets or clears the engine's own expiry, by ``Record.expires_after_ms``."""
        short_ms = 1_000
        freed, kept, ended = (new_record(name) for name in ("freed", "kept", "ended"))
        for record in (freed, kept):
            insert(store, record)
            done = finished(record.key, retention_ms=short_ms)
            swap(store, done, record.etag)
            cleared = followed(done, state=State.ACCEPTED) if record is freed else followed(done, terms=records.TERMS)
            assert swap(store, cleared, done.etag).won
        insert(store, ended)
        swap(store, finished("ended", retention_ms=short_ms, etag=ended.etag), ended.etag)
        engine.advance(short_ms / 1000 * 1.5)
        store.purge(100)
        assert stored(store, freed).state is State.ACCEPTED
        assert stored(store, kept).state is State.COMPLETED
        assert get(store, ended).record is None

    def test_purge(self, engine: Engine) -> None:
        """Only records whose ``expires_after_ms`` has passed are purged, each by a condition in its own statement."""
        with engine.handles(2) as (store, other):
            gone, stays = _expiring(store)
            engine.advance(0.1)
            while store.purge(3):
                pass
            assert {record.id for record in gone if get(store, record).record is not None} == set()
            assert {record.id for record in stays if get(store, record).record is None} == set()
            assert store.purge(100) == 0
            for number in range(ROUNDS):
                _purge_against_claims(engine, (store, other), number)

    def test_unreadable(self, store: Store, engine: Engine) -> None:
        """A record that can't be decoded is given as `Unreadable`, never as absent, and never overwritten or purged."""
        open_one, done = new_record("open"), finished("done", retention_ms=1)
        for record in (open_one, done):
            insert(store, record)
            engine.damage_record(store, record.namespace, record.id)
        engine.advance(0.1)
        assert store.purge(100) == 0
        for record in (open_one, done):
            for op in (
                Get(record.namespace, record.id),
                Insert(followed(record)),
                Swap(followed(record), record.etag),
                Swap(followed(record), b""),
            ):
                reply = one(store, op)
                assert not isinstance(reply.record, Record), f"{op} was given a record"
                assert reply.record is not None, f"{op} was told that nothing is there"
                assert reply.record[:2] == (record.namespace, record.id)
                assert not reply.won
        broken = [item.id for item in store.scan(Query()).items if isinstance(item, Unreadable)]
        assert sorted(broken) == [done.id, open_one.id]

    def test_too_large(self, store: Store, engine: Engine) -> None:
        """A record that is too large for the engine is refused with `RecordTooLarge`, and nothing is written."""
        if engine.body_bytes_max is None:
            pytest.skip("this engine has no limit")
        huge = Result(ResultKind.HTTP, bytes(4 * engine.body_bytes_max), 200)
        first, other = new_record(), new_record("b")
        insert(store, first)
        for op in (
            Swap(finished(etag=new_etag())._replace(result=huge), first.etag),
            Insert(other._replace(result=huge)),
        ):
            with pytest.raises(RecordTooLarge):
                store.apply([op])
        assert unstamped(stored(store, first)) == first
        assert get(store, other).record is None

    def test_bytes(self, store: Store, engine: Engine) -> None:
        """Namespaces, ids, scopes, keys and bodies are kept byte for byte, whatever their case, blanks or alphabet."""
        named = [new_record(namespace=text, scope=text, key=text, error=text, created_ms=1) for text in LOOKALIKES]
        named += [new_record(text, created_ms=1) for text in LOOKALIKES]
        for record in named:
            insert(store, record)
        for record in named:
            assert stored(store, record) == record
        every = bytes(range(256))
        bodies = [None, b"", b"\x00", every, every * 4, every * 256 + b"end", every * 4_096 + b"end"]
        for number, body in enumerate(bodies):
            if engine.body_bytes_max is not None and body is not None and len(body) > engine.body_bytes_max:
                continue
            result = Result(ResultKind.HTTP, body, 200, (("x", "é\t "), ("X", "")))
            record = new_record(f"body-{number}", result=result, progress=(("é", body or b""),), created_ms=1)
            insert(store, record)
            same = stored(store, record) == record
            assert same, f"the body of {len(body or b'')} bytes came back as another"  # to show how takes minutes


class ClockCases:
    """What a store makes of the clocks of its host; only for stores that take a virtual clock."""

    def test_age_after_a_step(self, store: Store, engine: Engine) -> None:
        """No step of the wall clock, forward or back, changes the age of a record."""
        clock = engine.virtual_clock()
        record = new_record()
        insert(store, record)
        clock.advance(7)
        for seconds in (120, -3_600, 3_480):
            clock.step_wall(seconds)
            assert get(store, record).age_ms == 7_000
            assert get(store, record).now_ms == clock.wall_ms()

    def test_age_after_a_boot(self, engine: Engine) -> None:
        """A record that was written under another boot of the host is as old as can be."""
        clock = engine.virtual_clock()
        engine.needs("reopen")
        record = new_record()
        with engine.opened() as store:
            insert(store, record)
        clock.advance(7_200)
        clock.reboot()
        clock.advance(7_300)
        with engine.opened() as store:
            assert get(store, record).age_ms == AGE_UNKNOWN_MS
            assert [
                view.age_ms for view in store.scan(Query(unresolved=True)).items if isinstance(view, RecordView)
            ] == [AGE_UNKNOWN_MS]
            later = swap(store, followed(record), record.etag)
            clock.advance(1)
            assert (later.age_ms, get(store, record).age_ms) == (0, 1_000)


def _race(stores: Sequence[Store], ops: Sequence[Op]) -> Sequence[Reply]:
    """Each operation by a store and a thread of its own, all at once."""
    return at_once(len(ops), lambda rival: one(stores[rival], ops[rival]))


def _purge_against_claims(engine: Engine, stores: Sequence[Store], number: int) -> None:
    """Purge and claim the same expired records at once: what is claimed stays."""
    expired = [finished(f"race-{number}-{which}", retention_ms=1) for which in range(8)]
    stores[0].apply([Insert(record) for record in expired])
    engine.advance(0.05)
    claims = [new_record(record.key) for record in expired]

    def purge_or_claim(rival: int) -> list[Reply]:
        if rival == number % 2:  # now the one sets off first, now the other
            return [swap(stores[1], claim, record.etag) for claim, record in zip(claims, expired, strict=True)]
        while stores[0].purge(2):
            pass
        return []

    replies = [reply for found in at_once(2, purge_or_claim) for reply in found]
    for claim, reply in zip(claims, replies, strict=True):
        there = get(stores[0], claim).record
        assert (there is not None) is reply.won, "a record that was claimed anew is not purged"


def _winner(replies: Sequence[Reply], claims: Sequence[Record]) -> Record:
    """The one claim that won; all replies show it."""
    won = [claim for claim, reply in zip(claims, replies, strict=True) if reply.won]
    assert len(won) == 1, f"{len(won)} of {len(claims)} rivals won"
    assert {unstamped(_readable(reply)).etag for reply in replies} == {won[0].etag}
    return won[0]


def _readable(reply: Reply) -> Record:
    assert isinstance(reply.record, Record)
    return reply.record


def _expiring(store: Store) -> tuple[list[Record], list[Record]]:
    """Store one record of each kind; give those that a short while later may be purged, and those that may not."""
    gone: list[Record] = []
    stays: list[Record] = []
    kinds = itertools.product(State, Released, (1, 3_600_000, None))
    for number, (state, released, retention_ms) in enumerate(kinds):
        terms = records.TERMS._replace(retention_ms=retention_ms, lease_ms=retention_ms or 300_000)
        record = new_record(f"kind-{number}", state=state, released=released, terms=terms)
        insert(store, record)
        (gone if record.expires_after_ms == 1 else stays).append(record)
    return gone, stays
