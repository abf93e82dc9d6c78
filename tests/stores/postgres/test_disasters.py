"""Power cuts, full disks and fail-overs: what was acknowledged is there; with unsafe settings it is not."""

import itertools
import random
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from notwice import StoreUnavailable
from notwice.stores import open_store
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.testing.conformance.records import insert, new_record, stored
from tests.engines.claims import Claims, missing_in
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
from tests.engines.private import GROUP, USER, server_folder
from tests.stores.test_power_cut import CUTS, Disk, why_not

DISK_BYTES = 160 * 1024 * 1024
CONTROL_CUTS_MAX = 20
ROUNDS = 2
SMALL = ("shared_buffers=8MB", "min_wal_size=2MB", "max_wal_size=8MB")
LAZY = (*SMALL, "synchronous_commit=off", "wal_writer_delay=1s")


@pytest.fixture
def disk() -> Iterator[Disk]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with server_folder() as folder:
        try:
            disk = Disk(folder, DISK_BYTES)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no loop device to be had: {error.stderr}")
        disk.mount()
        shutil.chown(disk.mounted_at, USER, GROUP)
        make_data(path_of(folder), disk.mounted_at / "data")
        disk.unmount()
        yield disk
        disk.detach()


def path_of(folder: Path) -> Path:
    return reachable(programs(SYSTEM), folder)


@contextmanager
def server_of(disk: Disk, settings: Sequence[str] = SMALL) -> Iterator[PostgresServer]:
    disk.mount()
    try:
        with server_on(disk.mounted_at / "data", path_of(disk.mounted_at.parent), settings) as server:
            yield server
    finally:
        disk.unmount()


def cut_once(disk: Disk, settings: Sequence[str], claims: int) -> tuple[int, int]:
    """Cut the power under a server; how many claims were acknowledged before, and how many of those are lost."""
    with server_of(disk, settings) as server:
        url = server.url(safe="ignore", timeout=2)
        writers = Claims(url, enough=claims)
        assert writers.enough.wait(30)
        before = list(writers.acknowledged)
        disk.cut_power()
        server.kill()
        writers.join()
    with server_of(disk, settings) as server:
        store = open_store(url.replace(url.partition("@")[2].partition("/")[0], f"127.0.0.1:{server.port}"))
        lost = missing_in(store, before)
        store.close()
    return len(before), lost


@pytest.mark.slow
def test_power_cuts(disk: Disk) -> None:
    """P1, P7: no acknowledged claim is lost in a power cut; bound 3/n for n claims."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    counts = [cut_once(disk, SMALL, chance.randrange(1, 400)) for _ in range(CUTS)]
    print(f"{sum(count for count, _ in counts)} claims were acknowledged")
    assert sum(lost for _, lost in counts) == 0


@pytest.mark.slow
def test_power_cuts_of_a_lazy_server(disk: Disk) -> None:
    """The control: with ``synchronous_commit=off`` a power cut loses claims."""
    assert any(cut_once(disk, LAZY, 300)[1] for _ in range(CONTROL_CUTS_MAX))


def test_a_full_disk(disk: Disk) -> None:
    """P8: on a full disk begins are refused, replays go on, and nothing that was acknowledged is lost."""
    with server_of(disk) as server:
        store = open_store(server.url(timeout=5))
        insert(store, new_record("before"))
        filler = disk.mounted_at / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            file.writelines(itertools.repeat(bytes(4_096)))
        noise = random.Random(1)
        records = (new_record(f"{number}", error=noise.randbytes(8_192).hex()) for number in range(4_000))
        with pytest.raises(StoreUnavailable, match=r"disk is full|not known"):
            deque((insert(store, record) for record in records), maxlen=0)
        filler.unlink()
        if server.process.poll() is not None:  # it ends itself where its log can't be written
            server.start()
        assert stored(store, new_record("before"))
        insert(store, new_record("after"))
        store.close()


@contextmanager
def pair(*, waits: bool) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server and a standby; `waits`: each commit is on both."""
    names = "synchronous_standby_names=*" if waits else "synchronous_standby_names="
    with postgres_server(SYSTEM) as first, server_folder() as folder:
        path = path_of(folder)
        copy_of(first, path, folder / "standby")
        with server_on(folder / "standby", path) as standby:
            first.set(names)
            yield first, standby


@pytest.mark.slow
@pytest.mark.parametrize("waits", [True, False], ids=["synchronous", "asynchronous"])
def test_fail_overs(waits: bool) -> None:
    """P1: where commits wait for the standby that takes over, no claim is lost; where they don't, some are."""
    lost = 0
    for _ in range(ROUNDS):
        with pair(waits=waits) as (first, standby):
            url = first.url(safe="ignore", timeout=2)
            claims = Claims(url)
            assert claims.enough.wait(30)
            if not waits:
                standby.kill()  # it falls behind, as standbys do
                claims.wait_for(len(claims.acknowledged) + 50)
            acknowledged = list(claims.acknowledged)
            first.kill()
            claims.join()
            if not waits:
                standby.start()
            with standby.connect() as connection:
                assert connection.execute("SELECT pg_promote()").fetchone() == (True,)
            store = open_store(url.replace(str(first.port), str(standby.port)))
            lost += missing_in(store, acknowledged)
            store.close()
    assert (lost == 0) is waits


def test_a_standby_that_runs_is_refused() -> None:
    """C13: a standby that could be read is not: what it shows may be old. That nothing waits for it is warned of."""
    with pair(waits=False) as (first, standby):
        url = first.url()
        store = open_store(url)
        with pytest.warns(UnsafeSettingsWarning, match="synchronous_standby_names"):
            insert(store, new_record())
        store.close()
        store = open_store(url.replace(str(first.port), str(standby.port)))
        with pytest.raises(StoreUnavailable):
            stored(store, new_record())
        store.close()
        with standby.connect() as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
