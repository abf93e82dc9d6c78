"""The benchmarks: that each runs and measures something. What comes out is never asserted."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS, main, measure
from bench.figures import Goal
from bench.measure import Pair, Size, paired, repeated

TINY = Size(rounds=3, scale=0.01, seconds=0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that a server's own user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="notwice-bench-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_measures_both_sides(name: str, folder: Path) -> None:
    """Each benchmark runs with a handful of operations, gives positive numbers under its own name, and cleans up."""
    figure = measure(name, TINY, folder)
    assert figure.name == name
    assert min(figure.pair) > 0
    assert figure.speed == 1 / figure.pair.ratio
    assert not list(folder.iterdir())


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    """Neighbours are compared in each round; the first round does not count, nor does how far one round went astray."""
    ours, base = iter([900.0, 2.0, 2.0, 50.0, 2.0, 2.0]), iter([1.0] * 6)
    pair = paired(lambda _: next(ours), lambda _: next(base), Size(rounds=5), operations=1)
    assert pair == Pair(2e6, 1e6, 2.0)


def test_a_slow_base_has_fewer_operations() -> None:
    """Both are measured by the operation, however many each has in a round."""
    done = {"ours": 0, "base": 0}

    def run(name: str, operations: int) -> float:
        done[name] += operations
        return float(operations)

    size = Size(rounds=3, seconds=0)
    pair = paired(lambda n: run("ours", n), lambda n: run("base", n), size, operations=100, base_operations=10)
    assert pair == Pair(1e6, 1e6, 1.0)
    assert done == {"ours": 400, "base": 40}


def test_work_is_repeated_as_often_as_asked() -> None:
    """A run does its work so many times, and takes some time."""
    calls: list[int] = []
    assert repeated(lambda: calls.append(1))(7) > 0
    assert len(calls) == 7


@pytest.mark.parametrize(
    ("goal", "reached"),
    [
        (Goal(us_max=30), True),
        (Goal(us_max=29), False),
        (Goal(ratio_max=0.5), True),
        (Goal(ratio_max=0.4), False),
        (Goal(speed_min=2), True),
        (Goal(speed_min=2.1), False),
        (Goal(), None),
    ],
)
def test_a_goal_is_a_time_a_ratio_or_a_speed(goal: Goal, *, reached: bool | None) -> None:
    """A figure says whether its goal is reached, and nothing where there is none."""
    assert goal.is_reached(Pair(ours_us=30, base_us=60, ratio=0.5)) is reached


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With --json there is one JSON document with the machine and the figures, and the exit status is 0."""
    options = ["--rounds", "3", "--scale", "0.01", "--folder", str(tmp_path), "--json"]
    assert main([*options, "memory-replay"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in document["figures"]] == ["memory-replay"]
    assert document["machine"]["sync_us"] >= 0


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without it there is a line for each benchmark, with its goal; a goal that is missed is no failure."""
    assert main(["--rounds", "3", "--scale", "0.01", "--folder", str(tmp_path), "memory-pair", "asgi-pass"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["memory-pair", "asgi-pass"]
    assert "at most 25 us" in lines[2]


@pytest.mark.parametrize("wrong", [["no-such"], ["--rounds", "2"], ["--scale", "0"]])
def test_the_command_refuses_what_it_does_not_know(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown benchmark, too few rounds for a median, and rounds of nothing are refused with a sentence."""
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
