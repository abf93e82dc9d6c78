"""The clocks of the embedded stores: one for leases that no step of the wall clock moves, one for retention.

Leases are judged by the time since the host was started. On Linux that is CLOCK_BOOTTIME, which counts sleep, and the
boot is named by the kernel's boot id. On macOS it is CLOCK_MONOTONIC, which counts sleep there, and the boot session's
UUID. Other systems name no boot, so records can be kept in memory, where one boot is all there is, but not in a file.

Retention is judged by the wall clock. That clock can be wrong, and a guard that believes it then drops answers that
are still needed. So each store remembers how far apart its two clocks were when it was opened. While they have drifted
apart by more than an hour, the store says so once, stamps each write with the later of the two times, and counts
retention by the earlier one: a record expires only once both clocks say so.
"""

from __future__ import annotations

import ctypes
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from notwice.model import AGE_UNKNOWN_MS
from notwice.stores.port import StoreClock

DRIFT_MAX_MS = 60 * 60 * 1000
"""How far wall clock and boot clock may drift apart before the wall clock alone is no longer believed."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class ClockDriftWarning(UserWarning):
    """Wall clock and boot clock have drifted apart by more than an hour; records expire late until they agree."""


@cache
def _boot_id() -> str:
    """The name of this run of the host; empty on a system that names none. Kept: no process outlives a boot."""
    with suppress(OSError):
        return _BOOT_ID_FILE.read_text(encoding="ascii").strip()
    return _boot_session_of_macos() if sys.platform == "darwin" else ""


class SystemStoreClock:
    """The clocks of this host."""

    boot_id = staticmethod(_boot_id)

    def wall_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Milliseconds since this host was started, counting sleep."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class Moment(NamedTuple):
    """One reading of the clocks in whole milliseconds.

    ``now_ms`` is what retention is counted by, ``stamp_ms`` what a write is stamped with: the same wall time, unless
    the clocks disagree. ``boot_ms`` is what leases are counted by, within the boot ``boot_id``.
    """

    now_ms: int
    stamp_ms: int
    boot_ms: int
    boot_id: str

    def since_ms(self, boot_ms: int, boot_id: str) -> int:
        """How long ago another reading was, by the clock that judges leases; `AGE_UNKNOWN_MS` after another boot."""
        return max(self.boot_ms - boot_ms, 0) if boot_id == self.boot_id else AGE_UNKNOWN_MS

    def at(self, written_ms: int) -> Moment:
        """What would have been read at the wall time `written_ms`, had this boot begun before it."""
        return Moment(self.now_ms, written_ms, self.boot_ms - max(self.stamp_ms - written_ms, 0), self.boot_id)


moment_of: Callable[[tuple[int, int, int, str]], Moment] = partial(tuple.__new__, Moment)
"""Makes a moment of its fields, at half the price."""


class TrustedClock:
    """A `StoreClock` as one opened store believes it. One thread at a time may read it."""

    __slots__ = ("_boot_id", "_boot_ms", "_doubting", "_host", "_offset_ms", "_opened_in", "_wall_ms")

    def __init__(self, clock: StoreClock) -> None:
        self._host = type(clock) is SystemStoreClock
        self._wall_ms = clock.wall_ms
        self._boot_ms = clock.boot_ms
        self._boot_id = clock.boot_id
        self._trust()

    def read(self) -> Moment:
        """Give the time. Warns once, with `ClockDriftWarning`, when the clocks begin to disagree."""
        if self._host:  # what the calls below come to, for this is on the path of every write
            wall_ms, boot_ms = time.time_ns() // 1_000_000, time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000
            boot_id = self._opened_in
        else:
            boot_id = self._boot_id()
            if boot_id != self._opened_in:
                self._trust()
            wall_ms, boot_ms = self._wall_ms(), self._boot_ms()
        if -DRIFT_MAX_MS <= wall_ms - boot_ms - self._offset_ms <= DRIFT_MAX_MS:
            self._doubting = False
            return moment_of((wall_ms, wall_ms, boot_ms, boot_id))
        expected_ms = boot_ms + self._offset_ms
        self._warn(wall_ms - expected_ms)
        return Moment(min(wall_ms, expected_ms), max(wall_ms, expected_ms), boot_ms, boot_id)

    def _trust(self) -> None:
        self._opened_in = self._boot_id()
        self._offset_ms = self._wall_ms() - self._boot_ms()
        self._doubting = False

    def _warn(self, drift_ms: int) -> None:
        if not self._doubting:
            self._doubting = True
            warnings.warn(
                f"the wall clock has moved by {drift_ms // 1000:+} s against the time since boot "
                "since this store was opened; stored answers are kept until both agree that they have expired. "
                "Set the clock right, or restart this process if it is right now.",
                ClockDriftWarning,
                stacklevel=2,
            )


def _boot_session_of_macos() -> str:
    value = ctypes.create_string_buffer(64)
    length = ctypes.c_size_t(len(value))
    failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", value, ctypes.byref(length), None, 0)
    return "" if failed else value.value.decode("ascii")
