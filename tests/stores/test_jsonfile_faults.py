"""A system call that fails, or kills, at every point of a JSON file's writes; full disks; kills at any time."""

import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from notwice.model import Get
from notwice.stores.jsonfile import JsonFileStore, document, files
from tests.sources import ROOT
from tests.stores import writer
from tests.stores.nth_call import Fault, Run, at_every_call, whoever_was_hit
from tests.stores.test_faults import limited, strace, write_under

__all__ = ["strace"]  # a fixture

KEYS = 3  # three writes each
RENAMES = "rename,renameat,renameat2"

FAULTS = {
    "a sync fails": Fault("fsync", "error=EIO", 40),
    "a write fails": Fault("write", "error=EIO", 30),
    "the disk is full": Fault("write", "error=ENOSPC", 30),
    "a rename fails": Fault(RENAMES, "error=EIO", 30),
    "a new file can't be made": Fault("openat", "error=EMFILE", 60),
    "killed at a write": Fault("write", "signal=KILL", 30),
    "killed at a sync": Fault("fsync", "signal=KILL", 40),
    "killed at a rename": Fault(RENAMES, "signal=KILL", 30),
}


def files_of(path: Path) -> list[Path]:
    return [files.fresh_path(path), path, path.parent]


def check(path: Path, lines: list[str]) -> dict[str, int]:
    """Open the file as if nothing had been: every acknowledged write is there, no other, and new ones are taken."""
    acks = writer.acknowledged(lines)
    if path.exists():
        document.parse(path.read_bytes())
    store = JsonFileStore(path)
    try:
        assert writer.lost(store, acks) == []
        assert writer.write(store, "afterwards", 10)
    finally:
        store.close()
    assert not files.fresh_path(path).exists(), "what a killed process left is cleared away"
    return acks


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.usefixtures("strace")
def test_a_failing_call_loses_nothing(name: str, folder: Path) -> None:
    """P7, P9: whichever call fails or kills, what was acknowledged is there, and the next call works again."""

    def checked(run: Run) -> int:
        assert sum(line.startswith("refused") for line in run.lines) <= 1, "the call after the one that failed works"
        return sum(check(run.path, run.lines).values())

    runs = at_every_call(folder, "cache.json", FAULTS[name], traced=files_of, options=["--keys", str(KEYS)])
    hits, acknowledged = whoever_was_hit(runs, checked)
    print(f"{name}: {hits} faults, {acknowledged} acknowledged writes, none lost")


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """P8: with no room left, writes are refused, and what was acknowledged is there for duplicates."""
    path = tmp_path / "cache.json"
    lines = write_under([], path, limited(resource.RLIMIT_FSIZE, 20_000), keys=40)
    assert "done\n" in lines, "a store without room refuses; it does not crash"
    assert any(line.startswith("refused") for line in lines)
    assert len(check(path, lines)) > 1


@pytest.mark.slow
def test_killed_at_any_time(tmp_path: Path) -> None:
    """P7: a process that is killed in the middle of its writes, five times over, loses nothing that it acknowledged."""
    chance = random.Random(3)
    path = tmp_path / "cache.json"
    for run in range(5):
        command = [sys.executable, "-m", "tests.stores.writer", str(path), "--threads", "2", "--batching"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(chance.randrange(5, 120))]
            process.kill()
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        acks = check(path, lines)
        assert acks, run
        store = JsonFileStore(path)
        assert all(store.apply([Get("", key)])[0].record is not None for key in acks)
        store.close()
        path.unlink()
