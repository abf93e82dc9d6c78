"""The tables and the settings of a PostgreSQL server: what is made, what is refused, what is warned of."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest

from notwice import AsyncGuard, StoreUnavailable
from notwice.cli import main
from notwice.stores import open_async_store
from notwice.stores.port import Store
from notwice.stores.postgres.checks import NAMES, findings, judged
from notwice.stores.postgres.place import place_of
from notwice.stores.postgres.rows import Statement
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.urls import parsed
from tests.engines.postgres import PostgresServer
from tests.engines.settings import Database, TableCases, assert_found, assert_heeded, begins

SAFE = {
    "in_recovery": "false",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "zero_damaged_pages": "off",
    "ignore_checksum_failure": "off",
    "synchronous_standby_names": "",
    "standbys": "0",
}


# --- tables -----------------------------------------------------------------------------------------------------------


class TestTables(TableCases):
    """Tables of PostgreSQL."""

    @pytest.fixture
    def database(self, system_postgres: PostgresServer, clerk: str) -> Database:
        return Database(
            url=system_postgres.url,
            execute=partial(execute, system_postgres),
            names=lambda url: place_of(parsed(url)).names,
            clerk=lambda url: url.replace("notwice@", f"{clerk}@"),
        )


@pytest.fixture
def clerk(system_postgres: PostgresServer) -> Iterator[str]:
    """A role that may read and write tables, but make none."""
    execute(
        system_postgres,
        "CREATE ROLE clerk LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO clerk",
    )
    yield "clerk"
    execute(system_postgres, "DROP OWNED BY clerk", "DROP ROLE clerk")


def execute(server: PostgresServer, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_a_schema_of_its_own(system_postgres: PostgresServer) -> None:
    """Schema and table are chosen in the URL; a schema that is not there is named, and never made."""
    with pytest.raises(StoreUnavailable, match="no schema payments"):
        begins(system_postgres.url(schema="payments"))
    with system_postgres.connect() as connection:
        connection.execute("CREATE SCHEMA payments")
    assert begins(system_postgres.url(schema="payments", table="guards"))
    with system_postgres.connect() as connection:
        assert connection.execute("SELECT count(*) FROM payments.guards").fetchone() == (1,)


def test_a_database_of_another_encoding(system_postgres: PostgresServer) -> None:
    """A database that can't keep every text is refused."""
    with system_postgres.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    with pytest.raises(StoreUnavailable, match="LATIN1"):
        begins(system_postgres.url().replace("/postgres?", "/latin?"))


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "name", "severity"),
    [
        ({"in_recovery": "true"}, "in_recovery", "unsafe"),
        ({"synchronous_commit": "off"}, "synchronous_commit", "unsafe"),
        ({"fsync": "off"}, "fsync", "unsafe"),
        ({"full_page_writes": "off"}, "full_page_writes", "unsafe"),
        ({"zero_damaged_pages": "on"}, "zero_damaged_pages", "unsafe"),
        ({"ignore_checksum_failure": "on"}, "ignore_checksum_failure", "unsafe"),
        ({"standbys": "1"}, "synchronous_standby_names", "warning"),
        ({"synchronous_standby_names": "a", "synchronous_commit": "local"}, "synchronous_commit", "warning"),
    ],
)
def test_each_unsafe_setting_is_found(changed: Mapping[str, str], name: str, severity: str) -> None:
    """Each setting that breaks a promise is named, with what it means and what to do; the safe ones are not."""
    assert judged(SAFE) == []
    assert judged({**SAFE, "standbys": "1", "synchronous_standby_names": "a"}) == []
    assert_found(judged, {**SAFE, **changed}, (name, severity))


FLIPS = {
    "synchronous_commit": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
}


@contextmanager
def flipped(server: PostgresServer, name: str, value: str) -> Iterator[None]:
    """A server with another setting, as each new connection finds it."""
    with server.connect() as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        try:
            reload(server, name, value)
            yield
        finally:
            connection.execute(f"ALTER SYSTEM RESET {name}")
            reload(server, name, "off" if value == "on" else "on")


def reload(server: PostgresServer, name: str, expected: str) -> None:
    """Have the server read its settings, and wait until new connections have them."""
    found = None
    for _ in range(2_000):
        with server.connect() as connection:
            if found is None:
                connection.execute("SELECT pg_reload_conf()")
            found = connection.execute(f"SHOW {name}").fetchone()
        if found == (expected,):
            return
    raise AssertionError(f"{name} stays {found}")


@pytest.mark.parametrize("name", FLIPS)
def test_unsafe_settings_of_a_server(packaged_postgres: PostgresServer, name: str) -> None:
    """Each unsafe setting is warned of once when a store is opened, found by the check, and refused on request."""
    with packaged_postgres.connect() as connection:
        assert findings(connection) == []
    with flipped(packaged_postgres, name, FLIPS[name]):
        with packaged_postgres.connect() as connection:
            assert [finding.name for finding in findings(connection)] == [name]
        assert_heeded(packaged_postgres.url, name)


def test_safe_settings_are_not_warned_of(packaged_postgres: PostgresServer) -> None:
    """A server with safe settings is opened without a word, also by who insists on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert begins(packaged_postgres.url(safe="require"))


def test_what_is_judged_is_what_is_asked_for() -> None:
    """The check asks the server for each setting that it judges."""
    assert set(NAMES) - {"in_recovery", "standbys"} >= SAFE.keys() - {"in_recovery", "standbys"}


def test_a_session_is_set_whatever_the_database_says(packaged_postgres: PostgresServer) -> None:
    """P1: another isolation level, a read-only default or a short time-out of the role change nothing."""
    with packaged_postgres.connect() as connection:
        for setting in ("default_transaction_isolation = serializable", "default_transaction_read_only = on"):
            connection.execute(f"ALTER ROLE notwice SET {setting}")
        try:
            assert begins(packaged_postgres.url())
            assert_session(open_async_store(packaged_postgres.url()).blocking)
        finally:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER ROLE notwice RESET ALL")


def assert_session(store: Store) -> None:
    assert isinstance(store, PostgresStore)
    for name, expected in (("transaction_isolation", "read committed"), ("plan_cache_mode", "force_generic_plan")):
        assert list(store._ask(Statement(f"SHOW {name}", often=False))) == [(expected,)]
    store.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("postgresql://host", "names a database"),
        ("postgresql://user:secret@host:abc/db", "no port from 1 to 65535"),
        ("postgresql://one,two:65536/db", "no port from 1 to 65535"),
        ("postgresql://user:se@cret@host/db", "written %40"),
        ("postgresql://host/db?tabel=x", "did you mean 'table'"),
        ("postgresql://host/db?table=a;drop", "small letter"),
        ('postgresql://host/db?schema=a"b', "small letter"),
        ("postgresql://host/db?pool=0", "from 1 to"),
        ("postgresql://host/db?timeout=0", "more than 0"),
        ("postgresql://host/db?safe=perhaps", "one of warn"),
    ],
)
def test_urls_that_are_refused(url: str, sentence: str) -> None:
    """T21: what can't be used in a URL is refused before anything is connected to, with what to write instead."""
    with pytest.raises(ValueError, match=sentence) as told:
        place_of(parsed(url))
    assert "cret" not in str(told.value)


@pytest.mark.parametrize("command", ["ls", "migrate", "doctor"])
def test_a_schema_that_is_not_there(
    system_postgres: PostgresServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """T21: every command says that the schema is missing; none sends a person to `migrate` for that."""
    assert main([command, "--store", f"{system_postgres.url()}&schema=nosuch"]) == 3
    told = capsys.readouterr().err
    assert "there is no schema nosuch; create it" in told
    assert "migrate" not in told


async def test_tables_are_expected_by_the_async_face(system_postgres: PostgresServer) -> None:
    """``tables=expect`` counts for event loops, too."""
    url = system_postgres.url()
    guard = AsyncGuard.open(f"{url}&tables=expect")
    with pytest.raises(StoreUnavailable, match="no store was made here yet"):
        await guard.begin("s", "k")
    await guard.close()
