"""Races on a server of MariaDB."""

from pathlib import Path

import pytest

from tests.engines.mariadb import MariadbServer
from tests.engines.races import KEYS, race_processes, race_tasks, race_threads


@pytest.mark.slow
@pytest.mark.parametrize("returning", ["auto", "no"])
def test_threads(mariadb: MariadbServer, returning: str) -> None:
    """P1 to P5, C01, C06, T09: 16 threads on 300 keys: one first owner, one taker, no way back, equal replays."""
    race_threads(mariadb.url(returning=returning), KEYS)


@pytest.mark.slow
async def test_tasks(mariadb: MariadbServer) -> None:
    """P1 to P5, C01: the same for 16 tasks of an event loop."""
    await race_tasks(mariadb.url(), KEYS)


@pytest.mark.slow
@pytest.mark.parametrize("returning", ["auto", "no"])
def test_processes(mariadb: MariadbServer, tmp_path: Path, returning: str) -> None:
    """P1, P5, C42: of 8 processes that find the same new, stale and expired keys, one owns each."""
    race_processes(mariadb.url(returning=returning), tmp_path)
