"""The recovery worker of a simulated service: a program that finishes what others have left behind."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from notwice.errors import NotwiceError
from notwice.model import RecoveryKind
from notwice.operation_base import OperationBase
from notwice.testing.history import Name, Outcome
from notwice.testing.simulate.choices import Table
from notwice.testing.simulate.link import CALL
from notwice.testing.simulate.orders import POLICIES, VISIT, Family
from notwice.testing.simulate.program import Program
from notwice.testing.simulate.recorder import Recorder
from notwice.testing.simulate.visit import Plan, Visit

if TYPE_CHECKING:
    from notwice.testing.simulate.payments import Payments

_ROUNDS_S: Final = (12.0, 21.0, 34.0, 55.0, 89.0)
_PLANS: Final = Table((Plan.plain, 3), (None, 2))
_SCOPES: Final = ("charge", "refund")


class Worker:
    """Runs a round of recovery every now and then."""

    def __init__(self, payments: Payments, program: Program) -> None:
        self._payments = payments
        self._program = program
        for number, at in enumerate(_ROUNDS_S):
            payments.world.after(at, None, partial(self._start, number))

    def _start(self, number: int) -> None:
        process = self._program.process
        if process is not None:
            rounds = _Round(self._payments, self._program, f"round-{number + 1}")
            process.at(self._payments.world.now, lambda: self._program.face.start(rounds.run()))


class _Round:
    """One round: a call for each order, of which most come to nothing."""

    def __init__(self, payments: Payments, program: Program, name: str) -> None:
        self._payments = payments
        self._program = program
        self._name = name
        self._visits: dict[Name, Visit] = {}

    async def run(self) -> None:
        """Finish what may be finished."""
        CALL.set(f"{self._name} ")
        VISIT.set(self)
        for order in self._payments.orders:
            self._visits[order.name] = self._visit(order.name)
        handlers: dict[str, Callable[..., Coroutine[Any, Any, object]]] = dict.fromkeys(_SCOPES, self._handle)
        policy = POLICIES[Family.DEDUPLICATED, self._program.face.blocking][0]
        try:
            await self._program.face.recover(handlers, policy)
        except NotwiceError:
            pass  # a later round goes on
        finally:
            for visit in self._visits.values():
                visit.recorder.told(Outcome.CANCELLED)

    def _visit(self, name: Name) -> Visit:
        payments, process = self._payments, self._program.process
        assert process is not None  # it runs this
        choices, order = payments.world.choices, next(order for order in payments.orders if order.name == name)
        recorder = Recorder(process, f"{self._name} {'/'.join(name)}", "worker")
        policy = POLICIES[Family.DEDUPLICATED, self._program.face.blocking][0]
        lax = policy.terms._replace(recovery=RecoveryKind.RERUN, attempts_max=None, rerun_within_ms=None, settle_ms=0)
        recorder.asked(name, None, policy, terms=lax)
        plan = choices.of(_PLANS) or partial(Plan.drawn, choices)
        return Visit(
            self._program.face,
            recorder,
            order=order,
            request={"amount": 1},
            policy=policy,
            plan=replace(plan(), begins=False),
            provider=payments.provider,
        )

    async def _handle(self, operation: OperationBase, **_: Any) -> object:  # noqa: ANN401 - values of a template
        return await self._of(operation).handle()

    async def reconcile(self, operation: Any) -> object:  # noqa: ANN401 - of either face
        """Ask the provider what became of the effect."""
        return await self._of(operation).reconcile(operation)

    def _of(self, operation: OperationBase) -> Visit:
        return self._visits[Name(operation.namespace, operation.scope, operation.key)]
