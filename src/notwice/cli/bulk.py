"""``resolve`` and ``release`` of many: a storm of errors leaves thousands, and a person decides about them at once.

What fits is remembered as it was seen, by its etag; a person is told how many there are, and says yes. Then each is
moved by itself: one that has changed meanwhile is left alone, and said to be. Cutting the command off leaves the rest
as it was, and it can be given again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from notwice import Guard
from notwice.cli import output, table
from notwice.cli.arguments import FINE, REFUSED, UNAVAILABLE
from notwice.cli.selection import Misused, pages, selection_of
from notwice.cli.stats import first_part
from notwice.cli.terminal import here
from notwice.errors import ForceRequired, NotwiceError, RecordChanged, StoreUnavailable
from notwice.model import RecordView, Unreadable

STEP: Final = 100
FAILURES_MAX: Final = 3  # a store that fails so often in a row is not asked any more

Move = Callable[[RecordView], object]
"""Moves one operation. Raises `LeftAlone` for one that it must not be done to."""


class LeftAlone(Exception):
    """The move is none for this operation; the message says why."""


@dataclass(slots=True)
class Outcome:
    """What became of those that were seen."""

    moved: int = 0
    left: Counter[str] = field(default_factory=Counter)
    ended: str = ""


def is_meant(said: argparse.Namespace) -> bool:
    """Whether many are meant. Raises `Misused` for what goes with one only, or with many only."""
    many = bool(said.unresolved or said.held)
    one_only = {
        "OPERATION": said.operation,
        "--key": said.key,
        "--scope": said.scope,
        "--etag": said.etag,
        "--force": said.force,
    }
    many_only = {
        "--older-than": said.older_than is not None,
        "--answer": said.answer,
        "--scope-prefix": said.scope_prefix is not None,
        "--yes": said.yes,
        "--json": said.json,
    }
    wrong = [name for name, given in (one_only if many else many_only).items() if given]
    if wrong and many:
        message = f"{wrong[0]} names one operation, and --unresolved or --held name many: say one or the other."
        raise Misused(message)
    if wrong:
        message = f"{wrong[0]} is for many operations: say --unresolved or --held, too."
        raise Misused(message)
    return many


def carry_out(guard: Guard, said: argparse.Namespace, move: Move) -> int:
    """Move all that fit, if the person agrees."""
    seen, more = _seen(guard, said)
    if not seen:
        print("no operations", file=sys.stderr)
        return REFUSED
    if said.dry_run:
        return _told_only(seen, said, more=more)
    if not (said.yes or _agreed(seen, said)):
        print("Nothing changed.", file=sys.stderr)
        return REFUSED
    outcome = Outcome()
    for view in _in_steps(seen):
        became = _moved(move, view, outcome)
        if said.json:
            print(json.dumps({"operation": view.operation, "namespace": view.record.namespace, "became": became}))
        if outcome.ended:
            break
    return _told(outcome, said, len(seen), more=more)


def _seen(guard: Guard, said: argparse.Namespace) -> tuple[list[RecordView], bool]:
    """Those that fit, without their bodies, which nobody needs again; and whether there are more than the limit."""
    seen: list[RecordView] = []
    cursor = None
    for page in pages(guard, selection_of(said), limit=said.limit):
        seen += [_slim(item) for item in page.items if not isinstance(item, Unreadable)]
        cursor = page.cursor
    return seen, cursor is not None


def _slim(view: RecordView) -> RecordView:
    kept = view.record.result
    result = None if kept is None else kept._replace(body=None)
    sealed = view.record.sealed[:1]  # it is, and that is all that has to be known
    return view._replace(record=view.record._replace(result=result, progress=(), request=None, sealed=sealed))


def _moved(move: Move, view: RecordView, outcome: Outcome) -> str:
    """Move one, and say what became of it."""
    try:
        move(view)
    except (RecordChanged, ForceRequired):
        reason = "changed meanwhile"
    except LeftAlone as error:
        reason = str(error)
    except StoreUnavailable as error:
        reason = "not known: the store did not answer"
        outcome.ended = str(error) if outcome.left[reason] + 1 >= FAILURES_MAX else ""
    except NotwiceError as error:
        reason = f"refused: {error.code}"
    except KeyboardInterrupt:
        reason = "not known: interrupted"
        outcome.ended = "interrupted"
    else:
        outcome.moved += 1
        return "moved"
    outcome.left[reason] += 1
    return reason


def _in_steps(seen: Sequence[RecordView]) -> Iterator[RecordView]:
    """Each of them; who waits at a terminal is told how far it is."""
    watched = sys.stderr.isatty()
    for place, view in enumerate(seen):
        if watched and place and place % STEP == 0:
            print(f"{place:,} of {len(seen):,}", file=sys.stderr)
        yield view


def _agreed(seen: Sequence[RecordView], said: argparse.Namespace) -> bool:
    if not sys.stdin.isatty():
        message = f"{len(seen):,} operations fit. Say --yes to {said.command} them, or --dry-run to see them."
        raise Misused(message)
    scopes = Counter(output.printable(first_part(view.record.scope)) for view in seen)
    named = ", ".join(f"{scope} ({count:,})" for scope, count in scopes.most_common(5))
    print(f"{len(seen):,} operations fit, of {len(scopes):,} kinds: {named}", file=sys.stderr)
    print(f"{said.command.capitalize()} them? Type yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _told_only(seen: Sequence[RecordView], said: argparse.Namespace, *, more: bool) -> int:
    if said.json:
        for view in seen:
            print(json.dumps({"operation": view.operation, "namespace": view.record.namespace, "became": "untouched"}))
    else:
        print("\n".join(table.of_operations(here()).lines(list(map(output.row, seen)))))
    print(f"{len(seen):,} fit{_and_more(said, more=more)}. Nothing changed.", file=sys.stderr)
    return FINE


def _told(outcome: Outcome, said: argparse.Namespace, count: int, *, more: bool) -> int:
    done = "released" if said.command == "release" else "resolved"
    print(f"{outcome.moved:,} of {count:,} {done}{_and_more(said, more=more)}", file=sys.stderr)
    if outcome.moved and said.command == "release":
        print("Owners may still act if they are only paused.", file=sys.stderr)
    for reason, number in outcome.left.most_common():
        print(f"{number:,} left alone: {reason}", file=sys.stderr)
    if outcome.ended:
        untried = count - outcome.moved - sum(outcome.left.values())
        print(f"{untried:,} were not tried: {output.printable(outcome.ended)}", file=sys.stderr)
        return UNAVAILABLE
    return REFUSED if outcome.left else FINE


def _and_more(said: argparse.Namespace, *, more: bool) -> str:
    return f"; there are more than --limit {said.limit}" if more else ""
