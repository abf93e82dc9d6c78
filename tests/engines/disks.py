"""Disks whose power can be cut, and which can be filled: file systems on loop devices. It takes Linux and root."""

import ctypes
import fcntl
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import pytest

from notwice import StoreUnavailable
from notwice.stores import open_store
from notwice.testing.conformance.records import insert, new_record, stored
from tests.engines.claims import Claims, missing_in
from tests.engines.private import wait_until

CUTS = int(os.environ.get("NOTWICE_POWER_CUTS", "20"))
CONTROL_CUTS_MAX = 20
DISK_BYTES = 64 * 1024 * 1024
GOING_DOWN = 0x8004587D
WITHOUT_FLUSHING_THE_LOG = 2
TOOLS = ("losetup", "mount", "umount")
XFS_BYTES = 320 * 1024 * 1024  # none is made that is smaller than 300
NUMBERS = itertools.count()


class Disk:
    """A small file system of its own whose power can be cut."""

    def __init__(self, folder: Path, size_bytes: int = DISK_BYTES, kind: str = "ext4") -> None:
        self.kind = kind
        self.image = folder / "disk"
        self.mounted_at = folder / "mounted"
        self.mounted_at.mkdir()
        with self.image.open("wb") as image:
            image.truncate(size_bytes)
        run(f"mkfs.{kind}", "-q", str(self.image))
        self.device = run("losetup", "--find", "--show", str(self.image)).strip()

    def mount(self) -> None:
        run("mount", "-t", self.kind, self.device, str(self.mounted_at))

    def unmount(self) -> None:
        """Unmount it. The kernel may be busy with it for a moment after a server has ended."""
        wait_until(self._is_unmounted)

    def _is_unmounted(self) -> bool:
        with suppress(subprocess.CalledProcessError):
            run("umount", str(self.mounted_at))
        return not self.mounted_at.is_mount()

    def cut_power(self) -> None:
        """From now on nothing reaches the disk; what was not synced is lost."""
        descriptor = os.open(self.mounted_at, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, GOING_DOWN, ctypes.c_uint32(WITHOUT_FLUSHING_THE_LOG))
        finally:
            os.close(descriptor)

    @contextmanager
    def mounted(self) -> Generator[Path]:
        """Have it mounted for a while."""
        self.mount()
        try:
            yield self.mounted_at
        finally:
            self.unmount()

    def fill(self) -> Path:
        """Leave no room; gives the file to be deleted to make some."""
        filler = self.mounted_at / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            file.writelines(itertools.repeat(bytes(4_096)))
        return filler

    def detach(self) -> None:
        if self.mounted_at.is_mount():
            self.unmount()
        run("losetup", "--detach", self.device)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def why_not(kind: str = "ext4") -> str:
    """Why no disk can be made here; empty if one can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "cutting the power of a file system takes Linux and root"
    missing = [tool for tool in (*TOOLS, f"mkfs.{kind}") if shutil.which(tool) is None]
    return f"cutting the power of a file system takes {', '.join(missing)}" if missing else ""


@contextmanager
def disk_in(folder: Path, size_bytes: int = DISK_BYTES, kind: str = "ext4") -> Generator[Disk]:
    """A disk whose image lies in a folder; without what it takes the test is skipped."""
    if reason := why_not(kind):
        pytest.skip(reason)
    try:
        disk = Disk(folder, size_bytes, kind)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device to be had: {error.stderr}")
    try:
        yield disk
    finally:
        disk.detach()


# --- servers on them --------------------------------------------------------------------------------------------------


class Served(Protocol):
    """A server on a disk."""

    def url(self, **options: object) -> str:
        """The URL of a store."""
        ...

    def kill(self) -> None:
        """End it without a word."""
        ...

    def restart(self) -> None:
        """Kill it, and start it again."""
        ...

    def start_if_ended(self) -> None:
        """Start it if it has ended by itself."""
        ...


Serve = Callable[[], AbstractContextManager[Served]]
"""Starts a server on the files of the disk, mounted, and ends it."""


def cut_once(disk: Disk, serve: Serve, *, named: str, claims: int) -> tuple[int, int]:
    """Cut the power under a server; how many claims were acknowledged before, and how many of those are lost.

    `named` is the option of a URL that says where the records are. They are in the same place each time: MariaDB does
    not always start again if a table was made right before the cut.
    """
    options = {named: "cuts", "safe": "ignore", "timeout": 2}
    with serve() as server:
        writers = Claims(server.url(**options), enough=claims, name=f"cut-{next(NUMBERS)}-")
        assert writers.enough.wait(30)
        before = list(writers.acknowledged)
        disk.cut_power()
        server.kill()
        writers.join()
    with serve() as server:
        store = open_store(server.url(**options))
        lost = missing_in(store, before)
        store.close()
    return len(before), lost


def lost_in_power_cuts(disk: Disk, serve: Serve, *, named: str, claims_max: int) -> int:
    """How many acknowledged claims are lost in `CUTS` power cuts, each in the middle of some."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    counts = [cut_once(disk, serve, named=named, claims=chance.randrange(1, claims_max)) for _ in range(CUTS)]
    print(f"{sum(count for count, _ in counts)} claims were acknowledged")
    return sum(lost for _, lost in counts)


def loses_in_some_power_cut(disk: Disk, serve: Serve, *, named: str, claims: int) -> bool:
    """The control: whether one of some power cuts loses a claim."""
    return any(cut_once(disk, serve, named=named, claims=claims)[1] for _ in range(CONTROL_CUTS_MAX))


def survives_a_full_disk(disk: Disk, url: str, restart: Callable[[], None]) -> None:
    """P8: on a full disk begins are refused, and nothing is lost. The server may have to be started again, or not."""
    store = open_store(url)
    insert(store, new_record("before"))
    filler = disk.fill()
    noise = random.Random(1)
    records = (new_record(f"{number}", error=noise.randbytes(8_192).hex()) for number in range(4_000))
    with pytest.raises(StoreUnavailable):
        deque((insert(store, record) for record in records), maxlen=0)
    filler.unlink()
    restart()
    assert stored(store, new_record("before"))
    insert(store, new_record("after"))
    store.close()
