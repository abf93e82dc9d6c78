"""Power cuts and full disks under MariaDB; servers that are killed and come back, again and again."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.engines.disks import Disk, disk_in, loses_in_some_power_cut, lost_in_power_cuts, survives_a_full_disk
from tests.engines.mariadb import SETUP, MariadbServer, install, mariadb_pair, mariadb_server, server_on
from tests.engines.outages import run_through_kills
from tests.engines.private import GROUP, USER, server_folder
from tests.engines.takeovers import Paired, TakeOverCases

DISK_BYTES = 256 * 1024 * 1024
SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M")
LAZY = (*SMALL, "--innodb-flush-log-at-trx-commit=2")


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with server_folder() as folder, disk_in(folder, DISK_BYTES) as disk:
        with disk.mounted() as mounted:
            shutil.chown(mounted, USER, GROUP)
            install(mounted / "data")
            with server_on(mounted / "data", folder, SMALL, setup=SETUP):
                pass  # it has a user and a database now
        yield disk


@contextmanager
def server_of(disk: Disk, settings: Sequence[str] = SMALL) -> Generator[MariadbServer]:
    with disk.mounted() as mounted, server_on(mounted / "data", mounted.parent, settings) as server:
        yield server


@pytest.mark.slow
def test_power_cuts(disk: Disk) -> None:
    """P1, P7: no acknowledged claim is lost in a power cut; bound 3/n for n claims."""
    assert lost_in_power_cuts(disk, lambda: server_of(disk), named="table", claims_max=400) == 0


@pytest.mark.slow
def test_power_cuts_of_a_lazy_server(disk: Disk) -> None:
    """The control: with ``innodb_flush_log_at_trx_commit=2`` a power cut loses claims."""
    assert loses_in_some_power_cut(disk, lambda: server_of(disk, LAZY), named="table", claims=300)


def test_a_full_disk(disk: Disk) -> None:
    """P8: on a full disk begins are refused, and nothing that was acknowledged is lost. The server ends itself."""
    with server_of(disk) as server:
        survives_a_full_disk(disk, server.url(timeout=5), server.restart)


@pytest.mark.slow
def test_callers_go_on_through_kills() -> None:
    """P1, P2, P9, C09: while the server is killed and comes back, each effect happens once and all get its answer."""
    with mariadb_server() as server:
        run_through_kills(server, server.url(safe="ignore", timeout=2))


class TestTakeOvers(TakeOverCases):
    """A server, and a replica that commits wait for (semi-synchronous replication), or don't."""

    @pytest.fixture
    def paired(self) -> Paired:
        return mariadb_pair
