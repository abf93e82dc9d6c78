"""What runs of the simulator have found in the guard, each as a case of its own, with the seed that showed it."""

from __future__ import annotations

import asyncio

from notwice import Policy, Unresolved
from notwice.testing.simulate import Choices, Mode, Process, Table, World, run

LEASE_S = 10


def test_a_leaver_who_is_interrupted_renews_no_lease() -> None:
    """Liveness seed 6440: a handler ended while a slow heartbeat was under way, and its caller went away before that.

    The suspending move was waiting for the heartbeat to end, and was never made; the heartbeat went on for an hour,
    so that every duplicate was told that the operation was running.
    """
    world = World(Choices(1))
    process = Process(world, "p")
    guard = process.guard(policy=Policy(lease=LEASE_S))
    outcomes = []

    async def breaks() -> None:
        await asyncio.sleep(3.5)
        raise TimeoutError

    async def call() -> None:
        await guard.run(breaks, scope="s", key="k")

    async def ask_again() -> None:
        await asyncio.sleep(4 + LEASE_S)
        outcomes.append(await guard.begin("s", "k"))

    caller = process.task(call())  # held: what it raised keeps its operation from being collected
    process.task(ask_again())
    world.after(3.3, None, lambda: setattr(world.server.weather, "delays", Table((0.4, 1))))
    world.after(4.0, process, caller.cancel)
    world.after(4.2, None, world.server.weather.clear)
    world.run(until=60)
    world.end()
    assert caller.cancelled()
    assert isinstance(outcomes[0], Unresolved)


def test_the_seeds_that_found_something_are_sound() -> None:
    """The runs that showed it, as far as the scenario still draws them.

    Safety seed 184649: the host of the store lost its power while a charge was on its way to a provider that does not
    de-duplicate. Under another boot the owner's silence counted as endless, so `reconcile`'s "not applied" was taken at
    once, and the first charge arrived after the second.

    Safety seed 303185 showed a mistake of the judge: an operator's forced release came between the claim of an owner
    and the start of its handler, which was taken for the one that the release had let in. So did 418688, where such an
    owner repeated a step that the next attempt had done, and 399679, where one was cancelled in its last move, which
    was then suspended behind it.
    """
    assert not run(6440, Mode.LIVENESS).problems
    assert not run(184_649, Mode.SAFETY).problems
    for seed in (303_185, 399_679, 418_688):
        assert not run(seed, Mode.SAFETY).problems
