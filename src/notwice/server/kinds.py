"""What the options of `notwice serve` are made of: values, and how each kind is read from a text or a file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from notwice.errors import InvalidKey
from notwice.http import Ending
from notwice.identity import join_scope
from notwice.server.durations import parse_duration, parse_size
from notwice.server.options import Kind

T = TypeVar("T")

SYMMETRIC = ("HS256", "HS384", "HS512")
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

ENDINGS = tuple(map(str, Ending))

_STATUS = re.compile(r"[2-5](?:xx|[0-9]{2})", re.ASCII)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VISIBLE = re.compile(r"[!-~]+")


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


class Target(NamedTuple):
    """The upstream: where it is, and what stands before each path that is asked of it."""

    scheme: str
    host: str
    port: int
    path: str
    authority: str


class PrincipalSource(NamedTuple):
    """Who a request belongs to: the value of a header, a claim of a verified token, or nobody in particular."""

    kind: Literal["header", "jwt", "shared", "missing"]
    name: str = ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        message = f"{value!r} must be a text"
        raise ValueError(message)  # noqa: TRY004 - to the reader of a file it is a wrong value
    return value


def _some_text(value: object) -> str:
    text = _text(value)
    if not text.strip():
        message = "it can't be empty"
        raise ValueError(message)
    return text


def _scope(value: object) -> str:
    try:
        return join_scope(_text(value))
    except InvalidKey as error:
        raise ValueError(str(error)) from error


def _switch(value: object) -> bool:
    match value:
        case bool():
            return value
        case str() if value.lower() in ("true", "yes", "on", "1"):
            return True
        case str() if value.lower() in ("false", "no", "off", "0"):
            return False
        case _:
            message = f"{value!r} is neither true nor false"
            raise ValueError(message)


def _number_or(parse: Callable[[str], T], value: object) -> T:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return parse(str(value))
    return parse(_text(value))


def _seconds(value: object) -> float:
    return _number_or(parse_duration, value)


def _seconds_above_zero(value: object) -> float:
    seconds = _seconds(value)
    if seconds <= 0:
        message = f"{value!r} must be more than zero"
        raise ValueError(message)
    return seconds


def _retention(value: object) -> float | None:
    return None if value == "forever" else _seconds_above_zero(value)


def _bytes_or_never(value: object) -> int | None:
    return None if value == "never" else _number_or(parse_size, value)


def _count_or_none(value: object) -> int | None:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)
    if text == "unlimited":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
        message = f"{value!r} is no number from 1 on, nor unlimited"
        raise ValueError(message)
    return int(text)


def _size(value: object) -> int:
    size = _number_or(parse_size, value)
    if size <= 0:
        message = f"{value!r} must be at least one byte"
        raise ValueError(message)
    return size


def _names(value: object) -> tuple[str, ...]:
    items: list[Any] = value if isinstance(value, list) else _text(value).split(",")
    return tuple(name for item in items if (name := _text(item).strip()))


def _statuses(value: object) -> tuple[tuple[int | str, str], ...]:
    """Read ``503=abandoned,5xx=failed``, or a table of the file."""
    table: Any = value
    pairs = table.items() if isinstance(value, dict) else [item.split("=", 1) for item in _names(value)]
    found: dict[str, str] = {}
    for status, *rest in pairs:
        name, ending = status.strip().lower(), _text(rest[0]).strip() if rest else ""
        if not _STATUS.fullmatch(name) or ending not in ENDINGS:
            message = f"{value!r} says nothing of statuses; write it like 503=abandoned,5xx=failed"
            raise ValueError(f"{message}, each one of {', '.join(ENDINGS)}")
        if name in found:
            message = f"{value!r} says two things of {name}"
            raise ValueError(message)
        found[name] = ending
    return tuple((name if name.endswith("xx") else int(name), ending) for name, ending in found.items())


def one_of(*choices: str) -> Kind[Any]:
    """Make the kind whose values are these texts."""

    def parse(value: object) -> str:
        text = _text(value)
        if text not in choices:
            message = f"{text!r} is none of {', '.join(choices)}"
            raise ValueError(message)
        return text

    return Kind("|".join(choices), parse)


def _algorithms(value: object) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        if name not in SYMMETRIC + ASYMMETRIC:
            message = f"{name!r} is no algorithm that can be trusted; choose from {', '.join(SYMMETRIC + ASYMMETRIC)}"
            raise ValueError(message)
    return names


def _methods(value: object) -> tuple[str, ...]:
    names = _names(value)
    if not names or not all(_TOKEN.fullmatch(name) for name in names):
        message = f"{value!r} is no list of HTTP methods; write it like POST,PATCH"
        raise ValueError(message)
    if "OPTIONS" in map(str.upper, names):
        message = "OPTIONS can't be guarded: browsers send it without a key before the request itself"
        raise ValueError(message)
    return tuple(name.upper() for name in names)


def _header(value: object) -> str:
    if not _TOKEN.fullmatch(_text(value)):
        message = f"{value!r} can't be the name of a header"
        raise ValueError(message)
    return _text(value)


def _header_or_none(value: object) -> str:
    return _header(value) if _text(value) else ""


def _path(value: object) -> str:
    path = _text(value)
    if path and (not path.startswith("/") or "?" in path or "#" in path):
        message = f"{path!r} is no path; it starts with a slash and has no query"
        raise ValueError(message)
    return path.rstrip("/")


def _address(value: object) -> Address:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*)):(\d{1,5})", _text(value))
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004 - the highest port
        message = f"{value!r} is no address to listen on; write HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080"
        raise ValueError(message)
    return Address(match[1] or match[2] or "0.0.0.0", int(match[3]))  # noqa: S104 - ":8080" asks for all interfaces


def _target(value: object) -> Target:
    text = _text(value)
    if not text:
        return Target("", "", 0, "", "")
    wrong = f"{text!r} is no address of a service; write it like http://127.0.0.1:9000"
    if "@" in text:
        message = (
            "an address of a service with a user or a password in it can't be used; write it like http://127.0.0.1:9000"
        )
        raise ValueError(message)
    try:
        parts = urlsplit(text)
        port = {"http": 80, "https": 443}[parts.scheme] if parts.port is None else parts.port
    except (ValueError, KeyError):
        raise ValueError(wrong) from None
    host = parts.hostname or ""
    if not (_VISIBLE.fullmatch(text) and port and all(host.rstrip(".").split("."))) or parts.query or parts.fragment:
        raise ValueError(wrong)
    return Target(parts.scheme, host, port, parts.path.rstrip("/"), parts.netloc)


def _principal(value: object) -> PrincipalSource:
    kind, colon, name = _text(value).partition(":")
    match kind:
        case "header" if _TOKEN.fullmatch(name):
            return PrincipalSource("header", name)
        case "jwt" if name:
            return PrincipalSource("jwt", name)
        case "shared" if not colon:
            return PrincipalSource("shared")
        case "" if not colon:
            return PrincipalSource("missing")
        case _:
            message = f"{value!r} names no caller; write header:NAME, jwt:CLAIM or shared"
            raise ValueError(message)


TEXT = Kind("TEXT", _text)
DURATION = Kind("DURATION", _seconds)
TIMEOUT = Kind("DURATION", _seconds_above_zero)
SIZE = Kind("SIZE", _size)
SWITCH = Kind("", _switch, switch=True)
NAMES = Kind("NAMES", _names)
PATH = Kind("PATH", _path)
UPSTREAM = Kind("URL", _target)
PRINCIPAL = Kind("SOURCE", _principal)
ADDRESS = Kind("HOST:PORT", _address)
METHODS = Kind("NAMES", _methods)
HEADER = Kind("NAME", _header)
OPTIONAL_HEADER = Kind("NAME", _header_or_none)
RETENTION = Kind("DURATION", _retention)
UNLIMITED = Kind("N", _count_or_none)
BYTES_OR_NEVER = Kind("SIZE", _bytes_or_never)
ALGORITHMS = Kind("NAMES", _algorithms)
STATUSES = Kind("STATUS=MEANING", _statuses, table=True)
STORE = Kind("URL", _some_text)
SCOPE = Kind("TEXT", _scope)
FILE = Kind("FILE", _text, filled=True)
SECRET = Kind("TEXT", _text, filled=True)
KEYS = Kind("FILE|URL", _text)
