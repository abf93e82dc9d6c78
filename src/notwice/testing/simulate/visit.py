"""One call of the built-in scenario: what its handler does, and what its caller is told."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from notwice.errors import NotApplied, NotCompleted, StoreUnavailable
from notwice.fingerprint import fingerprint_value
from notwice.operation import current_operation
from notwice.operation_base import OperationBase
from notwice.policy import NOT_APPLIED, UNKNOWN, Applied, Policy
from notwice.steps import current_step
from notwice.testing.history import Move, Verdict
from notwice.testing.simulate.choices import Choices, Table
from notwice.testing.simulate.faces import AnyOperation, Face
from notwice.testing.simulate.link import CALL
from notwice.testing.simulate.orders import VISIT, Boom, Declined, Order
from notwice.testing.simulate.recorder import Recorder
from notwice.testing.simulate.weather import GIVE_UP_S, LEASE_S

if TYPE_CHECKING:
    from notwice.testing.simulate.provider import Provider


class Ending(Enum):
    """How a handler ends."""

    ANSWER = "answer"
    NOT_APPLIED = "not_applied"  # it raises so before it does anything
    TOUCHED = "touched"  # the same, but it has taken its downstream key
    DECLINED = "declined"
    BOOM = "boom"
    ABANDON = "abandon"  # by a move of its own, where it can make one
    SUSPEND = "suspend"
    FAIL = "fail"
    LEAVE = "leave"  # without any move


_WITHOUT_EFFECT: Final = frozenset({Ending.NOT_APPLIED, Ending.TOUCHED, Ending.ABANDON})
_OWN_MOVES: Final = frozenset({Ending.ABANDON, Ending.SUSPEND, Ending.FAIL, Ending.LEAVE})
_ENDINGS: Final = Table(
    (Ending.ANSWER, 24),
    (Ending.NOT_APPLIED, 5),
    (Ending.TOUCHED, 1),
    (Ending.DECLINED, 2),
    (Ending.BOOM, 2),
    (Ending.ABANDON, 2),
    (Ending.SUSPEND, 1),
    (Ending.FAIL, 1),
    (Ending.LEAVE, 1),
)
_PAUSES: Final = Table((0.0, 24), (0.5, 6), (2.0, 3), (LEASE_S / 3, 1), (LEASE_S * 0.9, 2), (LEASE_S * 1.4, 2))
_LONG: Final = "and so on, " * 20
_RARELY: Final = Table((False, 5), (True, 1))
_CANCELS: Final = Table((None, 60), (0.0005, 2), (0.0015, 2), (0.003, 1), (0.9, 1), (4.0, 2))


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call is going to do."""

    begins: bool
    ending: Ending
    thinks: float
    lingers: float
    confirms: bool
    checkpoints: bool
    long_answer: bool
    cancelled_after: float | None

    @classmethod
    def drawn(cls, choices: Choices) -> Plan:
        """A plan drawn for one call."""
        return cls(
            begins=choices.below(3) == 1,
            ending=choices.of(_ENDINGS),
            thinks=choices.of(_PAUSES),
            lingers=choices.of(_PAUSES),
            confirms=choices.of(_RARELY),
            checkpoints=choices.of(_RARELY),
            long_answer=choices.of(_RARELY),
            cancelled_after=choices.of(_CANCELS),
        )

    @classmethod
    def plain(cls) -> Plan:
        """A call whose handler causes its effect and answers."""
        return cls(
            begins=False,
            ending=Ending.ANSWER,
            thinks=0.0,
            lingers=0.0,
            confirms=False,
            checkpoints=False,
            long_answer=False,
            cancelled_after=None,
        )


class Visit:
    """One call in one process. `recorder` knows what it came to."""

    def __init__(
        self,
        face: Face,
        recorder: Recorder,
        *,
        order: Order,
        request: object,
        policy: Policy,
        plan: Plan,
        provider: Provider,
    ) -> None:
        self.recorder: Final = recorder
        self._face = face
        self._order = order
        self._request = request
        self._policy = policy
        self._plan = plan
        self._provider = provider

    async def run(self) -> None:
        """Make the call."""
        CALL.set(self.recorder.call)
        VISIT.set(self)
        name, policy = self._order.name, self._policy
        request = fingerprint_value(self._request).digest.hex()
        self.recorder.asked(name, request, policy, answer_within_ms=bound_ms(policy))
        options: Any = {"request": self._request, "policy": policy, "namespace": name.namespace}
        try:
            if self._plan.begins:
                await self._begin(options)
            else:
                self.recorder.done(await self._face.call(self.handle, scope=name.scope, key=name.key, **options))
        except asyncio.CancelledError:
            self.recorder.cancelled()
            raise
        except Exception as error:  # noqa: BLE001 - whatever the guard raises is an answer to be judged
            self.recorder.raised(error)

    async def _begin(self, options: Any) -> None:  # noqa: ANN401 - the options of a guard's begin
        outcome = await self._face.begin(self._order.name.scope, self._order.name.key, **options)
        if isinstance(outcome, OperationBase):
            self.recorder.owned(outcome)
            with suppress(NotCompleted):
                await self._face.inside(outcome, partial(self._own, outcome))
        else:
            self.recorder.given(outcome)

    async def _own(self, operation: AnyOperation) -> None:
        """What the owner of an operation does that it began by itself."""
        value = await self.handle()
        ending, move = self._plan.ending, self._face.move
        match ending:
            case Ending.ABANDON:
                with self.recorder.move(Move.ABANDON):
                    await move(operation.abandon)
            case Ending.SUSPEND:
                with self.recorder.move(Move.SUSPEND):
                    await move(partial(operation.suspend, "it is not known"))
            case Ending.FAIL:
                with self.recorder.move(Move.FAIL):
                    await move(partial(operation.fail, value))
            case Ending.LEAVE:
                self.recorder.left()
            case _:
                with self.recorder.move(Move.COMPLETE):
                    await move(partial(operation.complete, value))

    async def handle(self) -> object:
        """The handler."""
        operation = current_operation()
        self.recorder.entered(operation)
        try:
            value = await self._work(operation)
        except Declined as error:
            self.recorder.refused(error)
            raise
        except BaseException as error:
            self.recorder.failed(error)
            raise
        left = self._plan.begins and self._plan.ending in _OWN_MOVES
        failed = left and self._plan.ending is Ending.FAIL
        self.recorder.produced(value, failed=failed, final=failed or not left)
        return value

    async def _work(self, operation: AnyOperation) -> object:
        plan, ending = self._plan, self._plan.ending
        if plan.thinks:
            await self._face.sleep(plan.thinks)
        if ending is Ending.NOT_APPLIED or (ending is Ending.ABANDON and not plan.begins):
            raise NotApplied
        if plan.confirms:
            with self.recorder.move(Move.CONFIRM):
                await self._face.move(operation.confirm)
        if ending is Ending.ABANDON:
            return "nothing"
        key = operation.downstream_key("charge")
        if ending is Ending.TOUCHED:
            raise NotApplied
        effect = await (self._in_steps(operation) if self._order.in_steps else self._charge(key))
        if plan.checkpoints:
            with self.recorder.move(Move.CHECKPOINT, "charged"):
                await self._face.move(partial(operation.checkpoint, "charged", effect))
        if plan.lingers:
            await self._face.sleep(plan.lingers)
        if ending is Ending.DECLINED:
            raise Declined(effect)
        if ending is Ending.BOOM or (ending in _OWN_MOVES and not plan.begins):
            raise Boom
        return [effect, _LONG] if plan.long_answer else effect

    async def _charge(self, key: str, step: str = "") -> str:
        charge = partial(self._provider.charge, self.recorder.call, key, step)
        return await self._face.ask(self._provider, charge)

    async def _in_steps(self, operation: AnyOperation) -> str:
        """Cause two effects, each in a step that is skipped once it is known done."""
        effect = await self._step(operation, "charge")
        await self._step(operation, "mail")
        return effect

    async def _step(self, operation: AnyOperation, name: str) -> str:
        ran = self.recorder.step(name)

        async def step() -> str:
            effect = await self._charge(current_step().downstream_key(), name)
            ran.asked()
            return effect

        with ran:
            return await self._face.step(operation, name, step)

    async def reconcile(self, operation: OperationBase) -> object:
        """Ask the provider what became of the effect."""
        key = operation.downstream_key("charge")
        try:
            found = await self._face.ask(self._provider, partial(self._provider.find, key))
        except StoreUnavailable:
            self.recorder.reconciled(Verdict.UNKNOWN)
            return UNKNOWN
        if found is None:
            self.recorder.reconciled(Verdict.NOT_APPLIED)
            return NOT_APPLIED
        self.recorder.reconciled(Verdict.APPLIED)
        return Applied(self._applied(found))

    def _applied(self, found: str) -> object:
        """The answer of an effect that was found at the provider."""
        self.recorder.produced(found)
        return found


def bound_ms(policy: Policy) -> int:
    """By when an answer must be there that runs no handler: all waiting, and what each asking of the store may take."""
    asks = 4  # a begin, one more after the waiting, a last move of a reconcile, a look-up
    return int(1000 * (policy.wait_seconds + asks * max(policy.store_timeout_seconds, GIVE_UP_S)))
