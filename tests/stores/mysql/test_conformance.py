"""The suite on MariaDB: as it is spoken to, as MySQL is spoken to, and for event loops."""

from urllib.parse import parse_qs, urlsplit

import pytest

from notwice.stores.mysql.rows import digest_of
from notwice.stores.port import Store
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.mariadb import MariadbServer
from tests.engines.suites import async_engine_of, engine_of


def damage(_: Store, namespace: str, operation: str, *, server: MariadbServer, url: str) -> None:
    """Overwrite a record's bytes, as a failing disk would."""
    (table,) = parse_qs(urlsplit(url).query)["table"]
    with server.connect() as connection, connection.cursor() as cursor:
        found = cursor.execute(
            f"UPDATE {table} SET record = X'00' WHERE name = %s", (digest_of((namespace, operation)),)
        )
        assert found == 1


def age(seconds: float, *, server: MariadbServer, url: str) -> None:
    """Make all records older."""
    (table,) = parse_qs(urlsplit(url).query)["table"]
    milliseconds = round(seconds * 1_000)
    server.execute(
        f"UPDATE {table} SET written_ms = written_ms - {milliseconds}, expires_ms = expires_ms - {milliseconds}"
    )


@pytest.fixture(params=["auto", "no"])
def url(mariadb: MariadbServer, request: pytest.FixtureRequest) -> str:
    """Compound statements with RETURNING, and what MySQL 8 is sent."""
    return mariadb.url(returning=request.param)


class TestMariadb(StoreCases, GuardCases):
    """P16: threads."""

    @pytest.fixture
    def engine(self, mariadb: MariadbServer, url: str) -> Engine:
        return engine_of(mariadb, url, damage=damage, age=age)


class TestAsyncMariadb(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops."""

    @pytest.fixture
    def async_engine(self, mariadb: MariadbServer, url: str) -> AsyncEngine:
        return async_engine_of(mariadb, url, damage=damage, age=age)
