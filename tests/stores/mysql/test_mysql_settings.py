"""The tables and the settings of a MariaDB server: what is made, what is refused, what is warned of."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from notwice import Guard, StoreUnavailable
from notwice.stores.mysql.checks import findings, judged
from notwice.stores.mysql.place import place_of
from notwice.stores.urls import parsed
from tests.engines.mariadb import MariadbServer, mariadb_server
from tests.engines.settings import Database, TableCases, assert_found, assert_heeded, begins

SAFE = {
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
    "log_bin": "ON",
    "innodb_doublewrite": "ON",
    "innodb_flush_method": "O_DIRECT",
    "read_only": "OFF",
    "wsrep_on": "OFF",
    "innodb_force_recovery": "0",
    "binlog_format": "MIXED",
    "max_allowed_packet": "16777216",
    "rpl_semi_sync_master_enabled": "OFF",
    "engine": "InnoDB",
    "replicas": "0",
}


# --- tables -----------------------------------------------------------------------------------------------------------


class TestTables(TableCases):
    """Tables of MariaDB."""

    @pytest.fixture
    def database(self, mariadb: MariadbServer) -> Iterator[Database]:
        mariadb.execute(
            "CREATE USER clerk@'127.0.0.1' IDENTIFIED BY 'clerk'",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON notwice.* TO clerk@'127.0.0.1'",
        )
        yield Database(
            url=mariadb.url,
            execute=mariadb.execute,
            names=lambda url: place_of(parsed(url)).names,
            clerk=lambda url: f"mysql://clerk:clerk@{url.partition('@')[2]}",
        )
        mariadb.execute("DROP USER clerk@'127.0.0.1'")


def test_a_step_that_was_cut_off(mariadb: MariadbServer) -> None:
    """Definitions commit by themselves here; a step of which half was done is carried out to its end."""
    url = mariadb.url()
    names = place_of(parsed(url)).names
    mariadb.execute(f"CREATE TABLE {names.versions} (number INTEGER NOT NULL PRIMARY KEY, reader_min INTEGER NOT NULL)")
    assert begins(url)


def test_a_replica_is_not_read(mariadb: MariadbServer) -> None:
    """C13: a read-only server is refused, whatever it could show; so is one that became it meanwhile."""
    url = mariadb.url()
    with Guard.open(url) as guard:
        guard.begin("s", "k")
        mariadb.execute("SET GLOBAL read_only = 1")
        try:
            with pytest.raises(StoreUnavailable, match="read-only"):
                begins(url)
        finally:
            mariadb.execute("SET GLOBAL read_only = 0")


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "name", "severity"),
    [
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit", "unsafe"),
        ({"innodb_flush_log_at_trx_commit": "0"}, "innodb_flush_log_at_trx_commit", "unsafe"),
        ({"sync_binlog": "0"}, "sync_binlog", "warning"),
        ({"innodb_doublewrite": "OFF"}, "innodb_doublewrite", "unsafe"),
        ({"innodb_doublewrite": "DETECT_ONLY"}, "innodb_doublewrite", "unsafe"),
        ({"innodb_flush_method": "nosync"}, "innodb_flush_method", "unsafe"),
        ({"read_only": "ON"}, "read_only", "unsafe"),
        ({"replica_of": "another server"}, "replica_of", "unsafe"),
        ({"wsrep_on": "ON"}, "wsrep_on", "unsafe"),
        ({"engine": "Aria"}, "engine", "unsafe"),
        ({"innodb_force_recovery": "1"}, "innodb_force_recovery", "unsafe"),
        ({"binlog_format": "STATEMENT"}, "binlog_format", "unsafe"),
        ({"replicas": "1"}, "replicas", "warning"),
        ({"max_allowed_packet": "1048576"}, "max_allowed_packet", "warning"),
    ],
)
def test_each_unsafe_setting_is_found(changed: Mapping[str, str], name: str, severity: str) -> None:
    """Each setting that breaks a promise is named, with what it means and what to do; the safe ones are not."""
    assert judged(SAFE) == []
    assert judged({**SAFE, "replicas": "1", "rpl_semi_sync_master_enabled": "ON"}) == []
    assert judged({**SAFE, "log_bin": "OFF", "sync_binlog": "0", "binlog_format": "STATEMENT"}) == []
    assert_found(judged, {**SAFE, **changed}, (name, severity))


@contextmanager
def flipped(server: MariadbServer, name: str, value: str, safe: str) -> Iterator[None]:
    """A server with another setting."""
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = {safe}")


def test_an_unsafe_setting_of_a_server(mariadb: MariadbServer) -> None:
    """An unsafe setting is warned of once when a store is opened, found by the check, and refused on request."""
    name = "innodb_flush_log_at_trx_commit"
    with mariadb.connect() as connection:
        assert findings(connection) == []
        with flipped(mariadb, name, "2", "1"):
            assert [finding.name for finding in findings(connection)] == [name]
            assert_heeded(mariadb.url, name)


def test_a_table_of_another_engine(mariadb: MariadbServer) -> None:
    """Tables that somebody moved to an engine without transactions are found out."""
    url = mariadb.url(safe="require")
    assert begins(url)
    mariadb.execute(f"ALTER TABLE {place_of(parsed(url)).names.records} ENGINE = Aria")
    with pytest.raises(StoreUnavailable, match="engine = Aria"):
        begins(url)


@pytest.mark.slow
def test_settings_that_need_a_restart() -> None:
    """What can only be set at a server's start is found, too: each unsafe one is named, and none is missed."""
    settings = ["--innodb-doublewrite=OFF", "--innodb-flush-method=nosync", "--log-bin", "--sync-binlog=0"]
    with mariadb_server([*settings, "--binlog-format=STATEMENT", "--server-id=1"]) as server:
        with server.connect() as connection:
            found = {finding.name for finding in findings(connection)}
        assert found == {"innodb_doublewrite", "innodb_flush_method", "sync_binlog", "binlog_format"}
        with pytest.raises(StoreUnavailable, match="binlog_format"):
            begins(server.url())


def test_safe_settings_are_not_warned_of(mariadb: MariadbServer) -> None:
    """A server with safe settings is opened without a word, also by who insists on them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert begins(mariadb.url(safe="require"))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://host", "names a host and a database"),
        ("mysql:///db", "names a host and a database"),
        ("mysql://user:password@host:abc/db", "no port from 1 to 65535"),
        ("mysql://host/db?tabel=x", "did you mean 'table'"),
        ("mysql://host/db?table=a;drop", "small letter"),
        ("mysql://host/db?pool=0", "from 1 to"),
        ("mysql://host/db?timeout=0", "more than 0"),
        ("mysql://host/db?returning=perhaps", "one of auto, no"),
        ("mysql://host/db?ssl_mode=verify_identity", "ssl_ca"),
    ],
)
def test_urls_that_are_refused(url: str, sentence: str) -> None:
    """T21: what can't be used in a URL is refused before anything is connected to, with what to write instead."""
    with pytest.raises(ValueError, match=sentence):
        place_of(parsed(url))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", {}),
        ("?ssl_mode=disabled", {"ssl_disabled": True}),
        ("?ssl_mode=required", {"ssl_verify_cert": False}),
        ("?ssl_ca=/ca.pem", {"ssl_ca": "/ca.pem", "ssl_verify_cert": True, "ssl_verify_identity": True}),
    ],
)
def test_addresses(options: str, told: Mapping[str, object]) -> None:
    """A URL's parts reach the driver decoded; the name that is shown holds neither user nor password."""
    place = place_of(parsed(f"mysql://a%40b:p%2Fw@[::1]:3307/db{options}"))
    address = {"host": "::1", "port": 3307, "user": "a@b", "password": b"p/w", "database": "db"}
    assert place.driver == {**address, **told}
    assert place.shown == "mysql://[::1]:3307/db"
    assert place_of(parsed("mysql://host/db")).driver["port"] == 3306
