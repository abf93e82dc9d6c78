"""One run of torture, from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from notwice.testing.torture.plan import Plan
from notwice.testing.torture.verdict import Report, judged


def torture(plan: Plan, folder: Path) -> Report:
    """Carry out a plan in a new folder, which keeps all logs, and judge what was seen.

    Raises `RuntimeError` with the reason if the run itself failed: a client ended by itself, or nothing moved any more.
    """
    folder.mkdir(parents=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "notwice.testing.torture.driver", plan.to_json(), str(folder)]
    run = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)  # noqa: S603 - this interpreter, this package
    if run.returncode:
        texts = [run.stderr, *(path.read_text() for path in sorted(folder.glob("failed-*.txt")))]
        message = "the run failed: " + "\n".join(texts)
        raise RuntimeError(message)
    return judged(plan, folder, time.monotonic() - began)
