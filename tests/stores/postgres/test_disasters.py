"""Power cuts, full disks and fail-overs: what was acknowledged is there; with unsafe settings it is not."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from notwice import StoreUnavailable
from notwice.stores import open_store
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.testing.conformance.records import insert, new_record, stored
from tests.engines.disasters import DisasterCases, Risk
from tests.engines.disks import Disk, disk_in
from tests.engines.postgres import (
    SYSTEM,
    PostgresServer,
    copy_of,
    make_data,
    postgres_server,
    programs,
    reachable,
    server_on,
)
from tests.engines.private import GROUP, USER, server_folder, wait_until
from tests.engines.proxy import Proxy
from tests.engines.takeovers import Pair, Paired, TakeOverCases

DISK_BYTES = 160 * 1024 * 1024
SMALL = ("shared_buffers=8MB", "min_wal_size=2MB", "max_wal_size=8MB")
LAZY = (*SMALL, "synchronous_commit=off", "wal_writer_delay=1s")


@pytest.fixture
def disk() -> Iterator[Disk]:
    with server_folder() as folder, disk_in(folder, DISK_BYTES) as disk:
        with disk.mounted() as mounted:
            shutil.chown(mounted, USER, GROUP)
            make_data(path_of(folder), mounted / "data")
        yield disk


def path_of(folder: Path) -> Path:
    return reachable(programs(SYSTEM), folder)


@contextmanager
def server_of(disk: Disk, settings: Sequence[str]) -> Iterator[PostgresServer]:
    with disk.mounted() as mounted, server_on(mounted / "data", path_of(mounted.parent), settings) as server:
        yield server


class TestDisasters(DisasterCases):
    """Servers that sync each commit, and one with ``synchronous_commit=off``, which loses claims."""

    @pytest.fixture
    def risk(self, disk: Disk) -> Risk:
        safe, lazy = (partial(server_of, disk, settings) for settings in (SMALL, LAZY))
        return Risk(disk, safe, lazy, partial(postgres_server, SYSTEM), ends_itself=False)


@contextmanager
def pair(waits: bool) -> Iterator[Pair]:
    """A server and a standby; `waits`: each commit is on both."""
    with postgres_server(SYSTEM) as first, server_folder() as folder, Proxy(first.port) as link:
        path = path_of(folder)
        copy_of(link.port, path, folder / "standby")
        with server_on(folder / "standby", path) as standby:
            first.set(f"synchronous_standby_names={'*' if waits else ''}")
            with first.connect() as connection:
                wait_until(lambda: connection.execute("SELECT 1 FROM pg_stat_replication").fetchone() is not None)

            def promote() -> None:
                with standby.connect() as connection:
                    assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

            near = first.url(safe="ignore", timeout=2)
            yield Pair(first, link, near, near.replace(str(first.port), str(standby.port)), promote)


class TestTakeOvers(TakeOverCases):
    """A server, and a standby that commits wait for, or don't."""

    @pytest.fixture
    def paired(self) -> Paired:
        return pair


def test_a_standby_that_runs_is_refused() -> None:
    """C13: a standby that could be read is not: what it shows may be old. That nothing waits for it is warned of."""
    with pair(waits=False) as servers:
        store = open_store(servers.near.replace("safe=ignore", "safe=warn"))
        with pytest.warns(UnsafeSettingsWarning, match="synchronous_standby_names"):
            insert(store, new_record())
        store.close()
        store = open_store(servers.far)
        with pytest.raises(StoreUnavailable):
            stored(store, new_record())
        store.close()
        servers.promote()  # it was a standby until now
