"""Private servers, each started when the first test asks for it and killed after the last one."""

from collections.abc import Iterator

import pytest

from tests.engines.mariadb import MariadbServer, mariadb_server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """A MariaDB with its own defaults."""
    with mariadb_server() as server:
        yield server
