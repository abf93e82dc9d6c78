"""The simulator itself: it finds seeded bugs, repeats a run exactly, makes it simpler and draws it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree as ET  # the name that everybody knows

import pytest

from notwice import Policy, RecordView, Replay, rerun
from notwice.testing.simulate import Choices, Mode, Process, World, explore, run, shrink, svg_of, text_of
from notwice.testing.simulate.__main__ import main, simplest
from notwice.testing.simulate.process import OutsideOfThreadError
from notwice.testing.simulate.world import Endless
from tests.simulation.bugs import BUGS, Bug, replaced

DIGESTS = """
from notwice.testing.simulate import Mode, run
print([run(seed, mode).digest for mode in Mode for seed in range(15)])
"""


def digests(hash_seed: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return ran.stdout


def test_one_seed_is_one_history() -> None:
    """The same seeds give the same histories in another process with another hash seed; other seeds give others."""
    first, second = digests("1"), digests("4242")
    assert first == second
    assert len(set(first.split(","))) > 40


def test_choices_repeat_a_run_without_its_seed() -> None:
    """A run is its list of choices: the list repeats it, and a shorter one is another run."""
    first = run(7)
    assert run(7, listed=first.choices).digest == first.digest
    assert run(7, listed=first.choices[:20]).digest != first.digest


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_seeded_bug_is_found(bug: Bug) -> None:
    """Each of the thirteen seeded bugs breaks a promise within the bound that stands beside it."""
    with bug.patched():
        found = next(explore(range(bug.seeds), store=bug.store), None)
    assert found is not None, f"not found in {bug.seeds} seeds"
    print(f"{bug.name}: seed {found.seed}, {', '.join(sorted(found.kinds))}")


def test_without_a_bug_the_same_seeds_are_sound() -> None:
    """What the seeded bugs are found by is no mistake of the simulator: the sound build passes under the same seeds."""
    assert not list(explore(range(200)))


def test_a_run_that_never_settles_is_found() -> None:
    """The control of the liveness runs: where a lease never ends, what a dead owner left stays in progress."""
    with replaced(RecordView, "lapsed", property(lambda _: False)):
        failing = next(explore(range(200), Mode.LIVENESS), None)
    assert failing is not None
    assert "unsettled" in failing.kinds


def test_a_failing_run_is_made_simpler_and_drawn() -> None:
    """What fails is shown by a shorter run that breaks the same promise, as text and as a picture."""
    bug = BUGS[0]
    with bug.patched():
        failing = next(explore(range(bug.seeds), store=bug.store))
        choices = shrink(
            failing.choices,
            lambda listed: not failing.kinds.isdisjoint(run(failing.seed, listed=listed, store=bug.store).kinds),
        )
        simple = run(failing.seed, listed=choices, store=bug.store)
    assert simple.kinds & failing.kinds
    assert len(simple.choices) <= len(failing.choices)
    assert len(simple.history.events) < len(failing.history.events)
    assert text_of(simple.history).count("\n") == len(simple.history.events) - 1
    picture = ET.fromstring(svg_of(simple.history, "a & b"))
    assert picture.tag.endswith("svg")


def test_the_command_says_what_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command runs a range in a mode, and gives 0 if nothing was wrong."""
    assert main(["--seeds", "5:25", "--mode", "http", "--out", str(tmp_path)]) == 0
    assert "http: 20 seeds, 0 failed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_command_prints_and_draws_what_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failing seed prints itself; the first is made simpler and drawn into the folder, and the command gives 1."""
    with BUGS[3].patched():  # its effects are in the guard, so that the command meets it
        assert main(["--seeds", "0:30", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert " of mode safety failed:" in out
    assert "foreign" in out
    assert {path.suffix for path in tmp_path.iterdir()} == {".txt", ".svg"}


@pytest.mark.parametrize("seeds", ["a:b", "1:x", ""])
def test_the_command_refuses_what_is_no_range(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no range of seeds is refused with a sentence."""
    with pytest.raises(SystemExit):
        main(["--seeds", seeds])
    assert "seeds are given as" in capsys.readouterr().err


# -- worlds of one's own ----------------------------------------------------------------------------------------------


def a_world() -> World:
    return World(Choices(1))


def test_tasks_and_threads_share_virtual_time() -> None:
    """A task and a thread of two processes run one operation: one handler, and the other gets its answer."""
    world, told = a_world(), []
    one, two = Process(world, "one"), Process(world, "two")
    guard, blocking = one.guard(), two.blocking_guard(policy=Policy(wait=60))

    async def slowly() -> int:
        await asyncio.sleep(30)
        return 7

    async def first() -> None:
        told.append(await guard.run(slowly, scope="s", key="k"))

    def second() -> None:
        two.sleep(1)
        told.append(blocking.run(lambda: 8, scope="s", key="k"))

    one.task(first())
    two.thread(second)
    world.run(until=100)
    world.end()
    assert told == [7, 7]


def test_a_killed_process_takes_everything_with_it() -> None:
    """A kill leaves a record that lapses; nothing that the dead process still does reaches the world."""
    world, handled = a_world(), []
    process, heir = Process(world, "first"), Process(world, "second")
    guard, inherited = (
        process.guard(policy=Policy(lease=10, recovery=rerun)),
        heir.guard(policy=Policy(lease=10, recovery=rerun)),
    )

    async def handler() -> str:
        try:
            await asyncio.sleep(5)
        finally:
            handled.append("unwound")
        return "never"

    async def call() -> None:
        await guard.run(handler, scope="s", key="k")

    async def later() -> None:
        await asyncio.sleep(20)
        handled.append(await inherited.run(_answer, scope="s", key="k"))

    process.task(call())
    heir.task(later())
    world.after(1.0, None, process.kill)
    world.run(until=60)
    world.end()
    assert handled == ["unwound", "again"]
    assert not process.alive


async def _answer() -> str:
    return "again"


def test_a_paused_process_comes_back_late() -> None:
    """A pause stops a whole process, its heartbeat too: another takes over, and the late owner gets the new answer."""
    world, told = a_world(), []
    policy = Policy(lease=10, recovery=rerun)
    one, two = Process(world, "one"), Process(world, "two")
    first, second = one.guard(policy=policy), two.guard(policy=policy)

    async def slow() -> str:
        await asyncio.sleep(2)
        return "late"

    async def call() -> None:
        told.append(("one", await first.call(slow, scope="s", key="k")))

    async def take_over() -> None:
        await asyncio.sleep(15)
        told.append(("two", await second.call(_answer, scope="s", key="k")))

    one.task(call())
    two.task(take_over())
    world.after(1.0, None, lambda: one.pause(30))
    world.run(until=60)
    world.end()
    assert [(name, done.result, done.replayed) for name, done in told] == [
        ("two", "again", False),
        ("one", "again", True),
    ]


def test_an_event_wakes_a_thread_before_its_time() -> None:
    """A thread that waits for an event goes on when it is set, and else when its time is over."""
    world, woken = a_world(), []
    process, event = Process(world, "p"), threading.Event()

    def wait() -> None:
        woken.append((process.clock.wait(event, 5), world.now))
        event.clear()
        woken.append((process.clock.wait(event, 5), world.now))

    process.thread(wait)
    world.after(2.0, process, event.set)
    world.run(until=60)
    assert woken == [(True, 2.0), (False, 7.0)]


def test_a_blocking_call_outside_of_a_thread_says_what_to_do() -> None:
    """Who calls a simulated store outside of any thread is told how to start one."""
    process = Process(a_world(), "p")
    with pytest.raises(OutsideOfThreadError, match=r"process\.thread"):
        process.blocking_guard().lookup("s", "k")


def test_a_run_without_end_is_stopped() -> None:
    """A task that never comes to rest does not hang the simulation."""
    world = a_world()
    process = Process(world, "p")

    async def forever() -> None:
        for _ in range(10**9):
            await asyncio.sleep(0.0001)

    process.task(forever())
    with pytest.raises(Endless, match="has not come to its end"):
        world.run(until=1000)
    world.end()


def test_what_fails_behind_everyones_back_is_a_problem_of_the_run() -> None:
    """A thread, or a task that nobody waits for, that raises makes its run fail; so does a scenario's own assertion."""

    def careless(world: World) -> None:
        Process(world, "p").thread(lambda: 1 / 0)
        world.run(until=1)

    def wrong(world: World) -> None:
        world.run(until=1)
        assert world.now > 1, "it is too early"

    assert "ZeroDivisionError" in run(1, careless).problems[0]
    assert "it is too early" in run(1, wrong).problems[0]
    assert run(1, careless).kinds == {"failure"}


def test_a_users_scenario_is_explored() -> None:
    """A scenario of one's own draws from the same choices, and its failing seed can be made simpler."""

    def forgets_its_lease(world: World) -> None:
        process, done = Process(world, "p"), []
        guard = process.guard(policy=Policy(lease=10))

        async def call() -> None:
            outcome = await guard.begin("s", "k")
            if isinstance(outcome, Replay):
                done.append(outcome.result)
            elif world.choices.below(50) != 49:
                await outcome.complete(1)  # type: ignore[union-attr]  # nobody else is at work here

        process.task(call())
        world.run(until=5)
        process.task(call())
        world.run(until=10)
        assert done == [1], "the second call got no answer"

    failing = next(explore(range(1000), forgets_its_lease))
    assert failing.problems
    assert simplest(failing, forgets_its_lease).choices
