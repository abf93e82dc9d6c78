"""Where a store is, as its URL says, and how its sessions are set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlencode

from notwice.errors import NotwiceError, StoreUnavailable
from notwice.stores.postgres.dialect import Dialect, dialect_of
from notwice.stores.postgres.flows import Undone
from notwice.stores.postgres.migrations import Names
from notwice.stores.shared import KeyLocked, PartlyDone
from notwice.stores.urls import StoreUrl, check_ports, connections, one_of, seconds, sql_name

LOCK_MS: Final = 50
"""How long a statement waits for rows and keys that others hold: a commit takes less, an open transaction any time."""

_SERVER: Final = r"(?:\[[^\[\]\s]*\]|[^:,\[\]\s]*)(?::[0-9]{1,5})?"
_SERVERS: Final = re.compile(rf"{_SERVER}(?:,{_SERVER})*")
"""Hosts and ports, or nothing. What has another form may be a password without its @, which would be shown."""

_DRIVERS_OWN: Final = ("host", "sslmode", "sslrootcert", "sslcert", "sslkey", "passfile")


OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "schema": sql_name,
    "table": sql_name,
    "timeout": seconds,
    "pool": connections,
    "safe": one_of("warn", "require", "ignore"),
    "tables": one_of("make", "expect"),
    **dict.fromkeys(_DRIVERS_OWN, str),
}
"""The options of a URL, with what reads them."""


class Opened:
    """Whether the tables were there once, for both faces of a store."""

    __slots__ = ("yet",)

    def __init__(self) -> None:
        self.yet = False


class Place(NamedTuple):
    """A store's address and limits.

    ``address`` is what the drivers connect to; it may hold a password and is never shown, ``shown`` is. ``timeout`` is
    in seconds, for connecting and for each call; ``pool`` is how many connections a process has at most (and an event
    loop). ``safe`` says what to do about a server whose settings break promises, ``tables`` about one without any.
    """

    address: str
    shown: str
    names: Names
    dialect: Dialect
    timeout: float = 2.0
    pool: int = 4
    safe: str = "warn"
    tables: str = "make"

    def __repr__(self) -> str:
        """As it is shown."""
        return f"<Place {self.shown}>"

    @property
    def timeout_ms(self) -> int:
        """The time-out as the server takes it."""
        return max(1, round(self.timeout * 1000))


def place_of(url: StoreUrl) -> Place:
    """Read a URL. Raises `ValueError` for one that can't be used."""
    options = url.read_options(OPTIONS)
    check_ports(url.host)
    if url.host.count("@") > 1:  # the driver would take what stands before the last one for a part of the host
        raise ValueError("an @ in a user or a password is written %40")
    database = url.path.removeprefix("/")
    if not database or "/" in database or not _SERVERS.fullmatch(url.host.rpartition("@")[2]):
        raise ValueError("a PostgreSQL URL names a database: postgresql://user:password@host:5432/database")
    passed = {key: value for key, value in options.items() if key in _DRIVERS_OWN}
    address = f"postgresql://{_plain(url.host)}/{quote(database, safe='')}"
    names = Names(str(options.get("schema", "public")), str(options.get("table", "notwice_record")))
    limits = {key: options[key] for key in ("timeout", "pool", "safe", "tables") if key in options}
    return Place(
        f"{address}?{urlencode(passed, quote_via=quote)}" if passed else address,
        f"postgresql://{url.host.rpartition('@')[2]}/{database}",
        names,
        dialect_of(names.records),
        **limits,  # type: ignore[arg-type]  # each option's reader gives its type
    )


def _plain(host: str) -> str:
    """The user, the password and the servers, so that no driver's parser has to say anything of them."""
    account, at, servers = host.rpartition("@")
    return ":".join(quote(unquote(text), safe="") for text in account.split(":", 1)) + at + servers


def session_settings(place: Place) -> Mapping[str, str]:
    """What each session insists on, whatever the server, the database or the role has set.

    Plans are made once a connection and go by the indexes: a plan of the day when the table was empty must not read
    all of it later. A warning must come through, since a commit that waits in vain for a standby ends with one.
    """
    return {
        "application_name": "notwice",
        "client_encoding": "UTF8",
        "client_min_messages": "warning",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "enable_seqscan": "off",
        "idle_in_transaction_session_timeout": str(place.timeout_ms),
        "jit": "off",
        "lock_timeout": str(min(LOCK_MS, place.timeout_ms)),
        "plan_cache_mode": "force_generic_plan",
        "statement_timeout": str(place.timeout_ms),
    }


# --- errors -----------------------------------------------------------------------------------------------------------

_UNDONE = frozenset({"40001", "40P01"})  # serialization failure, deadlock
_LOCKED = "55P03"

_SAID: Final[Mapping[str, str]] = {
    "25006": "it takes no writes: it is a standby, or was made read-only; name the primary",
    "28000": "it refuses this user; look at the URL and at pg_hba.conf",
    "28P01": "it refuses this password",
    "3D000": "there is no such database",
    "3F000": "there is no such schema; create it, or name another one with ?schema=",
    "42501": "this role may not do that; `notwice migrate --dry-run` prints the SQL for one that may",
    "42P01": "the store's tables are gone; run `notwice migrate`",
    "53100": "its disk is full",
    "53300": "it has no connection left for us",
    "57014": "it took longer than the time-out and was stopped; nothing was done",
    "57P01": "it is shutting down; whether this write is there is not known",
    "57P03": "it is starting up",
}


def translated(error: Exception, place: Place, *, connected: bool = True) -> Exception:
    """What a caller, or a flow, gets for an error of a driver; before it was `connected`, nothing was done."""
    if isinstance(error, NotwiceError):
        return error
    state = str(getattr(error, "sqlstate", None) or "")
    if state in _UNDONE:
        return Undone(str(error))
    if state == _LOCKED:
        return KeyLocked(f"{place.shown}: an open transaction holds this record; nothing was done")
    known = "whether a write is there is not known" if connected else "nothing was done"
    reason = _SAID.get(state) or f"{' '.join(str(error).split()) or type(error).__name__}; {known}"
    return StoreUnavailable(f"{place.shown}: {reason} ({state or type(error).__name__})")


def is_harmless(error: BaseException) -> bool:
    """Whether the connection is as good as before: the server refused this statement and nothing else."""
    return isinstance(error, (Undone, KeyLocked, PartlyDone))


def too_slow(place: Place, *, connected: bool = True) -> StoreUnavailable:
    """The error of a call that got no answer in time; before it was `connected`, nothing was done."""
    known = "whether a write is there is not known" if connected else "nothing was done"
    return StoreUnavailable(f"{place.shown}: no answer for {place.timeout:g} s; {known}")


def in_doubt(warning: str, place: Place) -> StoreUnavailable:
    """The error of a commit that the server reports only with a warning: a standby that should have it may not."""
    return StoreUnavailable(f"{place.shown}: {warning}; whether a write survives a fail-over is not known")
