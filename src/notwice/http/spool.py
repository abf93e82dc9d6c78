"""The body of a request while it is read, compared and given to the app: in memory, above 1 MiB on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Final, Self

MEMORY_BYTES_MAX: Final = 1024 * 1024
CHUNK_BYTES: Final = 64 * 1024


class Spool:
    """Bytes that are written once and then read any number of times. Its file has no name and dies with it."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX)  # noqa: SIM115 - closed by close()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Add the next bytes."""
        self._file.write(chunk)
        self.size += len(chunk)

    def read(self) -> bytes:
        """All bytes."""
        self._file.seek(0)
        return self._file.read()

    def __iter__(self) -> Iterator[bytes]:
        """The bytes in pieces of 64 KiB, from the start."""
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_BYTES):
            yield chunk

    def file(self) -> IO[bytes]:
        """The bytes as a file, at its start."""
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Give the memory or the file back."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
