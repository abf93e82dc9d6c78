"""The SQLite store among processes: rivals, kills, forks and restarts."""

import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from notwice.errors import StoreUnavailable
from notwice.model import AGE_UNKNOWN_MS, Get, Query, Record, RecordView, State
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import get, insert, new_record, stored
from tests.sources import ROOT
from tests.stores.children import in_child

RIVALS = 8
KEYS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, timeout=10)
    yield store
    store.close()


def keys_of(store: SqliteStore, query: Query) -> list[str]:
    return [item.record.key for item in store.scan(query).items if isinstance(item, RecordView)]


def test_a_boot_id_ends_every_lease_of_the_boot_before(path: Path) -> None:
    """P7: what another boot of the host left open counts as lapsed, however young its clock is."""
    clock = VirtualClock()
    first = SqliteStore(path, clock=clock)
    insert(first, new_record("open"))
    first.close()
    clock.reboot()
    second = SqliteStore(path, clock=clock)
    assert keys_of(second, Query(unresolved=True)) == ["open"]
    assert get(second, new_record("open")).age_ms == AGE_UNKNOWN_MS
    second.close()


def test_a_store_made_before_a_fork_is_usable_on_both_sides(path: Path, store: SqliteStore) -> None:
    """Each side of a fork opens the file for itself; what one writes the other sees, and the file stays whole."""
    insert(store, new_record("before"))
    for number in range(5):
        name = f"child-{number}"
        assert in_child(partial(insert, store, new_record(name))) == 0
        assert insert(store, new_record(f"parent-{number}")).won
        assert stored(store, new_record(name)).key == name
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_parent_that_closes_the_file_leaves_the_childs_log_alone(path: Path) -> None:
    """The side of a fork that closes the file first knows of the other, and does not take its log away."""
    store = SqliteStore(path)
    insert(store, new_record("before"))
    ready, go = os.pipe(), os.pipe()

    def child() -> None:
        insert(store, new_record("first"))
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        insert(store, new_record("second"))
        os._exit(0)  # as if killed: nothing is closed

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(in_child, child)
        os.read(ready[0], 1)
        store.close()
        os.write(go[1], b"x")
        assert ended.result() == 0
    again = SqliteStore(path)
    assert set(keys_of(again, Query())) == {"before", "first", "second"}
    again.close()


def test_a_fork_amid_writes_harms_neither_side(path: Path, store: SqliteStore) -> None:
    """Threads that write while the process forks go on, and so does the child, even after the parent's last close."""
    stop = threading.Event()
    counts = Counter[int]()

    def write(worker: int) -> None:
        while not stop.is_set():
            assert insert(store, new_record(f"{worker}-{counts[worker]}")).won
            counts[worker] += 1

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    try:
        for number in range(5):
            assert in_child(partial(_insert_and_close, store, f"child-{number}")) == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    for name, count in counts.items():
        assert get(store, new_record(f"{name}-{count - 1}")).record is not None
    assert all(get(store, new_record(f"child-{number}")).record for number in range(5))


def _insert_and_close(store: SqliteStore, name: str) -> None:
    assert insert(store, new_record(name)).won
    store.close()


def test_a_fork_while_a_call_hangs_strands_the_child_only(path: Path) -> None:
    """Where a hung call can't be waited for, the child refuses to touch the parent's file; the parent goes on."""
    store = SqliteStore(path, timeout=0.05)
    insert(store, new_record())

    def child() -> None:
        with pytest.raises(StoreUnavailable, match="forked while a call hung"):
            get(store, new_record())

    with store._lock:
        assert in_child(child) == 0
    assert stored(store, new_record()).key == "a"
    store.close()


def rival(path: Path, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.stores.rival", str(path), name, "--keys", str(KEYS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_processes_share_a_file(path: Path) -> None:
    """C15, T22, P1: eight processes, some killed: no lock error, one winner for each shared key, nothing lost."""
    chance = random.Random()
    processes = [rival(path, f"first-{number}") for number in range(RIVALS)]
    lines: list[str] = []
    for number in range(3):
        doomed = processes.pop(chance.randrange(len(processes)))
        assert doomed.stdout is not None
        lines += [doomed.stdout.readline() for _ in range(chance.randrange(KEYS))]
        doomed.kill()
        lines += doomed.communicate()[0].splitlines(keepends=True)
        processes.append(rival(path, f"second-{number}"))
    for process in processes:
        lines += process.communicate()[0].splitlines(keepends=True)
        assert process.returncode == 0
    _check_lines(path, [line.split() for line in lines if line.endswith("\n")])


def _check_lines(path: Path, lines: list[list[str]]) -> None:
    facts = Counter(word for word, *_ in lines)
    assert facts["error"] == 0, lines
    assert facts["done"] >= (RIVALS - 3) * KEYS
    for word in ("won", "took"):
        winners = Counter(key for each, key in lines if each == word)
        assert set(winners.values()) == {1}, f"one process {word} each shared key"
    store = SqliteStore(path)
    for key in (key for word, key in lines if word == "done"):
        (reply,) = store.apply([Get("", key)])
        assert isinstance(reply.record, Record)
        assert reply.record.state is State.COMPLETED
    assert sum(key.startswith("shared") for key in keys_of(store, Query(limit=10_000))) == KEYS
    store.close()
