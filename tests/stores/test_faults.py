"""A system call that fails, or kills, at every point of a SQLite store's work; full disks, few descriptors."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from notwice.errors import StoreUnavailable
from notwice.stores.sqlite import SqliteStore
from tests.sources import ROOT
from tests.stores import writer

KEYS = 7  # three writes each
RUNS = int(os.environ.get("NOTWICE_FAULT_RUNS", "40"))
"""How many of the calls are made to fail, spread evenly; a large number tries them all."""

FAULTS = {
    "a sync fails": ("fdatasync,fsync", "error=EIO"),
    "a write fails": ("pwrite64,write", "error=EIO"),
    "the disk is full": ("pwrite64,ftruncate", "error=ENOSPC"),
    "killed at a write": ("pwrite64", "signal=KILL"),
    "killed at a sync": ("fdatasync,fsync", "signal=KILL"),
}


def write_under(
    command: list[str], path: Path, preset: Callable[[], None] | None = None, keys: int = KEYS
) -> list[str]:
    """What a writer said that was started by `command`."""
    whole = [*command, sys.executable, "-m", "tests.stores.writer", str(path), "--keys", str(keys)]
    run = subprocess.run(whole, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT, preexec_fn=preset)
    assert run.returncode in {0, -9, 137}, run.stderr
    return run.stdout.splitlines(keepends=True)


def inject(calls: str, fault: str, path: Path, when: str) -> list[str]:
    only = [f"--trace-path={path}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")]
    faster = [] if fault.startswith("signal") else ["--seccomp-bpf"]  # where it is on, no signal is delivered
    log = path.with_suffix(".strace")
    return [
        *("strace", "--follow-forks", *faster, f"--output={log}", *only),
        *(f"--trace={calls}", f"--inject={calls}:{fault}:when={when}"),
    ]


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
def test_a_failing_call_loses_nothing(name: str, strace: str, tmp_path: Path) -> None:
    """P7, P9: whichever call fails or kills, what was acknowledged is there, and the next call works again."""
    calls, fault = FAULTS[name]

    def try_at(number: int) -> tuple[bool, int]:
        path = tmp_path / f"records-{number}.db"
        lines = write_under(inject(calls, fault, path, str(number)), path)
        acks = check(path, lines)
        log = path.with_suffix(".strace").read_text()
        assert sum(line.startswith("refused") for line in lines) <= 1, "the call after the one that failed works again"
        return "(INJECTED)" in log or "+++ killed" in log, sum(acks.values())

    numbers = spread(calls_made(calls, tmp_path))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(try_at, numbers))
    acknowledged = sum(count for _, count in outcomes)
    print(f"{name}: {len(outcomes)} faults, {acknowledged} acknowledged writes, none lost")
    assert sum(hurt for hurt, _ in outcomes) >= len(outcomes) - 1, "each run has its fault, but perhaps the last"


def spread(count: int) -> list[int]:
    """Up to `RUNS` numbers from 1 to `count`, the first and the last among them."""
    runs = min(RUNS, count)
    return sorted({1 + round(step * (count - 1) / max(1, runs - 1)) for step in range(runs)})


def calls_made(calls: str, folder: Path) -> int:
    """How many of these calls an undisturbed run makes."""
    path = folder / "undisturbed.db"
    lines = write_under(inject(calls, "delay_enter=0", path, "1+"), path)
    assert "done\n" in lines
    assert len(writer.acknowledged(lines)) == KEYS
    return path.with_suffix(".strace").read_text().count("(DELAYED)")


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
