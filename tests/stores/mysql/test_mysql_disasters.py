"""Power cuts and full disks under MariaDB; servers that are killed and come back, again and again."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from tests.engines.disasters import DisasterCases, Risk
from tests.engines.disks import Disk, disk_in
from tests.engines.mariadb import SETUP, MariadbServer, install, mariadb_pair, mariadb_server, server_on
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
def server_of(disk: Disk, settings: Sequence[str]) -> Generator[MariadbServer]:
    with disk.mounted() as mounted, server_on(mounted / "data", mounted.parent, settings) as server:
        yield server


class TestDisasters(DisasterCases):
    """Servers that sync each commit, and one with ``innodb_flush_log_at_trx_commit=2``, which loses claims."""

    @pytest.fixture
    def risk(self, disk: Disk) -> Risk:
        safe, lazy = (partial(server_of, disk, settings) for settings in (SMALL, LAZY))
        return Risk(disk, safe, lazy, mariadb_server)


class TestTakeOvers(TakeOverCases):
    """A server, and a replica that commits wait for (semi-synchronous replication), or don't."""

    @pytest.fixture
    def paired(self) -> Paired:
        return mariadb_pair
