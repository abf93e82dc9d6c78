"""The operator of a simulated service, and the one who purges its store, with a process of their own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from notwice.errors import NotwiceError
from notwice.results import result_of
from notwice.testing.history import OperatorMove, OperatorMoved, answer_of
from notwice.testing.simulate.choices import Table
from notwice.testing.simulate.link import CALL
from notwice.testing.simulate.orders import Order
from notwice.testing.simulate.process import Process

if TYPE_CHECKING:
    from notwice.testing.simulate.world import World

_THINKS_S: Final = Table((0.0, 3), (0.003, 2), (1.0, 1), (6.0, 1))
_RARELY: Final = Table((False, 5), (True, 1))


class Console:
    """Looks operations up, thinks, and makes a move on what it saw. `found` is the answer that it resolves with."""

    def __init__(self, world: World, *, found: object) -> None:
        self._world = world
        self._found = found
        self._process = Process(world, "console")
        self._guard = self._process.guard()
        self._moves = 0
        self._moved = world.server.operators

    def move(self, order: Order) -> None:
        """Resolve or release the operation, if it is there and not running."""
        self._moves += 1
        who = f"operator-{self._moves}"
        self._process.at(self._world.now, lambda: self._process.task(self._move(order, who)))

    def purge(self) -> None:
        """Drop what has expired."""
        self._process.at(self._world.now, lambda: self._process.task(self._purge()))

    async def _purge(self) -> None:
        with suppress(NotwiceError):
            await self._guard.purge()

    async def _move(self, order: Order, who: str) -> None:
        choices, name = self._world.choices, order.name
        with suppress(NotwiceError):
            view = await self._guard.lookup(name.scope, name.key, namespace=name.namespace)
            await asyncio.sleep(choices.of(_THINKS_S))
            if view is None:
                return
            options: dict[str, Any] = {"who": who, "why": "simulated", "force": choices.of(_RARELY)}
            event = OperatorMoved(at_ns=0, name=name, move=OperatorMove.RELEASE, who=who, forced=options["force"])
            kind = choices.below(3)
            if kind == 1:
                event = replace(
                    event, move=OperatorMove.RESOLVE, answer=answer_of(result_of(self._found), failed=False)
                )
                ask = partial(self._guard.resolve, view, self._found, **options)
            else:
                options |= {"from_start": choices.of(_RARELY), "new_downstream_key": choices.of(_RARELY)}
                event = replace(
                    event, from_start=options["from_start"], new_downstream_key=options["new_downstream_key"]
                )
                ask = partial(self._guard.release, view, **options)
            self._moved[who] = event
            CALL.set(who)
            await ask()
