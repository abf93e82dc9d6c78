"""What can be said on the command line."""

from __future__ import annotations

import argparse
import difflib
import getpass
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from notwice import __version__
from notwice.model import State
from notwice.server.durations import parse_duration
from notwice.server.options import add_flags
from notwice.server.settings import Settings

FINE, REFUSED, USAGE, UNAVAILABLE, UNTOLD = 0, 1, 2, 3, 4
JSON = "application/json"
MANY = 10_000  # each is remembered between the list that a person sees and the moves

IN_GENERAL = f"""\
exit status:
  {FINE}  it worked
  {REFUSED}  nothing was found, it was refused, or not all of it could be done: the --help of each command says which
  {USAGE}  the command line or an option is wrong
  {UNAVAILABLE}  the store is not there or does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


STATUSES = f"""\
exit status:
  {FINE}  it worked
  {REFUSED}  nothing was found, or it was refused; nothing changed
  {USAGE}  the command line or an option is wrong
  {UNAVAILABLE}  the store is not there or does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


EXAMINED = f"""\
exit status:
  {FINE}  every promise that was tried held, and no setting is unsafe; warnings don't count
  {REFUSED}  a promise was broken, or a setting is unsafe
  {USAGE}  the command line or an option is wrong
  {UNAVAILABLE}  the store is not there or does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


BY_THE_LOT = f"""\
exit status:
  {FINE}  it worked; of many, for each of them
  {REFUSED}  nothing was found, it was refused, or some of many had changed meanwhile; what was refused did not change
  {USAGE}  the command line or an option is wrong
  {UNAVAILABLE}  the store is not there or does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


RECOVERED = f"""\
exit status:
  {FINE}  told to stop; with --once: nothing is left that somebody has to look at
  {REFUSED}  with --once: something failed, is held, has no handler, or can't be read
  {USAGE}  the command line is wrong, or there is no guard with handlers where it says
  {UNAVAILABLE}  with --once: the store does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


CARRIED = f"""\
exit status:
  {FINE}  all that has not expired was carried, or was there already
  {REFUSED}  something was not carried; what, and why, is said on standard error
  {USAGE}  the command line or an option is wrong
  {UNAVAILABLE}  a store is not there or does not answer
  {UNTOLD}  the output could not be written; what was done in the store before that is done
"""


_COMMAND: Final = "COMMAND"
_NO_COMMAND: Final = re.compile(rf"argument {_COMMAND}: invalid choice: '(.*)' \(choose from (.*)\)$", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that suggests what an unknown option may have meant."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - whatever argparse takes
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401 - as argparse has it
        """Parse, and refuse what is not known at once, while it is known what is."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._sentence(unknown[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where help is."""
        found = _NO_COMMAND.match(message)
        if found:
            close = difflib.get_close_matches(found[1], re.findall(r"'(\w+)'", found[2]), n=1)
            message = f"there is no command {found[1]}" + (f"; did you mean {close[0]}?" if close else "")
        self.exit(USAGE, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")

    def _sentence(self, word: str) -> str:
        name = word.split("=", maxsplit=1)[0]
        if not name.startswith("-"):
            return f"{word!r} is one word too many"
        known = [*self._option_string_actions]
        close = [option for option in known if option.startswith(name)] or difflib.get_close_matches(name, known, n=1)
        return f"there is no option {name}" + (f"; did you mean {close[0]}?" if close else "")


def parser() -> Parser:
    """Make the parser of all commands."""
    top = Parser(
        prog="notwice",
        description="The guard that makes any side effect safe to retry.",
        epilog=IN_GENERAL + "\nThe store of every command is --store URL or the variable NOTWICE_STORE.",
    )
    top.add_argument("--version", action="version", version=__version__, help="say which release this is")
    commands = top.add_subparsers(dest="command", metavar=_COMMAND, required=True)
    for add in (_serve, _demo, _ls, _stats, _show, _resolve, _release, _recover, _purge):
        add(commands)
    for add in (_import, _export, _migrate, _doctor, _key, _version):
        add(commands)
    return top


Commands = Any  # argparse gives the type of its sub-commands no public name


def _serve(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="stand as a guard in front of an HTTP service",
        description="Stand as a guard in front of an HTTP service in any language.\n\n"
        "Each option can also be given as a variable (NOTWICE_UPSTREAM for --upstream) or in a TOML file\n"
        '(upstream = "..."). A flag wins over a variable, and that over the file. The secret that signs\n'
        "tokens has no flag: give NOTWICE_JWT_SECRET or --jwt-secret-file.",
        epilog=STATUSES,
    )
    add_flags(serve, Settings)


def _demo(commands: Commands) -> None:
    commands.add_parser("demo", help="see it work: a payments service, a storm of retries, kills", add_help=False)


def _ls(commands: Commands) -> None:
    ls = commands.add_parser(
        "ls",
        help="list the operations in a store",
        description="List operations, oldest first.\n\n"
        "RECOVERY is the policy that was stored with the first claim, and the attempt that was made last if it\n"
        "was not the first: 'hold 2' is held and was begun twice, 'rerun 3 of 5' may still be tried twice.",
        epilog=STATUSES,
    )
    _store(ls)
    states = [str(state) for state in State]
    ls.add_argument("--state", choices=states, action="append", help="only those in this state; repeatable")
    ls.add_argument("--scope-prefix", metavar="PREFIX", help="only those whose scope starts like this")
    ls.add_argument("--namespace", metavar="NAME", help="only those of this namespace (default: all)")
    _filters(ls)
    ls.add_argument("--released", action="store_true", help="only those freed to run again that nobody has retried")
    ls.add_argument("--limit", metavar="N", type=_count, help="at most so many (default: all)")
    ls.add_argument("--after", metavar="CURSOR", help="go on after a list that ended at its --limit, which told this")
    ls.add_argument("--json", action="store_true", help="one JSON object a line")
    _revealing(ls, "show keys and bodies")


def _stats(commands: Commands) -> None:
    stats = commands.add_parser(
        "stats",
        help="count the operations in a store",
        description="Count operations by state, namespace and scope, and tell the oldest unresolved one.",
        epilog=STATUSES,
    )
    _store(stats)
    stats.add_argument("--unresolved", action="store_true", help="count the unresolved alone, which is quick")
    stats.add_argument("--scope-prefix", metavar="PREFIX", help="only those whose scope starts like this")
    stats.add_argument("--namespace", metavar="NAME", help="only those of this namespace (default: all)")
    stats.add_argument("--top", metavar="N", type=_count, default=10, help="rows of each table (default: %(default)s)")
    stats.add_argument("--json", action="store_true", help="one JSON object, with all rows")


def _show(commands: Commands) -> None:
    show = commands.add_parser(
        "show", help="show one operation and its audit trail", description="Show one operation.", epilog=STATUSES
    )
    _store(show)
    _which(show)
    show.add_argument(
        "--downstream",
        metavar="NAME",
        action="append",
        default=[],
        help="tell the downstream key of this name, as the handler calls it, or '' for the one without; repeatable",
    )
    show.add_argument("--json", action="store_true", help="as one JSON object")
    _revealing(show, "show the key, the steps' results and the body")


def _resolve(commands: Commands) -> None:
    resolve = commands.add_parser(
        "resolve",
        help="finish an unresolved operation as you found it to be",
        description="Finish an unresolved operation as you found it to be. Each duplicate is then given this answer.\n"
        "With --unresolved or --held, all that fit are finished with one answer: look at them with --dry-run first.",
        epilog=BY_THE_LOT,
    )
    _store(resolve)
    _which(resolve)
    _many(resolve)
    how = resolve.add_mutually_exclusive_group(required=True)
    how.add_argument("--completed", action="store_true", help="the effect happened")
    how.add_argument("--failed", action="store_true", help="it was refused for good, and did not happen")
    answer = resolve.add_mutually_exclusive_group(required=True)
    answer.add_argument("--result", metavar="JSON", help="the value that duplicates get (a guarded function)")
    answer.add_argument("--status", metavar="N", type=_status, help="the HTTP status that they get (a guarded request)")
    resolve.add_argument("--body", metavar="TEXT|@FILE", help="with --status: the body that they get (default: none)")
    resolve.add_argument("--content-type", metavar="TYPE", default=JSON, help="with --body (default: %(default)s)")
    _operator(resolve)


def _release(commands: Commands) -> None:
    release = commands.add_parser(
        "release",
        help="free an unresolved operation to run again",
        description="Free an unresolved operation, so that the same request runs again.\n\n"
        "Make sure first that the effect did not happen. A paused owner may still act after it.\n"
        "With --unresolved or --held, all that fit are freed: look at them with --dry-run first.",
        epilog=BY_THE_LOT,
    )
    _store(release)
    _which(release)
    _many(release)
    release.add_argument("--from-start", action="store_true", help="forget the steps that are done")
    release.add_argument(
        "--new-downstream-key", action="store_true", help="so that the next system does not take it for a repetition"
    )
    _operator(release)


def _recover(commands: Commands) -> None:
    recover = commands.add_parser(
        "recover",
        help="finish what a crash left behind, where the stored policy allows it",
        description="Finish unresolved operations with the handlers of a program, where their stored policy allows it. "
        "Any number of these workers may run: each operation is finished once.",
        epilog=RECOVERED,
    )
    recover.add_argument(
        "--app",
        metavar="MODULE:GUARD",
        required=True,
        help="the guard, and with it its store and the handlers that are registered with it: shop.payments:guard",
    )
    recover.add_argument("--once", action="store_true", help="one round, and end (default: until told to stop)")
    recover.add_argument(
        "--every", metavar="DURATION", type=_duration, default=10.0, help="the pause between two rounds (default: 10s)"
    )
    recover.add_argument("--namespace", metavar="NAME", help="only the operations of this namespace (default: all)")


def _purge(commands: Commands) -> None:
    purge = commands.add_parser(
        "purge",
        help="drop the records whose time is over",
        description="Drop the records whose time is over. An unfinished operation is never dropped.",
        epilog=STATUSES,
    )
    _store(purge)
    purge.add_argument("--limit", metavar="N", type=_count, help="at most so many (default: all, in small steps)")


def _import(commands: Commands) -> None:
    _transfer(commands.add_parser("import", help="take in the records of another store", **_carried("into")), "from")


def _export(commands: Commands) -> None:
    _transfer(commands.add_parser("export", help="give the records to another store", **_carried("out of")), "to")


def _carried(way: str) -> dict[str, Any]:
    return {
        "description": f"Carry records {way} the store, with their times. Nothing is overwritten, and where they were "
        "they stay;\nit can be done again. Stop what writes to either store first.",
        "epilog": CARRIED,
    }


def _transfer(command: argparse.ArgumentParser, way: str) -> None:
    _store(command)
    command.add_argument(f"--{way}", dest="other", metavar="URL", required=True, help="the other store")
    command.add_argument("--namespace", metavar="NAME", help="only those of this namespace (default: all)")
    command.add_argument(
        "--scope",
        metavar="TEXT",
        action="append",
        default=[],
        help="a scope of the older cache, whose names with several colons don't tell it; may be given again",
    )


def _migrate(commands: Commands) -> None:
    migrate = commands.add_parser(
        "migrate",
        help="bring a store's tables to this release",
        description="Make a store's tables, or bring them to what this release makes of them, in one transaction.\n"
        "Processes of the release before this one go on working unless its notes say otherwise.",
        epilog=STATUSES,
    )
    _store(migrate)
    migrate.add_argument(
        "--dry-run", action="store_true", help="change nothing; print the SQL, or the commands, that would be run"
    )


def _doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="try a store's promises, and read the settings that could break them",
        description="Claim, replay, fence and purge probes of its own, measure the round trips, compare the clocks, "
        "and judge the server's settings.",
        epilog=EXAMINED,
    )
    _store(doctor)
    doctor.add_argument("--json", action="store_true", help="one JSON object")


def _key(commands: Commands) -> None:
    key = commands.add_parser(
        "key",
        help="make a key that seals what is private in records",
        description="Make a key that seals what is private in records, and print it. It is stored nowhere.\n"
        "Give it to all processes by NOTWICE_SEAL_KEYS or in a file that NOTWICE_SEAL_KEYS_FILE names.",
        epilog=STATUSES,
    )
    key.add_argument("name", metavar="NAME", help="what each record says of its key: like 2027-01")


def _version(commands: Commands) -> None:
    commands.add_parser("version", help="say which release this is", epilog=STATUSES)


def _store(command: argparse.ArgumentParser) -> None:
    command.add_argument("--store", metavar="URL", help="the store, like sqlite:///notwice.db (or NOTWICE_STORE)")


def _which(command: argparse.ArgumentParser) -> None:
    command.add_argument("operation", nargs="?", metavar="OPERATION", help="its id, idem_...; or say --scope and --key")
    command.add_argument("--scope", metavar="TEXT", help="with --key: the scope as `show` and `ls` give it")
    command.add_argument("--key", metavar="TEXT", help="with --scope: the caller's key")
    command.add_argument("--namespace", metavar="NAME", help="whose operation it is, or, of many, only those of it")


def _filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--unresolved", action="store_true", help="only those of unknown outcome that nobody works on")
    command.add_argument("--held", action="store_true", help="only those among them that wait for a person")
    command.add_argument(
        "--older-than", metavar="DURATION", type=_duration, help="only those not written since: 90, 1m, 2h"
    )
    command.add_argument(
        "--answer", metavar="STATUS", type=_answer, help="only those that keep such an HTTP answer: 503, 5xx"
    )


def _many(command: argparse.ArgumentParser) -> None:
    _filters(command)
    command.add_argument("--scope-prefix", metavar="PREFIX", help="of many: only those whose scope starts like this")
    command.add_argument(
        "--limit", metavar="N", type=_count, default=MANY, help="of many: at most so many (default: %(default)s)"
    )
    command.add_argument("--dry-run", action="store_true", help="change nothing; list what would be")
    command.add_argument("--yes", action="store_true", help="of many: don't ask")
    command.add_argument("--json", action="store_true", help="of many: one JSON object for each, and what became of it")


def _revealing(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("--reveal", action="store_true", help=what)
    command.add_argument(
        "--redact",
        metavar="NAMES",
        help="with --reveal: never the members of these names in results, like card,iban (or NOTWICE_REDACT)",
    )


def _operator(command: argparse.ArgumentParser) -> None:
    command.add_argument("--why", metavar="TEXT", type=_said, required=True, help="the reason; stays in the record")
    command.add_argument(
        "--who", metavar="NAME", type=_said, default=_user(), help="who does it (default: %(default)s)"
    )
    command.add_argument("--etag", metavar="HEX", type=_etag, help="refuse if it is not the record that `show` showed")
    command.add_argument("--force", action="store_true", help="even if an owner is at work, or it is finished")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""


def _said(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it must say something")
    return text


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,17}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _status(text: str) -> int:
    if not re.fullmatch(r"[2-5]\d\d", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no HTTP status from 200 to 599")
    return int(text)


def _answer(text: str) -> str:
    if not re.fullmatch(r"[1-5](\d\d|xx)", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no HTTP status and no class of them, like 503 or 5xx")
    return text


def _etag(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no etag; copy it from `show`") from error
