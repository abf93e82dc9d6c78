"""What is broken in a run apart from single trips: processes, the store, its clocks; and when all that ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from notwice.testing.history import Disturbance, Disturbed
from notwice.testing.simulate.choices import Table
from notwice.testing.simulate.link import crash, stall
from notwice.testing.simulate.weather import LEASE_S

if TYPE_CHECKING:
    from notwice.testing.simulate.payments import Payments

_COUNTS: Final = Table((0, 2), (1, 3), (2, 4), (4, 1))
_TIMES_S: Final = Table(
    (1.0, 2), (0.002, 3), (0.0005, 2), (3.0, 2), (LEASE_S, 1), (LEASE_S + 1, 2), (25.0, 2), (39.0, 1)
)
_BATCH: Final = -1
_WRITES: Final = Table((0, 2), (1, 3), (2, 2), (3, 1), (5, 1), (_BATCH, 3))
"""After how many writes the time counts: what is aimed hits more often than what comes at any time.

`_BATCH`: after the next batch of several writes.
"""
_OUTAGES_S: Final = Table((0.5, 3), (3.0, 2), (LEASE_S + 2, 2))
_STEPS_MS: Final = Table((-120_000, 2), (120_000, 2), (3_540_000, 1), (-3_540_000, 1), (5_400_000, 1))


def disturb(payments: Payments) -> None:
    """Plan what is going to be broken in this run, and when."""
    choices = payments.world.choices
    for _ in range(choices.of(_COUNTS)):
        disturbance, delay = partial(_disturb, payments, choices.of(_KINDS)), choices.of(_TIMES_S)
        writes = choices.of(_WRITES)
        later = partial(payments.world.after, delay, None, disturbance)
        if writes == _BATCH:
            payments.world.server.after_batch(later)
        elif writes:
            payments.world.server.after_writes(writes, later)
        else:
            later()


def _disturb(payments: Payments, kind: Callable[[Payments], None]) -> None:
    if not payments.calm:
        kind(payments)


def _move(payments: Payments) -> None:
    payments.console.move(payments.world.choices.one(payments.orders))


def _purge(payments: Payments) -> None:
    payments.console.purge()


def _kill(payments: Payments) -> None:
    process = payments.world.choices.one(payments.programs).process
    if process is not None:
        crash(process, "by chance")


def _pause(payments: Payments) -> None:
    process = payments.world.choices.one(payments.programs).process
    if process is not None:
        stall(process)


def _outage(payments: Payments) -> None:
    world = payments.world
    world.server.down = True
    _note(payments, Disturbance.OUTAGE)
    world.after(world.choices.of(_OUTAGES_S), None, partial(_end_outage, payments))


def _end_outage(payments: Payments) -> None:
    payments.world.server.down = False
    _note(payments, Disturbance.OUTAGE_OVER)


def _step_clock(payments: Payments) -> None:
    by_ms = payments.world.choices.of(_STEPS_MS)
    payments.world.clock.step_wall(by_ms)
    _note(payments, Disturbance.CLOCK_STEP, by_ms)


def _restart_store(payments: Payments) -> None:
    _note(payments, Disturbance.STORE_RESTART)
    payments.world.server.restart()


def _cut_power(payments: Payments) -> None:
    """All of it stands on one host, which goes down."""
    _note(payments, Disturbance.REBOOT)
    for program in payments.programs:
        if program.process is not None:
            crash(program.process, "power cut")
    payments.world.server.restart()
    payments.world.clock.reboot()


def _note(payments: Payments, kind: Disturbance, by_ms: int = 0) -> None:
    payments.world.events.append(Disturbed(at_ns=payments.world.now_ns, kind=kind, by_ms=by_ms))


_KINDS: Final = Table(
    (_move, 5),
    (_purge, 2),
    (_kill, 4),
    (_pause, 4),
    (_outage, 2),
    (_step_clock, 2),
    (_restart_store, 3),
    (_cut_power, 1),
)
