"""Killed at every store call and between any two steps, twice, and recovered: each step's effect happens once."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard, Operation, Policy, Replay, current_operation, current_step, identity, rerun
from notwice.model import Op, Page, Query, Reply
from notwice.recovery import Round
from notwice.stores import open_store
from notwice.stores.port import Store
from tests.engines.postgres import SYSTEM, PostgresServer, postgres_server
from tests.stores.children import in_child

SCOPE, KEY = "order:ord_1", "k-1"
STEPS = ("reserve", "charge", "book", "ship", "mail")
CALLS = 12  # the claim; for each step a confirm, since the lease is short, and its result; the end
POLICY = Policy(recovery=rerun, attempts_max=None, lease=0.001)  # lapsed as soon as its owner is gone

Point = tuple[str, int]
POINTS: list[Point] = [
    *((when, call) for call in range(1, CALLS + 1) for when in ("before call", "after call")),
    *(("before step", place) for place in range(len(STEPS) + 1)),
    *(("after effect", place) for place in range(len(STEPS))),
]


class Death:
    """Kills its process at one point."""

    def __init__(self, point: Point | None) -> None:
        self.point = point

    def at(self, when: str, number: int) -> None:
        if (when, number) == self.point:
            os.kill(os.getpid(), signal.SIGKILL)


class Mortal:
    """A store whose process may die at each call."""

    def __init__(self, store: Store, death: Death) -> None:
        self._store = store
        self._death = death
        self._calls = 0

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        self._calls += 1
        call = self._calls
        self._death.at("before call", call)
        replies = self._store.apply(ops)
        self._death.at("after call", call)
        return replies

    def scan(self, query: Query) -> Page:
        return self._store.scan(query)

    def purge(self, limit: int) -> int:
        return self._store.purge(limit)

    def close(self) -> None:
        self._store.close()


class Provider:
    """Notes each call with its key in a file of all processes; it would make one effect for each key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(self, step: str, key: str) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{step} {key}\n".encode())

    def calls(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def handle(operation: Operation, provider: Provider, death: Death) -> list[Any]:
    """The handler: five steps, each with an effect at the provider."""

    def effect(place: int) -> dict[str, object]:
        key = current_step().downstream_key()
        provider.call(STEPS[place], key)
        death.at("after effect", place)
        return {"step": STEPS[place], "key": key, "raw": bytes([place])}

    found = []
    for place, name in enumerate(STEPS):
        death.at("before step", place)
        found.append(operation.step(name, partial(effect, place)))
    death.at("before step", len(STEPS))
    return found


def begin(url: str, provider: Provider, point: Point | None) -> None:
    """What the first process does."""
    death = Death(point)
    with Guard(Mortal(open_store(url), death), policy=POLICY) as guard:
        guard.run(lambda: handle(current_operation(), provider, death), scope=SCOPE, key=KEY)  # type: ignore[arg-type]  # no task


def recover(url: str, provider: Provider, point: Point | None, told: Callable[[Round], None] = lambda _: None) -> None:
    """What each later process does first."""
    death = Death(point)
    with Guard(Mortal(open_store(url), death), policy=POLICY) as guard:
        told(guard.recover({SCOPE: lambda operation: handle(operation, provider, death)}))


WANTED = [
    {
        "step": name,
        "key": identity.downstream_key(namespace="", scope=SCOPE, key=KEY, generation=0, name=name),
        "raw": bytes([place]),
    }
    for place, name in enumerate(STEPS)
]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server(SYSTEM, ["fsync=off"]) as server:  # no power fails here
        yield server


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], str]:
    """The URL of a store of its own for each number."""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        return lambda _: server.url(safe="ignore")
    ending = "json" if request.param == "file" else "db"
    return lambda number: f"{request.param}:///{tmp_path}/{number}.{ending}"


def killed_and_recovered(url: str, provider: Provider, points: tuple[Point, Point]) -> None:
    """One story: killed, recovered and killed again, recovered, and at last the caller's own retry."""
    first, second = points
    in_child(partial(begin, url, provider, first))
    with Guard.open(url, policy=POLICY) as guard:
        left = list(guard.operations(unresolved=True))
    in_child(partial(recover, url, provider, second))
    rounds: list[Round] = []
    recover(url, provider, None, rounds.append)
    with Guard.open(url, policy=POLICY) as guard:
        found = guard.begin(SCOPE, KEY)
        if left:
            assert isinstance(found, Replay), points  # it was there, so it is finished without a retry
        if isinstance(found, Operation):
            with found:
                found.complete(handle(found, provider, Death(None)))
            found = guard.begin(SCOPE, KEY)
        assert isinstance(found, Replay)
        assert found.result == WANTED, points
    calls = provider.calls()
    assert Counter(dict.fromkeys(calls, 1)) == Counter(f"{each['step']} {each['key']}" for each in WANTED), points
    assert len(calls) <= len(STEPS) + sum(when != "before step" for when, _ in points), points


def test_each_steps_effect_happens_once_wherever_it_is_killed(url: Callable[[int], str], tmp_path: Path) -> None:
    """C09, C47, T08: SIGKILL before and after each store call, between the steps and between an effect and its record;
    the process that recovers it is killed, too. Each step has one downstream key and so one effect; results are equal.
    """
    chance = random.Random(7)
    for number, first in enumerate(POINTS):
        second = chance.choice(POINTS)
        killed_and_recovered(url(number), Provider(tmp_path / f"{number}.calls"), (first, second))


@pytest.mark.parametrize(
    ("point", "killed"),
    [
        (
            ("after call", len(STEPS) + 2),
            True,
        ),  # beside the claim, the steps and the end there may be a confirm or a beat
        (("before call", 10 * CALLS), False),
        (("before step", len(STEPS)), True),
        (("after effect", len(STEPS) - 1), True),
    ],
)
def test_the_points_are_there(tmp_path: Path, point: Point, killed: bool) -> None:
    """The control: a process dies at a point that it reaches, and at no other."""
    url = f"sqlite:///{tmp_path}/control.db"
    assert (in_child(partial(begin, url, Provider(tmp_path / "calls"), point)) == -signal.SIGKILL) is killed


def test_without_steps_it_would_happen_twice(tmp_path: Path) -> None:
    """The control: a handler whose steps are not kept repeats what it has done, as its provider sees."""
    provider, url = Provider(tmp_path / "calls"), f"sqlite:///{tmp_path}/control.db"
    in_child(partial(begin, url, provider, ("after effect", 4)))
    with Guard.open(url, policy=POLICY) as guard:
        [view] = guard.operations(unresolved=True)
        guard.release(view, who="test", why="drops the steps", from_start=True, force=True)  # type: ignore[arg-type]  # it can be read
        guard.run(lambda: handle(current_operation(), provider, Death(None)), scope=SCOPE, key=KEY)  # type: ignore[arg-type]  # no task
    assert len(provider.calls()) == 2 * len(STEPS)
