"""``python -m notwice.testing.torture sqlite:////var/tmp/torture.db``: a run of torture on the store of a URL."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from notwice.testing.torture.plan import Plan
from notwice.testing.torture.run import torture

ABOUT = """Let client processes work on one store while they are killed and stopped, and judge what they saw.
The store must be empty, and of no further use: it is left full of records. Exits with 1 if a promise was broken."""


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m notwice.testing.torture", description=ABOUT)
    parser.add_argument("store", help="a URL, or module:function, which is given the folder of the run")
    parser.add_argument("--work", choices=["records", "payments"], default="records")
    parser.add_argument("--operations", type=int, default=60_000)
    parser.add_argument("--faults", type=int, default=600)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--injector", default="", help="module:function, which makes a notwice.testing.torture.Injector"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))  # noqa: S311 - chosen faults, no secret
    parser.add_argument("--seconds-max", type=float, default=86_400, help="after which a run is given up")
    parser.add_argument("--folder", type=Path, help="a new folder to keep all logs in; by default they are dropped")
    given = vars(parser.parse_args())
    folder: Path | None = given.pop("folder")
    plan = Plan(**given)
    with tempfile.TemporaryDirectory() as dropped:
        report = torture(plan, folder or Path(dropped) / "run")
    sys.stdout.write(f"seed {plan.seed}: {report}\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
