"""Races on servers of PostgreSQL."""

from pathlib import Path

import pytest

from tests.engines.postgres import PostgresServer
from tests.engines.races import KEYS, race_processes, race_tasks, race_threads


@pytest.mark.slow
def test_threads(system_postgres: PostgresServer) -> None:
    """P1 to P5, C01, C06, T09: 16 threads on 300 keys: one first owner, one taker, no way back, equal replays."""
    race_threads(system_postgres.url(), KEYS)


@pytest.mark.slow
async def test_tasks(packaged_postgres: PostgresServer) -> None:
    """P1 to P5, C01: the same for 16 tasks of an event loop."""
    await race_tasks(packaged_postgres.url(), KEYS)


@pytest.mark.slow
def test_processes(system_postgres: PostgresServer, tmp_path: Path) -> None:
    """P1, P5, C42: of 8 processes that find the same new, stale and expired keys, one owns each."""
    race_processes(system_postgres.url(), tmp_path)
