"""The simulator over ranges of seeds: no promise is broken, whatever breaks; a release runs fifty times as many."""

from __future__ import annotations

import pytest

from notwice.testing.simulate import Mode, explore

SAFETY, LIVENESS, WEB = 20_000, 2_000, 500
PART = 1_000


def check(seeds: range, mode: Mode) -> None:
    """Show the first seed that fails, with the command that draws it."""
    for failing in explore(seeds, mode):
        command = f"python -m notwice.testing.simulate --seeds {failing.seed} --mode {mode}"
        pytest.fail("\n".join([f"seed {failing.seed} failed; draw it by: {command}", *failing.problems]))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SAFETY, PART))
def test_nothing_wrong_happens_whatever_breaks(first: int) -> None:
    """P1 to P7, P9, P10, P13: under crashes, losses, pauses, outages, clock steps and operators, none is broken."""
    check(range(first, first + PART), Mode.SAFETY)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, LIVENESS, PART))
def test_everything_settles_once_nothing_breaks(first: int) -> None:
    """P4, P9: once all faults are over, every operation has its answer within a lease and two tries."""
    check(range(first, first + PART), Mode.LIVENESS)


def test_nothing_wrong_happens_through_http() -> None:
    """P1 to P7, P9 to P11, P13 through the ASGI face: the same, as clients of a web service see it."""
    check(range(WEB), Mode.HTTP)
