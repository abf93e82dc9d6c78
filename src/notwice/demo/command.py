"""``notwice demo``: the one place where the demo's parts are put together."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from notwice import Guard
from notwice.demo import picture, report, stay, svg
from notwice.demo.picture import Style
from notwice.demo.processes import DemoError, is_free
from notwice.demo.progress import Progress
from notwice.demo.reconcile import Reconciler
from notwice.demo.run import Comparison, Outcome, Plan, Show, draw_plan, run_bare, run_guarded
from notwice.demo.sides import Side, bare_side, guarded_side

ORDERS_MAX = 2_000
KILLS_MAX = 30
UNSOUND, INCOMPLETE = 1, 3
INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Run the demo and give its exit status.

    0: the guarded side charged each order exactly once. 1: it did not. 3: the demo could not be run to its end.
    Raises `ModuleNotFoundError` at once where what the gateway needs is not installed.
    """
    options = _parse(argv)
    import_module("notwice.server.app")  # what the gateway needs, before processes are started that need it
    try:
        with _terminable(), tempfile.TemporaryDirectory(prefix="notwice-demo-") as folder:
            return _demonstrate(options, Path(folder))
    except DemoError as error:
        print(f"notwice demo: {error}", file=sys.stderr)
        return INCOMPLETE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="notwice demo",
        description="A payments service under a storm of repeating clients and kills, without and with notwice.",
    )
    parser.add_argument("--once", action="store_true", help="end after the table; else all stays up to be tried")
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON object instead of the picture")
    parser.add_argument("--orders", type=_bounded(1, ORDERS_MAX), default=150, help="how many (default: 150)")
    parser.add_argument(
        "--kills",
        type=_bounded(0, KILLS_MAX),
        default=6,
        help="how many, in turn of the service, of the gateway and of both (default: 6)",
    )
    parser.add_argument("--seed", type=int, help="what the storm is drawn from (default: a new one, which is printed)")
    parser.add_argument("--port", type=_bounded(1, 65_535), help="where the gateway listens (default: a free port)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture to a file, too")
    parser.add_argument("--no-color", action="store_true", help="no colors")
    parser.add_argument(
        "--recovery",
        choices=("hold", "rerun"),
        default="hold",
        help="rerun: show what goes wrong when a service that does not de-duplicate is asked again (default: hold)",
    )
    options = parser.parse_args(argv)
    if options.json and not options.once:
        parser.error("--json needs --once")
    if options.port is not None and not is_free(options.port):
        parser.error(f"port {options.port} is taken; choose another one, or leave --port away")
    return options


def _bounded(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be between {least} and {most}")
        return value

    return number


@contextmanager
def _terminable() -> Generator[None]:
    """Let the first SIGTERM or SIGHUP end the demo as Ctrl-C does; no further one disturbs the clearing up."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(each, interrupt) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _demonstrate(options: argparse.Namespace, folder: Path) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    plan = draw_plan(seed, orders=options.orders, kills=options.kills)
    _say(f"seed {seed}: {len(plan.orders)} orders, {len(plan.kills)} kills")
    started = time.monotonic()
    bare = _run_bare(folder, plan)
    side = guarded_side(folder / "guarded", seed=seed, recovery=options.recovery, port=options.port or 0)
    with _up(side), Guard.open(side.store) as guard:
        reconciler = _reconciler(guard, side)
        with _progress("with notwice", plan) as show:
            guarded = run_guarded(side, plan, show, reconciler=reconciler)
        comparison = Comparison(plan, bare, guarded, took_s=time.monotonic() - started)
        _present(comparison, options)
        if not options.once:
            stay.stay_up(side, reconciler)
    return _status(comparison)


def _run_bare(folder: Path, plan: Plan) -> Outcome:
    side = bare_side(folder / "bare", seed=plan.seed)
    with _up(side), _progress("without", plan) as show:
        return run_bare(side, plan, show)


@contextmanager
def _up(side: Side) -> Generator[None]:
    try:
        side.start()
        yield
    finally:
        side.stop()


def _reconciler(guard: Guard, side: Side) -> Reconciler:
    gateway = side.gateway
    assert gateway is not None
    return Reconciler(guard, ledger_port=side.service.port, gateway_started_ms=lambda: gateway.started_ms)


@contextmanager
def _progress(title: str, plan: Plan) -> Generator[Show]:
    progress = Progress(sys.stderr, title, orders=len(plan.orders))
    try:
        yield progress.show
    finally:
        progress.end()


def _present(comparison: Comparison, options: argparse.Namespace) -> None:
    if options.svg is not None:
        options.svg.write_text(svg.draw(comparison), encoding="utf-8")
    if options.json:
        print(json.dumps(report.document(comparison)), flush=True)
        return
    style = _style(options)
    print(picture.draw(comparison, style))
    print(picture.verdict(comparison, style), flush=True)


def _style(options: argparse.Namespace) -> Style:
    return Style(
        color=sys.stdout.isatty() and not options.no_color and "NO_COLOR" not in os.environ,
        unicode=(sys.stdout.encoding or "").lower().startswith("utf"),
    )


def _status(comparison: Comparison) -> int:
    if not comparison.sound:
        return UNSOUND
    return 0 if comparison.complete else INCOMPLETE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
