"""Stores whose records lie sealed: the suite on them, and what lies in the bytes."""

import base64
import sqlite3
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from notwice import (
    AsyncGuard,
    Guard,
    NotCompleted,
    Policy,
    Privacy,
    Result,
    ResultKind,
    UnsupportedRecord,
    new_key,
    rerun,
)
from notwice.codec import seal, unseal
from notwice.codec.sealing import INFLATED_BYTES_MAX, PRIVATE
from notwice.model import Get, Query, Record, RecoveryKind, State, Terms, Unreadable
from notwice.stores.batching import Batching
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sealed import AsyncSealedStore, SealedStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.stores.apart import Opener
from tests.stores.test_conformance import MEMORY_CANNOT

KEY, OTHER = new_key("2027-01"), new_key("2027-02")
SEALING = Privacy(keys=[KEY], compress_above_bytes=200)
MARK = "4111111111111111"
TERMS = Terms(300_000, 2_592_000_000, RecoveryKind.HOLD, 72_000_000, 5, 300_000, False)
PLAIN = Record("tenant", "idem_1", "refund:ord_1", "k", State.IN_PROGRESS, b"\0" * 16, None, TERMS)
PRIVATE_PARTS: dict[str, Any] = {
    "progress": (("charge", b"j1"), ("mail", b"")),
    "recovery_point": "charge",
    "result": Result(ResultKind.HTTP, b"body", 201, (("location", "/cards/1"),)),
    "error": "CardError: no",
    "request": b"j1",
}


class TestSealedMemory(StoreCases, GuardCases):
    """P16: the memory store, sealed."""

    @pytest.fixture
    def engine(self) -> Engine:
        clock = VirtualClock()
        return Engine(
            open=lambda: SealedStore(MemoryStore(clock), SEALING), clock=clock, cannot=MEMORY_CANNOT, history_length=2
        )


class TestAsyncSealedMemory(AsyncStoreCases, AsyncGuardCases):
    """P16: the memory store's async face, sealed."""

    @pytest.fixture
    def async_engine(self) -> AsyncEngine:
        clock = VirtualClock()
        return AsyncEngine(
            open=lambda: AsyncSealedStore(AsyncMemoryStore(MemoryStore(clock)), SEALING),
            clock=clock,
            cannot=MEMORY_CANNOT,
            history_length=2,
        )


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("compress_above_bytes", [None, 0])
def test_what_is_private_is_sealed(name: str, compress_above_bytes: int | None) -> None:
    """P15: each private field lies in the box alone, and comes out of it as it went in."""
    record = PLAIN._replace(**{name: PRIVATE_PARTS[name]})
    sealed = seal(record, SEALING.first, compress_above_bytes=compress_above_bytes)
    assert sealed._replace(sealed=b"") == PLAIN
    assert b"idem_1" not in sealed.sealed
    assert unseal(sealed, SEALING.ciphers) == record


def test_nothing_private_nothing_sealed() -> None:
    """A record without anything private is stored as it is: a claim costs what it did."""
    assert SEALING.seal(PLAIN) is PLAIN
    assert Privacy().seal(PLAIN._replace(**PRIVATE_PARTS)) == PLAIN._replace(**PRIVATE_PARTS)


def test_equal_records_are_sealed_differently() -> None:
    """Each box has a nonce of its own: equal records can't be told from the bytes."""
    record = PLAIN._replace(**PRIVATE_PARTS)
    boxes = {SEALING.seal(record).sealed for _ in range(100)}
    assert len(boxes) == 100


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "idem_2"},
        {"namespace": "other"},
        {"state": State.COMPLETED},
        {"etag": b"\1" * 16},
        {"scope": "refund:ord_2"},
        {"attempt": 2},
        {"recovery_point": "mail"},
        {"error": "put in the open"},
        {"sealed": b"e"},
        {"sealed": b"e\xff"},
        {"sealed": b"e\x072027-01"},
        {"sealed": b"e\x072027-01" + b"\0" * 28},
        {"sealed": b"c"},
        {"sealed": b"c\1\0\0\0\1"},
        {"sealed": b"?"},
    ],
    ids=str,
)
def test_a_box_that_was_moved_or_a_record_that_was_changed(changes: dict[str, Any]) -> None:
    """P15: a box opens in its own record only, and shows what was changed outside; it is never taken for absent."""
    sealed = SEALING.seal(PLAIN._replace(**PRIVATE_PARTS))._replace(**changes)
    found = unseal(sealed, SEALING.ciphers)
    assert isinstance(found, Unreadable)
    assert (found.namespace, found.id) == (sealed.namespace, sealed.id)


class Spy(NamedTuple):
    """A cipher that hides nothing, and insists on what it was bound to."""

    name: str = "spy"

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        return len(bound).to_bytes(2, "big") + bound + content

    def decrypt(self, sealed: bytes, bound: bytes) -> bytes:
        size = int.from_bytes(sealed[:2], "big")
        if sealed[2 : 2 + size] != bound:
            raise ValueError("it is bound to something else")
        return sealed[2 + size :]


def test_what_a_box_is_bound_to() -> None:
    """P15: the cipher is told namespace, operation id and key, each with its length: no two records share a binding."""
    names = [("", "idem_1"), ("a", "idem_1"), ("aidem_1", ""), ("", "aidem_1"), ("a", "idem_12")]
    record = PLAIN._replace(error="no")
    bindings = set()
    for namespace, identifier in names:
        named = record._replace(namespace=namespace, id=identifier)
        sealed = seal(named, Spy(), compress_above_bytes=None)
        assert unseal(sealed, {"spy": Spy()}) == named
        size = int.from_bytes(sealed.sealed[5:7], "big")
        bindings.add(sealed.sealed[7 : 7 + size])
        assert isinstance(unseal(sealed._replace(namespace="other"), {"spy": Spy()}), Unreadable)
    assert len(bindings) == len(names)


def test_every_bit_of_a_box_counts() -> None:
    """P15: with any one byte changed a box does not open, or is of a key that is not there; none is read otherwise."""
    sealed = SEALING.seal(PLAIN._replace(**PRIVATE_PARTS))
    for at in range(len(sealed.sealed)):
        box = bytearray(sealed.sealed)
        box[at] ^= 1
        found = unseal(sealed._replace(sealed=bytes(box)), SEALING.ciphers)
        assert isinstance(found, Unreadable) or found.sealed == bytes(box)


def test_compression_is_bounded() -> None:
    """What claims to be larger than the limit, or is larger than it claims, is not inflated."""
    record = PLAIN._replace(result=Result(ResultKind.VALUE, b"j" + b"0" * 100_000))
    sealed = seal(record, None, compress_above_bytes=100)
    assert len(sealed.sealed) < 1000
    assert unseal(sealed, {}) == record
    for size in (0, 99_999, INFLATED_BYTES_MAX + 1, 2**32 - 1):
        box = sealed.sealed[:2] + size.to_bytes(4, "big") + sealed.sealed[6:]
        assert isinstance(unseal(sealed._replace(sealed=box), {}), Unreadable)


def test_a_bomb_fills_no_memory() -> None:
    """P15: a box of some kilobytes that would become many megabytes is given up once it is longer than it says."""
    box = b"c\1" + (1000).to_bytes(4, "big") + zlib.compress(bytes(50 * 2**20))
    assert len(box) < 100_000
    tracemalloc.start()
    try:
        assert isinstance(unseal(PLAIN._replace(sealed=box), {}), Unreadable)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_what_does_not_get_smaller_is_not_compressed() -> None:
    """Random bytes are stored as they are, in the open if there is no key."""
    record = PLAIN._replace(result=Result(ResultKind.VALUE, new_key("x").encode()))
    assert seal(record, None, compress_above_bytes=10**6) == record


def test_key_rotation() -> None:
    """The first key writes, all open; a record of a key that is not there is refused and stays as it is."""
    store = MemoryStore()
    old, both, new = (Guard(store, privacy=Privacy(keys=keys)) for keys in ([KEY], [OTHER, KEY], [OTHER]))
    assert old.run(lambda: "first", scope="s", key="a") == "first"
    assert both.call(lambda: "again", scope="s", key="a").replayed
    both.run(lambda: "second", scope="s", key="b")
    assert new.call(lambda: "again", scope="s", key="b").result == "second"
    for guard in (new, Guard(store)):
        with pytest.raises(UnsupportedRecord, match="2027-01"):
            guard.run(lambda: pytest.fail("ran again"), scope="s", key="a")
        with pytest.raises(UnsupportedRecord, match="2027-01"):
            guard.lookup("s", "a")
        assert any(isinstance(item, Unreadable) for item in guard.operations())
    assert old.call(lambda: "again", scope="s", key="a").result == "first"


def test_another_key_of_the_same_name() -> None:
    """A key that has the right name and another secret opens nothing: the record is refused, not taken for absent."""
    store = MemoryStore()
    Guard(store, privacy=SEALING).run(lambda: 1, scope="s", key="a")
    with pytest.raises(UnsupportedRecord):
        Guard(store, privacy=Privacy(keys=[new_key("2027-01")])).run(lambda: 2, scope="s", key="a")


def use_fully(guard: Guard) -> None:
    """Leave every kind of private data in the store."""
    guard.run(lambda: {"card": MARK}, scope="s", key="done")

    def fails() -> None:
        raise OSError(MARK)

    with pytest.raises(OSError, match=MARK):
        guard.run(fails, scope="s", key="failed")
    operation: Any = guard.begin("s", "open")
    operation.checkpoint("charge", {"card": MARK})
    operation.suspend(answer=Result(ResultKind.HTTP, MARK.encode(), 500, (("location", f"/cards/{MARK}"),)))


def test_nothing_private_lies_in_a_file(tmp_path: Path) -> None:
    """P15: neither the SQLite file and its log nor the JSON file holds what is private; without keys both do."""
    for privacy in (SEALING, None):
        folder = tmp_path / ("sealed" if privacy else "open")
        folder.mkdir()
        for store in (Batching(SqliteStore(folder / "records.db")), Opener(folder / "cache.json", VirtualClock())()):
            guard = Guard(store, privacy=privacy)
            use_fully(guard)
            found = [path.name for path in folder.iterdir() if MARK.encode() in path.read_bytes()]
            assert bool(found) is (privacy is None), found
            guard.close()


def test_sealed_records_on_a_callers_transaction(tmp_path: Path) -> None:
    """What ends together with the caller's rows is sealed as well, and its replay is opened."""
    path = tmp_path / "records.db"
    guard = Guard(SqliteStore(path), policy=Policy(atomic=True), privacy=SEALING)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        operation: Any = guard.begin("s", "k")
        connection.execute("BEGIN IMMEDIATE")
        operation.complete({"card": MARK}, transaction=connection)
        connection.execute("COMMIT")
    (stored,) = SqliteStore(path).apply([Get(operation.namespace, operation.operation)])
    assert isinstance(stored.record, Record)
    assert stored.record.sealed
    assert guard.call(lambda: pytest.fail("ran again"), scope="s", key="k").result == {"card": MARK}


async def test_a_sealed_end_is_looked_for_on_a_callers_transaction(tmp_path: Path) -> None:
    """C09: in the open transaction it is found, or, after a savepoint was gone back to, missed, by both faces."""
    url = f"sqlite:///{tmp_path / 'records.db'}"
    guard, loop = Guard.open(url, privacy=SEALING), AsyncGuard.open(url, privacy=SEALING)
    with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        one: Any = guard.begin("s", "one", transaction=connection)
        two: Any = await loop.begin("s", "two", transaction=connection)
        connection.execute("SAVEPOINT callers")
        one.complete(MARK)
        await two.complete(MARK)
        with one:
            pass
        async with two:
            pass
        connection.execute("ROLLBACK TO callers")
        with pytest.raises(NotCompleted, match="went back to a savepoint"), one:
            pass
        with pytest.raises(NotCompleted, match="went back to a savepoint"):
            async with two:
                pass
    guard.close()
    await loop.close()


async def test_both_faces_open_what_the_other_sealed() -> None:
    """The sync and the async face seal alike."""
    memory = MemoryStore()
    sync, loop = Guard(memory, privacy=SEALING), AsyncGuard(AsyncMemoryStore(memory), privacy=SEALING)

    async def handler() -> str:
        return MARK

    await loop.run(handler, scope="s", key="a")
    sync.run(lambda: MARK, scope="s", key="b")
    assert sync.call(lambda: pytest.fail("ran again"), scope="s", key="a").result == MARK
    assert (await loop.call(handler, scope="s", key="b")).replayed
    assert all(item.record.sealed for item in memory.scan(Query()).items if not isinstance(item, Unreadable))


def test_recovery_of_a_sealed_operation() -> None:
    """What was checkpointed under one key is found by a later attempt that writes with another one."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    policy = Policy(recovery=rerun)
    first = Guard(store, policy=policy, privacy=Privacy(keys=[KEY]), clock=clock)
    operation: Any = first.begin("s", "k")
    operation.checkpoint("charge", MARK)
    first._runtime.heart.remove(operation._hold)
    clock.advance(301)
    later = Guard(store, policy=policy, privacy=Privacy(keys=[OTHER, KEY]), clock=clock)
    found: Any = later.begin("s", "k")
    assert found.recovered
    assert found.progress == {"charge": MARK}
    found.complete(1)
    assert later.call(lambda: pytest.fail("ran again"), scope="s", key="k").result == 1


PINNED = {
    "encrypted": (
        PLAIN._replace(**PRIVATE_PARTS),
        (
            "650670696e6e65640000000000000000000000000ebd3f40e93783bd099af2176c49fff8bc37747f0ae8044aedc182a1e9dd2f33282a88d8"
            "109dca626cf253d9e3a54b628b6e2fb9090329c222d34c55684c6cd4d95f0e3aa1e160d2e3b9e3f7261478a96d2506a91098757104962473"
            "ce6fe192fb3f3b6b4073b79a29495604b3088868158f625bd84c21acfc304f95084019ae498ca6bcdb193f493053f4c87097b60a11742b1e"
            "b2d9a6cae16b15210b3b42d31352e8153587f9fde0e3dea15978938940823baf99eae0f706f46832c371205040c5932ced6df846508e3ce3"
            "70603fc3715a2ff92fe34f89783ac8f947369dd9070421d5c9ebba9a780f7e6f4a418b4f101c73b0e9a09c18400e3a3e313900ad6a8bb723"
            "640155ce262d04f395d4c7043f87f2f2f0be67ab38af59372b88fc439a340ff371c8fadcc1f70a053907735f7af5b01329384a0a2f38cd71"
            "e1bc7db4519f79ed3f5070861792cba2b72794bdb48b5057"
        ),
    ),
    "encrypted, without a request and a recovery point": (
        PLAIN._replace(**PRIVATE_PARTS)._replace(request=None, recovery_point=""),
        (
            "650670696e6e65640000000000000000000000000fbcb5dfae541f38466327f7282015a2cdf2cce00d1b627551b5692c4ddd49cc0ee4fdde"
            "ce563fd359bcf55a235d2137f4b6648dbfefd7c22a6fcf5f78f980d05be0086c81abb76d88dc533feb34155abf7bc2fe9c6da808cc862ae6"
            "3cf5e6b55d1246a33b68aa5c7324b93b07aa395e5183abe1f6e6ac9119cd80db2171d2bdc2e0a0d648c4a36520ceee5f3113fb3a749ec116"
            "0dbab17727c18056343433cb15e40488d4c11c9dfd5eeba655a48a90b7fa33806e8583abe824f0c8286bf1d114599fec9792cc367dfe7e39"
            "d0944013bfae0a147aa2c0c9"
        ),
    ),
    "compressed": (
        PLAIN._replace(result=Result(ResultKind.VALUE, b"j" + b"1" * 300)),
        (
            "6301000001ef789c63743d147e8481816167b452496a5e625e89928e52664a6a6ebc219051949a569a9762955f9402e66683e4f2e20b8af2"
            "d38b528b8b813c0302404927af34274727da18ccd33132b5348248e82865e4e7a428e998c3f8a63a5035698939c5a9103256c750c70008ab"
            "810e292ecd2951b28a562a4bcc294d55022a064945c7c6d6c666198e02a20100d37f6ea6"
        ),
    ),
}


@pytest.mark.parametrize("form", PINNED)
def test_the_format_of_boxes_never_changes(form: str) -> None:
    """P14: what this release seals stays readable; the bytes are pinned here."""
    record, box = PINNED[form]
    key = "pinned:" + base64.b64encode(bytes(range(32))).decode()
    sealed = PLAIN._replace(sealed=bytes.fromhex(box))
    assert unseal(sealed, Privacy(keys=[key]).ciphers) == record
