"""``notwice recover``: the recovery worker of a program, as a process of its own."""

from __future__ import annotations

import _thread
import argparse
import asyncio
import importlib
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial, reduce
from types import FrameType, ModuleType
from typing import Any

from notwice import AsyncGuard, Guard
from notwice.cli.arguments import FINE, REFUSED, UNAVAILABLE
from notwice.cli.output import printable
from notwice.cli.selection import Misused
from notwice.errors import NotwiceError
from notwice.recovery import Round, keep_recovering, keep_recovering_async


def carry_out(said: argparse.Namespace) -> int:
    """Recover until told to stop, or once. Raises `Misused` if there is no guard, or no handler, to recover with."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log the addresses of lookups, with their keys
    try:
        guard = _guard(said.app)
        if isinstance(guard, AsyncGuard):
            return asyncio.run(_in_a_loop(guard, said))
        with guard:
            return _in_a_thread(guard, said)
    except NotwiceError as error:
        print(printable(str(error)), file=sys.stderr)
        return UNAVAILABLE


def _in_a_thread(guard: Guard, said: argparse.Namespace) -> int:
    stop = threading.Event()
    _on_signals(stopping(stop))
    bound = guard if said.namespace is None else guard._bound(said.namespace)
    recover = partial(bound.recover, all_namespaces=said.namespace is None, stopping=stop.is_set)
    if said.once:
        return _status(recover())
    keep_recovering(recover, stop=stop, every=said.every, told=_tell)
    return FINE


async def _in_a_loop(guard: AsyncGuard, said: argparse.Namespace) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    _on_signals(lambda: loop.call_soon_threadsafe(stop.set))
    bound = guard if said.namespace is None else guard._bound(said.namespace)
    recover = partial(bound.recover, all_namespaces=said.namespace is None, stopping=stop.is_set)
    async with guard:
        if said.once:
            return _status(await recover())
        await keep_recovering_async(recover, stop=stop, every=said.every, told=_tell)
    return FINE


def stopping(stop: threading.Event) -> Callable[[], object]:
    """What a signal handler may call to set an event that its own thread may be about to wait for.

    The event's lock is held then, and who waits for it in the same thread waits for ever.
    """
    return partial(_thread.start_new_thread, stop.set, ())


def _on_signals(stop: Callable[[], object]) -> None:
    """Stop after the operation that is under way; a second signal ends the process as it would have been ended."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _tell(found: Round) -> None:
    if any(found):
        print(found, flush=True)


def _status(found: Round) -> int:
    print(found)
    return REFUSED if found.failed or found.held or found.unhandled or found.unreadable else FINE


def _guard(place: str) -> Guard | AsyncGuard:
    """The guard at ``module:name``; modules are looked for in the current folder, too."""
    module, _, path = place.partition(":")
    if not module or not path:
        raise Misused(f"--app {place!r} names no guard; say module:name, like shop.payments:guard.")
    sys.path.insert(0, "")
    try:
        found: Any = reduce(getattr, path.split("."), _imported(module))
    except AttributeError as error:
        raise Misused(f"--app: the module {module} has no {path}.") from error
    if not isinstance(found, Guard | AsyncGuard):
        raise Misused(f"--app: {place} is a {type(found).__name__} and no guard.")
    if not found.has_handlers:
        raise Misused(f"--app: {place} has no handlers; say @guard.recovers(scope) over what finishes a scope.")
    return found


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except NotwiceError:  # of a guard that was opened there
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise Misused(f"--app: there is no module {missing}. Is this the right folder?") from error
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if not isinstance(error, SyntaxError):  # which says itself where it is
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{told} ({place.filename}, line {place.lineno})"
        raise Misused(f"--app: the module {module} can't be imported: {told}") from error
