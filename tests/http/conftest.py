"""The faces in process, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.harness import FACES, Face, Handler
from tests.http.servers import ASGI, PROCESSES, WSGI, Running


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def serve(request: pytest.FixtureRequest) -> Iterator[Callable[..., Face]]:
    """Put a handler, or what it says in turn, behind a face."""
    served: list[Face] = []

    def make(*script: Any, **fields: Any) -> Face:
        handler = script[0] if script and isinstance(script[0], Handler) else Handler(list(script))
        served.append(request.param(handler, **fields))
        return served[-1]

    yield make
    for face in served:
        face.close()


class Servers:
    """The servers of a session, each started when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._running: dict[str, Running] = {}

    def get(self, name: str) -> Running:
        if name not in self._running:
            folder = self._factory.mktemp(name)
            store = f"sqlite:///{folder}/guard.db" if name in PROCESSES else "memory://"
            self._running[name] = Running({**ASGI, **WSGI, **PROCESSES}[name], folder, store=store)
        return self._running[name]

    def stop(self) -> None:
        for server in self._running.values():
            server.stop()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All real servers, stopped at the end."""
    found = Servers(tmp_path_factory)
    yield found
    found.stop()


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Servers) -> Running:
    """The server that a test is parametrised with."""
    return servers.get(request.param)
