"""``notwice stats``: how many operations stand where."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from notwice import Guard, core
from notwice.cli import output
from notwice.cli.arguments import FINE
from notwice.cli.selection import pages, selection_of, unlisted
from notwice.cli.table import Table
from notwice.cli.terminal import here
from notwice.model import RecordView, Released, State, Unreadable

KINDS: Final = ("unresolved", "held", "released", "in_progress", "completed", "failed", "unreadable")
COLUMNS: Final = ("all", *KINDS[:-1])  # those that can't be read have one where there are any
GROUPS_MAX: Final = 10_000  # names that are counted apart; the rest is counted together
OTHERS: Final = "(others)"

_FIRST_PART: Final = re.compile(r"(?:[^:\\]|\\.)*")


@dataclass(slots=True)
class Stats:
    """What was counted. `held` ones are among the `unresolved`; an expired record counts until it is purged."""

    all: Counter[str] = field(default_factory=Counter)
    namespaces: dict[str, Counter[str]] = field(default_factory=dict)
    scopes: dict[str, Counter[str]] = field(default_factory=dict)
    oldest: RecordView | None = None

    def add(self, item: RecordView | Unreadable) -> None:
        """Count one record."""
        kinds = ("all", *kinds_of(item))
        namespace = item.namespace if isinstance(item, Unreadable) else item.record.namespace
        scope = "" if isinstance(item, Unreadable) else first_part(item.record.scope)
        for counter in (self.all, _group(self.namespaces, namespace), _group(self.scopes, scope)):
            counter.update(kinds)
        if isinstance(item, RecordView) and item.unresolved and self.oldest is None:
            self.oldest = item  # a scan gives the oldest first


def kinds_of(item: RecordView | Unreadable) -> tuple[str, ...]:
    """What a record is counted as."""
    if isinstance(item, Unreadable):
        return ("unreadable",)
    if item.record.released is not Released.NO:
        return ("released",)
    if item.unresolved:
        return ("unresolved", "held") if core.held(item) else ("unresolved",)
    return (str(item.state),) if item.state is not State.ACCEPTED else ()


def first_part(scope: str) -> str:
    """The first part of a scope: ``refund`` of ``refund:ord_1``. What follows names one thing of its kind."""
    found = _FIRST_PART.match(scope)
    return found[0] if found else scope


def carry_out(guard: Guard, said: argparse.Namespace) -> int:
    """Count, and tell."""
    stats, wanted = Stats(), selection_of(said)
    if count := unlisted(guard, wanted):
        stats.all.update({"all": count, "unreadable": count})
    for page in pages(guard, wanted, limit=None):
        for item in page.items:
            stats.add(item)
    if said.json:
        print(json.dumps(_document(stats)))
    else:
        print("\n".join(_lines(stats, said)))
    return FINE


def _group(groups: dict[str, Counter[str]], name: str) -> Counter[str]:
    return groups.setdefault(name if name in groups or len(groups) < GROUPS_MAX else OTHERS, Counter())


def _sorted(groups: dict[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    """Those with the most unresolved ones first, then those with the most."""
    return sorted(groups.items(), key=lambda group: (-group[1]["unresolved"], -group[1]["all"], group[0]))


def _lines(stats: Stats, said: argparse.Namespace) -> Iterator[str]:
    yield f"{stats.all['all']:>12,}  operations"
    for kind in KINDS:
        if stats.all[kind] or kind in {"unresolved", "held"}:
            yield f"{stats.all[kind]:>12,}  {kind.replace('_', ' ')}"
    if stats.oldest is not None:
        record = stats.oldest.record
        age = output.ago(stats.oldest, record.created_ms)
        yield f"The oldest unresolved one was begun {age}: {record.id} {output.printable(record.scope)}"
    columns = (*COLUMNS, KINDS[-1]) if stats.all[KINDS[-1]] else COLUMNS
    yield from _table("NAMESPACE", stats.namespaces, said.top, columns=columns, unnamed="(the default)")
    yield from _table("SCOPE", stats.scopes, said.top, columns=columns, unnamed="(none)")


def _table(
    heading: str, groups: dict[str, Counter[str]], top: int, *, columns: Sequence[str], unnamed: str
) -> Iterator[str]:
    if not groups:
        return
    rows = [
        (output.printable(name) or unnamed, *(f"{counts[kind]:,}" for kind in columns))
        for name, counts in _sorted(groups)[:top]
    ]
    yield ""
    headings = (kind.replace("_", " ").upper() for kind in columns)
    yield from Table((heading, *headings), here(), cut=(0,), coloured=0).lines(rows)
    if len(groups) > top:
        yield f"and {len(groups) - top:,} more"


def _document(stats: Stats) -> dict[str, Any]:
    oldest = stats.oldest
    return {
        **_counts(stats.all),
        "oldest_unresolved": None if oldest is None else output.document(oldest, output.Look()),
        "namespaces": {name: _counts(counts) for name, counts in _sorted(stats.namespaces)},
        "scopes": {name: _counts(counts) for name, counts in _sorted(stats.scopes)},
    }


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {"operations": counts["all"], **{kind: counts[kind] for kind in KINDS}}
