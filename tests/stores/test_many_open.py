"""A start with very many open records: the first answer needs no look at the others."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard, Operation, Policy, Replay, rerun
from notwice.model import Query
from notwice.stores.sqlite import SqliteStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import NAMESPACE, insert, new_record

OPEN = int(os.environ.get("NOTWICE_OPEN_RECORDS", "100000"))
"""How many. A long run has ten million."""

STEPS_MAX = 5_000
"""Steps of SQLite's machine that one call may take. A look at each of the records would take at least one a record."""

POLICY = Policy(recovery=rerun, attempts_max=None, rerun_within=None)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as a killed process left it: very many records in progress, under another boot of the host."""
    path = tmp_path_factory.mktemp("open") / "records.db"
    clock = VirtualClock()
    with closing(SqliteStore(path, clock=clock)) as store:
        insert(store, new_record("seed"))
        with Guard(store, clock=clock, policy=POLICY) as guard:
            guard.begin("pay", "open", request=1)
            finished = guard.begin("pay", "finished", request=1)
            assert isinstance(finished, Operation)
            finished.complete("done")
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [str(row[1]) for row in connection.execute("PRAGMA table_info(notwice_record)")]
        copied = {"place": "NULL", "id": "'idem_' || n", "created_ms": "created_ms + n"}
        columns = ", ".join(copied.get(name) or name for name in names)
        connection.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OPEN}) "
            f"INSERT INTO notwice_record SELECT {columns} FROM notwice_record, numbers WHERE id = 'idem_seed'"
        )
    return path


def counted(store: SqliteStore, ask: Callable[[], Any]) -> tuple[Any, int]:
    """What `ask` gives, and how many steps SQLite's machine takes for it."""
    steps = [0]

    def count() -> None:
        steps[0] += 1

    connection = store._connected()
    connection.set_progress_handler(count, 1)
    try:
        return ask(), steps[0]
    finally:
        connection.set_progress_handler(None, 1)


def test_the_first_answers_after_a_start_look_at_no_other_record(path: Path) -> None:
    """P7: after a start with 100,000 open records, a claim, a replay, a take-over and a page look at their own only."""
    clock = VirtualClock()
    clock.reboot()
    began = time.perf_counter()
    store = SqliteStore(path, clock=clock)
    with Guard(store, clock=clock, policy=POLICY) as guard:
        first, steps = counted(store, lambda: guard.begin("pay", "new", request=1))
        seconds = time.perf_counter() - began
        assert isinstance(first, Operation)
        taken, steps_of_taker = counted(store, lambda: guard.begin("pay", "open", request=1))
        assert isinstance(taken, Operation)
        assert taken.attempt == 2
        replay, steps_of_replay = counted(store, lambda: guard.begin("pay", "finished", request=1))
        assert isinstance(replay, Replay)
        page, steps_of_page = counted(store, lambda: store.scan(Query(namespace=NAMESPACE, unresolved=True, limit=10)))
        assert len(page.items) == 10
        purged, steps_of_purge = counted(store, lambda: store.purge(100))
        assert purged == 0
    all_steps = [steps, steps_of_taker, steps_of_replay, steps_of_page, steps_of_purge]
    print(f"first answer after {seconds * 1000:.1f} ms; steps: {all_steps}")
    assert max(all_steps) < STEPS_MAX


def test_a_look_at_all_of_them_is_noticed(path: Path) -> None:
    """The control: a statement that has to look at each record takes more steps than that."""
    with closing(SqliteStore(path)) as store:
        statement = "SELECT count(*) FROM notwice_record WHERE scope || id = 'x'"
        _, steps = counted(store, lambda: store._connected().execute(statement).fetchall())
    assert steps > OPEN > STEPS_MAX
