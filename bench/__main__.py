"""``python -m bench``: measure, and print a table or one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench import dynamodb, faces, memory, mysql, postgres, redis, sqlite
from bench.figures import Figure
from bench.measure import ROUNDS_MIN, Size, repeated

Benchmark = Callable[[Size, Path], Figure]


def _without_folder(measured: Callable[[Size], Figure], size: Size, _folder: Path) -> Figure:
    return measured(size)


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "memory-pair": partial(_without_folder, memory.pair),
    "memory-replay": partial(_without_folder, memory.replay),
    "asgi-pass": partial(_without_folder, faces.asgi_pass),
    "asgi-guarded": partial(_without_folder, faces.asgi_guarded),
    "wsgi-pass": partial(_without_folder, faces.wsgi_pass),
    "wsgi-guarded": partial(_without_folder, faces.wsgi_guarded),
    "sqlite-apply-tasks": sqlite.apply_tasks,
    "sqlite-apply-threads": sqlite.apply_threads,
    "sqlite-guard-tasks": sqlite.guard_tasks,
    "sqlite-guard-tasks-bare": sqlite.guard_tasks_bare,
    "sqlite-guard-alone": sqlite.guard_alone,
    "sqlite-guard-statements": sqlite.guard_statements,
    "sqlite-replay": sqlite.replay,
    "postgres-apply-tasks": postgres.apply_tasks,
    "postgres-guard-tasks": postgres.guard_tasks,
    "postgres-guard-threads": postgres.guard_threads,
    "postgres-guard-alone": postgres.guard_alone,
    "postgres-replay": postgres.replay,
    "redis-guard-tasks": redis.guard_tasks,
    "redis-guard-threads": redis.guard_threads,
    "redis-guard-alone": redis.guard_alone,
    "redis-replay": redis.replay,
    "mysql-guard-tasks": mysql.guard_tasks,
    "mysql-guard-threads": mysql.guard_threads,
    "mysql-guard-alone": mysql.guard_alone,
    "mysql-replay": mysql.replay,
    "dynamodb-guard-tasks": dynamodb.guard_tasks,
    "dynamodb-guard-alone": dynamodb.guard_alone,
    "dynamodb-replay": dynamodb.replay,
}

ROUNDS: Final = 15
ROW: Final = "{:<23} {:<33} {:>9} {:>9} {:>8} {:>8}  {}"
SYNCS: Final = 50
CALLS: Final = 100_000


def measure(name: str, size: Size, folder: Path) -> Figure:
    """Run one benchmark, with its files in a folder of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as own:
        return BENCHMARKS[name](size, Path(own))


def sync_us(folder: Path) -> float:
    """What the disk under `folder` takes to keep a block, in microseconds: the median of a few tries."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    return sorted(taken)[SYNCS // 2] * 1e6


def call_ns() -> float:
    """What a call of an empty function takes, in nanoseconds: how fast this interpreter is on this processor.

    All that computes here goes with it. One that was built without profile-guided optimization takes a third more.
    """

    def nothing() -> None:
        """Do nothing."""

    return min(repeated(nothing, time.process_time)(CALLS) for _ in range(5)) / CALLS * 1e9


def machine(folder: Path) -> dict[str, object]:
    """On what it was measured, and how busy that was with other things."""
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "sync_us": round(sync_us(folder)),
        "call_ns": round(call_ns()),
    }


def row(figure: Figure) -> str:
    """One line of the table."""
    pair = figure.pair
    reached = figure.goal.is_reached(pair)
    wanted = "" if reached is None else f"{figure.goal}: {'yes' if reached else 'NO'}"
    times = (f"{pair.ours_us:.1f}", f"{pair.base_us:.1f}", f"{pair.ratio:.2f}", f"{figure.speed:.2f}")
    return ROW.format(figure.name, figure.ours, *times, wanted).rstrip()


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure notwice in paired runs.")
    parser.add_argument("names", nargs="*", metavar="benchmark", help=f"all, or some of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each pair is run (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="how long a round is (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a benchmark is at most, about")
    parser.add_argument("--folder", type=Path, default=Path(), help="where files are made: on the disk that counts")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    if options.rounds < ROUNDS_MIN or options.scale <= 0:
        parser.error(f"a median needs at least {ROUNDS_MIN} rounds, and a round a scale above zero")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for. Gives 0 whatever came out: a busy machine is no failure."""
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    size, under = Size(options.rounds, options.scale, options.seconds), machine(options.folder)
    if not options.json:
        print(", ".join(f"{name} {value}" for name, value in under.items()))
        print(ROW.format("benchmark", "what", "us", "base us", "time x", "speed x", "goal"))
    figures: list[Figure] = []
    for name in options.names or BENCHMARKS:
        figures.append(measure(name, size, options.folder))
        if not options.json:
            print(row(figures[-1]), flush=True)
    if options.json:
        print(json.dumps({"machine": under, "figures": [figure.as_json() for figure in figures]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
