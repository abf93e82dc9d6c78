"""The suite on MariaDB: as it is spoken to, as MySQL is spoken to, and for event loops."""

from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest

from notwice.stores import open_async_store, open_store
from notwice.stores.mysql.rows import digest_of
from notwice.stores.port import Store
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.mariadb import MariadbServer


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


def engine_of(server: MariadbServer, *, returning: str) -> Engine:
    url = server.url(returning=returning)
    return Engine(
        open=partial(open_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
    )


def async_engine_of(server: MariadbServer, *, returning: str) -> AsyncEngine:
    url = server.url(returning=returning)
    return AsyncEngine(
        open=partial(open_async_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
        alone_length=2,
    )


class TestMariadb(StoreCases, GuardCases):
    """P16: threads, by compound statements with RETURNING."""

    @pytest.fixture
    def engine(self, mariadb: MariadbServer) -> Engine:
        return engine_of(mariadb, returning="auto")


class TestWithoutReturning(StoreCases, GuardCases):
    """P16: threads, by what MySQL 8 is sent."""

    @pytest.fixture
    def engine(self, mariadb: MariadbServer) -> Engine:
        return engine_of(mariadb, returning="no")


class TestAsyncMariadb(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops, by compound statements with RETURNING."""

    @pytest.fixture
    def async_engine(self, mariadb: MariadbServer) -> AsyncEngine:
        return async_engine_of(mariadb, returning="auto")


class TestAsyncWithoutReturning(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops, by what MySQL 8 is sent."""

    @pytest.fixture
    def async_engine(self, mariadb: MariadbServer) -> AsyncEngine:
        return async_engine_of(mariadb, returning="no")
