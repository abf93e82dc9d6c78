"""The two sides of the comparison: the bare payments service, and the same service behind the gateway."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from notwice.demo import service
from notwice.demo.journal import Journal
from notwice.demo.orders import Kill
from notwice.demo.processes import HOST, Child, free_port
from notwice.demo.service import Charge, Ledger

LEASE_S = 2
DOWN_S = 0.2


@dataclass(frozen=True, slots=True)
class Side:
    """One payments service with a ledger of its own, and the gateway in front of it, if there is one."""

    folder: Path
    service: Child
    gateway: Child | None = None

    @property
    def port(self) -> int:
        """Where the clients knock."""
        return (self.gateway or self.service).port

    @property
    def store(self) -> str:
        """URL of the guard's store."""
        return store_url(self.folder)

    def children(self) -> list[Child]:
        """Its processes, the innermost first."""
        return [self.service] if self.gateway is None else [self.service, self.gateway]

    def start(self) -> None:
        """Start what does not run."""
        for child in self.children():
            if not child.runs():
                child.start()

    def stop(self) -> None:
        """End all of it, as every other end here: without warning."""
        for child in reversed(self.children()):
            child.kill()

    def ledger(self) -> list[Charge]:
        """All charges, read from the ledger's file."""
        ledger = Ledger(self.folder / "ledger.db")
        try:
            return ledger.read()
        finally:
            ledger.close()


def store_url(folder: Path) -> str:
    """URL of the guard's store in a folder of the demo."""
    return f"sqlite:///{folder / 'guard.db'}"


def bare_side(folder: Path, *, seed: int) -> Side:
    """The service alone."""
    folder.mkdir()
    return Side(folder, _service(folder, seed))


def guarded_side(folder: Path, *, seed: int, recovery: str, port: int = 0) -> Side:
    """The service behind a gateway that listens on `port`; 0 takes a free one."""
    folder.mkdir()
    payments = _service(folder, seed)
    return Side(folder, payments, _gateway(folder, payments.port, recovery=recovery, port=port or free_port()))


def _service(folder: Path, seed: int) -> Child:
    port = free_port()
    command = [sys.executable, "-I", str(service.__file__)]
    command += ["--port", str(port), "--ledger", str(folder / "ledger.db"), "--seed", str(seed)]
    return Child("payments service", command, port=port, log=folder / "service.log")


def _gateway(folder: Path, upstream: int, *, recovery: str, port: int) -> Child:
    command = [sys.executable, "-m", "notwice", "serve", "--upstream", f"http://{HOST}:{upstream}"]
    command += ["--principal", "header:X-Account-Id", "--store", store_url(folder), "--listen", f"{HOST}:{port}"]
    command += ["--lease", f"{LEASE_S}s", "--recovery", recovery, "--no-access-log", "--log-level", "warning"]
    return Child("gateway", command, port=port, log=folder / "gateway.log")


class Killer:
    """Kills a side's processes while requests are on their way, and starts them again."""

    def __init__(self, side: Side, kills: Sequence[Kill], journal: Journal) -> None:
        self._side = side
        self._kills = kills
        self._journal = journal

    def run(self) -> None:
        """Carry out the kills that concern this side, until the storm is over."""
        for kill in self._kills:
            targets = self._targets(kill)
            if targets and not self._wait_for(kill):
                return
            if targets:
                self._kill(targets)

    def _kill(self, targets: Sequence[Child]) -> None:
        self._journal.killed(child.name for child in targets)
        for child in targets:
            child.kill()
        time.sleep(DOWN_S)
        self._side.start()

    def _targets(self, kill: Kill) -> list[Child]:
        gateway = self._side.gateway
        return ([gateway] if kill.gateway and gateway else []) + ([self._side.service] if kill.service else [])

    def _wait_for(self, kill: Kill) -> bool:
        """Wait until enough orders are finished and others are being charged."""
        journal = self._journal
        with journal.changed:
            journal.changed.wait_for(lambda: journal.over or (journal.finished >= kill.after and journal.in_flight > 0))
        time.sleep(kill.delay_ms / 1000)
        return not journal.over
