"""Where a store is, as its URL says, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from notwice.errors import NotwiceError, RecordTooLarge, StoreUnavailable
from notwice.stores.mysql.migrations import Names
from notwice.stores.shared import KeyLocked, PartlyDone
from notwice.stores.urls import StoreUrl, check_ports, connections, one_of, seconds, sql_name

PORT: Final = 3306
_NO_PLACE: Final = "a MySQL URL names a host and a database: mysql://user:password@host:3306/database"

_PRIVATE: Final[Mapping[str, Mapping[str, object]]] = {
    "disabled": {"ssl_disabled": True},
    "preferred": {},
    "required": {"ssl_verify_cert": False},
    "verify_identity": {"ssl_verify_cert": True, "ssl_verify_identity": True},
}
"""What the driver is told for each ``ssl_mode``."""

_FILES: Final = ("ssl_ca", "ssl_cert", "ssl_key")

OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "table": sql_name,
    "timeout": seconds,
    "pool": connections,
    "returning": one_of("auto", "no"),
    "safe": one_of("warn", "require", "ignore"),
    "tables": one_of("make", "expect"),
    "ssl_mode": one_of(*_PRIVATE),
    **dict.fromkeys(_FILES, str),
}
"""The options of a URL, with what reads them."""


class Place(NamedTuple):
    """A store's address and limits.

    ``driver`` is what the driver is told to connect; it may hold a password and is never shown, ``shown`` is.
    ``timeout`` is in seconds, for connecting and for each call; ``pool`` is how many connections a process has at
    most. ``returning`` of ``"no"`` speaks to MariaDB as to MySQL. ``safe`` says what to do about a server whose
    settings break promises, ``tables`` about one without any.
    """

    driver: Mapping[str, Any]
    shown: str
    names: Names
    timeout: float = 2.0
    pool: int = 4
    returning: str = "auto"
    safe: str = "warn"
    tables: str = "make"

    def __repr__(self) -> str:
        """As it is shown."""
        return f"<Place {self.shown}>"


def place_of(url: StoreUrl) -> Place:
    """Read a URL. Raises `ValueError` for one that can't be used."""
    options = url.read_options(OPTIONS)
    check_ports(url.host)
    database = url.path.removeprefix("/")
    address = urlsplit(f"//{url.host}")
    if not database or "/" in database or not address.hostname:
        raise ValueError(_NO_PLACE)
    mode = str(options.get("ssl_mode", "verify_identity" if "ssl_ca" in options else "preferred"))
    if mode == "verify_identity" and "ssl_ca" not in options:
        raise ValueError(
            "ssl_mode=verify_identity needs ssl_ca, the file of the authority that signed the server's key"
        )
    driver: dict[str, object] = {
        "host": address.hostname,
        "port": address.port or PORT,
        "user": unquote(address.username or ""),
        "password": unquote(address.password or "").encode(),
        "database": database,
        **_PRIVATE[mode],
        **{key: options[key] for key in _FILES if key in options},
    }
    limits = {key: options[key] for key in ("timeout", "pool", "returning", "safe", "tables") if key in options}
    return Place(
        driver,
        f"mysql://{url.host.rpartition('@')[2]}/{database}",
        Names(str(options.get("table", "notwice_record"))),
        **limits,  # type: ignore[arg-type]  # each option's reader gives its type
    )


# --- errors -----------------------------------------------------------------------------------------------------------


class Undone(Exception):
    """The server undid a transaction as a whole because of others: it may be sent again."""


class Busy(Exception):
    """A row or a key is locked by somebody else, and was for as long as the server waits. Nothing was done."""


_UNDONE: Final = frozenset({1213, 1020})  # deadlock; changed since the snapshot
_BUSY: Final = frozenset({1205, 3572})  # lock wait time-out; NOWAIT

_SAID: Final[Mapping[int, str]] = {
    1021: "its disk is full",
    1040: "it has no connection left for us",
    1044: "this user may not use that database",
    1045: "it refuses this user or password",
    1049: "there is no such database",
    1053: "it is shutting down; whether this write is there is not known",
    1114: "its disk, or its table space, is full",
    1142: "this user may not do that; `notwice migrate --dry-run` prints the SQL for one that may",
    1146: "the store's tables are gone; run `notwice migrate`",
    1153: "a record is larger than its max_allowed_packet; raise that setting, or keep smaller results",
    1290: "it takes no writes: it is a replica, or was made read-only; name the primary",
    1406: "a name or a scope is longer than its column; nothing was done",
    1665: "its binlog_format is STATEMENT, which can't carry these writes; set it to ROW",
    1836: "it takes no writes: it was made read-only; name the primary",
    1969: "it took longer than the time-out and was stopped; whether this write is there is not known",
    2013: "the connection broke, or no answer came in time; whether a write is there is not known",
    3024: "it took longer than the time-out and was stopped",
}


def code_of(error: BaseException) -> int:
    """The server's number for an error; 0 if it has none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


def translated(error: Exception, place: Place, *, connected: bool = True) -> Exception:
    """What is raised for an error of the driver; before it was `connected`, nothing was done."""
    if isinstance(error, NotwiceError):
        return error
    code = code_of(error)
    if code in _UNDONE:
        return Undone(str(error))
    if code in _BUSY:
        return Busy(str(error))
    text = " ".join(str(error.args[-1] if error.args else "").split()) or type(error).__name__
    reason = _SAID.get(code, f"{text}; whether a write is there is not known")
    if not connected:
        reason = f"{reason.partition('; whether')[0]}; nothing was done"
    return StoreUnavailable(f"{place.shown}: {reason} ({code or type(error).__name__})")


def is_harmless(error: BaseException) -> bool:
    """Whether the connection is as good as before: nothing was done, and no transaction is open."""
    return isinstance(error, (Undone, Busy, KeyLocked, PartlyDone, RecordTooLarge))


def locked(place: Place) -> KeyLocked:
    """The error of a call about a record that somebody's open transaction holds."""
    return KeyLocked(f"{place.shown}: an open transaction holds this record; nothing was done")
