"""Paired runs: two contenders take turns, and only the ratio of neighbours counts.

A machine that others use is fast in one second and slow in the next, so two times that were taken apart say little.
Here each round runs one contender right after the other, in changing order; the figure is the median of the rounds'
ratios, and stays the same when the whole machine slows down. The times are medians, too, and of this machine only.
What waits for a disk is measured by the clock on the wall, what only computes by its time on a processor.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

Run = Callable[[int], float]
"""Carries out so many operations and gives the seconds that they took."""

ROUNDS_MIN: Final = 3


class Size(NamedTuple):
    """How much is measured: so many rounds, each with a multiple of the operations that a benchmark thinks right.

    Once `seconds` have gone by, `ROUNDS_MIN` rounds are enough.
    """

    rounds: int
    scale: float = 1.0
    seconds: float = 10.0


class Pair(NamedTuple):
    """What came out: microseconds per operation of both, and the median of the rounds' ratios, ours to the base's."""

    ours_us: float
    base_us: float
    ratio: float


def paired(ours: Run, base: Run, size: Size, *, operations: int, base_operations: int | None = None) -> Pair:
    """Let both take turns, after one round each that does not count.

    `operations` are right for a round of both, or of ours if the base is so slow that it has `base_operations`.
    """
    counts = {
        run: max(1, round(usual * size.scale))
        for run, usual in ((ours, operations), (base, base_operations or operations))
    }
    enough = time.monotonic() + size.seconds
    times: list[tuple[float, float]] = []
    while len(times) <= size.rounds and (len(times) <= ROUNDS_MIN or time.monotonic() < enough):
        order = (ours, base) if len(times) % 2 else (base, ours)
        taken = {run: _timed(run, counts[run]) for run in order}
        times.append((taken[ours], taken[base]))
    return _pair(times[1:])


def repeated(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Run:
    """A run that does `work` so many times."""

    def run(operations: int) -> float:
        started = clock()
        for _ in range(operations):
            work()
        return clock() - started

    return run


def computed(work: Callable[[], object]) -> Run:
    """A run of `work` that waits for nothing: what counts is the time that this process had on a processor."""
    return repeated(work, time.process_time)


def _timed(run: Run, operations: int) -> float:
    """Microseconds per operation, with the garbage of others collected before."""
    gc.collect()
    return run(operations) / operations * 1e6


def _pair(times: Sequence[tuple[float, float]]) -> Pair:
    return Pair(
        median(ours for ours, _ in times),
        median(base for _, base in times),
        median(ours / base for ours, base in times),
    )
