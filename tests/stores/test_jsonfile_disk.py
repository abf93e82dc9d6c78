"""The JSON file of the older API cache as a file: who may open it, what is no document, and writes that fail."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies

from notwice import Guard, Policy, Unresolved
from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Query, Record, RecordView
from notwice.stores import open_store
from notwice.stores.jsonfile import JsonFileStore, document, files
from notwice.stores.jsonfile.entries import meanings
from notwice.testing.conformance.records import get, insert, new_record, stored, swap
from tests.sources import ROOT
from tests.stores.children import in_child
from tests.stores.older_cache import entries_in, entry, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.json"


# --- one process at a time --------------------------------------------------------------------------------------------


def test_a_second_one_is_refused(path: Path) -> None:
    """P1: while one has the file open, nobody else can open it, and is told who has it."""
    store = open_store(f"file://{path}")
    with pytest.raises(StoreUnavailable, match=f"held by process {os.getpid()}: one process at a time"):
        open_store(f"file://{path}?timeout=0.01")
    command = [sys.executable, "-m", "notwice", "import", "--store", f"file://{path}?timeout=0.01", "--from"]
    source = path.with_name("source.json")
    put(source, s__k=entry())
    run = subprocess.run([*command, f"file://{source}"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (run.returncode, run.stdout) == (3, "")
    assert f"held by process {os.getpid()}: one process at a time" in run.stderr
    store.close()
    open_store(f"file://{path}").close()


def test_a_lock_ends_with_its_process(path: Path) -> None:
    """P7: a process that is killed leaves a lock file, and no lock."""
    script = (
        "import os,sys; from notwice.stores import open_store; s = open_store(sys.argv[1]); os.kill(os.getpid(), 9)"
    )
    run = subprocess.run([sys.executable, "-c", script, f"file://{path}"], check=False, cwd=ROOT)
    assert run.returncode == -9
    assert path.with_name("cache.json.lock").exists()
    open_store(f"file://{path}").close()


def test_a_forked_child_has_to_ask(path: Path) -> None:
    """P1: a child does not write to the file that its parent has open; it may once the parent has let go of it."""
    store = JsonFileStore(path, timeout=0.05)
    insert(store, new_record())

    def refused() -> None:
        with pytest.raises(StoreUnavailable, match="one process at a time"):
            get(store, new_record())

    assert in_child(refused) == 0
    insert(store, new_record("b"))
    context = multiprocessing.get_context("fork")
    closed = context.Event()

    def afterwards() -> None:
        assert closed.wait(20)
        assert insert(store, new_record("c")).won
        assert get(store, new_record("b")).record is not None

    child = context.Process(target=afterwards)
    child.start()
    store.close()
    closed.set()
    child.join(20)
    assert child.exitcode == 0
    assert len(entries_in(path)) == 3


def test_another_program_that_writes_is_noticed(path: Path) -> None:
    """P8: never both at once: if the file is another one than was left there, nothing is answered any more."""
    store = JsonFileStore(path)
    insert(store, new_record())
    put(path, refund__b=entry())
    for op in (Get("", "idem_a"), Insert(new_record("c"))):
        with pytest.raises(StoreUnavailable, match="changed by another program"):
            store.apply([op])
    assert list(entries_in(path)) == ["refund:b"]
    store.close()


def test_a_lock_file_that_is_removed_is_noticed(path: Path) -> None:
    """P1: without its lock file a store could not keep others out, so it refuses."""
    store = JsonFileStore(path)
    path.with_name("cache.json.lock").unlink()
    with pytest.raises(StoreUnavailable, match=r"cache\.json\.lock was removed"):
        insert(store, new_record())
    store.close()


def test_reading_alone(path: Path) -> None:
    """For reading the file is opened while another process has it open; what it writes is seen."""
    with pytest.raises(StoreUnavailable, match="for reading alone"):
        insert(JsonFileStore(path, access="read"), new_record())
    assert not list(path.parent.iterdir())
    store = JsonFileStore(path)
    reader = JsonFileStore(path, access="read")
    assert get(reader, new_record()).record is None
    insert(store, new_record())
    (view,) = reader.scan(Query()).items
    assert isinstance(view, RecordView)
    assert not view.unresolved, "its owner is alive"
    with pytest.raises(StoreUnavailable, match="for reading alone"):
        swap(reader, new_record(), view.record.etag)
    store.close()


# --- documents that are none ------------------------------------------------------------------------------------------

NO_DOCUMENTS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"entries"',
    b'{"entries": {}} {}',
    b'{"entries": []}',
    b'{"entries": {"a:b": NaN}}',
    b'{"entries": {"a:b": {}}',
    b'{"entries": {}, "entries": {}}',
    b'{"name": "a package", "version": 1}',
    b"\xff\xfe{}",
    b'{"entries": {"a:b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    b"SQLite format 3\x00",
]


@pytest.mark.parametrize("data", NO_DOCUMENTS, ids=lambda data: repr(data[:24]))
def test_what_does_not_parse_is_not_opened(data: bytes, path: Path) -> None:
    """A file that is no document is refused and left as it is, and can be opened once it is repaired."""
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="not the JSON document of an API cache, and is left as it is"):
            open_store(f"file://{path}?timeout=0.01")
    assert path.read_bytes() == data
    put(path)
    open_store(f"file://{path}").close()


@pytest.mark.parametrize("text", ["{}", '{"entries": null}', '{"entries": {}}', ' {\n"entries"\t:\r\n{ } } '])
def test_an_empty_document(text: str, path: Path) -> None:
    """A document may be empty in several ways."""
    path.write_text(text)
    insert(store := JsonFileStore(path), new_record())
    assert list(entries_in(path)) == ["refund:a"]
    store.close()


JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = strategies.sampled_from([*entry(), "notwice"])
OURS = strategies.dictionaries(
    strategies.sampled_from(
        ["format", "namespace", "scope", "key", "operation", "boot_ms", "boot_id", "record_base64"]
    ),
    JSON | strategies.just(1),
)
ENTRIES = (
    JSON
    | strategies.dictionaries(MEMBERS, JSON | OURS)
    | strategies.builds(lambda one, value: entry(**{one: value}), MEMBERS, JSON | OURS)
)
NAMES = strategies.text(max_size=8) | strategies.sampled_from(["a:b", "a:b:c", ":", "::", "a:", ":b", "\ud800:k"])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=strategies.dictionaries(NAMES, ENTRIES, max_size=4))
@example(entries={"a:b": entry(notwice={"format": 1, "scope": "a", "key": "b"})})
def test_hostile_documents(entries: dict[str, Any], path: Path) -> None:
    """P14: whatever stands in a document's entries, it can be looked at and written to, and none is lost or absent."""
    path.write_text(json.dumps({"entries": entries}))
    store = JsonFileStore(path)
    for item in store.scan(Query()).items:
        reply = store.apply(
            [Get(item.record.namespace, item.record.id) if isinstance(item, RecordView) else Get(*item[:2])]
        )
        assert reply[0].record is not None
    for name in entries:
        for scope, key, operation in [] if "\ud800" in name else meanings(name):
            asked = new_record(key, id=operation, scope=scope, namespace="")
            assert not store.apply([Insert(asked)])[0].won, "a name that is there is never absent"
    assert store.unlisted() <= len(entries)
    store.purge(10)
    insert(store, new_record("mine", scope="mine", namespace="mine"))
    store.close()
    assert json.loads(path.read_text())["entries"].items() >= entries.items()


@settings(max_examples=200, deadline=None)
@given(
    data=strategies.binary(max_size=60)
    | strategies.builds(lambda text: text.encode(errors="replace"), strategies.text('{}[]":,entris01 \\', max_size=60))
)
def test_hostile_bytes(data: bytes) -> None:
    """Any bytes are a document or refused as one, and never anything else."""
    try:
        found = document.parse(data)
    except ValueError:
        return
    parsed = json.loads(data)
    assert [each.name for each in found.entries] == list(dict.fromkeys(each.name for each in found.entries)) or parsed
    written = document.write([(each.name, each.text) for each in found.entries], found.others)
    assert json.loads(written).get("entries") == (parsed.get("entries") or {})


# --- writes that fail -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(path: Path) -> Iterator[JsonFileStore]:
    opened = JsonFileStore(path)
    insert(opened, new_record("before"))
    yield opened
    opened.close()


def failing(*_: object) -> None:
    raise OSError(5, "made to fail")


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "os.fchmod", "pathlib.Path.replace"])
def test_a_write_that_fails(call: str, store: JsonFileStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: nothing is answered as written that is not; the entries in memory go back to what is on the disk."""
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(call, failing)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="EIO"):
                store.apply([Insert(new_record()), Insert(new_record("b"))])
        with pytest.raises(StoreUnavailable):
            swap(store, new_record("before", attempt=2), stored(store, new_record("before")).etag)
        assert get(store, new_record()).record is None
        assert stored(store, new_record("before")).attempt == 1
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir() if found.name.startswith(".")] == []
    assert insert(store, new_record()).won


def test_a_folder_that_can_not_be_synced(store: JsonFileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8, P13: the last step failed: it is refused, whether it will be there is not known, and the store goes on."""
    with monkeypatch.context() as patch:
        patch.setattr(files, "_sync_folder", failing)
        with pytest.raises(StoreUnavailable, match="not known"):
            insert(store, new_record())
        assert get(store, new_record()).record is None
    assert insert(store, new_record(attempt=2)).won
    assert stored(store, new_record()).attempt == 2


def test_an_interrupt_in_the_middle(store: JsonFileStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P13: an interrupt in the middle of a write takes it back, and nothing is left behind."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            insert(store, new_record())
    assert list(entries_in(path)) == ["refund:before"]
    assert get(store, new_record()).record is None


def test_it_is_on_the_disk_before_begin_answers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: file written, file synced, renamed, folder synced, in this order, and only then an answer."""
    store = JsonFileStore(path)
    done: list[str] = []
    for name, call in {"write": "os.write", "sync": "os.fsync", "rename": "pathlib.Path.replace"}.items():
        original = {"write": os.write, "sync": os.fsync, "rename": Path.replace}[name]

        def noted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            done.append(name)
            return original(*arguments)

        monkeypatch.setattr(call, noted)
    insert(store, new_record())
    done.append("answer")
    get(store, new_record())
    store.apply([Insert(new_record())])
    assert done == ["write", "sync", "rename", "sync", "answer"]
    store.close()


def test_a_batch_is_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of a batch share one write of the file; so do callers that come at the same time."""
    store = JsonFileStore(path)
    writes: list[Path] = []
    original = files.replace

    def noted(path: Path, data: bytes) -> None:
        writes.append(path)
        original(path, data)

    monkeypatch.setattr(files, "replace", noted)
    replies = store.apply([Insert(new_record(str(number))) for number in range(50)])
    assert all(reply.won for reply in replies)
    assert len(writes) == 1
    store.close()


def test_a_guard_on_the_file(path: Path) -> None:
    """P2, P7: what a guard did is there for the next process; what it left open is unresolved there."""
    with Guard.open(f"file://{path}") as guard:
        assert guard.run(lambda: {"paid": 1}, scope="payout:1", key="k") == {"paid": 1}
        guard.begin("payout:2", "k", policy=Policy(lease=300))
    with Guard.open(f"file://{path}") as guard:
        assert guard.run(lambda: {"paid": 2}, scope="payout:1", key="k") == {"paid": 1}
        assert isinstance(guard.begin("payout:2", "k"), Unresolved)
        (record,) = (view.record for view in guard.operations(unresolved=True))  # type: ignore[union-attr]  # it can be read
        assert isinstance(record, Record)
