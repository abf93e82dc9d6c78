"""A target with a fault behind a few branches: the search must find it, or it searches nothing."""

from __future__ import annotations

from tests.fuzz.target import Target

WANTED = b"twice"


def faulty(data: bytes) -> None:
    """Fails on one beginning of five bytes, which only who counts branches comes upon."""
    for place, wanted in enumerate(WANTED):
        if len(data) <= place or data[place] != wanted:
            return
    raise AssertionError("found")


TARGET = Target("control", faulty, bytes_max=16)
