"""The demo's own processes: each is started on a port that is kept, killed without warning, and started again."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HOST = "127.0.0.1"
READY_S = 30.0
STARTS_MAX = 5
# Below the ports that the system lends to outgoing connections: one of those could sit on ours while its owner is down.
PORTS = range(12_000, 30_000)


class DemoError(Exception):
    """The demo can't go on; the message says why."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    drawn = random.SystemRandom()
    for _ in range(200):
        port = drawn.choice(PORTS)
        if is_free(port):
            return port
    raise DemoError(f"No free port between {PORTS.start} and {PORTS.stop}.")


def is_free(port: int) -> bool:
    """Whether one can listen on this port of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


class Child:
    """One process that listens on one port."""

    def __init__(self, name: str, command: Sequence[str], *, port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self.started_ms = 0
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id that it has, or had last."""
        return self._process.pid if self._process is not None else 0

    def runs(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it and wait until it listens. It may need more than one try while its old port is being freed."""
        for _ in range(STARTS_MAX):
            with ThreadPoolExecutor(1) as apart:
                # Signals interrupt the main thread; here they can't fall between a start and its being known.
                apart.submit(self._launch).result()
            if self._becomes_ready():
                return
            self.kill()
            time.sleep(0.2)
        raise DemoError(f"The {self.name} does not start:\n{self._last_words()}")

    def _launch(self) -> None:
        self.started_ms = time.time_ns() // 1_000_000
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NOTWICE_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a command of our own, no shell
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    def _becomes_ready(self) -> bool:
        deadline = time.monotonic() + READY_S
        while self.runs() and time.monotonic() < deadline:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return self.runs()
        return False

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up. Returns once it is gone; harmless if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else "(it said nothing)"
