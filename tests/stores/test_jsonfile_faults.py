"""A system call that fails, or kills, at every point of a JSON file's writes; full disks; kills at any time."""

import os
import random
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from notwice.model import Get
from notwice.stores.jsonfile import JsonFileStore, document, files
from tests.sources import ROOT
from tests.stores import writer
from tests.stores.test_faults import limited, spread, strace, write_under

__all__ = ["strace"]  # a fixture

KEYS = 5  # three writes each
RENAMES = "rename,renameat,renameat2"

FAULTS = {
    "a sync fails": ("fsync", "error=EIO"),
    "a write fails": ("write", "error=EIO"),
    "the disk is full": ("write", "error=ENOSPC"),
    "a rename fails": (RENAMES, "error=EIO"),
    "a new file can't be made": ("openat", "error=EMFILE"),
    "killed at a write": ("write", "signal=KILL"),
    "killed at a sync": ("fsync", "signal=KILL"),
    "killed at a rename": (RENAMES, "signal=KILL"),
}


def inject(calls: str, fault: str, path: Path, when: str) -> list[str]:
    only = [f"--trace-path={place}" for place in (files.fresh_path(path), path, path.parent)]
    return [
        *("strace", "--follow-forks", f"--output={path.with_suffix('.strace')}", *only),
        *(f"--trace={calls}", f"--inject={calls}:{fault}:when={when}"),
    ]


def calls_made(calls: str, path: Path) -> int:
    """How many of these calls an undisturbed run makes, after the file was opened."""
    lines = write_under(inject(calls, "delay_enter=0", path, "1+"), path, keys=KEYS)
    assert len(writer.acknowledged(lines)) == KEYS
    return path.with_suffix(".strace").read_text().count("(DELAYED)")


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
def test_a_failing_call_loses_nothing(name: str, strace: str, tmp_path: Path) -> None:
    """P7, P9: whichever call fails or kills, what was acknowledged is there, and the next call works again."""
    calls, fault = FAULTS[name]

    def try_at(number: int) -> tuple[bool, int]:
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "cache.json"
        lines = write_under(inject(calls, fault, path, str(number)), path, keys=KEYS)
        acks = check(path, lines)
        log = path.with_suffix(".strace").read_text()
        assert sum(line.startswith("refused") for line in lines) <= 1, "the call after the one that failed works again"
        return "(INJECTED)" in log or "+++ killed" in log, sum(acks.values())

    (tmp_path / "undisturbed").mkdir()
    numbers = spread(calls_made(calls, tmp_path / "undisturbed" / "cache.json"))[::2]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = list(pool.map(try_at, numbers))
    print(f"{name}: {len(outcomes)} faults, {sum(count for _, count in outcomes)} acknowledged writes, none lost")
    assert sum(hurt for hurt, _ in outcomes) >= len(outcomes) - 1, "each run has its fault, but perhaps the last"


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
