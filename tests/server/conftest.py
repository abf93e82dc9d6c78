"""One gateway before one service for all tests of a module that break neither."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import processes
from tests.server.processes import Process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Process]:
    with processes.upstream(folder) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(folder: Path, service: Process) -> Iterator[Process]:
    with processes.gateway(folder, service.port, "--status-path", "/status") as process:
        yield process
