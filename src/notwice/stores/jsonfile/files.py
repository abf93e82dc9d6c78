"""What is done to the disk: one holder of a lock at a time, and a file that is replaced whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from notwice.errors import StoreUnavailable

PAUSE_S: Final = 0.02

Identity = tuple[int, int, int, int]
"""Which file it is, and which content of it: device, number, size, time of the last change."""


def make_folder(folder: Path) -> None:
    """Make a folder for its user alone (0700), if it is not there; its name survives a power cut."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)


def take_lock(path: Path, timeout: float) -> int:
    """Give a descriptor that holds the lock until it is closed, or the process ends.

    Raises `StoreUnavailable` if another holder keeps it for `timeout` seconds. The file stays: were it removed, two
    could hold a lock of that name.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + timeout
    taken = False
    try:
        while not (taken := _takes(descriptor, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        refusal = None if taken else _held(path, descriptor)
    finally:
        if not taken:
            os.close(descriptor)
    if refusal is not None:
        raise refusal
    with suppress(OSError):  # a full disk keeps nobody's name, but the lock holds
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def holds(descriptor: int, path: Path) -> bool:
    """Whether the lock of a descriptor is still the one under its path: somebody may have removed the file."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock, without taking it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _takes(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def identity(path: Path) -> Identity | None:
    """Which content stands under a path; ``None`` if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of a file, for its user alone (0600). It is on the disk when this returns.

    A process that is killed at any point of it leaves the old content or the new one. If the last step fails, the
    sync of the folder, the new content stands there and may not outlive a power cut.
    """
    fresh = fresh_path(path)
    with suppress(FileNotFoundError):
        fresh.unlink()  # of a process that was killed
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error says more
            fresh.unlink()
        raise
    _sync_folder(path.parent)


def fresh_path(path: Path) -> Path:
    """Where new content is written before it is put in its place."""
    return path.with_name(f".{path.name}.new")


def explained(error: OSError, path: Path) -> StoreUnavailable:
    """The error that a caller gets for one of the system's."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            reason = "the disk is full; nothing was written"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            reason = "it can't be read and written; look at its permissions and those of its folder"
        case errno.ENOENT:
            reason = "its folder is not there"
        case errno.EIO:
            reason = "reading or writing failed; whether this write is there is not known"
        case _:
            reason = error.strerror or str(error)
    return StoreUnavailable(f"{path}: {reason} ({errno.errorcode.get(error.errno or 0, type(error).__name__)})")


def _takes(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held(path: Path, descriptor: int) -> StoreUnavailable:
    holder = "another process"
    with suppress(OSError, ValueError):
        holder = f"process {int(os.pread(descriptor, 32, 0))}"
    return StoreUnavailable(
        f"{path} is held by {holder}: one process at a time may have such a file open; stop that one first"
    )


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
