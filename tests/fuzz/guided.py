"""The search, in a process of its own: ``python -m tests.fuzz.guided FOLDER``.

The folder has ``jobs.json``, a list of targets with libFuzzer's options for each. The parsers are imported once, with
their branches counted, so this process must be the first to import them; each job then runs in a child, because a
search ends its process. What a job said stands in ``NAME.log``, and how it ended is the last line.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # it ships no annotations


def main(folder: Path) -> None:
    """Run the jobs, one after the other."""
    jobs: list[tuple[str, list[str]]] = json.loads((folder / "jobs.json").read_text())
    with atheris.instrument_imports(include=["notwice", "jwt", "tests.fuzz.control"], enable_loader_override=False):
        targets = import_module("tests.fuzz.targets")
    for name, options in jobs:
        log = folder / f"{name}.log"
        child = os.fork()
        if not child:
            _search(targets.EVERY[name].run, options, log)
        _, status = os.waitpid(child, 0)
        with log.open("a") as file:
            file.write(f"\nended: {os.waitstatus_to_exitcode(status)}\n")


def _search(run: object, options: list[str], log: Path) -> None:
    """Search in this process, which ends with it."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(written, 1)
    os.dup2(written, 2)
    atheris.Setup(["search", *options], run)
    atheris.Fuzz()
    os._exit(0)  # not reached: the search exits


if __name__ == "__main__":
    main(Path(sys.argv[1]))
