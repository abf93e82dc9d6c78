"""Private servers, each started when the first test asks for it and killed after the last one."""

from collections.abc import Iterator

import pytest

from tests.engines.postgres import PACKAGED, SYSTEM, PostgresServer, postgres_server


@pytest.fixture(scope="session")
def system_postgres() -> Iterator[PostgresServer]:
    """The system's PostgreSQL."""
    with postgres_server(SYSTEM) as server:
        yield server


@pytest.fixture(scope="session")
def packaged_postgres() -> Iterator[PostgresServer]:
    """A second version of PostgreSQL, from a package."""
    with postgres_server(PACKAGED) as server:
        yield server
