"""PostgreSQL that is slow, silent, killed, cut off, or a standby; and what its connections hold."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from notwice import AsyncGuard, Guard, Operation, StoreUnavailable
from notwice.model import Insert, Record
from notwice.stores import open_async_store, open_store
from notwice.stores.postgres.place import place_of
from notwice.stores.postgres.store import PostgresStore
from notwice.stores.urls import parsed
from notwice.testing.conformance.records import new_record
from tests.engines.faults import FACES, FaultCases, Subject
from tests.engines.postgres import PACKAGED, PostgresServer, postgres_server
from tests.engines.private import wait_until
from tests.engines.proxy import Proxy


@pytest.fixture
def proxy(system_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(system_postgres.port) as proxy:
        yield proxy


OURS = "FROM pg_stat_activity WHERE application_name = 'notwice'"


def connections(server: PostgresServer) -> int:
    with server.connect() as connection:
        rows = connection.execute(f"SELECT count(*) {OURS}").fetchone()
    assert rows is not None
    return int(rows[0])


def kill_connections(server: PostgresServer) -> None:
    with server.connect() as connection:
        connection.execute(f"SELECT pg_terminate_backend(pid) {OURS}")


class TestFaults(FaultCases):
    """A server of the system's; those that are killed are of another version."""

    @pytest.fixture
    def subject(self, system_postgres: PostgresServer) -> Subject:
        return Subject(
            port=system_postgres.port,
            url=system_postgres.url,
            served=partial(postgres_server, PACKAGED),
            refused="postgresql://user:secret@127.0.0.1:1/db?timeout=1",
            opened=lambda url: PostgresStore(place_of(parsed(url))),
            sessions=partial(connections, system_postgres),
            end_sessions=partial(kill_connections, system_postgres),
        )


async def test_tasks_share_round_trips(proxy: Proxy, system_postgres: PostgresServer) -> None:
    """Fifty tasks at once share two round trips."""
    guard = AsyncGuard.open(system_postgres.url().replace(f":{system_postgres.port}/", f":{proxy.port}/"))
    for _ in range(2):  # so that both connections are there, and know the statements
        await asyncio.gather(*(guard.begin("warm", str(number)) for number in range(50)))
        await guard.begin("warm", "alone")
    before = proxy.trips
    await asyncio.gather(*(guard.begin("s", str(number)) for number in range(50)))
    assert proxy.trips - before == 2
    await guard.close()


# --- standbys ---------------------------------------------------------------------------------------------------------


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
