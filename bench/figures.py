"""A benchmark's figure: what was compared, what came out, and what it should be."""

from __future__ import annotations

from typing import Final, NamedTuple

from bench.measure import Pair


class Goal(NamedTuple):
    """What a figure should be: at most so many microseconds, or a ratio. A ``None`` asks for nothing."""

    us_max: float | None = None
    ratio_max: float | None = None
    speed_min: float | None = None

    def __str__(self) -> str:
        """As a reader wants it."""
        if self.us_max is not None:
            return f"at most {self.us_max:g} us"
        if self.ratio_max is not None:
            return f"at most {self.ratio_max:g} x the time"
        return "" if self.speed_min is None else f"at least {self.speed_min:g} x the speed"

    def is_reached(self, pair: Pair) -> bool | None:
        """Whether `pair` is as good; ``None`` where nothing is asked for."""
        if self.us_max is not None:
            return pair.ours_us <= self.us_max
        if self.ratio_max is not None:
            return pair.ratio <= self.ratio_max
        return None if self.speed_min is None else 1 / pair.ratio >= self.speed_min


NONE: Final = Goal()


class Figure(NamedTuple):
    """One line of the report."""

    name: str
    ours: str
    base: str
    goal: Goal
    pair: Pair

    @property
    def speed(self) -> float:
        """How many times as fast as the base."""
        return 1 / self.pair.ratio

    def as_json(self) -> dict[str, object]:
        """The figure for a program."""
        return {
            "name": self.name,
            "ours": self.ours,
            "base": self.base,
            "ours_us": round(self.pair.ours_us, 3),
            "base_us": round(self.pair.base_us, 3),
            "time_ratio": round(self.pair.ratio, 4),
            "speed_ratio": round(self.speed, 4),
            "goal": str(self.goal),
            "reached": self.goal.is_reached(self.pair),
        }
