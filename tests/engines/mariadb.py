"""Private MariaDB servers."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pymysql.cursors

from tests.engines.private import Server, as_user, free_port, missing, server_folder, wait_until
from tests.engines.proxy import Proxy
from tests.engines.takeovers import Pair

NUMBERS = itertools.count()
DATABASE = "notwice"
ADDRESS: dict[str, Any] = {"host": "127.0.0.1", "user": "notwice", "password": "p@ss/wörd", "charset": "utf8mb4"}
ESCAPED = "p%40ss%2Fw%C3%B6rd"

SETUP = f"""
SET sql_log_bin = 0;
CREATE DATABASE {DATABASE};
CREATE USER 'notwice'@'127.0.0.1' IDENTIFIED BY 'p@ss/wörd';
GRANT ALL ON *.* TO 'notwice'@'127.0.0.1' WITH GRANT OPTION;
"""


class MariadbServer(Server):
    """A server with one database and one user."""

    def url(self, *, port: object = None, **options: object) -> str:
        """The URL of a store, by default in a table that nobody has used yet."""
        options = {"table": f"t{next(NUMBERS)}", "timeout": 10, "safe": "ignore", **options}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"mysql://notwice:{ESCAPED}@127.0.0.1:{port or self.port}/{DATABASE}?{query}"

    def connect(self, **options: Any) -> "pymysql.Connection[pymysql.cursors.Cursor]":
        return connect(self.port, **{"database": DATABASE, "autocommit": True, **options})

    def execute(self, *statements: str) -> None:
        """Run statements on a connection of their own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def facts(self, question: str) -> dict[str, Any]:
        """The first row of an answer."""
        with self.connect() as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(question)
            return cursor.fetchone() or {}


def connect(port: int, **options: Any) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    address = {**ADDRESS, "password": ADDRESS["password"].encode(), "ssl_disabled": True, **options}
    return pymysql.connect(port=port, connect_timeout=2, **address)


def program(name: str) -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    return shutil.which(name, path=path) or missing(name)


def answers(port: int) -> bool:
    try:
        connect(port).close()
    except pymysql.OperationalError:
        return False
    return True


@contextmanager
def mariadb_server(settings: Sequence[str] = ()) -> Iterator[MariadbServer]:
    """A server of its own, with `settings` like ``--sync-binlog=0``. It is killed in the end."""
    with server_folder() as folder:
        install(folder / "data")
        with server_on(folder / "data", folder, settings, setup=SETUP) as server:
            yield server


@contextmanager
def server_on(data: Path, folder: Path, settings: Sequence[str] = (), *, setup: str = "") -> Iterator[MariadbServer]:
    """A server on files that are there; all else of its own lies in another folder. It is killed in the end."""
    port, first = free_port(), folder / "setup.sql"
    first.write_text(setup, encoding="utf-8")
    given = [f"--datadir={data}", f"--port={port}", "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}"]
    given += [f"--pid-file={folder / 'pid'}", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"]
    given += [f"--tmpdir={folder}"]  # a server deletes what it finds of temporary tables, whoever uses them
    given += ["--innodb-log-file-size=32M", "--character-set-server=utf8mb4", f"--init-file={first}"]
    command = [program("mariadbd"), "--no-defaults", *given, *settings]
    server = MariadbServer(command, port=port, log=folder / "log", answers=answers)
    first.write_text("", encoding="utf-8")  # it is run at each start
    try:
        yield server
    finally:
        server.kill()


def install(data: Path) -> None:
    """Make the folder of a new server."""
    command = [program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
    command += ["--auth-root-authentication-method=normal"]
    subprocess.run(command, check=True, capture_output=True, cwd="/", **as_user())


WAITS = ("rpl_semi_sync_master_timeout = 3600000", "rpl_semi_sync_master_enabled = 1")
"""A commit waits for as long as it takes."""


@contextmanager
def mariadb_pair(waits: bool) -> Iterator[Pair]:
    """A server and its replica; `waits`: no commit is seen before the replica has it."""
    logs = ["--log-bin", "--binlog-format=ROW"]
    followers = ["--read-only", "--relay-log=relay", "--rpl-semi-sync-slave-enabled=1", "--server-id=2"]
    with (
        mariadb_server([*logs, "--server-id=1"]) as first,
        mariadb_server([*logs, *followers]) as second,
        Proxy(first.port) as link,
    ):
        second.execute(
            f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {link.port}, MASTER_USER = 'notwice', "
            f"MASTER_PASSWORD = '{ADDRESS['password']}', MASTER_USE_GTID = slave_pos",
            "START SLAVE",
        )
        wait_until(lambda: second.facts("SHOW SLAVE STATUS")["Slave_IO_Running"] == "Yes")
        if waits:
            first.execute(*(f"SET GLOBAL {setting}" for setting in WAITS))
            clients = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
            wait_until(lambda: first.facts(clients)["Value"] == "1")

        def promote() -> None:
            second.execute("STOP SLAVE IO_THREAD")
            wait_until(lambda: has_applied_all(second.facts("SHOW SLAVE STATUS")))
            second.execute("STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

        near = first.url(timeout=2)
        yield Pair(first, link, near, near.replace(str(first.port), str(second.port)), promote)


def has_applied_all(facts: dict[str, Any]) -> bool:
    """Whether a replica has carried out all that it has heard of."""
    heard = facts["Master_Log_File"], facts["Read_Master_Log_Pos"]
    return heard == (facts["Relay_Master_Log_File"], facts["Exec_Master_Log_Pos"])
