"""A private emulator, started when the first test asks for it and killed after the last one."""

from collections.abc import Iterator

import pytest

from tests.engines.dynamodb import Table, dynamodb_server, new_table
from tests.engines.private import Server


@pytest.fixture(scope="session")
def emulator() -> Iterator[Server]:
    """An emulator of DynamoDB."""
    with dynamodb_server() as server:
        yield server


@pytest.fixture
def table(emulator: Server) -> Table:
    """A table that nobody has used yet."""
    return new_table(emulator, safe="ignore")
