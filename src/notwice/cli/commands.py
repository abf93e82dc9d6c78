"""The commands on a store. Each gives its exit status; errors are told by `notwice.cli.main`."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from notwice import Guard, identity
from notwice.cli import output
from notwice.cli.arguments import FINE, REFUSED
from notwice.fingerprint import VALUE
from notwice.model import Record, RecordView, Result, ResultKind, Unreadable

PURGE_STEP = 1000
ERROR_MIN = 400
AGE_MAX_SECONDS = 100 * 365 * 86_400


class Refused(Exception):
    """It was refused, and nothing changed; the message says why."""


class Misused(Exception):
    """The command line can't be carried out as it is; the message says why."""


def ls(guard: Guard, said: argparse.Namespace) -> int:
    """List operations."""
    if (said.older_than or 0) > AGE_MAX_SECONDS:
        raise Misused("--older-than: nothing is older than a hundred years.")
    found = _bound(guard, said.namespace).operations(
        state=said.state,
        unresolved=True if said.unresolved else None,
        scope_prefix=said.scope,
        older_than=said.older_than,
        all_namespaces=said.namespace is None,
    )
    items = itertools.islice(found, said.limit)
    if said.json:
        lines = [print(json.dumps(output.document(item, reveal=said.reveal))) for item in items]
        return FINE if lines else REFUSED
    rows = [output.row(item) for item in items]
    if not rows:
        print("no operations", file=sys.stderr)
        return REFUSED
    print("\n".join(output.table(rows)))
    return FINE


def show(guard: Guard, said: argparse.Namespace) -> int:
    """Show one operation."""
    view = _find(guard, said)
    keys = output.downstream_keys(view.record, said.downstream)
    if said.json:
        print(json.dumps({**output.document(view, reveal=said.reveal), "downstream_keys": keys}, indent=2))
    else:
        print("\n".join(output.described(view, reveal=said.reveal, downstream_keys=keys)))
    return FINE


def resolve(guard: Guard, said: argparse.Namespace) -> int:
    """Finish an operation as a person found it to be."""
    answer = _answer(said)
    view = _shown(guard, said)
    if isinstance(answer, Result) and _is_a_functions(view.record):
        raise Refused(
            "This operation is a guarded function's: its duplicates get a value and no HTTP answer. "
            "Say --result JSON. Nothing changed."
        )
    if said.completed:
        found = guard.resolve(view, answer, who=said.who, why=said.why, force=said.force)
    else:
        found = guard.resolve(view, failed=answer, who=said.who, why=said.why, force=said.force)
    print(f"{found.operation} is {output.standing(found)}")
    return FINE


def release(guard: Guard, said: argparse.Namespace) -> int:
    """Free an operation to run again."""
    view = _shown(guard, said)
    found = guard.release(
        view,
        who=said.who,
        why=said.why,
        force=said.force,
        from_start=said.from_start,
        new_downstream_key=said.new_downstream_key,
    )
    print(f"{found.operation} is {output.standing(found)}: the same request may run again")
    if view.record.terminal:
        print("It had been finished: its effect may now happen once more.", file=sys.stderr)
    else:
        print(
            f"The owner of attempt {view.record.attempt} may still act if it is only paused.",
            file=sys.stderr,
        )
    return FINE


def purge(guard: Guard, said: argparse.Namespace) -> int:
    """Drop the records whose time is over."""
    gone = 0
    while said.limit is None or gone < said.limit:
        step = PURGE_STEP if said.limit is None else min(PURGE_STEP, said.limit - gone)
        dropped = guard.purge(step)
        gone += dropped
        if dropped < step:
            break
    print(f"{gone} dropped")
    return FINE


ON_A_STORE: Mapping[str, Callable[[Guard, argparse.Namespace], int]] = {
    "ls": ls,
    "show": show,
    "resolve": resolve,
    "release": release,
    "purge": purge,
}


def _bound(guard: Guard, namespace: str | None) -> Guard:
    return guard if namespace is None else guard.within(namespace)


def _shown(guard: Guard, said: argparse.Namespace) -> RecordView:
    view = _find(guard, said)
    if said.etag is not None and said.etag != view.record.etag:
        raise Refused("The record is not the one that you were shown. Look at it again, then decide.")
    return view


def _find(guard: Guard, said: argparse.Namespace) -> RecordView:
    """Find the one operation that is meant. Raises `Refused` if it is absent, `Misused` if several are."""
    name = _operation_id(said)
    found = list(_bound(guard, said.namespace).operations(operation=name, all_namespaces=said.namespace is None))
    if not found:
        raise Refused(f"The operation {name} is absent.")
    if len(found) > 1:
        names = ", ".join(_namespace(item) or "''" for item in found)
        raise Misused(f"Several namespaces have this operation: {names}. Say which with --namespace.")
    if isinstance(found[0], Unreadable):
        raise Refused(f"The record can't be read: {found[0].reason}. Upgrade notwice, then look again.")
    return found[0]


def _namespace(item: RecordView | Unreadable) -> str:
    return item.namespace if isinstance(item, Unreadable) else item.record.namespace


def _operation_id(said: argparse.Namespace) -> str:
    named = said.scope is not None and said.key is not None
    if (said.operation is None) != named or (said.scope is None) != (said.key is None):
        raise Misused("Name the operation by its id, or by both --scope and --key.")
    if said.operation is not None:
        return str(said.operation)
    return identity.operation_id(identity.join_scope(str(said.scope)), identity.check_key(said.key))


def _is_a_functions(record: Record) -> bool:
    """Say whether it was begun with a Python value for its request, and no HTTP answer was ever kept of it."""
    by_value = record.fingerprint is not None and record.fingerprint.recipe == VALUE
    return by_value and (record.result is None or record.result.kind is not ResultKind.HTTP)


def _answer(said: argparse.Namespace) -> object:
    if said.status is None:
        if said.body is not None:
            raise Misused("--body goes with --status; a value is given with --result.")
        try:
            return json.loads(said.result)
        except (ValueError, RecursionError) as error:
            raise Misused(f"--result is no JSON: {error}.") from error
    if said.completed != (said.status < ERROR_MIN):
        meant = "below 400, for the effect happened" if said.completed else "of 400 or more, for it is a refusal"
        raise Misused(f"--{'completed' if said.completed else 'failed'} goes with a --status {meant}.")
    if not (said.content_type.isascii() and said.content_type.isprintable()):
        raise Misused(
            "--content-type holds a character that a header can't have: no duplicate could be answered with it."
        )
    headers = (("content-type", said.content_type),) if said.body is not None else ()
    return Result(ResultKind.HTTP, _body(said.body or ""), said.status, headers)


def _body(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise Misused(f"{text[1:]} can't be read: {error.strerror}.") from error
