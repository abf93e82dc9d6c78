"""Store URLs: ``engine://host/path?option=value``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

TIMEOUT_MAX: Final = 3_600
POOL_MAX: Final = 100
PORT_MAX: Final = 65_535

NAME_CHARACTERS_MAX: Final = 48
"""Servers cut or refuse names after 63 bytes, and those of indexes and further tables are longer than the table's."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_OPTION: Final = re.compile(r"[A-Za-z_-]{1,40}")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MALFORMED: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_IN_FILES: Final = frozenset({"sqlite", "file"})

_SQL_NAME: Final = re.compile(rf"[a-z_][a-z0-9_]{{0,{NAME_CHARACTERS_MAX - 1}}}")


class StoreUrl(NamedTuple):
    """A URL taken apart. ``host`` may hold a user and a password, so it is never shown.

    Nor is what may be a piece of a password that holds a character with a meaning in URLs, and stands elsewhere now.
    """

    scheme: str
    host: str
    path: str
    options: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        """Nothing but the scheme."""
        return f"<StoreUrl {self.scheme}://>"

    def read_options(self, known: Mapping[str, Callable[[str], object]]) -> dict[str, object]:
        """The options by name, each read by its function. Raises `ValueError` for unknown, repeated or wrong ones."""
        values: dict[str, object] = {}
        for name, text in self.options:
            if name not in known:
                raise ValueError(self._unknown(name, known))
            if name in values:
                raise ValueError(f"the option {name!r} of the {self.scheme} store is given twice")
            values[name] = _read(name, text, known[name])
        return values

    def _unknown(self, name: str, known: Iterable[str]) -> str:
        has = f"it has {', '.join(sorted(known))}"
        if any("@" in text for option in self.options for text in option):
            return (
                f"a {self.scheme} store does not have all of these options; {has}. If they are a part of a user or a "
                "password, a ? and a & in it are written %3F and %26"
            )
        if not _OPTION.fullmatch(name):
            return f"one option of the {self.scheme} store has no name that an option could have; {has}"
        return f"a {self.scheme} store has no option {name!r}; {suggestion(name, known)}"


def parsed(url: str) -> StoreUrl:
    """Take a store's URL apart. Raises `ValueError` for what is none, without repeating it: it may hold a password.

    Raises `TypeError` for what is no text.
    """
    if not isinstance(cast("object", url), str):
        message = f"a store is named by a URL, a text like sqlite:///payments.db, and not by a {type(url).__name__}"
        raise TypeError(message)
    scheme, separator, _ = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ValueError("a store is named by a URL, for example sqlite:///payments.db or memory://")
    parts = _split(url)
    if parts is None or (scheme.lower() not in _IN_FILES and not _is_sound(parts)):
        raise ValueError(
            f"the URL of this {scheme} store can't be read: it is one line, an IPv6 address stands in brackets as in "
            "[::1], and special characters in a user or a password are written as %XX, as urllib.parse.quote(password, "
            "safe='') gives them"
        )
    if parts.fragment:
        raise ValueError(
            f"the URL of a {scheme} store has no part after #; write %23 for a # in its path, or in a password"
        )
    options = parse_qsl(parts.query, keep_blank_values=True)
    return StoreUrl(scheme.lower(), parts.netloc, unquote(parts.path), tuple(options))


def _split(url: str) -> SplitResult | None:
    """The parts of a URL; ``None`` if it has none. What the parser says may repeat it, and so is not passed on."""
    if _FORBIDDEN.search(url):
        return None
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _is_sound(parts: SplitResult) -> bool:
    """Whether all that read the address of a server take it for the same: no parser of a driver's has to complain.

    An @ after the first slash may be the end of a password that holds a slash, and so the start would be shown.
    """
    address = parts.netloc + parts.path
    return not (_MALFORMED.search(address) or _FORBIDDEN.search(unquote(address)) or "@" in parts.path)


def check_ports(host: str) -> None:
    """Raise `ValueError` for a port that is none, without repeating it: it may be a password that has lost its @."""
    for server in host.rpartition("@")[2].split(","):
        _, colon, port = server.rpartition("]")[2].partition(":")
        if colon and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= PORT_MAX):
            raise ValueError(
                f"what follows the host and its colon is no port from 1 to {PORT_MAX}; if it is a password, @ and the "
                "host have to come after it"
            )


def one_of(*values: str) -> Callable[[str], str]:
    """A reader of an option that has a few values."""

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"it is one of {', '.join(values)}")
        return text

    return read


def number(text: str) -> float:
    """A number, maybe with a fraction."""
    try:
        return float(text)
    except ValueError:
        pass
    raise ValueError("it is a number, as 2 or 0.5")  # what `float` says repeats the text


def whole_number(text: str) -> int:
    """A number without a fraction."""
    try:
        return int(text)
    except ValueError:
        pass
    raise ValueError("it is a whole number, as 2")


def seconds(text: str) -> float:
    """A time-out."""
    value = number(text)
    if not 0 < value <= TIMEOUT_MAX:
        raise ValueError(f"it is more than 0 and at most {TIMEOUT_MAX} seconds")
    return value


def connections(text: str) -> int:
    """How many connections a process has at most."""
    count = whole_number(text)
    if not 1 <= count <= POOL_MAX:
        raise ValueError(f"it is a number of connections from 1 to {POOL_MAX}")
    return count


def sql_name(text: str) -> str:
    """A name of a table or a schema that means the same with and without quotes, so that nothing can be slipped in."""
    if not _SQL_NAME.fullmatch(text):
        raise ValueError(
            f"it is a small letter or _ and then small letters, digits and _, {NAME_CHARACTERS_MAX} in all at most"
        )
    return text


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to write instead of `name`."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(names)}"


def _read(name: str, text: str, reader: Callable[[str], object]) -> object:
    try:
        return reader(text)
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"the option {name} can't be used: {reason}")  # without its value, which may be a secret
