"""The suite on PostgreSQL, both versions and both faces."""

from functools import partial
from urllib.parse import parse_qs, urlsplit

import pytest

from notwice.stores import open_async_store, open_store
from notwice.stores.port import Store
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from tests.engines.postgres import PostgresServer


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


def engine_of(server: PostgresServer) -> Engine:
    url = server.url()
    return Engine(
        open=partial(open_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
    )


def async_engine_of(server: PostgresServer) -> AsyncEngine:
    url = server.url()
    return AsyncEngine(
        open=partial(open_async_store, url),
        damage=partial(damage, server=server, url=url),
        age=partial(age, server=server, url=url),
        alone_length=2,
    )


class TestSystemPostgres(StoreCases, GuardCases):
    """P16: threads, on the system's PostgreSQL."""

    @pytest.fixture
    def engine(self, system_postgres: PostgresServer) -> Engine:
        return engine_of(system_postgres)


class TestPackagedPostgres(StoreCases, GuardCases):
    """P16: threads, on another version."""

    @pytest.fixture
    def engine(self, packaged_postgres: PostgresServer) -> Engine:
        return engine_of(packaged_postgres)


class TestAsyncPackagedPostgres(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops, on another version."""

    @pytest.fixture
    def async_engine(self, packaged_postgres: PostgresServer) -> AsyncEngine:
        return async_engine_of(packaged_postgres)


class TestAsyncSystemPostgres(AsyncStoreCases, AsyncGuardCases):
    """P16: event loops, on the system's PostgreSQL."""

    @pytest.fixture
    def async_engine(self, system_postgres: PostgresServer) -> AsyncEngine:
        return async_engine_of(system_postgres)
