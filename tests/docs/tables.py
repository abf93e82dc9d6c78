"""The tables and pictures of the pages that are made from the code, so that they can't say anything else.

``python -m tests.docs.tables`` writes them into the pages, between ``<!-- made: name -->`` and ``<!-- end -->``.
"""

import argparse
import dataclasses
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from notwice import Policy, State, errors
from notwice.canonical_json import canonical_json
from notwice.cli.arguments import IN_GENERAL as EXIT_STATUSES
from notwice.cli.arguments import parser
from notwice.core import NEXT
from notwice.http import KEPT_HEADERS, HttpPolicy
from notwice.http.exchange.dialect import STRIPE, Dialect
from notwice.http.exchange.settings import STATUSES
from notwice.observe import EVENTS
from notwice.problems import KINDS, Kind
from notwice.server import refusals
from notwice.server.options import options
from notwice.server.settings import Settings
from tests.docs.pages import PAGES

MADE = re.compile(r"(?<=<!-- made: )(?P<name>\w+)(?P<middle> -->\n).*?(?=<!-- end -->)", re.DOTALL)
UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
NO_DEFAULT = "(none: must be given)"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def code(text: object) -> str:
    return f"`{text}`"


def plain(docstring: str, *, first: bool = False) -> str:
    """A docstring's words, or those of its `first` paragraph, as the pages write them."""
    docstring = docstring.split("\n\n", maxsplit=1)[0] if first else docstring
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(docstring.split()))


# --- options --------------------------------------------------------------------------------------------------------


def fields_of(cls: type[Policy] | type[HttpPolicy] | type[Dialect]) -> Iterator[tuple[str, object, str]]:
    """The options of a dataclass: name, default, and what its docstring says of it."""
    docstring = inspect.getdoc(cls) or ""
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    told = re.findall(r"^(\w+(?:, \w+)*): (.*?)(?=^\w|^$|\Z)", docstring, re.DOTALL | re.MULTILINE)
    said = {name: text for listed, text in told for name in listed.split(", ")}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        text = said.get(field.name) or _inline(field.name, docstring)
        assert text, f"{cls.__name__} says nothing of {field.name}"
        yield field.name, default, plain(re.sub(rf" `(?:{'|'.join(names)})`: .*", "", text, flags=re.DOTALL))


def _inline(name: str, docstring: str) -> str:
    """What is said of a field in the middle of another's paragraph: ``name`: text``."""
    found = re.search(rf"`{name}`(?::| is) (.*?)(?:\.|$)", docstring, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""


def shown(name: str, default: object) -> str:
    """A default as the pages show it."""
    if default is dataclasses.MISSING:
        return NO_DEFAULT
    if default is KEPT_HEADERS:
        return "(a list, below)"
    if isinstance(default, int | float) and not isinstance(default, bool):
        return _bytes(default) if name.endswith("bytes_max") else _number(name, default)
    if name == "recovery":
        return "`hold`"
    if callable(default):
        return code(getattr(default, "__name__", "a function"))
    return code(json.dumps(default)) if isinstance(default, str) else code(default)


def _bytes(count: float) -> str:
    return f"{int(count) // 1024**2} MiB"


def _number(name: str, value: float) -> str:
    if name == "attempts_max" or value == 0:
        return code(value)
    count, unit = next((value / size, unit) for size, unit in UNITS if value % size == 0 and value >= size)
    return f"{count:g} {unit}{'s' if count != 1 else ''}"


def option_table(cls: type[Policy] | type[HttpPolicy] | type[Dialect]) -> str:
    rows = [(code(name), shown(name, default), text) for name, default, text in fields_of(cls)]
    return table(("option", "default", "what it says"), rows)


def settings() -> str:
    rows = [
        (
            "(no flag: a secret)" if item.secret else code(item.flag),
            code(item.variable),
            code(item.default) if item.default else "",
            item.help,
        )
        for item in options(Settings)
    ]
    return table(("flag", "variable", "default", "what it says"), rows)


# --- codes and events -----------------------------------------------------------------------------------------------


def codes_of(kinds: dict[str, Kind]) -> str:
    rows = [
        (code(name), str(kind.status), "yes" if kind.safe_new_key else "no", code(kind.applied), plain(kind.detail))
        for name, kind in kinds.items()
    ]
    return table(("code", "status", "new key safe", "`Idempotency-Outcome`", "what it tells the caller"), rows)


def endings() -> str:
    return table(("status", "the operation is"), [(str(status), code(str(end))) for status, end in STATUSES.items()])


def stripe() -> str:
    rows = [
        (code(name), code(STRIPE.codes.get(name, name)), str(STRIPE.statuses.get(name, KINDS[name].status)))
        for name in sorted({*STRIPE.codes, *STRIPE.statuses})
    ]
    return table(("code", "under the Stripe dialect", "status"), rows)


def kept_headers() -> str:
    return ", ".join(code(name) for name in sorted(KEPT_HEADERS)) + "\n"


def events() -> str:
    rows = [(code(name), logging.getLevelName(level), meaning) for name, (level, meaning) in EVENTS.items()]
    return table(("event", "logged as", "what happened"), rows)


def error_table() -> str:
    found = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.NotwiceError) and cls is not errors.NotwiceError
    ]
    rows = [
        (
            code(cls.__name__),
            code(cls.code),
            str(KINDS[cls.code].status),
            plain((inspect.getdoc(cls) or "").split("\n\n")[0]),
        )
        for cls in found
    ]
    return table(("error", "`code`", "`http_status`", "what it says"), rows)


# --- the command line -----------------------------------------------------------------------------------------------


def command_line() -> str:
    """Each command with its options, but for ``serve``, whose options are `settings`."""
    [group] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    parts = []
    for name, command in group.choices.items():
        if name in ("serve", "demo"):
            continue
        parts.append(f"**`notwice {name}`**: {plain(command.description or _help_of(group, name))}\n")
        rows = [(_invocation(action), plain(_expanded(action))) for action in command._actions if action.dest != "help"]
        if rows:
            parts.append(table(("argument", "what it says"), rows))
    return "\n".join(parts)


def _help_of(group: argparse._SubParsersAction, name: str) -> str:  # type: ignore[type-arg]  # not generic at run time
    return next(choice.help or "" for choice in group._choices_actions if choice.dest == name) + "."


def _invocation(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    takes = action.nargs != 0
    names = " ".join(action.option_strings)
    return code(f"{names} {value}".strip() if takes or not names else names)


def _expanded(action: argparse.Action) -> str:
    default = "you" if action.dest == "who" else action.default
    return (action.help or "").replace("%(default)s", str(default))


def exit_statuses() -> str:
    [group] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    said: dict[str, list[str]] = {}
    for name, command in group.choices.items():
        for text in re.findall(r"^ +1 +(.+)$", command.epilog or "", re.MULTILINE):
            said.setdefault(text, []).append(code(name))
    general = re.findall(r"^ +(\d+) +(.+)$", EXIT_STATUSES, re.MULTILINE)
    refused = [(f"1, of {', '.join(names)}", text) for text, names in said.items()]
    return table(("status", "what it says"), [general[0], *refused, *general[2:]])


# --- states ---------------------------------------------------------------------------------------------------------

MOVES = {
    (State.IN_PROGRESS, State.IN_PROGRESS): "heartbeat, checkpoint, re-claim",
    (State.IN_PROGRESS, State.ACCEPTED): "suspend, abandon, release",
    (State.IN_PROGRESS, State.COMPLETED): "complete, resolve",
    (State.IN_PROGRESS, State.FAILED): "fail, resolve",
    (State.ACCEPTED, State.IN_PROGRESS): "re-claim",
    (State.ACCEPTED, State.ACCEPTED): "release",
    (State.ACCEPTED, State.COMPLETED): "resolve",
    (State.ACCEPTED, State.FAILED): "resolve",
    (State.COMPLETED, State.ACCEPTED): "release by force",
    (State.COMPLETED, State.COMPLETED): "resolve by force",
    (State.COMPLETED, State.FAILED): "resolve by force",
    (State.FAILED, State.ACCEPTED): "release by force",
    (State.FAILED, State.COMPLETED): "resolve by force",
    (State.FAILED, State.FAILED): "resolve by force",
}
"""What each edge of `core.NEXT` is called. `states` fails for an edge too many or too few."""


def states() -> str:
    edges = {(state, following) for state, allowed in NEXT.items() for following in allowed}
    assert edges == set(MOVES), edges ^ set(MOVES)
    lines = [f"    {state} --> {following}: {name}" for (state, following), name in MOVES.items()]
    begin = f"    [*] --> {State.IN_PROGRESS}: begin"
    ends = [f"    {state} --> [*]: retention is over" for state in (State.COMPLETED, State.FAILED)]
    freed = f"    {State.ACCEPTED} --> [*]: abandoned by its creator"
    return "\n".join(["```mermaid", "stateDiagram-v2", begin, *lines, *ends, freed, "```"]) + "\n"


# --- what counts as the same JSON -----------------------------------------------------------------------------------

BODIES = (
    ('{"a":1,"b":2}', '{ "b": 2, "a": 1 }', "order of members and blanks"),
    ("[1,2]", "[2,1]", "order in an array"),
    ('{"a":1}', '{"a":1.0}', "one number, written in two ways"),
    ('{"a":100}', '{"a":1e2}', "the same, with an exponent"),
    ('{"a":0.1}', '{"a":0.10}', "a zero at the end"),
    ('{"a":1}', '{"a":"1"}', "a number and a text"),
    ('{"a":9007199254740993}', '{"a":9007199254740992}', "beyond 2^53 every digit counts"),
    ('{"a":null}', "{}", "null and absent"),
    ('{"a":"\u00e9"}', '{"a":"\\u00e9"}', "one character, written in two ways"),
    ('{"a":"\u00e9"}', '{"a":"e\u0301"}', "composed and decomposed (NFC, NFD)"),
    ('{"a":1,"a":2}', '{"a":2}', "a member twice: compared by its bytes"),
)


def same_json() -> str:
    rows = [
        (code(_visible(first)), code(_visible(second)), "same" if _same(first, second) else "**another**", why)
        for first, second, why in BODIES
    ]
    return table(("first request", "second request", "they are", "because of"), rows)


def _same(first: str, second: str) -> bool:
    forms = [canonical_json(body.encode()) or body.encode() for body in (first, second)]
    return forms[0] == forms[1]


def _visible(text: str) -> str:
    return text.replace("\u0301", "\u25cc\u0301")


MAKERS: dict[str, Callable[[], str]] = {
    "policy": lambda: option_table(Policy),
    "http_policy": lambda: option_table(HttpPolicy),
    "dialect": lambda: option_table(Dialect),
    "settings": settings,
    "codes": lambda: codes_of(KINDS),
    "gateway_codes": lambda: codes_of(refusals.KINDS),
    "endings": endings,
    "stripe": stripe,
    "kept_headers": kept_headers,
    "events": events,
    "errors": error_table,
    "command_line": command_line,
    "exit_statuses": exit_statuses,
    "states": states,
    "same_json": same_json,
}


def remade(text: str) -> str:
    """A page's text with everything in it made anew that is made from the code."""
    return MADE.sub(lambda found: f"{found['name']}{found['middle']}{MAKERS[found['name']]()}", text)


def used(text: str) -> set[str]:
    return {found["name"] for found in MADE.finditer(text)}


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(remade(page.read_text(encoding="utf-8")), encoding="utf-8")
