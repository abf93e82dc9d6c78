"""Durations and sizes as people write them, and ages in words."""

from __future__ import annotations

import re

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
BYTES = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"  # more digits than anybody means, and few enough to count with
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|[smhdw]))+")
_PART = re.compile(rf"({_NUMBER})(ms|[smhdw])")
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)")
_STEPS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))


def parse_duration(text: str) -> float:
    """Give the seconds that `text` means: ``90``, ``1.5s``, ``250ms``, ``2h30m``, ``30d``. Raises `ValueError`."""
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not _DURATION.fullmatch(text):
        message = f"{text!r} is no duration; write seconds, or numbers with ms, s, m, h, d or w, as in 90 or 2h30m"
        raise ValueError(message)
    return sum(float(number) * SECONDS[unit] for number, unit in _PART.findall(text))


def parse_size(text: str) -> int:
    """Give the bytes that `text` means: ``65536``, ``64KiB``, ``10MB``. Raises `ValueError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2].upper() not in BYTES:
        message = f"{text!r} is no size; write bytes, or a number with KB, MB, GB, KiB, MiB or GiB, as in 10MiB"
        raise ValueError(message)
    return int(float(match[1]) * BYTES[match[2].upper()])


def in_words(duration_ms: int) -> str:
    """Say a duration as a person would, in one rounded-down unit: ``3 minutes``."""
    for unit_ms, unit in _STEPS:
        if duration_ms >= unit_ms:
            count = duration_ms // unit_ms
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "under a second"
