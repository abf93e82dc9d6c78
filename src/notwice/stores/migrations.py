"""Schemas that grow by numbered steps, for every engine that has tables.

The table of versions has one row for each step that was carried out: its number, and the oldest release of the schema
that can still work on the result (``reader_min``). So a step that only adds what older processes don't need lets two
neighbouring releases run side by side, and a step that they could not bear makes them refuse, before they do anything.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from notwice.errors import StoreUnavailable, UnsupportedRecord


class Migration(NamedTuple):
    """One step. ``reader_min`` is the lowest version that a process may have who works on what it leaves behind."""

    number: int
    title: str
    reader_min: int
    statements: tuple[str, ...]
    language: Literal["sql", "shell"] = "sql"


class Version(NamedTuple):
    """What stands in the table of versions, in sum; all 0 where there is none."""

    number: int
    reader_min: int


ABSENT = Version(0, 0)

_MARKS: Final = {"sql": ("--", ";"), "shell": ("#", "")}
"""What begins a comment in a language, and what ends a statement."""


def version_of(steps: Sequence[Migration]) -> int:
    """The version that this release makes and knows."""
    return steps[-1].number


def pending(steps: Sequence[Migration], found: Version) -> Sequence[Migration]:
    """The steps that are still to be carried out."""
    return [step for step in steps if step.number > found.number]


def refuse_newer(steps: Sequence[Migration], found: Version, place: str) -> None:
    """Raise `UnsupportedRecord` for tables that this release must not touch."""
    known = version_of(steps)
    if found.reader_min > known:
        raise UnsupportedRecord(
            f"{place} was made by a newer release (tables of version {found.number}, this release knows {known}); "
            "upgrade this process"
        )


def none_yet(tables: str) -> StoreUnavailable:
    """The error of a store that was opened to work on what is there, when nothing is."""
    return StoreUnavailable(
        f"{tables} is not there: no store was made here yet. `notwice migrate` makes it, and so does the first guard"
    )


def script(steps: Iterable[Migration]) -> str:
    """The steps as one text that a person can read and run."""
    parts: list[str] = []
    for step in steps:
        comment, end = _MARKS[step.language]
        parts.append(f"{comment} {step.number}: {step.title}")
        parts += [textwrap.dedent(statement).strip() + end for statement in step.statements]
    return "".join(f"{part}\n" for part in parts)
