"""The built-in scenario: clients, a few programs, a provider, an operator and somebody who breaks things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from notwice.core import PAUSE_MAX_MS
from notwice.testing.history import Calm, Outcome
from notwice.testing.simulate.choices import Table
from notwice.testing.simulate.console import Console
from notwice.testing.simulate.disturbances import disturb
from notwice.testing.simulate.faces import Face, TaskFace, ThreadFace
from notwice.testing.simulate.orders import Order
from notwice.testing.simulate.process import Process
from notwice.testing.simulate.program import Program
from notwice.testing.simulate.provider import Provider
from notwice.testing.simulate.recorder import Recorder
from notwice.testing.simulate.visit import Plan, Visit
from notwice.testing.simulate.weather import LEASE_S
from notwice.testing.simulate.web import LOOKED_UP, WebFace, WebVisit
from notwice.testing.simulate.worker import Worker
from notwice.testing.simulate.world import MICROSECONDS, World

_PROGRAMS: Final = Table((1, 2), (2, 4), (3, 2))
_FACES: Final[Table[Callable[[Process], Face]]] = Table((TaskFace, 3), (ThreadFace, 1))
_ORDERS: Final = Table((1, 5), (2, 4), (3, 1))
_CLIENTS: Final = Table((2, 3), (3, 4), (4, 3), (6, 2))
_TRIES: Final = Table((1, 2), (2, 4), (3, 3), (5, 1))
_STARTS_S: Final = Table((0.0, 6), (0.0004, 3), (0.002, 3), (0.5, 3), (2.0, 3), (LEASE_S, 2), (25.0, 1))
_PATIENCE_S: Final = Table((4.0, 4), (0.05, 1), (1.0, 2), (LEASE_S + 3, 3))
_RETRIES_S: Final = Table((1.0, 5), (0.002, 3), (0.1, 2), (LEASE_S + 0.5, 4), (2 * LEASE_S, 1), (0.0, 4))
"""How long a client waits before it calls again; 0: until the last write is just about to be a lease old."""
_EDGES_S: Final = Table((0.0, 3), (-0.001, 2), (-0.0021, 2), (-0.02, 2), (-0.045, 1))
_OTHER_REQUEST: Final = Table((False, 9), (True, 1))
SETTLED: Final = frozenset({Outcome.DONE, Outcome.REPLAY, Outcome.MISMATCH})

DURATION_S: Final = 110.0
CLEAR_AT_S: Final = 40.0
CALM_AT_S: Final = CLEAR_AT_S + 40.0
"""By then whoever was paused has come back, what was late has arrived, and handlers have come to their end."""
SETTLE_TRIES: Final = 4
"""At once, after a lease, and two more: by then everything must be settled."""
SETTLED_AT_S: Final = CALM_AT_S + LEASE_S + 80.0 + PAUSE_MAX_MS / 1000
"""A worker whose handler said that nothing was done leaves its operation alone for five minutes."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants, and how stubborn it is."""

    client: str
    order: Order
    body: object
    tries: int
    plan: Callable[[], Plan]
    settles: bool = False


class Payments:
    """One run of the scenario in a world.

    Arguments:
        world: where it takes place; all that is random is drawn from its choices.
        web: whether the programs serve requests, instead of being called.
    """

    def __init__(self, world: World, *, web: bool = False) -> None:
        self.world: Final = world
        self._visits = WebVisit if web else Visit
        choices = world.choices
        self.programs: Final = [
            Program(world, "ABC"[number], WebFace if web else choices.of(_FACES))
            for number in range(choices.of(_PROGRAMS))
        ]
        self.orders: Final = [Order.drawn(choices, number) for number in range(choices.of(_ORDERS))]
        promised = any(order.needs_deduplication for order in self.orders)
        self.provider: Final = Provider.drawn(world, choices, deduplicates=promised)
        self.calm = False
        self.console: Final = Console(world, found=LOOKED_UP if web else "looked up")
        if not web and choices.below(3) == 1:
            self.programs.append(Program(world, "worker", choices.of(_FACES)))
            self.worker: Final = Worker(self, self.programs[-1])
        for number in range(choices.of(_CLIENTS)):
            self._add_client(number)
        if len(self.orders) > 1 and choices.below(3) == 1:
            world.after(choices.of(_STARTS_S), None, self._burst)
        disturb(self)

    def _add_client(self, number: int) -> None:
        choices = self.world.choices
        request = Request(
            client=f"client-{number + 1}",
            order=choices.one(self.orders),
            body={"amount": 2 if choices.of(_OTHER_REQUEST) else 1},
            tries=choices.of(_TRIES),
            plan=partial(Plan.drawn, choices),
        )
        self.world.after(choices.of(_STARTS_S), None, partial(self.attempt, request, 1))

    def _burst(self) -> None:
        """One client asks for all orders in one moment, so that they share trips and heartbeats."""
        program, plan = self.world.choices.one(self.programs), partial(Plan.drawn, self.world.choices)
        requests = [
            Request(f"burst-{number}", order, {"amount": 1}, tries=1, plan=plan)
            for number, order in enumerate(self.orders)
        ]
        calls = [self._call(request, 1, program) for request in requests]
        if program.process is not None:
            program.process.at(self.world.now, lambda: [call() for call in calls])

    def attempt(self, request: Request, number: int) -> None:
        """Let a client make a call, for the `number`-th time."""
        program = self.world.choices.one(self.programs)
        call = self._call(request, number, program)
        if program.process is not None:
            program.process.at(self.world.now, call)

    def _call(self, request: Request, number: int, program: Program) -> Callable[[], None]:
        """Prepare a client's call; nobody is there to take it while the program is down."""
        world, process = self.world, program.process
        attempt = _Attempt(self, request, number)
        if process is None:
            attempt.again(1.0)
            return _nothing
        recorder = Recorder(process, f"{request.client}.{number}", request.client)
        plan = request.plan()
        visit = self._visits(
            program.face,
            recorder,
            order=request.order,
            request=request.body,
            policy=request.order.policy(world.choices, blocking=program.face.blocking),
            plan=plan,
            provider=self.provider,
        )
        attempt.follow(visit)
        return partial(self._start, program, visit, plan=plan, attempt=attempt)

    def _start(self, program: Program, visit: Visit, *, plan: Plan, attempt: _Attempt) -> None:
        process = visit.recorder.process
        cancel = program.face.start(attempt.carry_out())
        if cancel is not None and plan.cancelled_after is not None:
            process.at(self.world.now + plan.cancelled_after, cancel)

    def pause(self) -> float:
        """How long a client waits before it calls again."""
        seconds = self.world.choices.of(_RETRIES_S)
        if seconds:
            return seconds
        edge = self.world.server.written_us / MICROSECONDS + LEASE_S + self.world.choices.of(_EDGES_S)
        return max(0.001, edge - self.world.now)

    def clear(self) -> None:
        """End all faults: from now on nothing is broken, and nobody new comes."""
        self.calm = True
        self.world.server.weather.clear()
        self.provider.weather.clear()

    def settle(self) -> None:
        """Have every order asked for, once what was under way has come to its end."""
        self.world.events.append(Calm(at_ns=self.world.now_ns))
        for number, order in enumerate(self.orders):
            request = Request(f"settler-{number + 1}", order, {"amount": 1}, SETTLE_TRIES, Plan.plain, settles=True)
            self.attempt(request, 1)


def _nothing() -> None:
    """Nobody takes this call."""


class _Attempt:
    """One call of a client, and the next one that follows it."""

    def __init__(self, payments: Payments, request: Request, number: int) -> None:
        self._payments = payments
        self._request = request
        self._number = number
        self._over = False

    def follow(self, visit: Visit) -> None:
        """Make the call, unless the client loses its patience: then it calls again while the first one runs."""
        self._visit = visit
        if self._number < self._request.tries and not self._request.settles:
            self._payments.world.after(self._payments.world.choices.of(_PATIENCE_S), None, self._lose_patience)

    async def carry_out(self) -> None:
        """Make the call in its process, and hear of its end."""
        try:
            await self._visit.run()
        finally:
            if self._visit.recorder.process.alive:
                self._payments.world.after(0.0005, None, self._answered)

    def _lose_patience(self) -> None:
        if not self._over:
            self.again(0.0)

    def _answered(self) -> None:
        if not self._over and self._visit.recorder.outcome not in SETTLED:
            self.again(self._payments.pause() if not self._request.settles else self._until_settled())
        self._over = True

    def _until_settled(self) -> float:
        """A settler waits for a lease first, and then as long as it is told."""
        return LEASE_S + 0.1 if self._number == 1 else float(self._visit.recorder.retry_after or 1)

    def again(self, seconds: float) -> None:
        """Call once more after a while, if the client still wants to."""
        self._over = True
        if self._number < self._request.tries and (self._request.settles or not self._payments.calm):
            world = self._payments.world
            world.after(seconds, None, partial(self._payments.attempt, self._request, self._number + 1))
