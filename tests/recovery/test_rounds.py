"""Rounds of recovery, again and again: what ends them, and how long they wait."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from notwice import AsyncOperation, StoreUnavailable, rerun
from notwice.recovery import Round, keep_recovering, keep_recovering_async, round_of
from tests.unit.test_async_guard import AsyncWorld
from tests.unit.worlds import SCOPE


def test_rounds_go_on_until_told_to_stop_whatever_they_meet(caplog: pytest.LogCaptureFixture) -> None:
    """A round that fails is logged; the next one goes on, until the event is set."""
    stop = threading.Event()
    rounds: list[Round] = []
    faults = [StoreUnavailable("down"), ValueError("no")]

    def recover() -> Round:
        if faults:
            raise faults.pop(0)
        stop.set()
        return Round(finished=2, held=1)

    keep_recovering(recover, stop=stop, every=0.001, told=rounds.append)
    assert rounds == [Round(finished=2, held=1)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert str(rounds[0]) == "2 finished, 1 held"
    assert str(round_of(Counter())) == "nothing unresolved"


def test_a_handler_that_exits_ends_no_thread_of_recovery() -> None:
    """In a thread nobody would notice that nothing is recovered any more; a process that is to end does end."""
    stop = threading.Event()
    rounds: list[Round] = []
    exits = [SystemExit(2)]

    def recover() -> Round:
        if exits:
            raise exits.pop()
        stop.set()
        return Round(finished=1)

    thread = threading.Thread(
        target=keep_recovering, args=(recover,), kwargs={"stop": stop, "every": 0.001, "told": rounds.append}
    )
    thread.start()
    thread.join(20)
    assert rounds == [Round(finished=1)]
    exits.append(SystemExit(2))
    stop.clear()
    with pytest.raises(SystemExit):
        keep_recovering(recover, stop=stop, every=0.001)


@pytest.mark.parametrize(
    ("found", "took", "pause"),
    [
        (Round(held=5000), 2, 40),
        (Round(held=5000), 100, 600),
        (Round(finished=1, held=5000), 2, 10),
        (Round(failed=1), 2, 10),
        (Round(waiting=50, held=1), 500, 10),
        (Round(elsewhere=1, unhandled=1), 2, 10),
        (Round(), 2, 10),
    ],
)
def test_looking_at_thousands_takes_a_twentieth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, found: Round, took: float, pause: float
) -> None:
    """A round that took long and found nothing to do is followed by a longer pause, of ten minutes at most.

    One that did work is not, nor is one that asked a slow provider, or that could not look: the next one is due.
    """
    now = iter([100.0, 100.0 + took])
    monkeypatch.setattr("notwice.recovery.time", SimpleNamespace(monotonic=lambda: next(now)))
    pauses: list[float | None] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            self.set()
            return True

    keep_recovering(lambda: found, stop=Stop(), every=10)
    assert pauses == [pause]


async def test_a_handler_that_was_cancelled_by_itself_does_not_end_the_worker() -> None:
    """A task that a handler waits for may be cancelled: its operation is suspended, and the worker goes on."""
    world = AsyncWorld(recovery=rerun)
    await (await world.begin()).suspend()
    stop = asyncio.Event()
    rounds: list[Round] = []

    @world.guard.recovers(SCOPE)
    async def handler(operation: AsyncOperation) -> str:
        if operation.attempt == 2:
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner
        return "done"

    def told(found: Round) -> None:
        rounds.append(found)
        stop.set()

    async def recover() -> Round:
        world.clock.advance(60)
        return await world.guard.recover()

    await keep_recovering_async(recover, stop=stop, every=0.001, told=told)
    assert rounds == [Round(finished=1)]
