"""Starts searches, and tells what came of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.target import Target, to_line

ROOT = Path(__file__).parent.parent.parent
INPUT_SECONDS_MAX = 20  # of one input, on a busy machine; they take well under a millisecond
MEMORY_MIB_MAX = 1024  # of the whole process, whose modules take about 150
TOLD_CHARACTERS_MAX = 6000


class Bounds(NamedTuple):
    """When each search ends: after so many inputs or seconds, whatever comes first; 0: without that bound."""

    runs: int = 0
    seconds: int = 0
    seed: int = 1


class Found(NamedTuple):
    """What a search came to. ``failing`` is the input that failed, as a line of the corpus; `None`: none did."""

    runs: int
    branches: int
    failing: str | None
    told: str


def search(targets: Sequence[Target], bounds: Bounds, *, keep: Path | None = None) -> dict[str, Found]:
    """Search from the kept inputs on, one target after the other.

    `keep`: a folder for all inputs that reached something new, to go on from another time. Raises `RuntimeError` if a
    search broke off without saying on which input.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [(target.name, _options(target, bounds, folder, keep=keep)) for target in targets]
        (folder / "jobs.json").write_text(json.dumps(jobs))
        command = [sys.executable, "-m", "tests.fuzz.guided", str(folder)]
        # The same hash seed in every run, so that the same seed searches the same way.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": "src"}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"the searches did not end as they should: {ended.stderr[-TOLD_CHARACTERS_MAX:]}")
        return {target.name: _found(target, folder) for target in targets}


def _options(target: Target, bounds: Bounds, folder: Path, *, keep: Path | None) -> list[str]:
    corpus = (keep or folder) / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.inputs()):
        (corpus / f"kept-{number:03}").write_bytes(data)
    return [
        str(corpus),
        f"-seed={bounds.seed}",
        f"-max_len={target.bytes_max}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-artifact_prefix={folder}/{target.name}.failing.",
        "-print_final_stats=1",
        *([f"-runs={bounds.runs}"] if bounds.runs else []),
        *([f"-max_total_time={bounds.seconds}"] if bounds.seconds else []),
    ]


def _found(target: Target, folder: Path) -> Found:
    told = (folder / f"{target.name}.log").read_text(errors="replace")
    failing = [path.read_bytes() for path in sorted(folder.glob(f"{target.name}.failing.*"))]
    runs = _last(r"stat::number_of_executed_units:\s+(\d+)", told)
    if not failing and (runs is None or not told.endswith("\nended: 0\n")):
        raise RuntimeError(f"the search for {target.name} did not end as it should: {told[-TOLD_CHARACTERS_MAX:]}")
    line = to_line(failing[0]) if failing else None
    return Found(runs or 0, _last(r"cov: (\d+)", told) or 0, line, told[-TOLD_CHARACTERS_MAX:])


def _last(pattern: str, text: str) -> int | None:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else None
