"""The command for long runs: ``python -m notwice.testing.simulate --seeds 0:1000000 --mode safety``.

Ranges can be run side by side. What fails is printed with its seed; the first one is made simpler and drawn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from notwice.testing.simulate.run import Mode, Run, Scenario, explore, run
from notwice.testing.simulate.shrink import shrink
from notwice.testing.simulate.timeline import svg_of, text_of

SHOWN_MAX: Final = 20
BLOCK: Final = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds, and give 1 if anything was wrong."""
    asked = _parser().parse_args(arguments)
    mode, found, started = Mode(asked.mode), 0, time.monotonic()
    for first in range(asked.seeds.start, asked.seeds.stop, BLOCK):
        block = range(first, min(first + BLOCK, asked.seeds.stop))
        for failing in explore(block, mode):
            found += 1
            _show(failing, mode, draw_into=asked.out if found == 1 else None)
            if found == SHOWN_MAX:
                _say(f"{found} seeds failed; the rest was not run")
                return 1
        _say(f"{mode}: {block.stop - asked.seeds.start} seeds, {found} failed, {time.monotonic() - started:.0f} s")
    return 1 if found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m notwice.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(1000), metavar="A:B", help="from A up to B (0:1000)")
    parser.add_argument("--mode", choices=[str(mode) for mode in Mode], default=str(Mode.SAFETY))
    parser.add_argument(
        "--out", type=Path, default=Path("simulation"), help="the folder for what failed first, as text and as SVG"
    )
    return parser


def _range(text: str) -> range:
    first, _, last = text.partition(":")
    try:
        return range(int(first), int(last)) if last else range(int(first), int(first) + 1)
    except ValueError:
        message = f"seeds are given as A:B, or as one number; {text!r} is neither"
        raise argparse.ArgumentTypeError(message) from None


def _show(failing: Run, mode: Mode, *, draw_into: Path | None) -> None:
    _say(f"seed {failing.seed} of mode {mode} failed:")
    for problem in failing.problems:
        _say(f"  {problem}")
    if draw_into is None:
        return
    simple = simplest(failing, mode)
    draw_into.mkdir(parents=True, exist_ok=True)
    name = draw_into / f"{mode}-{failing.seed}"
    title = f"seed {failing.seed} of mode {mode}, made simpler: {', '.join(sorted(simple.kinds))}"
    name.with_suffix(".txt").write_text("\n".join([title, text_of(simple.history), *simple.problems, ""]))
    name.with_suffix(".svg").write_text(svg_of(simple.history, title))
    _say(f"made simpler, to {len(simple.choices)} choices; drawn as {name}.txt and {name}.svg:")
    _say(text_of(simple.history))


def simplest(failing: Run, scenario: Mode | Scenario) -> Run:
    """The run made simpler, as long as it breaks a promise that it broke before."""
    choices = shrink(
        failing.choices, lambda listed: not failing.kinds.isdisjoint(run(failing.seed, scenario, listed=listed).kinds)
    )
    return run(failing.seed, scenario, listed=choices)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
