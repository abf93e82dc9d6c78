"""``make fuzz ARGS="--seconds 60 key_header"``: the long searches."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.search import Bounds, Found, search
from tests.fuzz.target import Target
from tests.fuzz.targets import EVERY, TARGETS


def main() -> int:
    """Search, print a line for each target, and give 1 if something was found."""
    asked = argparse.ArgumentParser(prog="make fuzz", description="Search for inputs that a parser can't take.")
    asked.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; all by default")
    asked.add_argument("--seconds", type=int, default=60, help="for each target (default: 60; a release takes 1800)")
    asked.add_argument("--seed", type=int, default=0, help="of the search; 0 takes another one each time")
    asked.add_argument("--keep", type=Path, help="a folder for what was found on the way, to go on from another time")
    given = asked.parse_args()
    unknown = [name for name in given.targets if name not in EVERY]
    if unknown:
        asked.error(f"there is no target {unknown[0]}; the known ones are {', '.join(TARGETS)}")
    print(f"{'target':<16}{'inputs':>12}{'branches':>10}  found", flush=True)
    wanted = [EVERY[name] for name in given.targets] or list(TARGETS.values())
    return max(_tell(target, given) for target in wanted)


def _tell(target: Target, given: argparse.Namespace) -> int:
    found: Found = search([target], Bounds(seconds=given.seconds, seed=given.seed), keep=given.keep)[target.name]
    print(f"{target.name:<16}{found.runs:>12,}{found.branches:>10}  {found.failing or 'nothing'}", flush=True)
    if found.failing is None:
        return 0
    print(f"{found.told}\nMend what is wrong, and put this line into {target.file.name}:\n{found.failing}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
