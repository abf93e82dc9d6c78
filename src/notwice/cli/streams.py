"""Standard input, output and error as the commands use them, whatever they were left as by who started the command."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


class Unwritten(Exception):
    """The output could not be written. Its cause says why."""


class _Output:
    """A stream whose errors are told from those of a store."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the stream has
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write. Raises `Unwritten`."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise Unwritten(error.strerror) from error

    def flush(self) -> None:
        """Write what is kept back. Raises `Unwritten`."""
        try:
            self._stream.flush()
        except OSError as error:
            raise Unwritten(error.strerror) from error


class _Asides(_Output):
    """What nobody can read is not written: it stops no command."""

    def write(self, text: str) -> int:
        """Write, if that can be."""
        with suppress(Unwritten):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is kept back, if that can be."""
        with suppress(Unwritten):
            super().flush()


@contextmanager
def ours() -> Generator[None]:
    """Within, all three are there, standard output raises `Unwritten`, and nothing that is said beside it fails.

    One that was closed is the empty device: else the next file to be opened, such as a store, would get its number.
    """
    usual = sys.stdin, sys.stdout, sys.stderr
    given = _there(sys.stdin, os.O_RDONLY)
    output, asides = (_there(stream, os.O_WRONLY) for stream in usual[1:])
    for stream in (output, asides):
        if isinstance(stream, io.TextIOWrapper):  # no record may hold what a terminal can't show
            stream.reconfigure(errors="backslashreplace")
    sys.stdin, sys.stdout, sys.stderr = given, cast("TextIO", _Output(output)), cast("TextIO", _Asides(asides))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = usual


def _there(stream: TextIO | None, flags: int) -> TextIO:
    if stream is not None:
        return stream
    return os.fdopen(os.open(os.devnull, flags), "r" if flags == os.O_RDONLY else "w")


def give_up(stream: TextIO) -> None:
    """Send what is still kept back nowhere, so that the interpreter does not try once more at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
