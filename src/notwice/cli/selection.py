"""Which operations a command is about: filters, and pages of what fits them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from notwice import Guard, core
from notwice.model import Page, Query, RecordView, Released, State, Unreadable
from notwice.policy import milliseconds
from notwice.stores.port import Unlisted
from notwice.stores.shared import place_after

PAGE: Final = 200
AGE_MAX_SECONDS: Final = 100 * 365 * 86_400


class Misused(Exception):
    """The command line can't be carried out as it is; the message says why."""


class Selection(NamedTuple):
    """What is asked of the store, and what is asked of each record that it gives."""

    query: Query
    held: bool = False
    answer: str | None = None
    released: bool = False

    def fits(self, item: RecordView | Unreadable) -> bool:
        """Whether a record is among those that are meant."""
        if isinstance(item, Unreadable):
            return self.takes_any
        return (
            (not self.held or core.held(item))
            and (not self.released or item.record.released is not Released.NO)
            and (self.answer is None or _answers(item, self.answer))
        )

    @property
    def takes_any(self) -> bool:
        """Whether nothing is asked of a record that only a readable one can fulfil."""
        return not self.held and not self.released and self.answer is None


def selection_of(said: argparse.Namespace) -> Selection:
    """The selection that a command line makes."""
    options: dict[str, Any] = {
        "unresolved": False,
        "held": False,
        "released": False,
        "older_than": None,
        "answer": None,
        "state": None,
        **vars(said),
    }
    older_than = options["older_than"]
    if (older_than or 0) > AGE_MAX_SECONDS:
        raise Misused("--older-than: nothing is older than a hundred years.")
    states = None if options["state"] is None else frozenset(map(State, options["state"]))
    if options["released"]:
        if options["unresolved"] or options["held"]:
            message = "What is released is not unresolved any more: say --released, or --unresolved and --held."
            raise Misused(message)
        states = frozenset({State.ACCEPTED}) & (states or frozenset(State))
    query = Query(
        namespace=said.namespace,
        states=states,
        unresolved=True if options["unresolved"] or options["held"] else None,
        scope_prefix=said.scope_prefix,
        older_than_ms=None if older_than is None else milliseconds(older_than),
    )
    return Selection(query, options["held"], options["answer"], options["released"])


def pages(guard: Guard, wanted: Selection, *, limit: int | None, after: str | None = None) -> Iterator[Page]:
    """The operations that are wanted, `limit` of them at most, in pages. The last one's cursor tells where to go on.

    What can't be opened for lack of a key is given as it lies in the store. Raises `StoreUnavailable`.
    """
    query, left = wanted.query._replace(cursor=after), limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = guard._asked(partial(guard._store.scan, query._replace(limit=size)))
        items = tuple(filter(wanted.fits, page.items))
        yield Page(items, page.cursor)
        if page.cursor is None:
            return
        query = query._replace(cursor=page.cursor)
        left = None if left is None else left - len(items)


def unlisted(guard: Guard, wanted: Selection) -> int:
    """How many entries of the store are in no list, for they can't be read and do not say whose they are.

    None are counted where those of one namespace are asked for, or what only a readable one can be. Raises
    `StoreUnavailable`.
    """
    asked = wanted.query.namespace is None and wanted.takes_any
    store: object = guard._store
    return guard._asked(store.unlisted) if asked and isinstance(store, Unlisted) else 0


def check_cursor(cursor: str | None) -> None:
    """Raise `Misused` for what no list has told."""
    try:
        if cursor is not None:
            place_after(cursor)
    except ValueError as error:
        raise Misused("--after: copy what a list told at its end.") from error


def _answers(view: RecordView, answer: str) -> bool:
    result = view.record.result
    status = str(result.status) if result is not None else ""
    return status == answer or (answer.endswith("xx") and status[:1] == answer[0])
