"""The commands on a store. Each gives its exit status; errors are told by `notwice.cli.main`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from notwice import Guard, identity
from notwice.cli import bulk, output, stats, table
from notwice.cli.arguments import FINE, REFUSED
from notwice.cli.selection import Misused, Selection, check_cursor, pages, selection_of, unlisted
from notwice.cli.terminal import here
from notwice.fingerprint import BODY_SHA256, HTTP, HTTP_BYTES, VALUE, media_type
from notwice.model import Get, Query, Record, RecordView, Result, ResultKind, Unreadable

Move = Callable[[RecordView], RecordView]
Tell = Callable[[RecordView, RecordView], None]

PURGE_STEP = 1000
ERROR_MIN = 400


class Refused(Exception):
    """It was refused, and nothing changed; the message says why."""


def ls(guard: Guard, said: argparse.Namespace) -> int:
    """List operations, page by page."""
    check_cursor(said.after)
    look, listing, wanted = output.look_of(said, os.environ), table.of_operations(here()), selection_of(said)
    cursor, nameless = None, 0 if said.after else unlisted(guard, wanted)
    found = bool(nameless)
    for page in pages(guard, wanted, limit=said.limit, after=said.after):
        cursor = page.cursor
        if said.json:
            lines = [json.dumps(output.document(item, look)) for item in page.items]
        else:
            lines = list(listing.lines(list(map(output.row, page.items)))) if page.items else []
        found = found or bool(lines)
        print("".join(f"{line}\n" for line in lines), end="")
    if nameless:
        print(output.nameless(nameless), file=sys.stderr)
    if cursor is not None:
        print(f"There may be more: go on with --after {cursor}", file=sys.stderr)
    elif not found and not said.json:
        print(f"no operations{_or_account_written_otherwise(said)}", file=sys.stderr)
    return FINE if found else REFUSED


def show(guard: Guard, said: argparse.Namespace) -> int:
    """Show one operation."""
    view = _find(guard, said)
    look = output.look_of(said, os.environ)
    keys = output.downstream_keys(view.record, said.downstream)
    if said.json:
        print(json.dumps({**output.document(view, look), "downstream_keys": keys}, indent=2))
    else:
        print("\n".join(output.described(view, look, keys)))
    return FINE


def resolve(guard: Guard, said: argparse.Namespace) -> int:
    """Finish an operation, or many, as a person found them to be."""
    answer = _answer(said)

    def move(view: RecordView) -> RecordView:
        _check_fits(answer, view.record)
        options: dict[str, Any] = {"who": said.who, "why": said.why, "force": said.force}
        if said.completed:
            return guard.resolve(view, answer, **options)
        return guard.resolve(view, failed=answer, **options)

    return _carried_out(guard, said, move=move, tell=_tell_resolved)


def release(guard: Guard, said: argparse.Namespace) -> int:
    """Free an operation, or many, to run again."""

    def move(view: RecordView) -> RecordView:
        return guard.release(
            view,
            who=said.who,
            why=said.why,
            force=said.force,
            from_start=said.from_start,
            new_downstream_key=said.new_downstream_key,
        )

    return _carried_out(guard, said, move=move, tell=_tell_released)


def _carried_out(guard: Guard, said: argparse.Namespace, *, move: Move, tell: Tell) -> int:
    """Make a move on the one operation that is meant, or on the many."""
    if bulk.is_meant(said):
        return bulk.carry_out(guard, said, move)
    view = _shown(guard, said)
    if said.dry_run:
        print(f"{view.operation} is {output.standing(view)}. Nothing changed.")
        return FINE
    try:
        tell(move(view), view)
    except bulk.LeftAlone as error:
        raise Refused(str(error)) from error
    return FINE


def _tell_resolved(found: RecordView, _: RecordView) -> None:
    print(f"{found.operation} is {output.standing(found)}")


def _tell_released(found: RecordView, before: RecordView) -> None:
    print(f"{found.operation} is {output.standing(found)}: the same request may run again")
    if before.record.terminal:
        print("It had been finished: its effect may now happen once more.", file=sys.stderr)
    else:
        print(
            f"The owner of attempt {before.record.attempt} may still act if it is only paused.",
            file=sys.stderr,
        )


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
    "stats": stats.carry_out,
    "show": show,
    "resolve": resolve,
    "release": release,
    "purge": purge,
}


def _shown(guard: Guard, said: argparse.Namespace) -> RecordView:
    view = _find(guard, said)
    if said.etag is not None and said.etag != view.record.etag:
        raise Refused("The record is not the one that you were shown. Look at it again, then decide.")
    return view


def _find(guard: Guard, said: argparse.Namespace) -> RecordView:
    """Find the one operation that is meant. Raises `Refused` if it is absent, `Misused` if several are."""
    name = _operation_id(said)
    query = Query(operation=name, namespace=said.namespace)
    found = [item for page in pages(guard, Selection(query), limit=None) for item in page.items]
    if not found and (unlisted := _unlisted(guard, said, name)) is not None:
        found = [unlisted]
    if not found:
        raise Refused(f"The operation {name} is absent{_or_written_otherwise(said)}.")
    if len(found) > 1:
        names = ", ".join(_namespace(item) or "''" for item in found)
        raise Misused(f"Several namespaces have this operation: {names}. Say which with --namespace.")
    if isinstance(found[0], Unreadable):
        raise Refused(
            f"The record {name} can't be read: {found[0].reason}. No command changes such a record, for nobody knows "
            "what it holds: the page on operations says how to end it, under 'What can't be read'. Nothing changed."
        )
    return found[0]


def _or_written_otherwise(said: argparse.Namespace) -> str:
    """What to think of before an absent operation is taken for one that never ran; nothing for a plain name."""
    if ":" not in (said.scope or "") + (said.key or ""):
        return _or_account_written_otherwise(said)
    start = shlex.quote(str(said.scope).partition(":")[0])
    return (
        ", as it is named here. A colon within a part of a scope or a key is written \\: in it, so say it as the lists "
        f"do: `notwice ls --scope-prefix {start}` shows what is there"
    )


def _or_account_written_otherwise(said: argparse.Namespace) -> str:
    if not set(":\\").intersection(re.sub(r"\\[:\\]", "", said.namespace or "")):
        return ""
    return (
        " in this namespace. A colon within an account's name is written \\: in it, and a backslash \\\\: "
        "`notwice stats` lists the namespaces"
    )


def _unlisted(guard: Guard, said: argparse.Namespace, name: str) -> Unreadable | None:
    """What stands in the operation's place, and no list gives, for it does not say whose it is."""
    (reply,) = guard._asked(partial(guard._store.apply, [Get(said.namespace or "", name)]))
    return reply.record if isinstance(reply.record, Unreadable) else None


def _namespace(item: RecordView | Unreadable) -> str:
    return item.namespace if isinstance(item, Unreadable) else item.record.namespace


def _operation_id(said: argparse.Namespace) -> str:
    named = said.scope is not None and said.key is not None
    if (said.operation is None) != named or (said.scope is None) != (said.key is None):
        raise Misused("Name the operation by its id, or by both --scope and --key.")
    if said.operation is not None:
        return str(said.operation)
    return identity.operation_id(identity.join_scope(str(said.scope)), identity.check_key(said.key))


def _check_fits(answer: object, record: Record) -> None:
    """Raise `LeftAlone` for an answer that duplicates of this operation could make nothing of.

    What it is can be read from its fingerprint: the HTTP faces always make one, by a recipe for requests or of bytes
    that a policy chose; a function's is that of a value, or there is none. So bytes say nothing, and a kept HTTP
    answer says that whoever began it gives such answers, whatever its fingerprint is.
    """
    recipe = None if record.fingerprint is None else record.fingerprint.recipe
    is_http = isinstance(answer, Result)
    if recipe in {HTTP, HTTP_BYTES, BODY_SHA256} and not is_http:
        raise bulk.LeftAlone(
            "This operation is a guarded request's: its duplicates get an HTTP answer and no value. "
            "Say --status and --body. Nothing changed."
        )
    keeps_http = record.result is not None and record.result.kind is ResultKind.HTTP
    if recipe in {VALUE, None} and is_http and not keeps_http and not record.sealed:
        raise bulk.LeftAlone(
            "This operation is a guarded function's: its duplicates get a value and no HTTP answer. "
            "Say --result JSON. Nothing changed."
        )


def _answer(said: argparse.Namespace) -> object:
    if said.status is None:
        if said.body is not None:
            raise Misused("--body goes with --status; a value is given with --result.")
        return _json(said.result, "--result")
    if said.completed != (said.status < ERROR_MIN):
        meant = "below 400, for the effect happened" if said.completed else "of 400 or more, for it is a refusal"
        raise Misused(f"--{'completed' if said.completed else 'failed'} goes with a --status {meant}.")
    if not (said.content_type.isascii() and said.content_type.isprintable()):
        raise Misused(
            "--content-type holds a character that a header can't have: no duplicate could be answered with it."
        )
    body = _body(said.body or "")
    if said.body is None:
        return Result(ResultKind.HTTP, body, said.status)
    media = media_type(said.content_type)
    if media == "application/json" or media.endswith("+json"):
        _json(body, f"--body is to be {media}, and")
    return Result(ResultKind.HTTP, body, said.status, (("content-type", said.content_type),))


def _json(text: str | bytes, what: str) -> object:
    """The value that a JSON text says (RFC 8259). Raises `Misused` with the place of what is wrong in it."""
    try:
        return json.loads(text if isinstance(text, str) else text.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Misused(f"{what} is no JSON: {error}.") from error


def _no_constant(name: str) -> object:
    message = f"it has no {name}"
    raise ValueError(message)


def _body(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise Misused(f"{text[1:]} can't be read: {error.strerror}.") from error
