"""What goes over the wire: round trips, lost and late answers, ends of connections."""

import asyncio
from collections.abc import Iterator

import pytest

from notwice import (
    AsyncGuard,
    AsyncOperation,
    Policy,
    StoreUnavailable,
)
from notwice.model import Insert
from notwice.stores import open_store
from notwice.testing.conformance.records import get, insert, new_record, stored
from tests.engines.dynamodb import Table, dynamodb_server, new_table
from tests.engines.faults import CUTS, FaultCases, Subject
from tests.engines.private import Server, wait_until
from tests.engines.proxy import Proxy

POLICY = Policy(lease=300, store_timeout=5)


@pytest.fixture
def proxy(emulator: Server) -> Iterator[Proxy]:
    with Proxy(emulator.port) as proxy:
        yield proxy


class TestFaults(FaultCases):
    """A table of the emulator, which keeps nothing when it is killed, and does not say who is connected."""

    @pytest.fixture
    def subject(self, emulator: Server) -> Subject:
        return Subject(
            port=emulator.port,
            url=lambda **options: new_table(emulator, **{"safe": "ignore", **options}).url,
            refused="dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:1&timeout=1",
            opened=open_store,
            cuts=CUTS // 2,
        )


async def test_tasks_go_side_by_side(proxy: Proxy, table: Table) -> None:
    """The trips of many tasks go side by side."""
    guard = AsyncGuard.open(table.through(proxy.port), policy=POLICY)
    await guard.begin("warm", "up")
    with proxy.held():
        many = [asyncio.ensure_future(guard.begin("pay", f"k{number}")) for number in range(8)]
        await asyncio.to_thread(wait_until, lambda: proxy.connections >= 8)
    assert all(isinstance(each, AsyncOperation) for each in await asyncio.gather(*many))
    await guard.close()


def test_the_settings_are_asked_for_once(proxy: Proxy, emulator: Server) -> None:
    """The table's settings cost three round trips when a store is used for the first time, and none later."""
    store = open_store(new_table(emulator).through(proxy.port))
    assert proxy.counted(lambda: insert(store, new_record())) == 4
    assert proxy.counted(lambda: insert(store, new_record("b"))) == 1
    store.close()


def test_the_driver_repeats_nothing(proxy: Proxy, table: Table) -> None:
    """P13: a write whose answer is lost is sent once; the store says that it does not know."""
    store = open_store(table.through(proxy.port))
    insert(store, new_record("warm"))
    proxy.cut(0)
    with pytest.raises(StoreUnavailable, match="not known"):
        insert(store, new_record())
    proxy.cut(None)
    assert not store.apply([Insert(new_record())])[0].won, "it was carried out"
    assert len(table.items()) == 2
    store.close()


def test_connections_that_were_ended_while_idle(proxy: Proxy, table: Table) -> None:
    """A connection that the server ended while nobody used it costs no call."""
    store = open_store(table.through(proxy.port))
    insert(store, new_record())
    proxy.reset()
    assert stored(store, new_record())
    store.close()


def test_all_requests_are_busy(proxy: Proxy, table: Table) -> None:
    """P8: more callers than the store may have requests wait for their turn, and not for ever."""
    url = table.through(proxy.port).replace("timeout=10", "timeout=0.3&pool=2")
    store = open_store(url)
    insert(store, new_record())
    with proxy.held():
        outcomes: list[str] = []
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as caught:
                store.apply([Insert(new_record(f"{number}")) for number in range(8)])
            outcomes.append(str(caught.value))
    assert all("not known" in each or "nothing was done" in each for each in outcomes)
    assert stored(store, new_record())
    store.close()


def test_a_server_that_is_gone() -> None:
    """P8: a server that is not there is an error that says so; one that has lost its table, too, and nothing runs."""
    with dynamodb_server() as server:
        table = new_table(server)
        store = open_store(table.url)
        insert(store, new_record())
        server.kill()
        with pytest.raises(StoreUnavailable, match="nothing was done"):
            get(store, new_record())
        server.start()
        with pytest.raises(StoreUnavailable, match="there is no such table"):
            insert(store, new_record())
        store.close()
