"""``notwice migrate``: the tables of a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from notwice.cli.arguments import FINE
from notwice.stores import migrate
from notwice.stores.migrations import Migration, script


def carry_out(url: str, said: argparse.Namespace) -> int:
    """Bring the tables to what this release makes of them, or print the SQL that would.

    Raises `ValueError` for a store without tables.
    """
    steps = migrate(url, dry_run=said.dry_run)
    if said.dry_run:
        print(script(steps), end="")
    told = "nothing to do: the tables are what this release makes of them" if not steps else _told(steps, said.dry_run)
    print(told, file=sys.stderr)
    return FINE


def _told(steps: Sequence[Migration], dry_run: bool) -> str:  # noqa: FBT001 - an option of the command line
    names = ", ".join(f"{step.number} ({step.title})" for step in steps)
    return f"to be done: {names}" if dry_run else f"done: {names}"
