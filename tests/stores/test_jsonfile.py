"""The JSON file of the older API cache, feature by feature: how its entries are read, and how ours are written."""

import base64
import json
import os
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from notwice import Guard, InProgress, Mismatch, Operation, Replay, Result, ResultKind, Unresolved
from notwice.errors import UnsupportedRecord
from notwice.fingerprint import BODY_SHA256
from notwice.http import SHARED, HttpPolicy
from notwice.http.wsgi import IdempotencyMiddleware
from notwice.model import Fingerprint, Insert, State, Unreadable
from notwice.stores.jsonfile import JsonFileStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, full_record, get, insert, new_record, stored, swap
from tests.stores.older_cache import ANSWER, BODY, CREATED, HASH, entries_in, entry, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.json"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def begin(path: Path, scope: str, key: str, body: bytes = BODY, **options: Any) -> object:
    """Begin by a guard that opens the file for that alone."""
    with Guard(JsonFileStore(path, **options)) as guard:
        return guard.begin(scope, key, fingerprint=Fingerprint(BODY_SHA256, sha256(body).digest()))


# --- entries of the older cache ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "expected"), [("completed", "completed"), ("failed", "failed"), ("odd", "completed")]
)
def test_a_finished_entry_is_replayed(state: str, expected: str, path: Path) -> None:
    """P2: an answer of the older cache is given again: status and bytes. An unknown state reads as completed."""
    put(path, refund__k=entry(state))
    found = begin(path, "refund", "k")
    assert isinstance(found, Replay)
    assert found.stored == Result(ResultKind.HTTP, ANSWER, 201)
    assert (found.view.state, found.view.record.created_ms, found.view.written_ms) == (expected, CREATED, CREATED + 5)


@pytest.mark.parametrize("state", ["accepted", "in_progress"])
def test_an_open_entry_is_unresolved(state: str, path: Path) -> None:
    """P7: whoever was at work when the older cache stopped is gone: accepted, and held."""
    put(path, refund__k=entry(state, status=0, body_base64=""))
    found = begin(path, "refund", "k")
    assert isinstance(found, Unresolved)
    assert found.view.state is State.ACCEPTED
    assert found.view.unresolved


def test_an_accepted_entry_keeps_its_answer(path: Path) -> None:
    """An answer that was sent for an accepted request is given again."""
    put(path, refund__k=entry("accepted", status=202))
    found = begin(path, "refund", "k")
    assert isinstance(found, Replay)
    assert found.stored.status == 202


def test_another_body_is_a_mismatch(path: Path) -> None:
    """P3: the hash is the fingerprint by the recipe of the body alone; no hash fits any request."""
    put(path, refund__k=entry(), refund__open=entry("in_progress"), refund__any=entry(req_hash_hex=""))
    assert isinstance(begin(path, "refund", "k", b"{}"), Mismatch)
    assert isinstance(begin(path, "refund", "open", b"{}"), Mismatch)
    assert isinstance(begin(path, "refund", "any", b"{}"), Replay)


def test_times_that_are_missing(path: Path) -> None:
    """An entry that was never updated counts as written when it was created."""
    never, bare = entry(updated_at_unix_nano=0), entry()
    del bare["updated_at_unix_nano"]
    put(path, s__never=never, s__bare=bare)
    for key in ("never", "bare"):
        found = begin(path, "s", key)
        assert isinstance(found, Replay)
        assert found.view.written_ms == CREATED


@pytest.mark.parametrize(("state", "status"), [("completed", 200), ("failed", 500)])
def test_a_finished_entry_without_a_status(state: str, status: int, path: Path) -> None:
    """A finished entry without a status and a body is replayed as an empty answer."""
    put(path, s__k={"created_at_unix_nano": 1, "state": state})
    found = begin(path, "s", "k")
    assert isinstance(found, Replay)
    assert found.stored == Result(ResultKind.HTTP, b"", status)


def test_names_are_built_and_never_split(path: Path) -> None:
    """T21: an entry is found by whichever scope and key give its name, until one of them owns it."""
    put(path, a__b__c=entry())
    with Guard(JsonFileStore(path)) as guard:
        for scope, key in (("a", "b:c"), ("a:b", "c")):
            assert isinstance(guard.begin(scope, key), Replay)
            view = guard.lookup(scope, key)
            assert view is not None
            assert (view.record.scope, view.record.key) == (scope, key)
            assert [each.record.key for each in guard.operations(operation=view.operation)] == [key]  # type: ignore[union-attr]  # it can be read
        assert guard.lookup("a:b:c", "c") is None
        view = guard.lookup("a", "b:c")
        assert view is not None
        guard.release(view, who="ana", why="looked it up", force=True)
        assert isinstance(guard.begin("a", "b:c"), Operation)
        assert isinstance(guard.begin("a", "b:c"), InProgress)
        with pytest.raises(UnsupportedRecord, match="another operation has this name"):
            guard.begin("a:b", "c")
        assert guard.lookup("a:b", "c") is None


def test_a_name_of_two_namespaces(path: Path) -> None:
    """P11: of two namespaces with one scope and key the second is refused; it neither runs nor sees anything."""
    with Guard(JsonFileStore(path)) as guard:
        guard.run(lambda: "secret", scope="refund:1", key="k", namespace="tenant-1")
        with pytest.raises(UnsupportedRecord, match="another operation has this name") as refused:
            guard.run(lambda: "other", scope="refund:1", key="k", namespace="tenant-2")
        assert "tenant-1" not in str(refused.value)
        assert guard.lookup("refund:1", "k", namespace="tenant-2") is None


def test_an_entry_follows_its_record(path: Path) -> None:
    """A swap that changes scope or key moves the entry, unless another operation has that name."""
    store = JsonFileStore(path)
    first, other = new_record(), new_record("b")
    store.apply([Insert(first), Insert(other)])
    moved = first._replace(key="c", etag=b"moved")
    assert swap(store, moved, first.etag).won
    assert set(entries_in(path)) == {"refund:c", "refund:b"}
    refused = swap(store, moved._replace(key="b"), moved.etag)
    assert (refused.won, isinstance(refused.record, Unreadable)) == (False, True)
    assert stored(store, moved).etag == moved.etag
    assert stored(store, other).etag == other.etag
    store.close()


def test_whose_the_older_entries_are(path: Path) -> None:
    """P11: entries of the older cache are of one namespace; to all others their names are taken."""
    put(path, refund__k=entry())
    with pytest.raises(UnsupportedRecord):
        begin(path, "refund", "k", namespace="tenant-1")
    with Guard(JsonFileStore(path, namespace="tenant-1")) as guard:
        assert isinstance(guard.begin("refund", "k", namespace="tenant-1"), Replay)
        assert [view.record.namespace for view in guard.operations(all_namespaces=True)] == ["tenant-1"]  # type: ignore[union-attr]  # it can be read


def test_an_ambiguous_entry_is_listed_without_its_key(path: Path) -> None:
    """P15: where the name does not tell the scope from the key, the whole of it is treated as a key."""
    put(path, a__b__c=entry(), a__b=entry())
    with Guard(JsonFileStore(path)) as guard:
        shown = {(view.record.scope, view.record.key) for view in guard.operations()}  # type: ignore[union-attr]  # they can be read
        (listed,) = (view for view in guard.operations() if view.record.key == "a:b:c")  # type: ignore[union-attr]  # as above
        assert len(list(guard.operations(operation=listed.operation))) == 1  # type: ignore[union-attr]  # as above
    assert shown == {("", "a:b:c"), ("a", "b")}


BROKEN = {
    "no object": [1, 2e5],
    "null": None,
    "a text for a time": entry(created_at_unix_nano="now"),
    "a fraction of a nanosecond": entry(created_at_unix_nano=1.5),
    "a time before time": entry(created_at_unix_nano=-1),
    "a time after time": entry(updated_at_unix_nano=2**70),
    "no hash": entry(req_hash_hex="xyz"),
    "no base64": entry(body_base64="e30"),
    "a boolean": entry(status=True),
    "a status of nobody": entry(status=99_999),
    "a state that is none": entry(state=7),
    "a newer format": entry(notwice={"format": 2}),
    "no format": entry(notwice=[]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_entry_that_does_not_decode(what: str, path: Path) -> None:
    """P14: it is kept as it is written, not listed, never dropped, and a begin on it is refused."""
    put(path, s__k=BROKEN[what], s__other=entry())
    with Guard(JsonFileStore(path, records_max=1, retention=1)) as guard:
        with pytest.raises(UnsupportedRecord):
            guard.begin("s", "k")
        assert [view.record.key for view in guard.operations()] == ["other"]  # type: ignore[union-attr]  # it can be read
        guard.purge()
        guard.run(lambda: 1, scope="s", key="new")
    assert set(entries_in(path)) == {"s:k", "s:new"}
    assert f'"s:k": {json.dumps(BROKEN[what])}' in path.read_text()


def test_what_is_not_understood_is_kept_as_it_is_written(path: Path) -> None:
    """P14: numbers, blanks and further members of a document come out as they went in."""
    odd = '{"status": 1E400 , "state":\t"completed"}'
    path.write_text(f'{{"version": 1.50, "entries" : {{ "s:k":{odd}, "s:\\ud800": {{}} }}, "more": [ 1e5 ]}}')
    insert(store := JsonFileStore(path), new_record())
    store.close()
    text = path.read_text()
    for part in (f'"s:k": {odd}', '"version": 1.50', '"more": [ 1e5 ]', '"s:\\ud800": {}'):
        assert part in text
    assert set(json.loads(text)) == {"version", "entries", "more"}


@pytest.mark.parametrize(("body", "status"), [(BODY, "201 Created"), (b"{}", "422 Unprocessable Entity")])
def test_at_the_edge(body: bytes, status: str, path: Path) -> None:
    """P2, P3: the older cache's requests find their answers over HTTP; new ones are hashed as it hashed them."""
    put(path, http__k1=entry())
    with Guard(JsonFileStore(path)) as guard:

        def handle(environ: dict[str, Any], start: Any) -> list[bytes]:
            start("200 OK", [("content-type", "text/plain")])
            return [b"new"]

        face = IdempotencyMiddleware(handle, guard=guard, http_policy=HttpPolicy.api_cache(principal=SHARED))
        assert post(face, "k1", body) == status
        assert post(face, "k2", body) == "200 OK"
    assert entries_in(path)["http:k2"]["req_hash_hex"] == sha256(body).hexdigest()


def post(face: IdempotencyMiddleware, key: str, body: bytes) -> str:
    """Post a body under a key and give the status line."""
    told: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_IDEMPOTENCY_KEY": key,
        "wsgi.input": BytesIO(body),
    }
    setup_testing_defaults(environ)

    def start(status: str, *_: Any) -> Any:
        told.append(status)

    b"".join(face(environ, start))
    return told[0]


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_older_cache_finds_what_it_needs(path: Path) -> None:
    """A hand-over back: time, hash, state, status and body stand where the older cache reads them."""
    with Guard(JsonFileStore(path)) as guard:
        asked = Fingerprint(BODY_SHA256, bytes.fromhex(HASH))
        operation = guard.begin("refund:1", "k", fingerprint=asked)
        assert isinstance(operation, Operation)
        assert entries_in(path)["refund:1:k"]["state"] == "in_progress"
        operation.complete(Result(ResultKind.HTTP, ANSWER, 201, (("location", "/1"),)))
        view = guard.lookup("refund:1", "k")
    assert view is not None
    found = entries_in(path)["refund:1:k"]
    ours = found.pop("notwice")
    assert found == {
        "created_at_unix_nano": view.record.created_ms * 1_000_000,
        "updated_at_unix_nano": view.written_ms * 1_000_000,
        "req_hash_hex": HASH,
        "state": "completed",
        "status": 201,
        "body_base64": base64.b64encode(ANSWER).decode(),
    }
    assert (ours["format"], ours["namespace"], ours["scope"], ours["key"]) == (1, "", "refund:1", "k")


def test_nothing_is_lost(path: Path) -> None:
    """P14: a record comes back whole, with its times and all that the older cache knows nothing of."""
    clock = VirtualClock()
    record = full_record()
    store = JsonFileStore(path, clock=clock)
    reply = insert(store, record)
    store.close()
    clock.advance(7)
    store = JsonFileStore(path, clock=clock)
    assert get(store, record) == reply._replace(won=False, now_ms=clock.wall_ms(), age_ms=7_000)
    store.close()


def test_what_the_older_cache_wrote_counts(path: Path) -> None:
    """A hand-over back and forth: an entry that the older cache has moved on is read by what it wrote."""
    with Guard(JsonFileStore(path)) as guard:
        assert isinstance(guard.begin("refund", "k"), Operation)
    document = entries_in(path)
    document["refund:k"].update(entry())
    path.write_text(json.dumps({"entries": document}))
    found = begin(path, "refund", "k")
    assert isinstance(found, Replay)
    assert found.stored.status == 201
    del document["refund:k"]["notwice"]
    path.write_text(json.dumps({"entries": document}))
    assert isinstance(begin(path, "refund", "k"), Replay)


def test_an_owner_of_an_earlier_process_is_gone(path: Path, clock: VirtualClock) -> None:
    """P7: nobody but the process that has the file open can be at work: what it finds in progress is unresolved."""
    running, held = new_record(), new_record("held", state=State.ACCEPTED)
    store = JsonFileStore(path, clock=clock)
    store.apply([Insert(running), Insert(held)])
    clock.advance(1)
    reader = JsonFileStore(path, clock=clock, access="read")
    assert [get(reader, record).age_ms for record in (running, held)] == [1_000, 1_000]
    store.close()
    with Guard(JsonFileStore(path, clock=clock)) as guard:
        assert {view.record.key for view in guard.operations(unresolved=True, all_namespaces=True)} == {"a", "held"}  # type: ignore[union-attr]  # they can be read
    store = JsonFileStore(path, clock=clock)
    assert get(store, held).age_ms == 1_000
    assert get(store, running).age_ms > 10**12
    store.close()


def test_permissions(tmp_path: Path) -> None:
    """The folder and the files that are made belong to their user alone, whatever the mask says."""
    before = os.umask(0)
    try:
        path = tmp_path / "folder" / "cache.json"
        insert(store := JsonFileStore(path), new_record())
        store.close()
    finally:
        os.umask(before)
    modes = {found.name: found.stat().st_mode & 0o777 for found in (path.parent, *path.parent.iterdir())}
    assert modes == {"folder": 0o700, "cache.json": 0o600, "cache.json.lock": 0o600}
    path.chmod(0o644)
    insert(store := JsonFileStore(path), new_record("b"))
    store.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A symbolic link to the file is followed, also when the file is replaced."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "cache.json")
    insert(store := JsonFileStore(link), new_record())
    store.close()
    assert link.is_symlink()
    assert len(entries_in(tmp_path / "real" / "cache.json")) == 1


# --- retention and the cap --------------------------------------------------------------------------------------------


def test_retention_of_older_entries(path: Path, clock: VirtualClock) -> None:
    """P6: finished entries of the older cache leave after the retention; open ones never do."""
    written = (clock.wall_ms() - 50_000) * 1_000_000
    put(
        path,
        s__done=entry(updated_at_unix_nano=written),
        s__refused=entry("failed", updated_at_unix_nano=written),
        s__open=entry("accepted", updated_at_unix_nano=written),
    )
    store = JsonFileStore(path, clock=clock, retention=60)
    assert store.purge(10) == 0
    clock.advance(11)
    assert store.purge(1) == 1
    assert store.purge(10) == 1
    assert list(entries_in(path)) == ["s:open"]
    store.close()


@pytest.mark.parametrize("none", [0, -1])
def test_no_retention_and_no_cap(none: int, path: Path, clock: VirtualClock) -> None:
    """0 or less is no limit."""
    put(path, **{f"s__{number}": entry() for number in range(5)})
    store = JsonFileStore(path, clock=clock, retention=none, records_max=none)
    clock.advance(10**7)
    insert(store, new_record())
    assert store.purge(10) == 0
    assert len(entries_in(path)) == 6
    store.close()


def test_an_expired_entry_is_replaced(path: Path, clock: VirtualClock) -> None:
    """C42: an entry whose time is over is as good as absent, before anything has dropped it."""
    put(path, refund__k=entry(updated_at_unix_nano=clock.wall_ms() * 1_000_000))
    clock.advance(61)
    found = begin(path, "refund", "k", b"another", clock=clock, retention=60)
    assert isinstance(found, Operation)
    assert found.attempt == 1


def test_new_entries_take_expired_ones_along(path: Path, clock: VirtualClock) -> None:
    """C43: expired entries leave without a purge, two for each new one."""
    store = JsonFileStore(path, clock=clock)
    store.apply([Insert(finished(f"old-{number}", retention_ms=1)) for number in range(6)])
    clock.advance(1)
    for number in range(3):
        insert(store, new_record(str(number)))
    assert len(entries_in(path)) == 3
    store.close()


def test_the_cap(path: Path, clock: VirtualClock) -> None:
    """P6: to make room the oldest finished entry leaves; while all are open, there are more than the cap allows."""
    store = JsonFileStore(path, clock=clock, records_max=3)
    for name in ("first", "second", "third"):
        insert(store, finished(name) if name != "second" else new_record(name))
        clock.advance(1)
    done = stored(store, finished("first"))
    assert swap(store, done._replace(etag=b"later"), done.etag).won
    for name in ("fourth", "fifth", "sixth", "seventh"):
        insert(store, new_record(name))
        clock.advance(1)
    names = {name.removeprefix("refund:") for name in entries_in(path)}
    assert names == {"second", "fourth", "fifth", "sixth", "seventh"}
    assert get(store, new_record("third")).record is None
    store.close()


def test_the_oldest_leaves_first(path: Path, clock: VirtualClock) -> None:
    """The entry that leaves is the one that was written the longest time ago, be it ours or the older cache's."""
    put(path, s__old=entry())
    store = JsonFileStore(path, clock=clock, records_max=2)
    insert(store, finished("a"))
    clock.advance(1)
    insert(store, finished("b"))
    assert set(entries_in(path)) == {"refund:a", "refund:b"}
    store.close()
