"""The SQLite store: what it opens and refuses, what it locks and writes, what it does after an error and at a fork."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notwice.errors import StoreUnavailable, UnsupportedRecord
from notwice.model import Get, Insert, Op, Query, Record, Swap
from notwice.stores.sqlite import SqliteStore, connection, mounts, rows, schema
from notwice.stores.sqlite import store as store_module
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, followed, get, insert, new_record, stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, timeout=10)
    yield store
    store.close()


def plain(path: Path) -> sqlite3.Connection:
    """Another program's connection to the same file."""
    return sqlite3.connect(path, isolation_level=None, timeout=10)


def stored_anew(store: SqliteStore, record: Record) -> Record:
    insert(store, record)
    return stored(store, record)


class Broken:
    """A connection whose statement fails in the way that SQLite reports it."""

    def __init__(self, inner: sqlite3.Connection, statement: str, name: str) -> None:
        self.inner = inner
        self.statement = statement
        self.name = name
        self.failed = 0
        self.closed = 0

    def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
        if self.statement in statement:
            self.failed += 1
            raise self.error()
        return self.inner.execute(statement, *arguments)

    @property
    def in_transaction(self) -> bool:
        return self.inner.in_transaction

    def error(self) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("planned")
        error.sqlite_errorcode = getattr(sqlite3, self.name)
        error.sqlite_errorname = self.name
        return error

    def close(self) -> None:
        self.closed += 1
        self.inner.close()


def break_down(store: SqliteStore, statement: str, name: str) -> Broken:
    assert store._connection is not None
    broken = Broken(store._connection, statement, name)
    store._connection = broken  # type: ignore[assignment]  # it has what the store uses
    return broken


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_new_file_belongs_to_its_user_alone(path: Path, store: SqliteStore) -> None:
    """P15: the file and its log hold answers, so nobody else on the host can read them."""
    insert(store, new_record())
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["records.db", "records.db-shm", "records.db-wal"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_the_name_of_a_new_file_is_on_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after the first commit does not take the new file's name away: its folder is synced."""
    synced: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        synced.append(os.path.realpath(f"/dev/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    SqliteStore(path).close()
    assert synced == [str(path.parent.resolve())]
    SqliteStore(path).close()
    assert len(synced) == 1


def test_durability_is_set_and_checked(path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection is in WAL mode and syncs each commit; one that can't be set so is refused."""
    assert store._connection is not None
    found = {name: store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in connection.SETTINGS}
    assert found["journal_mode"] == "wal"
    assert found["synchronous"] == 2
    monkeypatch.setitem(connection.SETTINGS, "synchronous", ("OFF", 2))
    with pytest.raises(StoreUnavailable, match="can't be set to synchronous"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    """A file of another kind is refused with a sentence, and not a byte of it changes."""
    content = b"not a database, " * 100
    path.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="not a SQLite database"):
        SqliteStore(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_refused_and_left_alone(path: Path) -> None:
    """Another program's database is refused with a sentence; its settings and bytes stay."""
    with closing(plain(path)) as other:
        other.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    content = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="database of something else"):
        SqliteStore(path)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    """P14: an older release that meets a newer file refuses it and asks for an upgrade."""
    SqliteStore(path).close()
    with closing(plain(path)) as other:
        other.execute("UPDATE notwice_schema SET version = ?", (schema.VERSION + 1,))
    with pytest.raises(UnsupportedRecord, match="newer release"):
        SqliteStore(path)


def test_an_empty_file_is_taken(path: Path) -> None:
    """A file that was only just created, as by a temporary-file helper, becomes a store."""
    path.touch()
    store = SqliteStore(path)
    assert insert(store, new_record()).won
    store.close()


@pytest.mark.parametrize("make", [lambda path: path / "missing" / "records.db", lambda path: path])
def test_a_path_that_cannot_be_opened_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """A folder that is missing, or a folder in the place of the file, is refused with the path in the sentence."""
    with pytest.raises(StoreUnavailable, match=str(tmp_path)):
        SqliteStore(make(tmp_path))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 3_601])
def test_a_timeout_must_be_a_time(path: Path, timeout: float) -> None:
    """Zero, negative and endless time-outs are refused with a sentence, before a file is made."""
    with pytest.raises(ValueError, match="timeout"):
        SqliteStore(path, timeout=timeout)
    assert not path.exists()


def test_a_host_that_names_no_boot_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name for this boot a lease of before a restart could not be told from a live one."""
    monkeypatch.setattr(VirtualClock, "boot_id", lambda _: "")
    with pytest.raises(StoreUnavailable, match="names no boot"):
        SqliteStore(path, clock=VirtualClock())


MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 0:40 / /srv rw - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /srv/local rw - xfs /dev/sdb1 rw
32 21 0:41 / /home/me/a\\040share rw - fuse.sshfs me@host: rw
33 21 0:42 / /over rw - ext4 /dev/sdc1 rw
34 33 0:43 / /over rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/data/deep", "nfs4"),
        ("/srvless", "ext4"),
        ("/srv/local/data", "xfs"),
        ("/home/me/a share/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
    ],
)
def test_the_file_system_of_a_folder(folder: str, kind: str) -> None:
    """The innermost mount, and of several at one point the last, says which file system a folder is on."""
    assert mounts.kind_of_mount(Path(folder), MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system SQLite's locks can't be relied on: refused, unless a person says that it is right."""
    listing = tmp_path / "mountinfo"
    listing.write_text("21 1 8:1 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", listing)
    path = tmp_path / "records.db"
    with pytest.raises(StoreUnavailable, match=r"network file system \(nfs4\)"):
        SqliteStore(path)
    assert not path.exists()
    SqliteStore(path, network="allow").close()
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "missing")
    SqliteStore(path).close()


# --- locks and writes -------------------------------------------------------------------------------------------------


def test_duplicates_and_look_ups_write_nothing_and_wait_for_no_writer(path: Path, store: SqliteStore) -> None:
    """T20, C15: while another process holds the lock for writing, and with no byte written, duplicates are answered."""
    record = finished("a")
    insert(store, record)
    log = Path(f"{path}-wal").read_bytes()
    with closing(plain(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert not store.apply([Insert(followed(record))])[0].won
        replies = store.apply([Insert(followed(record)), Get("tenant-7", "nothing")])
        assert [reply.record and True for reply in replies] == [True, None]
        assert len(store.scan(Query()).items) == 1
        assert store.purge(10) == 0
        other.execute("ROLLBACK")
    assert Path(f"{path}-wal").read_bytes() == log


def test_a_writer_waits_for_others_and_no_longer_than_told(path: Path) -> None:
    """T22, P8: a lock that outlasts the time-out is a refusal, not a database error; the next call works."""
    store = SqliteStore(path, timeout=0.05)
    with closing(plain(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"locked for 0.05 s .*SQLITE_BUSY"):
            store.apply([Insert(new_record())])
        with pytest.raises(StoreUnavailable, match="locked"):
            store.apply([Insert(new_record()), Insert(new_record("b"))])
        other.execute("ROLLBACK")
    assert insert(store, new_record()).won
    store.close()


def test_a_call_waits_for_other_threads_no_longer_than_told(path: Path) -> None:
    """P8: behind a call that hangs, others are refused in time; closing says that the file stays open."""
    store = SqliteStore(path, timeout=0.05)
    with store._lock:
        with pytest.raises(StoreUnavailable, match="other threads"):
            store.apply([Get("", "a")])
        with pytest.raises(StoreUnavailable, match="hangs"):
            store.close()
    store.close()


def test_expired_records_leave_with_new_ones(path: Path) -> None:
    """C43: the file holds what is kept, not all there ever was, though nobody calls purge."""
    clock = VirtualClock()
    store = SqliteStore(path, clock=clock)
    most = 0
    for batch in range(40):
        store.apply([Insert(finished(f"{batch}-{number}", retention_ms=1_000)) for number in range(50)])
        clock.advance(1)
        most = max(most, len(store.scan(Query(limit=10_000)).items))
    assert most <= 250
    store.close()


def test_a_purge_goes_round_what_it_cannot_read(path: Path) -> None:
    """P6, P14: expired records that can't be decoded stay, and do not keep those behind them from leaving."""
    clock = VirtualClock()
    store = SqliteStore(path, clock=clock)
    for number in range(10):
        insert(store, finished(f"a-{number}", retention_ms=1_000))
        clock.advance(0.001)
    with closing(plain(path)) as other:
        other.execute("UPDATE notwice_record SET record = x'ff00' WHERE id < 'idem_a-7'")
    clock.advance(2)
    assert [store.purge(3) for _ in range(4)] == [0, 0, 2, 1]
    assert len(store.scan(Query()).items) == 7
    store.close()


@pytest.mark.parametrize("damage", ["x'00'", "'text'", "7", "substr(record, 2)", "zeroblob(length(record))"])
def test_a_damaged_record_is_never_overwritten(path: Path, store: SqliteStore, damage: str) -> None:
    """P6: whatever stands where a record's bytes should, it is unreadable: neither absent nor free."""
    record = new_record()
    heirs = [followed(record), followed(stored_anew(store, record))]
    with closing(plain(path)) as other:
        other.execute(f"UPDATE notwice_record SET record = {damage}")
    ops: list[Op] = [Insert(followed(record)), Get(record.namespace, record.id)]
    ops += [Swap(heir, record.etag) for heir in heirs]
    for op in ops:
        (reply,) = store.apply([op])
        assert not reply.won
        assert reply.record is not None
        assert not isinstance(reply.record, Record)
    assert "look the effect up" in str(get(store, record).record)


def test_listing_what_is_unresolved_reads_no_finished_record(path: Path, store: SqliteStore) -> None:
    """The list of unresolved operations, and each page of a list, comes from an index, in its order."""
    moment = store._clock.read()
    for query, index in [
        (Query(unresolved=True, namespace="a"), "notwice_record_open"),
        (Query(namespace="a"), "notwice_record_order"),
        (Query(operation="a"), "notwice_record_name"),
    ]:
        statement, parameters = rows.scan_of(query, moment)
        with closing(plain(path)) as other:
            plan = " ".join(row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {statement}", parameters))
        assert index in plan
        assert query.operation or "ORDER BY" not in plan


def test_a_restart_with_many_open_records_answers_at_once(path: Path) -> None:
    """P7: after a restart the first answers take no more steps of SQLite with 20,000 open records than with 20."""
    assert steps_of_first_answers(path, 20_000) < steps_of_first_answers(path.with_name("few.db"), 20) + 200


def steps_of_first_answers(path: Path, records: int) -> int:
    store = SqliteStore(path)
    store.apply([Insert(new_record(str(number))) for number in range(records)])
    store.close()
    store = SqliteStore(path)
    steps: list[None] = []
    assert store._connection is not None
    store._connection.set_progress_handler(lambda: steps.append(None), 1)
    assert insert(store, new_record("first")).won
    assert not store.apply([Insert(new_record("7"))])[0].won
    assert len(store.scan(Query(limit=5)).items) == 5
    store.close()
    return len(steps)


# --- after an error ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR_WRITE", "SQLITE_CORRUPT", "SQLITE_CANTOPEN"])
@pytest.mark.parametrize("batch", [1, 2])
def test_after_an_error_the_file_is_opened_anew(store: SqliteStore, name: str, batch: int) -> None:
    """P8: a commit that failed is not repeated; the connection is given up, and the next call opens another."""
    broken = break_down(store, "INSERT" if batch == 1 else "COMMIT", name)
    with pytest.raises(StoreUnavailable, match=name):
        store.apply([Insert(new_record(str(number))) for number in range(batch)])
    assert (broken.failed, broken.closed) == (1, 1)
    assert all(get(store, new_record(str(number))).record is None for number in range(batch))
    assert insert(store, new_record("after")).won


def test_after_a_failed_sync_the_log_is_emptied_first(store: SqliteStore, path: Path) -> None:
    """Before a write follows one whose sync failed, the log is copied and cut: nobody knows what of it is on disk."""
    insert(store, new_record("before"))
    with closing(plain(path)) as reader:  # so that closing alone does not empty the log
        reader.execute("SELECT count(*) FROM notwice_record").fetchall()
        break_down(store, "INSERT", "SQLITE_IOERR_FSYNC")
        with pytest.raises(StoreUnavailable):
            store.apply([Insert(new_record())])
        assert get(store, new_record("before")).record is not None
        statements: list[str] = []
        assert store._connection is not None
        store._connection.set_trace_callback(statements.append)
        insert(store, new_record("after"))
        insert(store, new_record("later"))
    told = [statement.split()[0] for statement in statements if "SELECT" not in statement]
    assert told == ["PRAGMA", "BEGIN", "INSERT", "COMMIT", "INSERT"]
    assert "wal_checkpoint(TRUNCATE)" in statements[1]


def test_while_the_log_cannot_be_emptied_writes_are_refused(path: Path) -> None:
    """With a reader in the way of that, writes are refused, and duplicates are answered."""
    store = SqliteStore(path, timeout=0.05)
    record = finished("before")
    insert(store, record)
    with closing(plain(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM notwice_record").fetchall()
        break_down(store, "INSERT", "SQLITE_IOERR_FSYNC")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                store.apply([Insert(new_record())])
        assert not store.apply([Insert(record)])[0].won
        reader.execute("ROLLBACK")
    assert insert(store, new_record()).won
    store.close()


def test_a_full_disk_refuses_writes_and_answers_duplicates(store: SqliteStore) -> None:
    """P8: without room, claims are refused with a sentence, duplicates are answered; with room again, all goes on."""
    record = finished("before")
    insert(store, record)
    assert store._connection is not None
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = [new_record(str(number), progress=(("body", bytes(100_000)),)) for number in range(3)]
    with pytest.raises(StoreUnavailable, match="disk is full"):
        insert(store, big[0])
    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.apply([Insert(each) for each in big])
    assert not store.apply([Insert(record)])[0].won
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert all(reply.won for reply in store.apply([Insert(each) for each in big]))


def test_an_interrupted_batch_leaves_nothing_behind(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt amid a batch rolls it back, and the store goes on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rows.Write, "carry_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.apply([Insert(new_record()), Insert(new_record("b"))])
    assert insert(store, new_record()).won


@pytest.mark.parametrize("lost", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_log_that_is_gone_is_missed(
    path: Path, store: SqliteStore, lost: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, P6: without its log, processes would no longer see each other's records: every call is refused."""
    monkeypatch.setattr(store_module, "LOGS_EVERY_S", 0)
    store.scan(Query())
    record = finished("a")
    insert(store, record)
    for suffix in lost:
        Path(f"{path}{suffix}").rename(f"{path}{suffix}.aside")
    calls: list[Callable[[], object]] = [
        lambda: insert(store, new_record("b")),
        lambda: store.apply([Get(record.namespace, record.id)]),
        lambda: store.scan(Query()),
        lambda: store.purge(1),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match=r"its log .* was removed"):
            call()
    for suffix in lost:
        Path(f"{path}{suffix}.aside").rename(f"{path}{suffix}")
    assert stored(store, record).key == "a"


def test_closing_saves_what_only_a_removed_log_held(
    path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: acknowledged records are written to the file itself when the process whose log was removed ends."""
    monkeypatch.setattr(store_module, "LOGS_EVERY_S", 0)
    record = finished("a")
    insert(store, record)
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreUnavailable, match=r"its log .* was removed"):
        insert(store, record)
    store.close()
    with closing(SqliteStore(path)) as anew:
        assert stored(anew, record).key == "a"


def test_a_log_of_others_is_left_alone(path: Path, store: SqliteStore) -> None:
    """P1: a process whose log was replaced does not write over, or remove, what newcomers have in theirs."""
    insert(store, finished("a"))
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    code = (
        "import sys; from notwice.stores.sqlite import SqliteStore; from notwice.model import Insert\n"
        "from notwice.testing.conformance.records import new_record\n"
        "store = SqliteStore(sys.argv[1]); store.apply([Insert(new_record('newcomer'))]); store.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)
    store.close()
    with closing(SqliteStore(path)) as anew:
        assert stored(anew, new_record("newcomer")).key == "newcomer"


def test_a_file_that_is_gone_is_missed(path: Path, store: SqliteStore) -> None:
    """P6: a file that was put aside under the store's feet is not silently made anew, which would forget all keys."""
    record = finished("a")
    insert(store, record)
    aside = path.with_name("aside.db")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="can't be opened"):
            store.apply([Insert(record)])
    path.touch()
    with pytest.raises(StoreUnavailable, match="tables are gone"):
        store.apply([Insert(record)])
    path.unlink()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{aside}{suffix}").rename(f"{path}{suffix}")
    assert stored(store, record).key == "a"
