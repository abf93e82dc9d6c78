"""A system call that fails, or kills, at every point of a SQLite store's work; full disks, few descriptors."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from notwice.errors import NotwiceError, StoreUnavailable
from notwice.stores.sqlite import SqliteStore
from notwice.stores.sqlite.connection import breaks_the_connection
from tests.sources import ROOT
from tests.stores import writer
from tests.stores.children import in_child
from tests.stores.nth_call import Fault, Run, at_every_call, whoever_was_hit

FILES = ("", "-wal", "-shm", "-journal")
KEYS = 3  # three writes each
IN_MEMORY = Path("/dev/shm")
LIMITS = 80  # of the size of a file: most of them cut a write in two

FAULTS = {
    "a sync fails": Fault("fdatasync,fsync", "error=EIO", 25),
    "a write fails": Fault("pwrite64,write", "error=EIO", 105),
    "the disk is full": Fault("pwrite64,ftruncate", "error=ENOSPC", 105),
    "a read fails": Fault("pread64", "error=EIO", 20),
    "a file can't be opened": Fault("openat", "error=EMFILE", 12),
    "killed at a write": Fault("pwrite64", "signal=KILL", 105),
    "killed at a sync": Fault("fdatasync,fsync", "signal=KILL", 25),
}
if os.environ.get("NOTWICE_LONG_FAULTS"):  # SQLite itself goes on trying for ten seconds after some of them
    FAULTS["a lock fails"] = Fault("fcntl", "error=ENOLCK", 200)


def write_under(
    command: list[str], path: Path, preset: Callable[[], None] | None = None, keys: int = KEYS
) -> list[str]:
    """What a writer said that was started by `command`."""
    whole = [*command, sys.executable, "-m", "tests.stores.writer", str(path), "--keys", str(keys)]
    run = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT, preexec_fn=preset)
    assert run.returncode in {0, -9, 137}, run.stderr
    return run.stdout.splitlines(keepends=True)


def files_of(path: Path) -> list[Path]:
    return [Path(f"{path}{suffix}") for suffix in FILES]


def check(path: Path, lines: list[str]) -> dict[str, int]:
    """Open the store as if nothing had been: every acknowledged write is there, and new ones are taken."""
    acks = writer.acknowledged(lines)
    store = SqliteStore(path)
    try:
        assert writer.lost(store, acks) == []
        assert writer.write(store, "afterwards", 10)
    finally:
        store.close()
    return acks


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    if found is None and os.environ.get("CI"):
        pytest.fail("strace is missing: these tests must not be left out silently")
    return found or pytest.skip("strace is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.usefixtures("strace")
def test_a_failing_call_loses_nothing(name: str, folder: Path) -> None:
    """P7, P9: whichever call fails or kills, what was acknowledged is there, and the next call works again."""

    def checked(run: Run) -> int:
        assert sum(line.startswith("refused") for line in run.lines) <= 1, "the call after the one that failed works"
        return sum(check(run.path, run.lines).values())

    options = ["--keys", str(KEYS), "--timeout", "0.05"]
    runs = at_every_call(folder, "records.db", FAULTS[name], traced=files_of, options=options)
    hits, acknowledged = whoever_was_hit(runs, checked)
    print(f"{name}: {hits} faults, {acknowledged} acknowledged writes, none lost")


@pytest.mark.slow
@pytest.mark.usefixtures("strace")
def test_a_failing_call_is_noticed_where_there_is_no_journal(folder: Path) -> None:
    """The control: with changes that are written in place, a kill at some write damages the file."""

    def loses(run: Run) -> bool:
        try:
            check(run.path, run.lines)
        except (AssertionError, NotwiceError):
            return True
        return False

    options = ["--keys", str(KEYS), "--journal", "off"]
    runs = at_every_call(folder, "records.db", Fault("pwrite64", "signal=KILL", 40), traced=files_of, options=options)
    assert any(list(map(loses, runs)))


def test_a_lock_that_could_not_be_given_back_is_given_back() -> None:
    """P8: where SQLite's locks stay wrong for as long as a call may take, the file is closed, and that drops them."""
    error = sqlite3.OperationalError("locking protocol")
    error.sqlite_errorcode = sqlite3.SQLITE_PROTOCOL
    assert breaks_the_connection(error)
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    assert not breaks_the_connection(error)


@pytest.mark.slow
def test_a_write_that_is_cut_short_loses_nothing(folder: Path) -> None:
    """P7, P8: wherever a file may not grow any more, in the middle of a write too, what was acknowledged is there."""
    acknowledged = refused = 0
    for number in range(LIMITS):
        path, limit = folder / f"{number}.db", 4_000 + 999 * number
        lines = write_limited(path, limit)
        assert "done\n" in lines or lines[0].startswith("refused open"), "without room it refuses; it does not crash"
        refused += any(line.startswith("refused") for line in lines)
        acknowledged += sum(check(path, lines).values())
    print(f"{LIMITS} limits, {refused} of them met, {acknowledged} acknowledged writes, none lost")
    assert refused > LIMITS * 0.8


def write_limited(path: Path, limit: int) -> list[str]:
    """What a writer says whose files can't grow beyond a limit."""
    said = path.with_suffix(".said")

    def write() -> None:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
        limited(resource.RLIMIT_FSIZE, limit)()
        writer.main([str(path), "--keys", str(KEYS)])

    assert in_child(write) == 0
    return said.read_text().splitlines(keepends=True)


def limited(limit: int, value: int) -> Callable[[], None]:
    """What sets a limit in a child process, and lets a write beyond it fail instead of killing."""

    def set_it() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(limit, (value, value))

    return set_it


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """P8: with no room left, writes are refused, and what was acknowledged is there for duplicates."""
    path = tmp_path / "records.db"
    lines = write_under([], path, limited(resource.RLIMIT_FSIZE, 200_000), keys=60)
    assert "done\n" in lines, "a store without room refuses; it does not crash"
    assert any(line.startswith("refused") for line in lines)
    assert len(check(path, lines)) > 1


@pytest.mark.slow
def test_a_full_file_system_refuses_and_recovers(tmp_path: Path) -> None:
    """P8: on a full file system claims are refused and replays go on; with room again, claims do, too."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("a small file system takes root on Linux")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(tmp_path)], check=True)
    try:
        store = SqliteStore(tmp_path / "records.db")
        filler = tmp_path / "filler"
        assert writer.write(store, "before", 10)
        filler.write_bytes(bytes(free_bytes(tmp_path)))
        assert [writer.write(store, f"during-{number}", 9_000) for number in range(4)][-1] is False
        assert writer.lost(store, {"before": 3}) == []
        filler.unlink()
        assert writer.write(store, "after", 9_000)
        store.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize


def test_without_descriptors_a_store_refuses_and_recovers(tmp_path: Path) -> None:
    """P8: a store that can't open its file is refused with the reason; one that is open goes on."""
    path = tmp_path / "records.db"
    store = SqliteStore(path)
    assert writer.write(store, "before", 10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.dup(0)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last, hard))
    try:
        assert writer.write(store, "during", 10)
        with pytest.raises(StoreUnavailable):
            SqliteStore(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    other = SqliteStore(path)
    assert writer.lost(other, {"before": 3, "during": 3}) == []
    other.close()
    store.close()
