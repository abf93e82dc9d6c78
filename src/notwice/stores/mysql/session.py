"""One connection: how it is made and set, and how it is asked within a time."""

from __future__ import annotations

import io
import math
import select
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.constants import CLIENT

from notwice.errors import StoreUnavailable
from notwice.stores.findings import Finding
from notwice.stores.mysql import checks
from notwice.stores.mysql.place import Busy, Place, translated

Rows = Sequence[Sequence[Any]]

MARIADB_MIN: Final = (10, 5)
MYSQL_MIN: Final = (8, 0)

_NO_LIMIT: Final = 2**64 - 1

_SETTINGS: Final = (
    "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, completion_type = 0, "
    f"sql_select_limit = {_NO_LIMIT}, sql_big_selects = 1, sql_safe_updates = 0, lock_wait_timeout = {{whole}}, "
)
_OF_MARIADB: Final = (
    "innodb_lock_wait_timeout = {wait}, max_statement_time = {timeout}, idle_transaction_timeout = {whole}"
)
_OF_MYSQL: Final = "innodb_lock_wait_timeout = 1, max_execution_time = {milliseconds}"
_LEVEL: Final = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"
_SERVER: Final = "SELECT VERSION(), @@global.read_only, @@session.max_allowed_packet"
"""What each session insists on, whatever the server has set, and what it asks."""


@cache
def _unchecked() -> ssl.SSLContext:
    """Private connections to whoever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class _Connection(Connection):
    """The driver's, without the 35 ms that it takes to read the system's authorities where no server is checked."""

    def _create_ssl_ctx(self, sslp: Mapping[str, Any]) -> ssl.SSLContext:
        if any(sslp.values()):
            return super()._create_ssl_ctx(sslp)  # type: ignore[misc,no-any-return]  # the driver has no public name for it
        return _unchecked()


class Session:
    """One connection. Its server is known, is the primary, and is new enough.

    Attributes:
        compound: the server takes compound statements and RETURNING: MariaDB.
        packet_max: how many bytes the server takes at once.
    """

    def __init__(self, place: Place, deadline: float) -> None:
        self._place = place
        self._deadline = deadline
        timeout = min(place.timeout, max(deadline - time.monotonic(), 0.001))
        try:
            self._connection = _Connection(
                **place.driver,
                charset="utf8mb4",
                autocommit=None,
                client_flag=CLIENT.MULTI_STATEMENTS,
                connect_timeout=timeout,
                read_timeout=timeout,
                write_timeout=place.timeout,
                program_name="notwice",
            )
        except Exception as error:
            raise translated(error, place, connected=False) from error
        self._cursor: Any = self._connection.cursor()  # the driver's types take no answer for one without rows
        self._bound()
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    @property
    def _socket(self) -> Any:  # noqa: ANN401 - a plain socket, or one of TLS
        return self._connection._sock  # type: ignore[attr-defined]  # the driver has no public name for it

    def _bound(self) -> None:
        """Let no answer take longer than until the deadline: the driver's own time-out begins anew with each part."""
        connection: Any = self._connection
        connection._rfile.close()
        connection._rfile = io.BufferedReader(_Bounded(self), 64 * 1024)

    def _set_up(self) -> None:
        ((version, read_only, self.packet_max),) = self.ask(_SERVER)
        mariadb, number = _version(str(version))
        if number < (MARIADB_MIN if mariadb else MYSQL_MIN):
            raise StoreUnavailable(f"{self._place.shown}: MariaDB 10.5 or MySQL 8.0 is needed, not {version}")
        if read_only:
            raise StoreUnavailable(f"{self._place.shown}: this server is read-only, as replicas are; name the primary")
        self.compound = mariadb and self._place.returning == "auto"
        timeout = self._place.timeout
        settings = (_SETTINGS + (_OF_MARIADB if mariadb else _OF_MYSQL)).format(
            wait=0 if self.compound else 1,
            timeout=f"{timeout:.3f}",
            whole=math.ceil(timeout),
            milliseconds=math.ceil(timeout * 1_000),
        )
        self.ask(f"SET SESSION {settings};{_LEVEL}")

    def within(self, deadline: float) -> None:
        """Have the next statements answered until `deadline`."""
        self._deadline = deadline

    def ask(self, text: str) -> Rows:
        """Send statements in one packet and give the rows of all of them."""
        return [row for rows in self.ask_all(text) for row in rows]

    def ask_all(self, text: str) -> list[Rows]:
        """Send statements in one packet and give the rows of each that has any."""
        try:
            return self._sent(text)
        except Exception as error:
            told = translated(error, self._place)
            if isinstance(told, Busy) and not self.compound:
                self._sent("ROLLBACK")  # only that statement was undone
            raise told from error

    def change(self, text: str) -> int:
        """Send one statement, and give how many rows it deleted."""
        try:
            return int(self._cursor.execute(text))
        except Exception as error:
            raise translated(error, self._place) from error

    def findings(self) -> list[Finding]:
        """The server's settings that break promises."""
        try:
            return checks.findings(self._connection, self._place.names.table)
        except Exception as error:
            raise translated(error, self._place) from error

    @property
    def timeout(self) -> float:
        """Seconds that a call takes at most."""
        return self._place.timeout

    def remaining(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    def is_dead(self) -> bool:
        """Whether the server has ended a connection that nobody uses: then something is there to be read."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End it, whatever it is doing."""
        with suppress(Exception):
            self._connection._force_close()  # type: ignore[attr-defined]  # close() would wait to say good-bye

    def _sent(self, text: str) -> list[Rows]:
        cursor = self._cursor
        cursor.execute(text)
        results: list[Rows] = []
        while True:
            if cursor.description is not None:
                results.append(cursor.fetchall())
            if not cursor.nextset():
                return results


class _Bounded(io.RawIOBase):
    """What a session reads from: its socket, until its deadline."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._socket = session._socket

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a buffer of io's
        """Read what comes in time."""
        remaining = self._session.remaining()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(remaining)
        return int(self._socket.recv_into(buffer))


def _version(text: str) -> tuple[bool, tuple[int, ...]]:
    """Whether a server is a MariaDB, and its number. MariaDB may put ``5.5.5-`` before it, for older clients."""
    number = text.removeprefix("5.5.5-").partition("-")[0]
    return "mariadb" in text.lower(), tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
