"""The process that starts the clients, kills and stops them while they work, and lets everything settle at last.

It runs as a process of its own, ``python -m notwice.testing.torture.driver PLAN FOLDER``, without threads: clients are
forked from it, so that one that takes a killed one's place is at work within milliseconds.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import mmap
import os
import random
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from notwice.model import Query, RecordView
from notwice.testing import history
from notwice.testing.history import Calm, Disturbance, Disturbed
from notwice.testing.torture import payments, records
from notwice.testing.torture.plan import Plan

_GRANULE_S: Final = 0.001
_PAUSES_S: Final = {"records": (0.001, 0.05), "payments": (0.01, 3 * payments.LEASE_MS / 1000)}
_END_WITH_PARENT: Final = 1
_SLOT: Final = struct.Struct("=Q")


@dataclass(slots=True, eq=False)
class _Client:
    number: int
    name: str
    pid: int
    stopped: bool = False


class _Counts:
    """How many operations each client has made: memory that all share, and that outlives a kill."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._memory = mmap.mmap(-1, clients * _SLOT.size)

    def add(self, client: int, count: int) -> None:
        (before,) = _SLOT.unpack_from(self._memory, client * _SLOT.size)
        _SLOT.pack_into(self._memory, client * _SLOT.size, before + count)

    def total(self) -> int:
        return sum(_SLOT.unpack_from(self._memory, each * _SLOT.size)[0] for each in range(self._clients))


class Driver:
    """One run."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._chance = random.Random(plan.seed)  # noqa: S311 - chosen faults must be repeatable, not secret
        self._counts = _Counts(plan.clients)
        self._births = itertools.count()
        self._clients: list[_Client] = []
        self._wakings: list[tuple[float, int, _Client]] = []
        self._log = _open_log(folder / "driver.log")
        self._injector = plan.make_injector(folder)

    def run(self) -> None:
        """Work, break things, settle. Raises if a client ends by itself, or if nothing moves any more."""
        self._plan.open_store(self._folder).close()
        self._clients = [self._start(number) for number in range(self._plan.clients)]
        try:
            self._break_things()
        finally:
            self._end()
        history.append(self._log, Calm(at_ns=time.monotonic_ns()))
        self._in_child("settling", self._settle)

    def _break_things(self) -> None:
        plan = self._plan
        deadline = time.monotonic() + plan.seconds_max
        every = plan.operations / (plan.faults + 1)
        for number in range(1, plan.faults + 2):
            while self._counts.total() < number * every:
                self._tend()
                if time.monotonic() > deadline:
                    message = f"only {self._counts.total()} operations in {plan.seconds_max} seconds"
                    raise TimeoutError(message)
                time.sleep(_GRANULE_S)
            if number <= plan.faults:
                self._break_one()

    def _break_one(self) -> None:
        kinds: list[Callable[[], None]] = [self._kill, self._stop]
        if self._injector is not None:
            kinds.append(partial(self._inject, self._injector.inject))
        self._chance.choice(kinds)()

    def _inject(self, inject: Callable[[random.Random], str]) -> None:
        at_ns = time.monotonic_ns()
        what = inject(self._chance)
        history.append(self._log, Disturbed(at_ns=at_ns, kind=Disturbance.OTHER, detail=what))

    def _kill(self) -> None:
        number = self._chance.randrange(len(self._clients))
        client = self._clients[number]
        os.kill(client.pid, signal.SIGKILL)
        os.waitpid(client.pid, 0)
        self._note(Disturbance.KILLED, client)
        client.stopped = False
        self._clients[number] = self._start(number)

    def _stop(self) -> None:
        running = [client for client in self._clients if not client.stopped]
        if not running:
            return
        client = self._chance.choice(running)
        self._note(Disturbance.PAUSED, client)
        os.kill(client.pid, signal.SIGSTOP)
        client.stopped = True
        pause = self._chance.uniform(*_PAUSES_S[self._plan.work])
        heapq.heappush(self._wakings, (time.monotonic() + pause, next(self._births), client))

    def _tend(self) -> None:
        """Wake who has been stopped long enough, and make sure that all others are at work."""
        while self._wakings and self._wakings[0][0] <= time.monotonic():
            _, _, client = heapq.heappop(self._wakings)
            if client.stopped:
                os.kill(client.pid, signal.SIGCONT)
                client.stopped = False
                self._note(Disturbance.RESUMED, client)
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended:
            message = f"a client ended by itself: {os.waitstatus_to_exitcode(status)}; see {self._folder}"
            raise RuntimeError(message)

    def _end(self) -> None:
        """Kill all that are left: the last fault."""
        for client in self._clients:
            os.kill(client.pid, signal.SIGKILL)
            os.waitpid(client.pid, 0)
            self._note(Disturbance.KILLED, client)

    def _note(self, kind: Disturbance, client: _Client) -> None:
        history.append(self._log, Disturbed(at_ns=time.monotonic_ns(), kind=kind, process=client.name))

    def _start(self, number: int) -> _Client:
        name = f"{number}-{next(self._births)}"
        seed = self._chance.getrandbits(64)
        return _Client(number, name, self._fork(name, partial(self._work, number, name, seed)))

    def _work(self, number: int, name: str, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - as above
        log = _open_log(self._folder / f"client-{name}.log")
        store, count = self._plan.open_store(self._folder), partial(self._counts.add, number)
        if self._plan.work == "records":
            records.work(store, log, chance=chance, count=count)
        else:
            payments.work(payments.Client(store, log, self._folder, process=name), chance=chance, count=count)

    def _settle(self) -> None:
        log = _open_log(self._folder / "client-last.log")
        store = self._plan.open_store(self._folder)
        if self._plan.work == "records":
            names = {name for path in self._logs() for name, _ in records.heard(path.open())}
            records.look(store, sorted(names), log)
        else:
            self._settle_payments(log)
        store.close()

    def _settle_payments(self, log: int) -> None:
        store = self._plan.open_store(self._folder)
        time.sleep(payments.LEASE_MS / 1000)
        open_still = [view.record.key for view in self._views() if not view.record.terminal]
        client = payments.Client(store, log, self._folder, process="last")
        chance = random.Random(self._plan.seed)  # noqa: S311 - as above
        others = [view.record.key for view in self._views() if view.record.terminal]
        payments.settle(client, [*open_still, *others[::10]], chance=chance)
        for event in payments.held(self._views(), time.monotonic_ns()):
            history.append(log, event)

    def _views(self) -> list[RecordView]:
        store = self._plan.open_store(self._folder)
        found: list[RecordView] = []
        query = Query(limit=1_000)
        while True:
            page = store.scan(query)
            found.extend(item for item in page.items if isinstance(item, RecordView))
            if page.cursor is None:
                store.close()
                return found
            query = query._replace(cursor=page.cursor)

    def _logs(self) -> list[Path]:
        return sorted(self._folder.glob("client-*.log"))

    def _in_child(self, name: str, job: Callable[[], None]) -> None:
        pid = self._fork(name, job)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            message = f"{name} failed with {code}; see {self._folder}"
            raise RuntimeError(message)

    def _fork(self, name: str, job: Callable[[], None]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            _end_with(parent)
            job()
            code = 0
        except BaseException:  # noqa: BLE001 - it is written down, and the code tells of it
            (self._folder / f"failed-{name}.txt").write_text(traceback.format_exc())
        finally:
            os._exit(code)


def _end_with(parent: int) -> None:
    """See to it that this process is killed when its parent ends, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


if __name__ == "__main__":
    Driver(Plan.from_json(sys.argv[1]), Path(sys.argv[2])).run()
