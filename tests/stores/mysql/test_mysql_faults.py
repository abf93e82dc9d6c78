"""MariaDB that is slow, silent, killed, cut off, or read-only; and what its connections hold."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from notwice import AsyncGuard, AsyncOperation, Guard, InProgress, Operation, Policy, Replay, StoreUnavailable
from notwice.model import Get, Insert
from notwice.stores.mysql.place import place_of
from notwice.stores.mysql.store import MysqlStore
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import new_record
from tests.engines.mariadb import MariadbServer, mariadb_server, program
from tests.engines.private import as_user, server_folder
from tests.engines.proxy import Proxy
from tests.engines.redis import wait_until
from tests.sources import ROOT

STATEMENTS = ["auto", "no"]


@pytest.fixture
def proxy(mariadb: MariadbServer) -> Iterator[Proxy]:
    with Proxy(mariadb.port) as proxy:
        yield proxy


def sessions(server: MariadbServer) -> list[int]:
    """The server's numbers of all connections but the one that asks."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        return [number for (number,) in cursor.fetchall()]


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returning", STATEMENTS)
def test_round_trips(proxy: Proxy, mariadb: MariadbServer, returning: str) -> None:
    """Begin, a checkpoint, complete, replay and look-up are one round trip each, counted on the wire."""
    with Guard.open(mariadb.url(port=proxy.port, returning=returning)) as guard:
        outcome = guard.begin("warm", "up", request=1)
        assert isinstance(outcome, Operation)
        outcome.complete(1)
        guard.lookup("warm", "up")
        begun: list[Operation] = []
        trips = [
            proxy.counted(act)
            for act in (
                lambda: begun.append(guard.begin("s", "k", request=1)),  # type: ignore[arg-type]  # a first begin owns
                lambda: begun[0].checkpoint("p"),
                lambda: begun[0].complete(1),
                lambda: guard.begin("s", "k", request=1),
                lambda: guard.lookup("s", "k"),
            )
        ]
    assert trips == [1, 1, 1, 1, 1]


# --- lost answers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("returning", STATEMENTS)
def test_answers_cut_after_every_byte(proxy: Proxy, mariadb: MariadbServer, returning: str) -> None:
    """P9, P13: wherever the answers to a begin and to a complete are cut, the caller owns what it began."""
    url = mariadb.url(port=proxy.port, returning=returning)
    with Guard.open(url, policy=Policy(store_timeout=10)) as guard:
        warm = guard.begin("warm", "up", request=1)
        assert isinstance(warm, Operation)
        heard = proxy.bytes_heard
        warm.complete(1)
        reply_bytes = proxy.bytes_heard - heard
        for after in range(0, reply_bytes + 60, 9):
            proxy.cut(after)
            outcome = guard.begin("cut", str(after), request=1)
            assert isinstance(outcome, Operation), f"after {after} bytes: {outcome}"
            assert (outcome.attempt, outcome.recovered) == (1, False)
            proxy.cut(after)
            outcome.complete(after)
            proxy.cut(None)
            again = guard.begin("cut", str(after), request=1)
            assert isinstance(again, Replay)
            assert again.result == after
    assert proxy.cuts > reply_bytes // 9


async def test_answers_cut_for_tasks(proxy: Proxy, mariadb: MariadbServer) -> None:
    """P9, P13: the same for tasks."""
    guard = AsyncGuard.open(mariadb.url(port=proxy.port), policy=Policy(store_timeout=10))
    await guard.begin("warm", "up")
    for after in range(0, 300, 23):
        proxy.cut(after)
        outcome = await guard.begin("cut", str(after), request=1)
        assert isinstance(outcome, AsyncOperation), f"after {after} bytes: {outcome}"
        proxy.cut(after)
        await outcome.complete(after)
        proxy.cut(None)
        again = await guard.begin("cut", str(after), request=1)
        assert isinstance(again, Replay)
        assert again.result == after
    await guard.close()


# --- slow and dead servers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connected", [True, False])
def test_a_silent_server(proxy: Proxy, mariadb: MariadbServer, connected: bool) -> None:
    """P8: a server that says nothing is given up after the time-out; nothing runs, and later calls go on."""
    with Guard.open(mariadb.url(port=proxy.port, timeout=0.4)) as guard:
        if connected:
            guard.begin("warm", "up")
        proxy.black_hole = True
        with pytest.raises(StoreUnavailable):
            guard.begin("s", "k", request=1)
        proxy.black_hole = False
        proxy.reset()
        assert isinstance(guard.begin("s", "other", request=1), Operation)


def test_an_answer_that_comes_in_drops(proxy: Proxy, mariadb: MariadbServer) -> None:
    """P8: the time-out is for the whole of an answer, however often a part of it comes."""
    store = MysqlStore(place_of(parsed(mariadb.url(port=proxy.port, timeout=1))))
    store.apply([Get("", "x")])
    with store._pool.turn() as session, pytest.raises(StoreUnavailable, match="no answer came in time"):
        session.ask(";".join(["SELECT SLEEP(0.4)"] * 10))
    store.close()


def test_nobody_listens() -> None:
    """P8: a port that nobody listens on is refused at once, with a sentence that holds no password."""
    with Guard.open("mysql://user:secret@127.0.0.1:1/db?timeout=1") as guard, pytest.raises(StoreUnavailable) as told:
        guard.begin("s", "k")
    assert "127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)


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


def test_a_wrong_password(mariadb: MariadbServer) -> None:
    """P8, P15: a refused password is said to be one, and not shown."""
    with (
        Guard.open(f"mysql://notwice:secret@127.0.0.1:{mariadb.port}/notwice") as guard,
        pytest.raises(StoreUnavailable, match="user or password") as told,
    ):
        guard.begin("s", "k")
    assert "secret" not in str(told.value)


def test_killed_connections(mariadb: MariadbServer) -> None:
    """Connections that the server ended while nobody used them are found out, and no call fails for it."""
    with closing(MysqlStore(place_of(parsed(mariadb.url())))) as store:
        for number in range(5):
            assert store.apply([Insert(new_record(str(number)))])[0].won
            mariadb.execute(*(f"KILL {session}" for session in sessions(mariadb)))
            wait_until(lambda: not sessions(mariadb))


def test_a_server_that_is_killed_and_comes_back() -> None:
    """P2, P8: what was acknowledged is there after a crash of the server; meanwhile begins are refused."""
    with mariadb_server() as server, Guard.open(server.url(timeout=2)) as guard:
        owned = guard.begin("s", "k", request=1)
        assert isinstance(owned, Operation)
        owned.complete("paid")
        server.kill()
        with pytest.raises(StoreUnavailable):
            guard.begin("s", "k", request=1)
        server.start()
        again = guard.begin("s", "k", request=1)
        assert isinstance(again, Replay)
        assert again.result == "paid"


# --- connections ------------------------------------------------------------------------------------------------------


def test_no_connection_is_held_while_a_handler_runs(mariadb: MariadbServer) -> None:
    """C16: twenty handlers at once, each asking the database itself, over a pool of two."""
    barrier = threading.Barrier(20)
    wait_until(lambda: not sessions(mariadb))
    with Guard.open(mariadb.url(pool=2)) as guard, ThreadPoolExecutor(20) as pool:

        def handle() -> int:
            barrier.wait(20)  # all of them are inside
            assert guard.lookup("s", "0") is not None
            return 1

        def run(number: int) -> object:
            return guard.run(handle, scope="s", key=str(number))

        assert list(pool.map(run, range(20))) == [1] * 20
        assert len(sessions(mariadb)) <= 2


def test_pools_do_not_leak(proxy: Proxy, mariadb: MariadbServer) -> None:
    """After many failures no connection is left behind, and all of the pool can be used."""
    wait_until(lambda: not sessions(mariadb))
    store = MysqlStore(place_of(parsed(mariadb.url(port=proxy.port, pool=2))))
    store.apply([Get("", "x")])
    for number in range(12):
        proxy.cut(number)
        with pytest.raises(StoreUnavailable):
            store.apply([Get("", "x")])
        proxy.cut(None)
    wait_until(lambda: len(sessions(mariadb)) <= 2)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: store.apply([Get("", "x")]), range(40)))
    assert len(sessions(mariadb)) <= 2
    store.close()
    wait_until(lambda: not sessions(mariadb))


def test_all_connections_are_busy(mariadb: MariadbServer) -> None:
    """A call that gets no connection in time says so, and that nothing was done."""
    store = MysqlStore(place_of(parsed(mariadb.url(pool=1, timeout=0.2))))
    store.apply([Get("", "x")])
    began = time.monotonic()
    with store._pool.turn(), pytest.raises(StoreUnavailable, match="nothing was done"):
        store.apply([Get("", "x")])
    assert time.monotonic() - began < 10
    store.close()


def test_fifty_equal_requests(mariadb: MariadbServer) -> None:
    """T22: fifty equal requests at once: one owner, and no error of a lock reaches anybody."""
    with Guard.open(mariadb.url()) as guard, ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(lambda _: guard.begin("s", "k", request=1), range(50)))
    assert sum(isinstance(outcome, Operation) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, InProgress) for outcome in outcomes) == 49


def test_a_store_that_was_made_before_a_fork(mariadb: MariadbServer) -> None:
    """P1: children of one process go on with the guard that was made, and used, before the fork; so does the parent."""
    script = """
import os, sys
from notwice import Guard, Operation
guard = Guard.open(sys.argv[1])
assert isinstance(guard.begin("race", "before"), Operation)
children = []
for child in range(4):
    child = os.fork()
    if not child:
        owned = [guard.begin("race", str(key)) for key in range(50)]
        for operation in owned:
            if isinstance(operation, Operation):
                operation.complete(1)
        os._exit(sum(isinstance(each, Operation) for each in owned))
    children.append(child)
owned = sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
assert not isinstance(guard.begin("race", "before"), Operation)
print(owned)
"""
    command = [sys.executable, "-c", script, mariadb.url()]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env=os.environ)
    assert (run.stdout, run.stderr) == ("50\n", "")
