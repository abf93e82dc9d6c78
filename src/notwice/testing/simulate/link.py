"""The way of one process to the store: where messages are slow, lost, late or torn, and where processes die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, Reply
from notwice.testing.history import Disturbance, Disturbed
from notwice.testing.simulate.weather import GIVE_UP_S, LATENESS_S, STALLS_S, Fate

if TYPE_CHECKING:
    from notwice.testing.simulate.process import Process
    from notwice.testing.simulate.weather import Weather

CALL: Final[ContextVar[str]] = ContextVar("notwice_simulated_call", default="")
"""The call that the running task or thread works for."""


class ProcessDied(BaseException):
    """Raised in whatever a dead process still had to do: nothing of it reaches the world."""


Answer = Callable[[Any], None]
Ask = Callable[[], Any]

_UNARRIVED: Final = frozenset({Fate.REFUSED, Fate.SILENT})
_UNANSWERED: Final = frozenset({Fate.SILENT, Fate.HUSHED})
_FAILING: Final = frozenset({Fate.REFUSED, Fate.LOST, Fate.TORN, Fate.LATE})


class Far(Protocol):
    """What stands at the other end of a link."""

    @property
    def weather(self) -> Weather:
        """How messages fare on their way."""
        ...


class FarStore(Far, Protocol):
    """A store at the other end of a link."""

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that arrived."""
        ...

    def scan(self, query: Query) -> Page:
        """Give a page."""
        ...

    def purge(self, limit: int) -> int:
        """Drop what has expired."""
        ...


class Road:
    """One process's way to something far, with all that can happen on it."""

    def __init__(self, process: Process, far: Far) -> None:
        self._process = process
        self._far = far

    async def ask(self, ask: Ask) -> Any:  # noqa: ANN401 - what the far end gives
        """Have something done at the far end, and wait for the answer as a task."""
        future = self._process.loop.create_future()
        self._send(ask, partial(_resolve, future))
        return await future

    def ask_blocking(self, ask: Ask) -> Any:  # noqa: ANN401 - what the far end gives
        """Have something done at the far end, and wait for the answer as a thread."""
        process = self._process
        process.check_thread()
        self._send(ask, process.waker())
        found = process.block()
        if isinstance(found, BaseException):
            raise found
        return found

    def _send(self, ask: Ask, answer: Answer) -> None:
        process, weather = self._process, self._far.weather
        if not process.alive:
            raise ProcessDied
        choices = process.world.choices
        fate = choices.of(weather.fates)
        trip = _Trip(process, self._far, fate=fate, ask=self._torn(ask) if fate is Fate.TORN else ask, answer=answer)
        if fate is Fate.CRASH_BEFORE:
            process.world.after(0, None, partial(crash, process, "before a trip"))
        elif fate is Fate.STALL_BEFORE:
            stall(process)
            process.at(process.world.now, trip.depart)
        else:
            trip.depart()

    def _torn(self, ask: Ask) -> Ask:
        """What is left of a message that does not get through as a whole."""
        return ask


class AsyncLink(Road):
    """The store as a process's event loop reaches it."""

    def __init__(self, process: Process, store: FarStore) -> None:
        super().__init__(process, store)
        self._store = store
        self.blocking: Final = BlockingLink(self)

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out the batch, as far as the weather lets it."""
        replies: Sequence[Reply] = await self.ask(self._applying(ops))
        return replies

    async def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        page: Page = await self.ask(partial(self._store.scan, query))
        return page

    async def purge(self, limit: int) -> int:
        """Purge the store."""
        gone: int = await self.ask(partial(self._store.purge, limit))
        return gone

    async def close(self) -> None:
        """Nothing: the store outlives its processes."""

    def _applying(self, ops: Sequence[Op]) -> Ask:
        return partial(self._store.apply, ops)

    def _torn(self, ask: Ask) -> Ask:
        """Some operations of a batch are carried out, and others not."""
        if not isinstance(ask, partial) or ask.func != self._store.apply:
            return ask
        below = self._process.world.choices.below
        return partial(self._store.apply, [op for op in ask.args[0] if below(2)])


class BlockingLink:
    """The store as a process's threads reach it."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out the batch, as far as the weather lets it."""
        replies: Sequence[Reply] = self._link.ask_blocking(self._link._applying(ops))
        return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the store."""
        page: Page = self._link.ask_blocking(partial(self._link._store.scan, query))
        return page

    def purge(self, limit: int) -> int:
        """Purge the store."""
        gone: int = self._link.ask_blocking(partial(self._link._store.purge, limit))
        return gone

    def close(self) -> None:
        """Nothing: the store outlives its processes."""


class _Trip:
    """One message and its answer."""

    __slots__ = ("_answer", "_far", "_fate", "_process", "ask")

    def __init__(self, process: Process, far: Far, *, fate: Fate, ask: Ask, answer: Answer) -> None:
        self._process = process
        self._far = far
        self._fate = fate
        self._answer = answer
        self.ask = ask

    def depart(self) -> None:
        world, fate = self._process.world, self._fate
        delay = world.choices.of(self._far.weather.delays)
        if fate is Fate.LATE:
            self._give(_failure("lost"), delay)
            delay += world.choices.of(LATENESS_S)
        if fate in _UNANSWERED:
            self._give(_failure("no answer"), GIVE_UP_S)
        if fate in _UNARRIVED:
            if fate is Fate.REFUSED:
                self._give(_failure("refused"), delay)
            return
        world.after(delay, None, self._arrive)
        if fate is Fate.STALL_AFTER:
            stall(self._process)

    def _arrive(self) -> None:
        world, fate = self._process.world, self._fate
        found: object
        try:
            found = self.ask()
        except Exception as error:  # noqa: BLE001 - whatever a store raises is its answer
            found = error
        if fate is Fate.CRASH_AFTER:
            crash(self._process, "after a trip to the store")
        elif fate not in _UNANSWERED and fate is not Fate.LATE:
            failing = fate in _FAILING
            self._give(_failure("answer lost") if failing else found, world.choices.of(self._far.weather.delays))

    def _give(self, found: object, seconds: float) -> None:
        process = self._process
        process.at(process.world.now + seconds, partial(self._answer, found))


def crash(process: Process, detail: str) -> None:
    """Let a process die."""
    if process.alive:
        process.note(
            Disturbed(at_ns=process.world.now_ns, kind=Disturbance.KILLED, process=process.name, detail=detail)
        )
        process.kill()


def stall(process: Process) -> None:
    """Let a process stand still, perhaps for longer than its leases last."""
    world = process.world
    seconds = world.choices.of(STALLS_S)
    if not process.stalled:
        process.stalled = True
        process.note(
            Disturbed(at_ns=world.now_ns, kind=Disturbance.PAUSED, process=process.name, detail=f"{seconds} s")
        )
        process.at(world.now, partial(_resume, process))
    process.pause(seconds)


def _resume(process: Process) -> None:
    process.stalled = False
    process.note(Disturbed(at_ns=process.world.now_ns, kind=Disturbance.RESUMED, process=process.name))


def _failure(detail: str) -> Exception:
    return StoreUnavailable(f"simulated: {detail}")


def _resolve(future: asyncio.Future[Any], found: object) -> None:
    if future.done():
        return
    if isinstance(found, BaseException):
        future.set_exception(found)
    else:
        future.set_result(found)
