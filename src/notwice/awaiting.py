"""Moves that were called and not awaited: nothing of such a call runs, and Python says so too late, or to nobody.

A handler that forgets an ``await`` must not be believed: its answer would be recorded as a success, and what it speaks
of never ran. So an operation remembers each call of a move until its coroutine has started, and nothing finishes the
operation while one has not. Where no event loop runs, as in the thread of a plain ``def``, the call is refused at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from types import CoroutineType
from typing import Any, TypeAlias, TypeVar, cast

from notwice.errors import NotAwaited

_F = TypeVar("_F", bound=Callable[..., Coroutine[Any, Any, Any]])

Call: TypeAlias = "CoroutineType[Any, Any, Any]"


def awaited(move: _F) -> _F:
    """Have each call of a coroutine method remembered in its object's ``_called`` until it has started.

    The call raises `NotAwaited` where no event loop runs.
    """

    @functools.wraps(move)
    def call(self: Any, *args: Any, **options: Any) -> Call:  # noqa: ANN401 - whatever the move takes
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise NotAwaited([move.__name__], operation=self.operation, in_a_loop=False) from None
        coroutine = cast("Call", move(self, *args, **options))
        called: list[Call] = self._called
        while called and not _is_new(called[-1]):  # each is taken out once, however many are begun together
            del called[-1]
        called.append(coroutine)
        return coroutine

    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    else:  # for those who ask, such as the mocks of the standard library
        vars(call)["_is_coroutine"] = vars(asyncio.coroutines)["_is_coroutine"]
    return cast("_F", call)


def not_started(called: Iterable[Call]) -> list[str]:
    """The names of the moves that were called and have not started, each once; no answer speaks of a heartbeat."""
    names = (coroutine.__name__ for coroutine in called if _is_new(coroutine))
    return [name for name in dict.fromkeys(names) if name != "heartbeat"]


def _is_new(coroutine: Call) -> bool:
    running = coroutine.cr_running or coroutine.cr_suspended
    return not running and coroutine.cr_frame is not None  # last, for asking makes a frame's object
