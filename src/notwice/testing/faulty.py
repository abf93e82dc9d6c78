"""A store that loses requests and replies on demand, for what happens when the real one does."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from notwice.errors import StoreUnavailable
from notwice.model import Op, Page, Query, Reply
from notwice.stores.port import AsyncStore, Store
from notwice.testing.clock import VirtualClock

Trouble = Literal["ok", "lost", "drop", "late"]
"""What becomes of a call.

- ``ok``: carried out and answered.
- ``lost``: carried out, but the caller gets `StoreUnavailable`.
- ``drop``: never carried out; the caller gets `StoreUnavailable`.
- ``late``: carried out when `deliver` is called; the caller gets `StoreUnavailable` now.
"""


@dataclass(frozen=True, slots=True)
class Slow:
    """The call is carried out and answered, and takes `seconds` of the plan's virtual clock."""

    seconds: float


class Pause:
    """The call stops until `release` is called; `reached` says that it has got there.

    With ``applied=True`` it stops after it was carried out and before its reply, else before it is carried out.
    """

    def __init__(self, *, applied: bool = False) -> None:
        self.applied = applied
        self.reached = threading.Event()
        self._go = threading.Event()
        self._lock = threading.Lock()
        self._tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def release(self) -> None:
        """Let the call go on."""
        with self._lock:
            self._go.set()
            tasks, self._tasks = self._tasks, []
        for loop, event in tasks:
            loop.call_soon_threadsafe(event.set)

    def stop(self) -> None:
        """Block this thread until `release`."""
        self.reached.set()
        self._go.wait()

    async def stop_async(self) -> None:
        """Hold this task until `release`; it can be cancelled meanwhile."""
        event = asyncio.Event()
        with self._lock:
            if not self._go.is_set():
                self._tasks.append((asyncio.get_running_loop(), event))
            else:
                event.set()
        self.reached.set()
        await event.wait()


Look = Callable[[Sequence[Op]], Trouble | None]
"""Runs before the call, with its batch, and may choose what becomes of it; ``None`` is ``ok``."""

Fault = Trouble | Slow | Pause | Look


class FaultPlan:
    """What becomes of the next calls: first the script, then chance by `rates`, and at last ``ok``.

    Arguments:
        script: one fault for each of the next calls.
        clock: the virtual clock that `Slow` moves.
        rates: how likely each trouble is for a call beyond the script, from 0 to 1 each.
        seed: of the chance, so that a run can be repeated; it stands in every error that the plan causes.

    ``calls`` and ``ops`` count what was asked, whatever became of it; ``down`` makes all calls fail like ``drop``;
    ``late`` holds the batches that are still to be carried out.
    """

    def __init__(
        self,
        *script: Fault,
        clock: VirtualClock | None = None,
        rates: Mapping[Trouble, float] | None = None,
        seed: int | None = None,
    ) -> None:
        self.calls = 0
        self.ops = 0
        self.down = False
        self.seed = secrets.randbits(32) if seed is None else seed
        self.clock = clock
        self.late: deque[Sequence[Op]] = deque()
        self._script: deque[Fault] = deque(script)
        self._rates = dict(rates or {})
        self._random = random.Random(self.seed)  # noqa: S311 - chosen faults must be repeatable, not secret
        self._lock = threading.Lock()

    def add(self, *script: Fault) -> None:
        """Append one fault for each of the calls that follow those already planned."""
        with self._lock:
            self._script.extend(script)

    @property
    def planned(self) -> int:
        """How many scripted faults are still to come."""
        return len(self._script)

    def take(self, ops: Sequence[Op]) -> Trouble | Slow | Pause:
        """Count one call and choose its fate."""
        with self._lock:
            self.calls += 1
            self.ops += len(ops)
            fault = "drop" if self.down else self._script.popleft() if self._script else self._chance()
        return (fault(ops) or "ok") if callable(fault) else fault

    def check_up(self) -> None:
        """Raise `StoreUnavailable` while the store is down."""
        if self.down:
            raise self.unavailable("down")

    def move_clock(self, fault: Slow) -> None:
        """Let the time pass that a slow call takes."""
        if self.clock is None:
            raise ValueError("a slow call needs a virtual clock: make the plan with FaultPlan(clock=...)")
        self.clock.advance(fault.seconds)

    def unavailable(self, what: str) -> StoreUnavailable:
        """The error of a call that got no reply."""
        return StoreUnavailable(f"planned fault: {what} (call {self.calls}, seed {self.seed})")

    def _chance(self) -> Trouble:
        drawn = self._random.random() if self._rates else 1.0
        for trouble, rate in self._rates.items():
            drawn -= rate
            if drawn < 0:
                return trouble
        return "ok"


class FaultyStore:
    """A `Store` in front of another one that treats each `apply` as its plan says.

    `scan` and `purge` go through unless ``plan.down`` is set.
    """

    def __init__(self, inner: Store, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan or FaultPlan()

    def script(self, *faults: Fault) -> None:
        """Plan one fault for each of the next calls of `apply`."""
        self.plan.add(*faults)

    def deliver(self) -> list[Sequence[Reply]]:
        """Carry out the calls that were ``late``, in their order, and give what they found."""
        delivered = []
        while self.plan.late:
            delivered.append(self.inner.apply(self.plan.late.popleft()))
        return delivered

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out the batch, or not, as planned."""
        fault = self.plan.take(ops)
        if fault == "late":
            self.plan.late.append(tuple(ops))
        if fault in {"late", "drop"}:
            raise self.plan.unavailable(str(fault))
        if isinstance(fault, Slow):
            self.plan.move_clock(fault)
        if isinstance(fault, Pause) and not fault.applied:
            fault.stop()
        replies = self.inner.apply(ops)
        if isinstance(fault, Pause) and fault.applied:
            fault.stop()
        if fault == "lost":
            raise self.plan.unavailable("lost")
        return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the store below."""
        self.plan.check_up()
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        """Purge the store below."""
        self.plan.check_up()
        return self.inner.purge(limit)

    def close(self) -> None:
        """Close the store below."""
        self.inner.close()


class AsyncFaultyStore:
    """`FaultyStore` for an event loop. Its blocking face follows the same plan."""

    def __init__(self, inner: AsyncStore, plan: FaultPlan | None = None) -> None:
        self.inner = inner
        self.plan = plan or FaultPlan()
        self._blocking: FaultyStore | None = None

    @property
    def blocking(self) -> Store:
        """The same records under the same plan, for callers outside a loop."""
        if self._blocking is None:
            self._blocking = FaultyStore(self.inner.blocking, self.plan)
        return self._blocking

    def script(self, *faults: Fault) -> None:
        """Plan one fault for each of the next calls of `apply`, whichever face they come by."""
        self.plan.add(*faults)

    async def deliver(self) -> list[Sequence[Reply]]:
        """Carry out the calls that were ``late``, in their order, and give what they found."""
        delivered = []
        while self.plan.late:
            delivered.append(await self.inner.apply(self.plan.late.popleft()))
        return delivered

    async def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out the batch, or not, as planned."""
        fault = self.plan.take(ops)
        if fault == "late":
            self.plan.late.append(tuple(ops))
        if fault in {"late", "drop"}:
            raise self.plan.unavailable(str(fault))
        if isinstance(fault, Slow):
            self.plan.move_clock(fault)
        if isinstance(fault, Pause) and not fault.applied:
            await fault.stop_async()
        replies = await self.inner.apply(ops)
        if isinstance(fault, Pause) and fault.applied:
            await fault.stop_async()
        if fault == "lost":
            raise self.plan.unavailable("lost")
        return replies

    async def scan(self, query: Query) -> Page:
        """Give one page of the store below."""
        self.plan.check_up()
        return await self.inner.scan(query)

    async def purge(self, limit: int) -> int:
        """Purge the store below."""
        self.plan.check_up()
        return await self.inner.purge(limit)

    async def close(self) -> None:
        """Close the store below."""
        await self.inner.close()
