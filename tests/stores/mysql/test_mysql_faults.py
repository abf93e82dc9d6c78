"""MariaDB that is slow, silent, killed, cut off, or read-only; and what its connections hold."""

import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from notwice import Guard, Operation, StoreUnavailable
from notwice.model import Get
from notwice.stores.mysql.place import place_of
from notwice.stores.mysql.store import MysqlStore
from notwice.stores.urls import parsed
from tests.engines.faults import CUTS, FaultCases, Subject
from tests.engines.mariadb import MariadbServer, mariadb_server, program
from tests.engines.private import as_user, server_folder, wait_until
from tests.engines.proxy import Proxy


@pytest.fixture
def proxy(mariadb: MariadbServer) -> Iterator[Proxy]:
    with Proxy(mariadb.port) as proxy:
        yield proxy


def sessions(server: MariadbServer) -> list[int]:
    """The server's numbers of all connections but the one that asks."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        return [number for (number,) in cursor.fetchall()]


def end_sessions(server: MariadbServer) -> None:
    server.execute(*(f"KILL {session}" for session in sessions(server)))
    wait_until(lambda: not sessions(server))


class TestFaults(FaultCases):
    """As MariaDB and as MySQL is spoken to."""

    @pytest.fixture(params=["auto", "no"])
    def subject(self, mariadb: MariadbServer, request: pytest.FixtureRequest) -> Subject:
        return Subject(
            port=mariadb.port,
            url=partial(mariadb.url, returning=request.param),
            served=mariadb_server,
            refused="mysql://user:secret@127.0.0.1:1/db?timeout=1",
            opened=lambda url: MysqlStore(place_of(parsed(url))),
            sessions=lambda: len(sessions(mariadb)),
            end_sessions=partial(end_sessions, mariadb),
            cuts=CUTS // 4,
        )


def test_an_answer_that_comes_in_drops(proxy: Proxy, mariadb: MariadbServer) -> None:
    """P8: the time-out is for the whole of an answer, however often a part of it comes."""
    store = MysqlStore(place_of(parsed(mariadb.url(port=proxy.port, timeout=1))))
    store.apply([Get("", "x")])
    with store._pool.turn() as session, pytest.raises(StoreUnavailable, match="no answer came in time"):
        session.ask(";".join(["SELECT SLEEP(0.4)"] * 10))
    store.close()


def test_private_connections() -> None:
    """P15: over TLS a store works as ever, and a server that is not the one that was named is refused."""
    with server_folder() as folder:
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        make = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=here", "-days", "2"]
        make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(make, check=True, capture_output=True, cwd="/", **as_user())
        with mariadb_server([f"--ssl-cert={certificate}", f"--ssl-key={key}"]) as server:
            for options in ({"ssl_mode": "required"}, {"ssl_ca": certificate}):
                with Guard.open(server.url(**options)) as guard:
                    assert isinstance(guard.begin("s", "k", request=1), Operation)
            url = server.url(ssl_ca=certificate)
            with closing(MysqlStore(place_of(parsed(url)))) as store, store._pool.turn() as session:
                assert session.ask("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
            with (
                Guard.open(url.replace("127.0.0.1", "localhost")) as guard,
                pytest.raises(StoreUnavailable, match="certificate verify failed"),
            ):
                guard.begin("s", "k")


def test_no_authorities_are_read(mariadb: MariadbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that checks no server reads no authorities of the system: that takes as long as many calls do."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", None)
    with Guard.open(mariadb.url()) as guard:
        assert isinstance(guard.begin("s", "k", request=1), Operation)


def test_a_wrong_password(mariadb: MariadbServer) -> None:
    """P8, P15: a refused password is said to be one, and not shown."""
    with (
        Guard.open(f"mysql://notwice:secret@127.0.0.1:{mariadb.port}/notwice") as guard,
        pytest.raises(StoreUnavailable, match="user or password") as told,
    ):
        guard.begin("s", "k")
    assert "secret" not in str(told.value)


def test_all_connections_are_busy(mariadb: MariadbServer) -> None:
    """A call that gets no connection in time says so, and that nothing was done."""
    store = MysqlStore(place_of(parsed(mariadb.url(pool=1, timeout=0.2))))
    store.apply([Get("", "x")])
    began = time.monotonic()
    with store._pool.turn(), pytest.raises(StoreUnavailable, match="nothing was done"):
        store.apply([Get("", "x")])
    assert time.monotonic() - began < 10
    store.close()
