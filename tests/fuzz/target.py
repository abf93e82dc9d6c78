"""What a target is, and how its inputs are kept: one a line, readable, in a file of the target's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).parent / "corpus"


class Target(NamedTuple):
    """One parser under fire.

    ``run`` is given any bytes. It raises `AssertionError`, or whatever the parser must not raise, where the parser
    breaks its word.
    """

    name: str
    run: Callable[[bytes], None]
    bytes_max: int = 512

    @property
    def file(self) -> Path:
        """Where its inputs are kept."""
        return CORPUS / f"{self.name}.txt"

    def inputs(self) -> list[bytes]:
        """The inputs that are kept. Lines that begin with # are remarks."""
        lines = self.file.read_text(encoding="ascii").splitlines()
        return [from_line(line) for line in lines if not line.startswith("#")]


def to_line(data: bytes) -> str:
    r"""Write an input as one line of ASCII: other bytes, the backslash and a # in front as ``\x..``."""
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in data)
    return f"\\x23{text[1:]}" if text.startswith("#") else text


def from_line(line: str) -> bytes:
    r"""Read what `to_line` wrote, and what a person writes as in a Python literal: ``\n``, ``\t``, ``\\``."""
    return line.encode("ascii").decode("unicode_escape").encode("latin-1")


def texts_of(data: bytes) -> list[str]:
    """The lines of an input as text; bytes that are no UTF-8 are unpaired surrogates."""
    return data.decode("utf-8", "surrogateescape").split("\n")


def check_says(error: Exception, *, but_not: str | None = None) -> None:
    """Check that an error says what is wrong, and does not repeat a secret."""
    assert str(error).strip(), f"{type(error).__name__} says nothing"
    assert but_not is None or but_not not in str(error)


def refused(call: Callable[[], object], *errors: type[Exception]) -> bool:
    """Whether a call raises one of the errors that it may raise."""
    try:
        call()
    except errors as error:
        check_says(error)
        return True
    return False


def all_equal(values: Iterable[object]) -> bool:
    """Whether all values are equal."""
    first, *others = values
    return all(value == first for value in others)
