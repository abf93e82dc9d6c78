"""What was acknowledged is there after the power was cut while it was being written.

What counts is what had been heard before the cut: a file system that is being shut down may report a sync as done that
was under way at that moment and is lost. A plain program that appends and syncs sees that, too; a real power cut ends
the program before it could tell anybody.
"""

import ctypes
import fcntl
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from notwice.stores.sqlite import SqliteStore
from tests.sources import ROOT
from tests.stores import writer

CUTS = int(os.environ.get("NOTWICE_POWER_CUTS", "20"))
CONTROL_CUTS_MAX = 20
LINES_MAX = 1_500  # enough for a checkpoint or two
DISK_BYTES = 64 * 1024 * 1024
GOING_DOWN = 0x8004587D
WITHOUT_FLUSHING_THE_LOG = 2
TOOLS = ("losetup", "mkfs.ext4", "mount", "umount")


class Disk:
    """A small ext4 file system of its own whose power can be cut."""

    def __init__(self, folder: Path, size_bytes: int = DISK_BYTES) -> None:
        self.image = folder / "disk"
        self.mounted_at = folder / "mounted"
        self.mounted_at.mkdir()
        with self.image.open("wb") as image:
            image.truncate(size_bytes)
        run("mkfs.ext4", "-q", "-F", str(self.image))
        self.device = run("losetup", "--find", "--show", str(self.image)).strip()

    def mount(self) -> None:
        run("mount", "-t", "ext4", self.device, str(self.mounted_at))

    def unmount(self) -> None:
        run("umount", str(self.mounted_at))

    def cut_power(self) -> None:
        """From now on nothing reaches the disk; what was not synced is lost."""
        descriptor = os.open(self.mounted_at, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, GOING_DOWN, ctypes.c_uint32(WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(descriptor)

    def detach(self) -> None:
        if self.mounted_at.is_mount():
            self.unmount()
        run("losetup", "--detach", self.device)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def why_not() -> str:
    """Why no disk can be made here; empty if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "cutting the power of a file system takes Linux and root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"cutting the power of a file system takes {', '.join(missing)}" if missing else ""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    try:
        disk = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device to be had: {error.stderr}")
    yield disk
    disk.detach()


@contextmanager
def writing(path: Path, *options: str) -> Generator[subprocess.Popen[str], None, None]:
    command = [sys.executable, "-m", "tests.stores.writer", str(path), "--until-refused", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        process.kill()


def heard_until(process: subprocess.Popen[str], count: int, cut_power: Callable[[], None]) -> list[str]:
    """Cut the power once so many lines were heard; gives all that was heard before the cut."""
    assert process.stdout is not None
    lines: list[str] = []
    enough = threading.Event()

    def listen(stream: IO[str]) -> None:
        for line in stream:
            lines.append(line)
            if len(lines) == count:
                enough.set()
        enough.set()

    listener = threading.Thread(target=listen, args=(process.stdout,))
    listener.start()
    enough.wait()
    before = list(lines)
    cut_power()
    listener.join()
    return before


def cut_once(disk: Disk, chance: random.Random, *options: str) -> tuple[int, list[str]]:
    """Cut the power of a writer in the middle; how many writes were acknowledged, and which of those are lost."""
    disk.mount()
    path = disk.mounted_at / f"records-{chance.getrandbits(32)}.db"
    with writing(path, *options) as process:
        lines = heard_until(process, chance.randrange(5, LINES_MAX), disk.cut_power)
        assert process.wait(30) == 0, "a store whose disk is gone refuses; it does not crash"
    disk.unmount()
    acks = writer.acknowledged(lines)
    disk.mount()
    try:
        store = SqliteStore(path)
        gone = writer.lost(store, acks)
        store.close()
    except Exception as error:  # noqa: BLE001 - in the control run the file may be beyond reading
        gone = [f"everything: {error}"]
    finally:
        disk.unmount()
    return sum(acks.values()), gone


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), ("--batching", "--threads", "8")], ids=["one writer", "shared commits of eight threads"]
)
def test_a_power_cut_loses_nothing_that_was_acknowledged(disk: Disk, options: tuple[str, ...]) -> None:
    """P7, P16: writes that were reported are there after the power was cut; bound 3/n for n acknowledged writes."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    total = 0
    for _ in range(CUTS // 2):
        acknowledged, gone = cut_once(disk, chance, *options)
        assert gone == []
        total += acknowledged
    print(total, "acknowledged writes, none lost")
    assert total > CUTS


@pytest.mark.slow
def test_a_power_cut_is_noticed_where_commits_are_not_synced(disk: Disk) -> None:
    """The control: with commits that are not synced, the same test loses acknowledged writes."""
    chance = random.Random(1)
    losses = (cut_once(disk, chance, "--unsafe")[1] for _ in range(CONTROL_CUTS_MAX))
    assert any(losses)
