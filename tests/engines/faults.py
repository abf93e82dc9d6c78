"""Servers that are slow, silent, killed or cut off, and what connections hold: the same cases for every engine.

An engine's own test is a class with one fixture, `subject`. Each case is written once: a guard for event loops is
driven from outside its loop.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from notwice import AsyncGuard, Guard, InProgress, Mismatch, Policy, Replay, StoreUnavailable
from notwice.model import Get
from notwice.stores.port import Store
from notwice.testing.conformance.engine import running_loop
from notwice.testing.conformance.processes import Driven, owns
from tests.engines.private import TIMES, wait_until
from tests.engines.proxy import Proxy
from tests.sources import ROOT

T = TypeVar("T")

FACES = ["threads", "tasks"]
CALLERS = 20
CUTS = 2_000 * TIMES
MARGIN_BYTES = 10
"""How much longer than the answer to a complete that to a begin may be."""


@dataclass(frozen=True)
class Subject:
    """One engine under test.

    Attributes:
        port: where its server listens.
        url: makes the URL of a store that nobody has used yet, with options.
        served: starts a server of its own, which can be killed and started, with a `url` and whatever it is; if it
            keeps what it was told.
        refused: a URL with a port, 1, that nobody listens on, and the password ``secret`` if it has one.
        opened: makes the bare store of a URL, without shared trips.
        sessions: how many connections the server has of ours, if it can say.
        end_sessions: has the server end them, if a call does not fail for it.
        cuts: how many answers are cut for each face.
    """

    port: int
    url: Callable[..., str]
    refused: str
    opened: Callable[[str], Store]
    served: Callable[[], AbstractContextManager[Any]] | None = None
    sessions: Callable[[], int] | None = None
    end_sessions: Callable[[], None] | None = None
    cuts: int = CUTS

    def through(self, proxy: Proxy, **options: object) -> str:
        """The URL of a store behind a proxy."""
        return self.url(**options).replace(f":{self.port}", f":{proxy.port}")

    def counted(self) -> int:
        """How many connections the server has of ours; without an answer the case is skipped."""
        if self.sessions is None:
            pytest.skip("its server does not say who is connected")
        return self.sessions()


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


@contextmanager
def guarded(face: str, url: str, **options: Any) -> Generator[Any]:
    """A guard, or one for event loops that looks like one."""
    if face == "threads":
        with Guard.open(url, **options) as guard:
            yield guard
        return
    with running_loop() as loop:
        driven = Driven(AsyncGuard.open(url, **options), Loop(loop))  # type: ignore[arg-type]  # it only runs coroutines
        try:
            yield driven
        finally:
            driven.close()


def owned(guard: Any, key: str) -> Any:
    outcome = guard.begin("s", key, request=1)
    assert owns(outcome), outcome
    assert (outcome.attempt, outcome.recovered) == (1, False)
    return outcome


def heard(proxy: Proxy, act: Callable[[], object]) -> int:
    """How many bytes the answers to `act` have."""
    before = proxy.bytes_heard
    act()
    return proxy.bytes_heard - before


FORKING = """
import os, sys
from notwice import Guard, Operation
guard = Guard.open(sys.argv[1])
assert isinstance(guard.begin("race", "before"), Operation)
children = []
for child in range(4):
    child = os.fork()
    if not child:
        owned = [guard.begin("race", str(key)) for key in range(50)]
        for operation in owned:
            if isinstance(operation, Operation):
                operation.complete(1)
        os._exit(sum(isinstance(each, Operation) for each in owned))
    children.append(child)
owned = sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
assert not isinstance(guard.begin("race", "before"), Operation)
print(owned)
"""


def children_go_on(url: str) -> bool:
    """Whether children work with the guard that their parent made, and used, before the fork; so does the parent."""
    command = [sys.executable, "-c", FORKING, url]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=ROOT, env=os.environ)
    return (run.stdout, run.stderr) == ("50\n", "")


class FaultCases:
    """What holds whatever becomes of a server and of the way to it."""

    @pytest.fixture
    def subject(self) -> Subject:
        raise NotImplementedError("give the class a fixture `subject`")

    @pytest.fixture
    def proxy(self, subject: Subject) -> Iterator[Proxy]:
        with Proxy(subject.port) as proxy:
            yield proxy

    @pytest.mark.parametrize("face", FACES)
    def test_round_trips(self, subject: Subject, proxy: Proxy, face: str) -> None:
        """Each move, look-up and refusal is one round trip, counted on the wire."""
        with guarded(face, subject.through(proxy)) as guard:
            for key in ("warm", "warmer"):  # statements are known, and connections there
                owned(guard, key).complete(1)
            guard.lookup("s", "warm")
            told: list[Any] = []

            def begin(request: int = 1) -> None:
                told.append(guard.begin("s", "k", request=request))

            moves = [begin, begin, lambda: told[0].checkpoint("p"), lambda: told[0].complete(1), begin]
            moves += [lambda: begin(2), lambda: guard.lookup("s", "k")]
            assert [proxy.counted(move) for move in moves] == [1] * len(moves)
            assert owns(told[0])
            assert [type(each) for each in told[1:]] == [InProgress, Replay, Mismatch]

    @pytest.mark.slow
    @pytest.mark.timeout(300 * TIMES)
    @pytest.mark.parametrize("face", FACES)
    def test_answers_cut_after_every_byte(self, subject: Subject, proxy: Proxy, face: str) -> None:
        """P9, P13: wherever the answers to a begin and to a complete are cut, the caller owns what it began."""
        with guarded(face, subject.through(proxy), policy=Policy(store_timeout=10)) as guard:
            owned(guard, "warmer").complete(1)  # what is said but once was said
            warm = owned(guard, "warm")
            answer_bytes = heard(proxy, lambda: warm.complete(1)) + MARGIN_BYTES
            places = range(0, answer_bytes, 1 + 2 * answer_bytes // subject.cuts)
            for number, after in enumerate(itertools.cycle(places)):
                proxy.cut(after)
                operation = owned(guard, str(number))
                proxy.cut(after)
                operation.complete(number)
                proxy.cut(None)
                again = guard.begin("s", str(number), request=1)
                assert isinstance(again, Replay)
                assert again.result == number
                if proxy.cuts >= subject.cuts:
                    break

    @pytest.mark.parametrize("face", FACES)
    def test_replays_cut_after_every_few_bytes(self, subject: Subject, proxy: Proxy, face: str) -> None:
        """P2: a stored answer that is cut anywhere on its way is never given in part."""
        with guarded(face, subject.through(proxy), policy=Policy(store_timeout=10)) as guard:
            owned(guard, "k").complete("x" * 300)

            def replay() -> None:
                assert guard.begin("s", "k", request=1).result == "x" * 300

            for after in range(0, heard(proxy, replay), 11):
                proxy.cut(after)
                replay()
        assert proxy.cuts > 300 // 11

    @pytest.mark.parametrize("connected", [True, False])
    @pytest.mark.parametrize("face", FACES)
    def test_a_silent_server(self, subject: Subject, proxy: Proxy, face: str, connected: bool) -> None:
        """P8: a server that says nothing is given up after the time-out; nothing runs, and later calls go on."""
        with guarded(face, subject.through(proxy, timeout=0.4, safe="ignore")) as guard, ThreadPoolExecutor(5) as pool:
            if connected:
                owned(guard, "warm")
            proxy.black_hole = True
            calls = [pool.submit(guard.begin, "s", str(number), request=1) for number in range(5)]
            assert all(isinstance(call.exception(30), StoreUnavailable) for call in calls)
            proxy.black_hole = False
            proxy.reset()
            assert owns(guard.begin("s", "other", request=1))

    @pytest.mark.parametrize("face", FACES)
    def test_nobody_listens(self, subject: Subject, face: str) -> None:
        """P8, P15: a port that nobody listens on is refused at once: one line, without a password. Nothing was done."""
        with guarded(face, subject.refused) as guard, pytest.raises(StoreUnavailable) as told:
            guard.begin("s", "k")
        assert "127.0.0.1:1" in str(told.value) or "dynamodb://table" in str(told.value)
        assert "nothing was done" in str(told.value)
        assert len(str(told.value).splitlines()) == 1
        assert "secret" not in str(told.value)

    @pytest.mark.parametrize("face", FACES)
    def test_ended_connections(self, subject: Subject, face: str) -> None:
        """Connections that the server ended while nobody used them are found out, and no call fails for it."""
        if subject.end_sessions is None:
            pytest.skip("it is tried otherwise")
        with guarded(face, subject.url()) as guard:
            for number in range(5):
                owned(guard, str(number))
                subject.end_sessions()

    @pytest.mark.parametrize("face", FACES)
    def test_a_server_that_is_killed_and_comes_back(self, subject: Subject, face: str) -> None:
        """P2, P8: what was acknowledged is there after a crash of the server; meanwhile begins are refused."""
        if subject.served is None:
            pytest.skip("its server keeps nothing")
        with subject.served() as server, guarded(face, server.url(timeout=2)) as guard:
            owned(guard, "k").complete("paid")
            server.kill()
            with pytest.raises(StoreUnavailable):
                guard.begin("s", "k", request=1)
            server.start()
            again = guard.begin("s", "k", request=1)
            assert isinstance(again, Replay)
            assert again.result == "paid"

    def test_no_connection_is_held_while_a_handler_runs(self, subject: Subject) -> None:
        """C16: twenty handlers at once, each asking the store itself, over a pool of two."""
        barrier = threading.Barrier(CALLERS)
        wait_until(lambda: not subject.counted())
        with Guard.open(subject.url(pool=2)) as guard, ThreadPoolExecutor(CALLERS) as pool:

            def handle() -> int:
                barrier.wait(20)  # all of them are inside
                assert guard.lookup("s", "0") is not None
                return 1

            def run(number: int) -> object:
                return guard.run(handle, scope="s", key=str(number))

            assert list(pool.map(run, range(CALLERS))) == [1] * CALLERS
            assert subject.counted() <= 2

    def test_waiters_hold_no_connection(self, subject: Subject) -> None:
        """C16: twenty who wait for one running operation hold no connection meanwhile, and all get its answer."""
        wait_until(lambda: not subject.counted())
        with Guard.open(subject.url(pool=2)) as guard, ThreadPoolExecutor(CALLERS) as pool:
            operation = owned(guard, "k")
            wait = Policy(wait=20)
            waiters = [pool.submit(guard.begin, "s", "k", request=1, policy=wait) for _ in range(CALLERS)]
            wait_until(lambda: subject.counted() <= 2)
            owned(guard, "other")
            operation.complete(7)
            assert [waiter.result().result for waiter in waiters] == [7] * CALLERS  # type: ignore[union-attr]  # all of them are replays

    def test_pools_do_not_leak(self, subject: Subject, proxy: Proxy) -> None:
        """After many failures no connection is left behind, and all of the pool can be used."""
        wait_until(lambda: not subject.counted())
        store = subject.opened(subject.through(proxy, pool=2))
        store.apply([Get("", "x")])
        for number in range(12):
            proxy.cut(number)
            with pytest.raises(StoreUnavailable):
                store.apply([Get("", "x")])
            proxy.cut(None)
        wait_until(lambda: subject.counted() <= 2)
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda _: store.apply([Get("", "x")]), range(40)))
        assert subject.counted() <= 2
        store.close()
        wait_until(lambda: not subject.counted())

    @pytest.mark.parametrize("face", FACES)
    def test_fifty_equal_requests(self, subject: Subject, face: str) -> None:
        """T22: fifty equal requests at once: one owner, and no error of a lock reaches anybody."""
        with guarded(face, subject.url()) as guard, ThreadPoolExecutor(50) as pool:
            outcomes = list(pool.map(lambda _: guard.begin("s", "k", request=1), range(50)))
        assert sum(map(owns, outcomes)) == 1
        assert sum(isinstance(outcome, InProgress) for outcome in outcomes) == 49

    def test_a_store_that_was_made_before_a_fork(self, subject: Subject) -> None:
        """P1: children go on with the guard that was made, and used, before the fork; so does the parent."""
        assert children_go_on(subject.url())
