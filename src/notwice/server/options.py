"""Options from one dataclass: flags, environment variables and a file are derived from its fields.

A field made by `option` has a kind (how a text or a value of the file becomes a value), a default as a person would
write it, and a sentence of help. `read` puts the sources together: a flag wins over an environment variable, that over
the file, and that over the default. It gives all errors at once, each a sentence that names its source.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

PREFIX = "NOTWICE_"
CONFIG = "config"

# A container platform announces a service of the name "notwice" to every container by such variables.
ANNOUNCED = re.compile(r"NOTWICE_(SERVICE_(HOST|PORT)|PORT)(_.*)?")

T = TypeVar("T")


class SettingsError(Exception):
    """The options can't be used. ``sentences`` has one for each thing that is wrong."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.sentences = tuple(sentences)
        super().__init__("\n".join(self.sentences))


@dataclasses.dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How a text, or a value of a file, becomes a value; ``parse`` raises `ValueError` with the rest of a sentence.

    A `switch` is said by its flag alone. A `table` may stand in a file as one. What has to be `filled` can be left out,
    but not given empty, which is what a secret is that a deployment forgot.
    """

    metavar: str
    parse: Callable[[object], T]
    switch: bool = False
    table: bool = False
    filled: bool = False


class Option(NamedTuple):
    """One option as it is derived from a field."""

    name: str
    kind: Kind[Any]
    default: str
    help: str
    secret: bool

    @property
    def flag(self) -> str:
        """Its flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()


class Given(NamedTuple):
    """A value as it was given, and where."""

    origin: str
    value: object


def option(kind: Kind[T], default: str, explanation: str, *, secret: bool = False) -> T:
    """Define an option where a dataclass defines a field. A secret has no flag and is never shown."""
    field: T = dataclasses.field(
        default=kind.parse(default),
        repr=not secret,
        metadata={"kind": kind, "default": default, "help": explanation, "secret": secret},
    )
    return field


def options(cls: type[Any]) -> tuple[Option, ...]:
    """Give the options that a dataclass defines, in its order."""
    return tuple(
        Option(field.name, **{name: field.metadata[name] for name in ("kind", "default", "help", "secret")})
        for field in dataclasses.fields(cls)
    )


def add_flags(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Add a flag for each option that is no secret, and ``--config``. Nothing is parsed or defaulted here."""
    parser.add_argument("--config", metavar="FILE", help=f"a TOML file of these options (or {PREFIX}CONFIG)")
    for item in options(cls):
        if item.secret:
            continue
        shown = f"{item.help} (default: {item.default})" if item.default else item.help
        shown = shown.replace("%", "%%")
        if item.kind.switch:
            parser.add_argument(item.flag, action=argparse.BooleanOptionalAction, default=None, help=shown)
        else:
            parser.add_argument(item.flag, default=None, metavar=item.kind.metavar, help=shown)


def read(cls: type[T], flags: Mapping[str, object], environment: Mapping[str, str]) -> T:
    """Give the settings that flags, environment and file amount to.

    `flags` has a value for each flag by the name of its field, ``None`` where it was not given. A dataclass may have
    a method ``complaints()`` that gives sentences about options that do not fit together. Raises `SettingsError`.
    """
    known = options(cls)
    sentences: list[str] = []
    given: dict[str, Given] = {}
    file = _from_file(flags, environment, sentences)
    readable = not sentences
    for source in (file, _from_environment(environment), _from_flags(flags)):
        given.update((name, value) for name, value in source.items() if _known(name, value, known, sentences=sentences))
    values = dict(_parsed(known, given, sentences))
    settings = cls(**values)
    complaints = cast("Callable[[], Iterable[str]] | None", getattr(settings, "complaints", None))
    if complaints is not None and readable:  # else what stands in the file would be missed
        unusable = [item.flag for item in known if item.name in given and item.name not in values]
        sentences.extend(text for text in complaints() if not any(flag in text for flag in unusable))
    if sentences:
        raise SettingsError(sentences)
    return settings


def sentence(text: str) -> str:
    """Give `text` with one full stop, if it has no end yet."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _parsed(known: Iterable[Option], given: Mapping[str, Given], sentences: list[str]) -> Iterator[tuple[str, Any]]:
    for item in known:
        if item.name not in given:
            continue
        origin, value = given[item.name]
        try:
            parsed = item.kind.parse(value)
        except ValueError as error:
            sentences.append(sentence(f"{origin}: {error}"))
            continue
        if item.kind.filled and not parsed.strip():
            sentences.append(f"{origin} is empty: say it, or leave it out.")
        else:
            yield item.name, parsed


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    return {
        name: Given("--" + name.replace("_", "-"), value)
        for name, value in flags.items()
        if value is not None and name != CONFIG
    }


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    return {
        name.removeprefix(PREFIX).lower(): Given(name, value)
        for name, value in environment.items()
        if name.startswith(PREFIX) and name != PREFIX + "CONFIG" and not ANNOUNCED.fullmatch(name)
    }


def _from_file(flags: Mapping[str, object], environment: Mapping[str, str], sentences: list[str]) -> dict[str, Given]:
    name = flags.get(CONFIG) or environment.get(PREFIX + "CONFIG")
    if not name:
        return {}
    try:
        with Path(str(name)).open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        sentences.append(f"The file {name} can't be read: {error.strerror or error}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        sentences.append(f"The file {name} is no TOML: {error}.")
    else:
        return {key: Given(f"{key} in {name}", value) for key, value in document.items()}
    return {}


def _known(name: str, given: Given, known: Iterable[Option], *, sentences: list[str]) -> bool:
    names = {item.name: item for item in known}
    if name in names:
        return True
    is_table = isinstance(given.value, dict)
    meant = {item.name for item in known if item.kind.table or not is_table}
    close = difflib.get_close_matches(name.replace("-", "_").lower(), meant, n=1)
    if is_table and not close:
        sentences.append(f"{given.origin}: options stand at the top of the file, and not in a table.")
        return False
    hint = f" Did you mean {_as_written(names[close[0]], given.origin)}?" if close else ""
    sentences.append(f"{given.origin}: there is no such option.{hint}")
    return False


def _as_written(item: Option, origin: str) -> str:
    if origin.startswith("--"):
        return item.flag
    return item.variable if origin.startswith(PREFIX) else item.name
