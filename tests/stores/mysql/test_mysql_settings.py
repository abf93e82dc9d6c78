"""The tables and the settings of a MariaDB server: what is made, what is refused, what is warned of."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from notwice import Guard, Operation, StoreUnavailable
from notwice.cli import main
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.stores.mysql.checks import findings, judged
from notwice.stores.mysql.place import place_of
from notwice.stores.urls import parsed
from tests.engines.mariadb import MariadbServer, mariadb_server

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


def begins(url: str) -> bool:
    with Guard.open(url) as guard:
        return isinstance(guard.begin("s", "k", request=1), Operation)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_user_who_may_make_no_tables(mariadb: MariadbServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the right to make tables the error says what to do; with the printed SQL carried out, it works."""
    mariadb.execute(
        "CREATE USER clerk@'127.0.0.1' IDENTIFIED BY 'clerk'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON notwice.* TO clerk@'127.0.0.1'",
    )
    url = mariadb.url()
    as_clerk = f"mysql://clerk:clerk@{url.partition('@')[2]}"
    with pytest.raises(StoreUnavailable, match="migrate --dry-run"):
        begins(as_clerk)
    assert main(["migrate", "--store", url, "--dry-run"]) == 0
    script = "".join(line for line in capsys.readouterr().out.splitlines(keepends=True) if not line.startswith("--"))
    mariadb.execute(*(statement for statement in script.split(";\n") if statement.strip()))
    assert begins(as_clerk)
    assert main(["migrate", "--store", url]) == 0
    assert "nothing to do" in capsys.readouterr().err


def test_a_step_that_was_cut_off(mariadb: MariadbServer) -> None:
    """Definitions commit by themselves here; a step of which half was done is carried out to its end."""
    url = mariadb.url()
    names = place_of(parsed(url)).names
    mariadb.execute(f"CREATE TABLE {names.versions} (number INTEGER NOT NULL PRIMARY KEY, reader_min INTEGER NOT NULL)")
    assert begins(url)


@pytest.mark.parametrize(("number", "reader_min", "works"), [(2, 1, True), (2, 2, False)])
def test_tables_of_a_newer_release(mariadb: MariadbServer, number: int, reader_min: int, works: bool) -> None:
    """P14: tables of the next release are worked on if its step allows that, else refused before anything is done."""
    url = mariadb.url()
    assert begins(url)
    mariadb.execute(f"INSERT INTO {place_of(parsed(url)).names.versions} VALUES ({number}, {reader_min})")
    if works:
        assert not begins(url)
    else:
        with pytest.raises(StoreUnavailable, match="newer release"):
            begins(url)
        assert main(["migrate", "--store", url]) == 1


def test_tables_that_are_gone(mariadb: MariadbServer) -> None:
    """Tables that somebody drops don't come back by themselves: what was in them would count as never begun."""
    url = mariadb.url()
    names = place_of(parsed(url)).names
    with Guard.open(url) as guard:
        guard.begin("s", "k")
        mariadb.execute(f"DROP TABLE {names.records}, {names.versions}")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="gone"):
                guard.begin("s", "other")


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
    (finding,) = judged({**SAFE, **changed})
    assert (finding.name, finding.severity) == (name, severity)
    assert finding.meaning
    assert finding.remedy


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
            with pytest.warns(UnsafeSettingsWarning, match=name) as told:
                assert begins(mariadb.url(safe="warn"))
            assert len(told) == 1
            with pytest.raises(StoreUnavailable, match=f"safe=require.*{name}"):
                begins(mariadb.url(safe="require"))
            assert begins(mariadb.url(safe="ignore"))


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


def test_looking_makes_no_tables(mariadb: MariadbServer, capsys: pytest.CaptureFixture[str]) -> None:
    """C52: what only looks, or works on what is there, makes no tables: where there are none, it says so."""
    url = mariadb.url()
    for command in (["ls"], ["stats"], ["show", "idem_1"], ["purge"]):
        assert main([*command, "--store", url]) == 3
        assert "no store was made here yet. `notwice migrate` makes it" in capsys.readouterr().err
    assert main(["migrate", "--store", url, "--dry-run"]) == 0
    assert "CREATE TABLE" in capsys.readouterr().out
    assert begins(url)
    assert main(["ls", "--store", url]) == 0
