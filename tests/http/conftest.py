"""The faces in process, closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http.harness import FACES, Face, Handler


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
