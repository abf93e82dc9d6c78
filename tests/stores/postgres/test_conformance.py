"""The suite on PostgreSQL, both versions and both faces."""

from urllib.parse import parse_qs, urlsplit

import pytest

from notwice.stores.port import Store
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.postgres import PostgresServer
from tests.engines.suites import async_engine_of, engine_of


def damage(_: Store, namespace: str, operation: str, *, server: PostgresServer, url: str) -> None:
    """Overwrite a record's bytes, as a failing disk would."""
    (table,) = parse_qs(urlsplit(url).query)["table"]
    with server.connect() as connection:
        cursor = connection.execute(
            f"UPDATE {table} SET record = '\\x00' WHERE namespace = %s AND id = %s", (namespace, operation)
        )
        assert cursor.rowcount == 1


def age(seconds: float, *, server: PostgresServer, url: str) -> None:
    """Make all records older."""
    (table,) = parse_qs(urlsplit(url).query)["table"]
    with server.connect() as connection:
        connection.execute(
            f"UPDATE {table} SET written_ms = written_ms - %(ms)s, expires_ms = expires_ms - %(ms)s",
            {"ms": round(seconds * 1_000)},
        )


@pytest.fixture(params=["system", "packaged"])
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """The system's PostgreSQL, and another version."""
    server: PostgresServer = request.getfixturevalue(f"{request.param}_postgres")
    return server


class TestPostgres(StoreCases, GuardCases):
    """P16: threads."""

    @pytest.fixture
    def engine(self, server: PostgresServer) -> Engine:
        return engine_of(server, server.url(), damage=damage, age=age)


class TestAsyncPostgres(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops."""

    @pytest.fixture
    def async_engine(self, server: PostgresServer) -> AsyncEngine:
        return async_engine_of(server, server.url(), damage=damage, age=age)
