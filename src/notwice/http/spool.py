"""The body of a request while it is read, compared and given to the app: in memory, above 1 MiB on disk."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import IO, Final, Self

from notwice.errors import NotwiceError

MEMORY_BYTES_MAX: Final = 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024

_LOG: Final = logging.getLogger("notwice")


class SpoolUnavailable(NotwiceError):
    """A body can't be kept while it is read: the disk is full, or can't be written. Nothing ran."""

    code = "spool_unavailable"
    retry_after = 1


class Spool:
    """Bytes that are written once and then read any number of times. Its file has no name and dies with it.

    What has been read once is on the disk, or in memory. Until then reading and writing raise `SpoolUnavailable`.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX)  # noqa: SIM115 - closed by close()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Add the next bytes."""
        with _told():
            self._file.write(chunk)
        self.size += len(chunk)

    def read(self) -> bytes:
        """All bytes."""
        return self.file().read()

    def __iter__(self) -> Iterator[bytes]:
        """The bytes in pieces of 64 KiB, from the start."""
        self.file()
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk

    def file(self) -> IO[bytes]:
        """The bytes as a file, at its start."""
        with _told():
            self._file.seek(0)  # writes what still waits to be written
        return self._file

    def close(self) -> None:
        """Give the memory or the file back."""
        with contextlib.suppress(OSError):  # what could not be written is not wanted any more
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _told() -> Generator[None]:
    try:
        yield
    except OSError as error:
        _LOG.error("A request can't be kept while it is read: %s", error)
        raise SpoolUnavailable(str(error)) from error
