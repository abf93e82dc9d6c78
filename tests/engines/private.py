"""What all private servers have in common: a port, a folder, a user that is not root, an end."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

START_S = 30
TIMES = int(os.environ.get("NOTWICE_TIMES", "1"))
"""How many times over races, fail-overs and cuts are tried: ten in a long run."""
USER, GROUP = "nobody", "nogroup"


def missing(what: str) -> NoReturn:
    """Skip a test whose server is not installed; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI runs every engine")
    pytest.skip(f"{what} is missing")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def as_user() -> Mapping[str, Any]:
    """How to start a process that refuses to be root's."""
    return {"user": USER, "group": GROUP, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def server_folder() -> Iterator[Path]:
    """A folder that belongs to the server's user, in memory if there is such a file system."""
    parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="notwice-", dir=parent, ignore_cleanup_errors=True) as name:
        path = Path(name)
        if os.geteuid() == 0:
            shutil.chown(path, USER, GROUP)
        yield path


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(holds: Callable[[], bool], seconds: float = START_S) -> None:
    """Ask again and again until something holds."""
    until, never = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < until, "it never came true"
        never.wait(0.002)


class Server:
    """A process that listens on a port of its own. It can be stopped, paused and started again."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        answers: Callable[[int], bool] = listens,
        own_user: bool = False,
    ) -> None:
        self.port = port
        self._command = command
        self._log = log
        self._answers = answers
        self._user = {} if own_user else as_user()
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self._user
            )
        until = time.monotonic() + START_S
        while not self._answers(self.port):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
            if self.process.returncode is not None or time.monotonic() > until:
                self.kill()
                pytest.fail(f"{self._command[0]} did not start: {self._log.read_text()[-2_000:]}")

    def start_if_ended(self) -> None:
        """Start it if it has ended by itself."""
        if self.process.poll() is not None:
            self.start()

    def restart(self) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """End it without a word to anybody, and wait for that."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end in order, and wait for that."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(START_S)
        self.process.kill()
        self.process.wait(START_S)
