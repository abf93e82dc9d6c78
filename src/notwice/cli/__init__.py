"""The ``notwice`` command. It needs nothing but the standard library, except for ``serve`` and ``demo``."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast

from notwice import Guard, Privacy, __version__, new_key
from notwice.cli import commands, doctor, recover, schema, streams, transfer
from notwice.cli.arguments import FINE, REFUSED, UNAVAILABLE, UNTOLD, USAGE, parser
from notwice.cli.output import printable
from notwice.cli.selection import Misused
from notwice.errors import ForceRequired, InvalidKey, NotwiceError, StoreUnavailable, not_installed
from notwice.privacy import keys_of_environment
from notwice.server import options
from notwice.server.settings import Settings
from notwice.stores import jsonfile, open_store, sqlite
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.stores.urls import StoreUrl, parsed

__all__ = ["main"]

_IN_FILES: Final = {"file": (jsonfile.path_of, jsonfile.OPTIONS), "sqlite": (sqlite.path_of, sqlite.OPTIONS)}
_HAVE_TABLES: Final = frozenset({"mysql", "postgresql", "sqlite"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command, and give its exit status; ``notwice --help`` lists what they mean."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["demo"]:
        return _demo(words[1:])
    with streams.ours():
        try:
            status = _run(words)
            sys.stdout.flush()
        except streams.Unwritten as error:
            streams.give_up(sys.stdout)
            if isinstance(error.__cause__, BrokenPipeError):  # whoever read the list has seen enough
                return FINE
            status = _told(
                f"The output can't be written: {error}. What was done in the store before that is done: look there "
                "before you repeat it.",
                UNTOLD,
            )
    return status


def _run(words: Sequence[str]) -> int:
    try:
        said = parser().parse_args(words)
    except SystemExit as ended:  # after help, or a usage error that was told
        return ended.code if isinstance(ended.code, int) else USAGE
    with _plain_warnings():
        return _carry_out(said)


@contextmanager
def _plain_warnings() -> Generator[None, None, None]:
    """Within, a warning about a server's settings is one line for a person, without a place in the source."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:  # noqa: ANN401 - as it was given
        if issubclass(category, UnsafeSettingsWarning):
            print(f"warning: {printable(str(message))}", file=sys.stderr)
        else:
            usual(message, category, *place)

    with warnings.catch_warnings():
        warnings.showwarning = cast("Any", show)  # whose five more parameters go on as they are
        yield


def _carry_out(said: argparse.Namespace) -> int:
    match said.command:
        case "version":
            print(__version__)
            return FINE
        case "serve":
            return _serve(said)
        case "recover":
            return _recover(said)
        case "key":
            return _key(said)
        case _:
            return _on_a_store(said)


def _on_a_store(said: argparse.Namespace) -> int:
    try:
        url = said.store or os.environ.get("NOTWICE_STORE")
        if said.command in {"import", "export"}:
            return _between_stores(url, said)
        if said.command == "migrate":
            return _migrate(url, said)
        if said.command == "doctor":
            return _doctor(url, said)
        with _open(_of_a_store(url, reads=True), said.command) as guard:
            return commands.ON_A_STORE[said.command](guard, said)
    except Misused as error:
        return _told(error, USAGE)
    except commands.Refused as error:
        return _told(error, REFUSED)
    except (StoreUnavailable, OSError) as error:
        return _told(error, UNAVAILABLE)
    except ForceRequired as error:
        return _told(str(error).replace("force=True", "--force"), REFUSED)
    except InvalidKey as error:
        return _told(error, USAGE)
    except NotwiceError as error:
        return _told(error, REFUSED)


def _open(url: str, command: str) -> Guard:
    if command not in {"ls", "stats", "show"} and parsed(url).scheme == "file":
        raise commands.Refused(
            "Of a JSON file, the command line can only `ls`, `stats` and `show` operations. Do the rest in the program "
            "that has it open, or `notwice export` its records to another store."
        )
    try:
        return Guard.open(_as_it_is(url), privacy=Privacy(keys=keys_of_environment(os.environ)))
    except (ValueError, ImportError) as error:
        raise Misused(str(error)) from error


def _as_it_is(url: str) -> str:
    """The URL of a store whose tables are to be there already: looking at them must not make them."""
    place = parsed(url)
    if place.scheme not in _HAVE_TABLES or "tables" in dict(place.options):
        return url
    return f"{url}{'&' if '?' in url else '?'}tables=expect"


def _between_stores(url: str | None, said: argparse.Namespace) -> int:
    source, target = (said.other, url) if said.command == "import" else (url, said.other)
    source, target = _of_a_store(source, reads=True), _of_a_store(target, is_there=False)
    try:
        with closing(open_store(source)) as old, closing(open_store(target)) as new:
            return transfer.carry(old, new, namespace=said.namespace, scopes=said.scope).tell()
    except (ValueError, NotImplementedError) as error:
        raise Misused(str(error)) from error


def _migrate(url: str | None, said: argparse.Namespace) -> int:
    try:
        return schema.carry_out(_of_a_store(url, is_there=False), said)
    except (ValueError, ImportError) as error:
        raise Misused(str(error)) from error


def _doctor(url: str | None, said: argparse.Namespace) -> int:
    place = _of_a_store(url)
    if parsed(place).scheme == "file":
        raise commands.Refused(
            "A JSON file belongs to the one process that has it open; there is no server to examine."
        )
    try:
        return doctor.carry_out(_as_it_is(place), said)
    except (ValueError, ImportError) as error:
        raise Misused(str(error)) from error


def _of_a_store(url: str | None, *, is_there: bool = True, reads: bool = False) -> str:
    """The URL of a store that can be opened from here: it `is_there`, for looking at one must not make it."""
    if not url:
        raise Misused("Which store? Say --store URL, like sqlite:///notwice.db, or set NOTWICE_STORE.")
    try:
        place = parsed(url)
        path = _path(place)
    except ValueError as error:
        raise Misused(str(error)) from error
    if place.scheme == "memory":
        raise Misused("memory:// lives in the process that made it: there is nothing to look at from here.")
    if is_there and path is not None and not Path(path).exists():
        raise StoreUnavailable(f"There is no store at {path}.")
    if place.scheme != "file" or not reads:
        return url
    return url if "access" in dict(place.options) else f"{url}{'&' if '?' in url else '?'}access=read"


def _path(place: StoreUrl) -> str | None:
    """The file of a store in one. Raises `ValueError` if its URL, or an option, is why there may be none."""
    if place.scheme not in _IN_FILES:
        return None
    path_of, known = _IN_FILES[place.scheme]
    place.read_options(known)
    return path_of(place)


def _serve(said: argparse.Namespace) -> int:
    flags = {name: value for name, value in vars(said).items() if name != "command"}
    try:
        settings = options.read(Settings, flags, os.environ)
        from notwice.server import app  # noqa: PLC0415 - it needs the extra

        app.serve(
            settings, announce=lambda url: print(f"notwice guards {settings.upstream.authority} at {url}", flush=True)
        )
    except options.SettingsError as error:
        return _told(error, USAGE)
    except ModuleNotFoundError as error:
        return _missing("serve", error)
    except (StoreUnavailable, OSError) as error:
        return _told(error, UNAVAILABLE)
    except KeyboardInterrupt:
        pass
    return FINE


def _recover(said: argparse.Namespace) -> int:
    try:
        return recover.carry_out(said)
    except Misused as error:
        return _told(error, USAGE)
    except KeyboardInterrupt:
        return FINE


def _demo(words: list[str]) -> int:
    try:
        from notwice import demo  # noqa: PLC0415 - it needs the extra

        return demo.main(words)
    except ModuleNotFoundError as error:
        return _missing("demo", error)


def _key(said: argparse.Namespace) -> int:
    try:
        print(new_key(said.name))
    except ValueError as error:
        return _told(error, USAGE)
    return FINE


def _missing(command: str, error: ModuleNotFoundError) -> int:
    """Name the extra to install; a missing part of notwice itself is another matter."""
    if (error.name or "").partition(".")[0] == "notwice":
        raise error
    return _told(f"{not_installed(f'`notwice {command}` needs {error.name}', 'server')}.", USAGE)


def _told(what: object, status: int) -> int:
    print("\n".join(printable(line) for line in str(what).splitlines()), file=sys.stderr)
    return status
