"""What a terminal can show: its width, whether it has colours, and how wide a text is in it."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from typing import Final, NamedTuple, TextIO

_CODES: Final[Mapping[str, str]] = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35"}
_CUT: Final = "…"


class Screen(NamedTuple):
    """Where text goes. A `width` of ``None``: no terminal, so nothing is cut."""

    width: int | None = None
    colours: bool = False

    def coloured(self, text: str, colour: str) -> str:
        """The text in a colour, where there are any; ``""``: as it is."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and self.colours else text


def screen_of(stream: TextIO, environment: Mapping[str, str] | None = None) -> Screen:
    """What `stream` is. Colours are for terminals alone, and not with ``NO_COLOR``, whatever it says but nothing."""
    found = os.environ if environment is None else environment
    if not stream.isatty():
        return Screen()
    colours = not found.get("NO_COLOR") and found.get("TERM") != "dumb"
    return Screen(shutil.get_terminal_size().columns, colours)


def here() -> Screen:
    """The screen of standard output."""
    return screen_of(sys.stdout)


def width_of(text: str) -> int:
    """How many cells a printable text takes: two for a wide character, none for an accent that follows its letter."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(part) else 2 if unicodedata.east_asian_width(part) in "WF" else 1 for part in text
    )


def fitted(text: str, width: int) -> str:
    """The text, cut where it is wider than `width`, and filled up where it is not."""
    if width_of(text) > width:
        kept = ""
        for part in text:
            if width_of(kept + part) >= width:
                break
            kept += part
        text = kept + _CUT
    return text + " " * (width - width_of(text))
