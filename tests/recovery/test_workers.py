"""Many workers and live traffic at once: every operation that was left behind is finished once."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from notwice import Guard, Operation, OperationInProgress, Policy, RecordView, State, rerun
from notwice.recovery import Round
from tests.engines.postgres import SYSTEM, PostgresServer, postgres_server
from tests.stores.children import in_child

LAPSED, WORKERS, NEW = 1000, 4, 100
GONE = Policy(recovery=rerun, lease=0.001)  # whoever begins with this lease is gone at once
ALIVE = Policy(recovery=rerun, lease=60)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server(SYSTEM) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db?timeout=20"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url()


class Ledger:
    """What happened, in a file of all processes: one line for each effect."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def effect(self, key: str) -> str:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{key}\n".encode())
        return f"result of {key}"

    def effects(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines())


def scope_of(number: int) -> tuple[str, int]:
    return ("pay", number % 7)


def leave_behind(url: str) -> None:
    """A process that begins many operations and dies."""
    guard = Guard.open(url, policy=GONE)
    for number in range(LAPSED):
        assert isinstance(guard.begin(scope_of(number), f"old-{number}"), Operation)
    os._exit(0)  # nothing is ended or closed


def work(url: str, ledger: Ledger, told: Path) -> None:
    """A worker: rounds until nothing is unresolved."""
    with Guard.open(url, policy=ALIVE) as guard:
        guard.recovers("pay:{part}")(lambda operation, part: ledger.effect(operation.key))
        total = Counter[str]()
        while (found := guard.recover()) != Round():
            total.update(found._asdict())
        told.write_text(json.dumps(total))


def retry(url: str, ledger: Ledger, seed: int) -> None:
    """Callers: retries of what was left behind, in any order, and new operations in between."""
    chance = random.Random(seed)
    numbers = chance.sample(range(LAPSED), LAPSED // 2)
    with Guard.open(url, policy=ALIVE) as guard:
        for place, number in enumerate(numbers):
            with contextlib.suppress(OperationInProgress):
                guard.run(partial(ledger.effect, f"old-{number}"), scope=scope_of(number), key=f"old-{number}")
            if place % 5 == 0:
                key = f"new-{seed}-{place}"
                guard.run(partial(ledger.effect, key), scope="pay:new", key=key)


def at_once(jobs: list[Callable[[], object]]) -> None:
    """Run each job in a process of its own, all at the same time."""
    children = []
    for job in jobs:
        child = os.fork()
        if child == 0:
            os._exit(1 if in_child(job) else 0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * len(jobs)


def test_each_lapsed_operation_is_finished_once(url: str, tmp_path: Path) -> None:
    """P1, P5, T09: four workers and two processes of callers on a thousand lapsed operations: one effect for each."""
    ledger = Ledger(tmp_path / "ledger")
    assert in_child(partial(leave_behind, url)) == 0
    told = [tmp_path / f"worker-{number}" for number in range(WORKERS)]
    jobs: list[Callable[[], object]] = [partial(work, url, ledger, path) for path in told]
    at_once([*jobs, partial(retry, url, ledger, 1), partial(retry, url, ledger, 2)])
    wanted = {f"old-{number}" for number in range(LAPSED)}
    wanted |= {f"new-{seed}-{place}" for seed in (1, 2) for place in range(0, LAPSED // 2, 5)}
    assert ledger.effects() == Counter(dict.fromkeys(wanted, 1))
    totals = [json.loads(path.read_text()) for path in told]
    print([(total.get("finished"), total.get("elsewhere")) for total in totals])
    assert sum(total.get("finished", 0) for total in totals) > LAPSED / 4
    assert all(total.get("failed", 0) == total.get("held", 0) == 0 for total in totals)
    with Guard.open(url) as guard:
        views = list(guard.operations())
    assert {view.state for view in views if isinstance(view, RecordView)} == {State.COMPLETED}
    assert len(views) == len(wanted)
