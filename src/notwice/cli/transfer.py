"""``notwice import`` and ``notwice export``: records are carried from one store to another, with their times.

Nothing is overwritten, and the source stays as it is, so it can be done again after whatever went wrong. What was
written to the source meanwhile may be missing: stop what writes to it first.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from notwice.cli.arguments import FINE, REFUSED
from notwice.cli.output import printable
from notwice.errors import NotwiceError
from notwice.identity import operation_id
from notwice.model import Get, Query, RecordView, State, Unreadable
from notwice.stores.port import Loads, Store, Unlisted, loading

AT_ONCE: Final = 100
"""How many records are carried at once: few enough for a server's limits, many enough to share its commits."""

NAMES_MAX: Final = 10  # of each reason, so many operations are named
DAMAGED: Final = "can't be read"
TAKEN: Final = "another record has that place"
NAMELESS: Final = "the name does not tell the scope from the key: say --scope for each scope that names begin with"


@dataclass(slots=True)
class Report:
    """What became of the records: how many were carried, and what was left behind for which reason."""

    carried: int = 0
    there: int = 0
    expired: int = 0
    running: int = 0
    left: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=dict)

    def leave(self, reason: str, item: RecordView | Unreadable) -> None:
        """Note that a record was left behind."""
        self.left[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) < NAMES_MAX:
            known = item if isinstance(item, Unreadable) else item.record
            names.append(f"{known.id} of {known.namespace}" if known.namespace else known.id)

    def tell(self) -> int:
        """Say it, and give the exit status."""
        print(f"{self.carried} carried, {self.there} were there already, {self.expired} expired and stay behind")
        if self.running:
            print(f"{self.running} are in progress: see that no owner works on in the old store", file=sys.stderr)
        for reason, count in self.left.items():
            names = self.names.get(reason, [])
            more = f", and {count - len(names):,} more" if names and count > len(names) else ""
            which = f": {', '.join(map(printable, names))}{more}" if names else ""
            print(f"not carried: {count} ({printable(reason)}){which}", file=sys.stderr)
        return REFUSED if self.left else FINE


def carry(source: Store, target: Store, *, namespace: str | None, scopes: Sequence[str]) -> Report:
    """Carry all records of a store, or those of one namespace, to another one.

    `scopes` tells which scope an entry of the older cache has whose name alone does not: the one that it begins with.
    Raises `NotImplementedError` if the other store takes no records in.
    """
    target = loading(target)
    report = Report()
    if isinstance(source, Unlisted) and (count := source.unlisted()):
        report.left[DAMAGED] += count
    for items in _pages(source, namespace):
        views = [view for item in items if (view := _fit(item, scopes, report)) is not None]
        _load(target, views, report)
    return report


def _pages(source: Store, namespace: str | None) -> Iterator[Sequence[RecordView | Unreadable]]:
    query = Query(namespace=namespace, limit=AT_ONCE)
    while True:
        page = source.scan(query)
        yield page.items
        if page.cursor is None:
            return
        query = query._replace(cursor=page.cursor)


def _fit(item: RecordView | Unreadable, scopes: Sequence[str], report: Report) -> RecordView | None:
    """The record as it is carried; ``None``, and a reason in the report, if it is not."""
    if isinstance(item, Unreadable):
        report.leave(DAMAGED, item)
        return None
    if item.expired:
        report.expired += 1
        return None
    return item if item.record.scope else _named(item, scopes, report)


def _named(view: RecordView, scopes: Sequence[str], report: Report) -> RecordView | None:
    """The record of an operation whose name in the older cache begins with one of the scopes."""
    name = view.record.key
    fitting = {scope for scope in scopes if name.startswith(f"{scope}:") and len(name) > len(scope) + 1}
    if len(fitting) != 1:
        report.leave(NAMELESS, view)
        return None
    (scope,) = fitting
    key = name[len(scope) + 1 :]
    return view._replace(record=view.record._replace(scope=scope, key=key, id=operation_id(scope, key)))


def _load(target: Loads, views: Sequence[RecordView], report: Report) -> None:
    """Load records at once; if that fails, one by one, so that one that can't be kept does not keep the others."""
    try:
        taken = target.load(views) if views else ()
    except NotwiceError:
        if len(views) == 1:
            raise
        _load_singly(target, views, report)
        return
    for view, stored in zip(views, taken, strict=True):
        _count(target, view, report, stored=stored)


def _load_singly(target: Loads, views: Sequence[RecordView], report: Report) -> None:
    refused: list[tuple[RecordView, NotwiceError]] = []
    for view in views:
        try:
            _load(target, [view], report)
        except NotwiceError as error:
            refused.append((view, error))
            if len(refused) == len(views):  # it is not about the records
                raise
    for view, refusal in refused:
        report.leave(f"refused by the other store: {refusal}", view)


def _count(target: Loads, view: RecordView, report: Report, *, stored: bool) -> None:
    record = view.record
    if stored:
        report.carried += 1
        report.running += record.state is State.IN_PROGRESS and not view.lapsed
        return
    (reply,) = target.apply([Get(record.namespace, record.id)])
    if reply.record == record:
        report.there += 1
    else:
        report.leave(TAKEN, view)
