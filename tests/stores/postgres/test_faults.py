"""PostgreSQL that is slow, silent, killed, cut off, or a standby; and what its connections hold."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from notwice import AsyncGuard, AsyncOperation, Guard, InProgress, Operation, Policy, Replay, StoreUnavailable
from notwice.model import Get, Insert, Record
from notwice.stores import open_async_store, open_store
from notwice.stores.postgres.place import place_of
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import new_record
from tests.engines.postgres import PACKAGED, PostgresServer, postgres_server
from tests.engines.proxy import Proxy
from tests.sources import ROOT

FACES = ["threads", "tasks"]


@pytest.fixture
def proxy(system_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(system_postgres.port) as proxy:
        yield proxy


def through(proxy: Proxy, server: PostgresServer, **options: object) -> str:
    return server.url(**options).replace(f":{server.port}/", f":{proxy.port}/")


def connections(server: PostgresServer) -> int:
    with server.connect() as connection:
        rows = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'notwice'").fetchone()
    assert rows is not None
    return int(rows[0])


def kill_connections(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'notwice'")


# --- round trips ------------------------------------------------------------------------------------------------------


def test_round_trips_of_threads(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """Begin, a checkpoint, complete, replay and look-up are one round trip each, counted on the wire."""
    with Guard.open(through(proxy, system_postgres)) as guard:
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


async def test_round_trips_of_tasks(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """The same for event loops; fifty tasks at once share two round trips."""
    guard = AsyncGuard.open(through(proxy, system_postgres))
    for _ in range(2):  # so that both connections are there, and know the statements
        await asyncio.gather(*(guard.begin("warm", str(number)) for number in range(50)))
        await guard.begin("warm", "alone")
    await guard.lookup("warm", "alone")
    other = await guard.begin("warm", "up")
    assert isinstance(other, AsyncOperation)
    await other.complete(1)
    before = proxy.trips
    owned = await guard.begin("s", "k", request=1)
    assert isinstance(owned, AsyncOperation)
    await owned.complete(1)
    assert isinstance(await guard.begin("s", "k", request=1), Replay)
    assert proxy.trips - before == 3
    before = proxy.trips
    await asyncio.gather(*(guard.begin("s", str(number)) for number in range(50)))
    assert proxy.trips - before == 2
    await guard.close()


# --- lost answers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_answers_cut_after_every_byte(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """P9, P13: wherever the answers to a begin and to a complete are cut, the caller owns what it began."""
    policy = Policy(store_timeout=10)
    with Guard.open(through(proxy, system_postgres), policy=policy) as guard:
        warm = guard.begin("warm", "up", request=1)
        assert isinstance(warm, Operation)
        heard = proxy.bytes_heard
        warm.complete(1)
        reply_bytes = proxy.bytes_heard - heard
        for after in range(0, reply_bytes + 40, 3):
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
    assert proxy.cuts > reply_bytes // 3


@pytest.mark.slow
async def test_answers_cut_for_tasks(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """P9, P13: the same for tasks."""
    guard = AsyncGuard.open(through(proxy, system_postgres), policy=Policy(store_timeout=10))
    await guard.begin("warm", "up")
    for after in range(0, 260, 5):
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
def test_a_silent_server_and_threads(proxy: Proxy, system_postgres: PostgresServer, connected: bool) -> None:
    """P8: a server that says nothing is given up after the time-out; nothing runs, and later calls go on."""
    with Guard.open(through(proxy, system_postgres, timeout=0.3)) as guard:
        if connected:
            guard.begin("warm", "up")
        proxy.black_hole = True
        with pytest.raises(StoreUnavailable):
            guard.begin("s", "k", request=1)
        proxy.black_hole = False
        proxy.reset()
        assert isinstance(guard.begin("s", "other", request=1), Operation)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_silent_server_and_tasks(proxy: Proxy, system_postgres: PostgresServer, connected: bool) -> None:
    """P8: the same for tasks."""
    guard = AsyncGuard.open(through(proxy, system_postgres, timeout=0.3))
    if connected:
        await guard.begin("warm", "up")
    proxy.black_hole = True
    outcomes = await asyncio.gather(*(guard.begin("s", str(n), request=1) for n in range(5)), return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    proxy.black_hole = False
    proxy.reset()
    assert isinstance(await guard.begin("s", "other", request=1), AsyncOperation)
    await guard.close()


def test_nobody_listens() -> None:
    """P8: a port that nobody listens on is refused at once, with a sentence that holds no password."""
    with (
        Guard.open("postgresql://user:secret@127.0.0.1:1/db?timeout=1") as guard,
        pytest.raises(StoreUnavailable) as told,
    ):
        guard.begin("s", "k")
    assert "127.0.0.1:1" in str(told.value)
    assert "secret" not in str(told.value)


def test_killed_connections(system_postgres: PostgresServer) -> None:
    """Connections that the server ended while nobody used them are found out, and no call fails for it."""
    with Guard.open(system_postgres.url()) as guard:
        for number in range(5):
            assert isinstance(guard.begin("s", str(number)), Operation)
            kill_connections(system_postgres)


async def test_killed_connections_of_tasks(system_postgres: PostgresServer) -> None:
    """The same for tasks."""
    guard = AsyncGuard.open(system_postgres.url())
    for number in range(5):
        assert isinstance(await guard.begin("s", str(number)), AsyncOperation)
        await asyncio.to_thread(kill_connections, system_postgres)
    await guard.close()


def test_a_server_that_is_killed_and_comes_back() -> None:
    """P2, P8: what was acknowledged is there after a crash of the server; meanwhile begins are refused."""
    with postgres_server(PACKAGED) as server, Guard.open(server.url(timeout=2)) as guard:
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


def test_a_standby_is_not_read() -> None:
    """C13: a server in recovery is refused, whatever it could show."""
    with postgres_server(PACKAGED) as server:
        url = server.url(timeout=5)
        with Guard.open(url) as guard:
            owned = guard.begin("s", "k", request=1)
            assert isinstance(owned, Operation)
            owned.complete(1)
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with Guard.open(url) as guard, pytest.raises(StoreUnavailable, match=r"standby|recovery|read-only"):
            guard.begin("s", "k", request=1)
        with pytest.raises(StoreUnavailable):
            applier("tasks", url)(new_record())


@pytest.mark.parametrize("face", FACES)
def test_a_commit_that_no_standby_has(face: str) -> None:
    """P8, P13: a commit that was let go without the standby that must have it counts as unknown, not as done."""
    with postgres_server(PACKAGED) as server, ThreadPoolExecutor(1) as pool:
        url = server.url(timeout=10)
        apply = applier(face, url)
        apply(new_record("first"))
        with server.connect() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: shown(connection, "synchronous_standby_names") == "nobody")
            call = pool.submit(apply, new_record("second"))
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_until(lambda: connection.execute(waiting).fetchone() is not None)
            connection.execute(f"SELECT pg_cancel_backend(pid) FROM ({waiting}) AS waiting")
            error = call.exception(20)
        assert isinstance(error, StoreUnavailable)
        assert "fail-over" in str(error)


def applier(face: str, url: str) -> Callable[[Record], object]:
    if face == "threads":
        store = open_store(url)
        return lambda record: store.apply([Insert(record)])

    async def apply(record: Record) -> object:
        store = open_async_store(url)
        try:
            return await store.apply([Insert(record)])
        finally:
            await store.close()

    return lambda record: asyncio.run(apply(record))


def shown(connection: object, name: str) -> str:
    return str(connection.execute(f"SHOW {name}").fetchone()[0])  # type: ignore[attr-defined]  # it is a connection


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        pause.wait(0.005)


# --- connections ------------------------------------------------------------------------------------------------------


def test_no_connection_is_held_while_a_handler_runs(system_postgres: PostgresServer) -> None:
    """C16: twenty handlers at once, each asking the database itself, over a pool of two."""
    barrier = threading.Barrier(20)
    with Guard.open(system_postgres.url(pool=2)) as guard, ThreadPoolExecutor(20) as pool:

        def handle() -> int:
            barrier.wait(20)  # all of them are inside
            assert guard.lookup("s", "0") is not None
            return 1

        def run(number: int) -> object:
            return guard.run(handle, scope="s", key=str(number))

        assert list(pool.map(run, range(20))) == [1] * 20
        assert connections(system_postgres) <= 2


def test_waiters_hold_no_connection(system_postgres: PostgresServer) -> None:
    """C16: twenty who wait for one running operation hold no connection meanwhile, and all get its answer."""
    with Guard.open(system_postgres.url(pool=2)) as guard, ThreadPoolExecutor(20) as pool:
        owned = guard.begin("s", "k", request=1)
        assert isinstance(owned, Operation)
        waiters = [pool.submit(guard.begin, "s", "k", request=1, policy=Policy(wait=20)) for _ in range(20)]
        wait_until(lambda: connections(system_postgres) <= 2)
        assert isinstance(guard.begin("s", "other"), Operation)
        owned.complete(7)
        assert [waiter.result().result for waiter in waiters] == [7] * 20  # type: ignore[union-attr]  # all are replays


def test_pools_do_not_leak(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """After many failures no connection is left behind, and all of the pool can be used."""
    wait_until(lambda: connections(system_postgres) == 0)
    store = PostgresStore(place_of(parsed(through(proxy, system_postgres, pool=2))))
    store.apply([Get("", "x")])
    for number in range(12):
        proxy.cut(number)
        with pytest.raises(StoreUnavailable):
            store.apply([Get("", "x")])
        proxy.cut(None)
    assert connections(system_postgres) <= 2
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: store.apply([Get("", "x")]), range(40)))
    assert connections(system_postgres) <= 2
    store.close()
    wait_until(lambda: connections(system_postgres) == 0)


def test_fifty_equal_requests(system_postgres: PostgresServer) -> None:
    """T22: fifty equal requests at once: one owner, and no error of a lock reaches anybody."""
    with Guard.open(system_postgres.url()) as guard, ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(lambda _: guard.begin("s", "k", request=1), range(50)))
    assert sum(isinstance(outcome, Operation) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, InProgress) for outcome in outcomes) == 49


def test_a_store_that_was_made_before_a_fork(system_postgres: PostgresServer) -> None:
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
    command = [sys.executable, "-c", script, system_postgres.url()]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env=os.environ)
    assert (run.stdout, run.stderr) == ("50\n", "")
