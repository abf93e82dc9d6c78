"""Races on DynamoDB. A race on 300 keys is 24,000 requests, so processes have fewer keys here."""

from pathlib import Path

import pytest

from tests.engines.dynamodb import Table
from tests.engines.private import TIMES
from tests.engines.races import KEYS, race_processes, race_tasks, race_threads


@pytest.mark.slow
def test_threads(table: Table) -> None:
    """P1 to P5, C01, C06: 16 threads on 300 keys: one first owner, one taker, no way back, equal replays."""
    race_threads(table.url, KEYS)


@pytest.mark.slow
async def test_tasks(table: Table) -> None:
    """P1 to P5, C01: the same for 16 tasks of an event loop."""
    await race_tasks(table.url, KEYS)


@pytest.mark.slow
def test_processes(table: Table, tmp_path: Path) -> None:
    """P1, P5, C42: of 8 processes that find the same new, stale and expired keys, one owns each."""
    race_processes(table.url, tmp_path, keys=15 * TIMES, watches=True)
