"""The suite on MariaDB: as it is spoken to, as MySQL is spoken to, and for event loops."""

from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest

from notwice.stores import open_async_store, open_store
from notwice.stores.mysql.rows import digest_of
from notwice.stores.port import Store
from notwice.testing.conformance import AsyncEngine, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.mariadb import MariadbServer


def damage(_: Store, namespace: str, operation: str, *, server: MariadbServer, url: str) -> None:
    """Overwrite a record's bytes, as a failing disk would."""
    (table,) = parse_qs(urlsplit(url).query)["table"]
    with server.connect() as connection, connection.cursor() as cursor:
        found = cursor.execute(
            f"UPDATE {table} SET record = X'00' WHERE name = %s", (digest_of((namespace, operation)),)
        )
        assert found == 1


def engine_of(server: MariadbServer, *, returning: str = "auto") -> Engine:
    url = server.url(returning=returning)
    return Engine(open=partial(open_store, url), damage=partial(damage, server=server, url=url))


class TestMariadb(StoreCases, GuardCases):
    """P16: threads, by compound statements with RETURNING."""

    @pytest.fixture
    def engine(self, mariadb: MariadbServer) -> Engine:
        return engine_of(mariadb)


class TestWithoutReturning(StoreCases):
    """P16: threads, by what MySQL 8 is sent."""

    @pytest.fixture
    def engine(self, mariadb: MariadbServer) -> Engine:
        return engine_of(mariadb, returning="no")


class TestAsyncMariadb(AsyncStoreCases):
    """P16: event loops."""

    @pytest.fixture
    def async_engine(self, mariadb: MariadbServer) -> AsyncEngine:
        url = mariadb.url()
        return AsyncEngine(
            open=partial(open_async_store, url), damage=partial(damage, server=mariadb, url=url), history_length=2
        )
