"""Which operations a worker may finish, with which handler, and the loop that does it again and again.

A worker is a caller like any other: what it takes over it claims by the rules of begin, under the policy that was
stored with the first claim, so of any number of workers and retries one gets it. It differs in two things. It brings
no policy of its own, so it is neither laxer nor stricter than what was stored; and it never creates a record, so that
nothing begins because of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping
from string import Formatter
from typing import Any, Final, NamedTuple, cast

from notwice.core import Ask
from notwice.errors import NotwiceError
from notwice.identity import template_fields
from notwice.policy import Duration, Policy, seconds

__all__ = ["Round", "keep_recovering", "keep_recovering_async"]

EVERY_SECONDS: Final = 10.0
LOOKING_TIMES: Final = 20  # a round that found nothing to do and took a second is good for twenty
LONGEST_SECONDS: Final = 600.0  # but what is due waits no longer than that

_LOG: Final = logging.getLogger("notwice")
_VALUE: Final = r"(?:[^:\\]|\\[:\\])+"  # as `notwice.identity` escapes it; what nobody escaped so is another text
_ESCAPED: Final = re.compile(r"\\(.)")


class Round(NamedTuple):
    """What one round of recovery made of the unresolved operations.

    finished: they have their result, or their refusal.
    failed: the handler raised, or left the outcome open; the next try comes after a pause that grows.
    waiting: not due yet: a pause, or somebody is at work.
    held: a person has to decide. What ran out of attempts or time is held, too.
    unhandled: the policy allows it, but nothing is registered for the scope, there is nothing to ask with, or the
        request that the handler needs was not stored.
    elsewhere: somebody else was quicker.
    unreadable: records of a newer release, damaged ones, or sealed with a key that is not here.
    """

    finished: int = 0
    failed: int = 0
    waiting: int = 0
    held: int = 0
    unhandled: int = 0
    elsewhere: int = 0
    unreadable: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in self._asdict().items() if count) or "nothing unresolved"


class Handler(NamedTuple):
    """What finishes the operations of one scope, or of one template of scopes."""

    pattern: re.Pattern[str]
    function: Callable[..., Any]
    policy: Policy | None
    needs_request: bool
    whole: bool

    def values(self, scope: str) -> Mapping[str, str] | None:
        """What the template's fields stand for in a scope; ``None`` if it does not fit."""
        found = self.pattern.fullmatch(scope)
        if found is None or self.whole:
            return found and found.groupdict()
        return {name: _ESCAPED.sub(r"\1", text) for name, text in found.groupdict().items()}


class Work(NamedTuple):
    """One operation that is to be claimed, and what will finish it."""

    ask: Ask
    function: Callable[..., Any]
    values: Mapping[str, str]
    policy: Policy


class Handlers:
    """Handlers by scope. A scope that was registered as it is comes before templates, and those in their order."""

    def __init__(self, handlers: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self._exact: dict[str, Handler] = {}
        self._templates: dict[str, Handler] = {}
        for scope, function in (handlers or {}).items():
            self.add(scope, function)

    def __bool__(self) -> bool:
        return bool(self._exact or self._templates)

    def add(
        self,
        scope: str,
        function: Callable[..., Any],
        policy: Policy | None = None,
        *,
        needs_request: bool = False,
    ) -> None:
        """Register a handler.

        Raises `ValueError` for a malformed template, or for one that has a handler already, and `TypeError` for what
        can't be called with an operation and the template's fields: each call would use up an attempt.
        """
        if scope in self._exact or scope in self._templates:
            message = f"the scope {scope!r} has a handler for recovery already; register one for each scope"
            raise ValueError(message)
        if not callable(cast("object", function)):
            message = f"the handler of the scope {scope!r} must be a function that is given the operation"
            raise TypeError(message)
        pattern = _pattern(scope)
        _check_parameters(function, scope, tuple(pattern.groupindex))
        handler = Handler(pattern, function, policy, needs_request, whole=_is_one_field(scope))
        (self._templates if "{" in scope else self._exact)[scope] = handler

    def find(self, scope: str) -> tuple[Handler, Mapping[str, str]] | None:
        """The handler of a scope, with the values of its template's fields."""
        for handler in (*filter(None, [self._exact.get(scope)]), *self._templates.values()):
            values = handler.values(scope)
            if values is not None:
                return handler, values
        return None


def literally(scope: str) -> str:
    """The template that fits this scope alone, whatever is in it."""
    return scope.replace("{", "{{").replace("}", "}}") if "{" in scope else scope


def round_of(counts: Counter[str]) -> Round:
    """The counts by their names as a round."""
    return Round(**counts)


def keep_recovering(
    recover: Callable[[], Round],
    *,
    stop: threading.Event,
    every: Duration = EVERY_SECONDS,
    told: Callable[[Round], object] | None = None,
) -> None:
    """Recover again and again until `stop` is set: ``keep_recovering(guard.recover, stop=stop)`` in a thread.

    `every` is the pause between two rounds, in seconds or as a timedelta, and longer after a round that only looked and
    took long; `told` is given each round. A store that does not answer, and whatever else a round raises, is logged,
    and the next round tries again. To be killed at any moment is harmless: what was under way lapses, and is found
    again.
    """
    pause = shortest = seconds("every", every)
    while not stop.is_set():
        began = time.monotonic()
        with _logged():
            found = recover()
            pause = _pause(found, shortest, time.monotonic() - began)
            if told is not None:
                told(found)
        stop.wait(pause)


async def keep_recovering_async(
    recover: Callable[[], Awaitable[Round]],
    *,
    stop: asyncio.Event,
    every: Duration = EVERY_SECONDS,
    told: Callable[[Round], object] | None = None,
) -> None:
    """`keep_recovering` as a task: ``keep_recovering_async(guard.recover, stop=stop)`` with an `AsyncGuard`."""
    pause = shortest = seconds("every", every)
    while not stop.is_set():
        began = time.monotonic()
        with _logged():
            found = await _unless_stopped(recover)
            pause = _pause(found, shortest, time.monotonic() - began)
            if told is not None:
                told(found)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


async def _unless_stopped(recover: Callable[[], Awaitable[Round]]) -> Round:
    """One round. What a handler was cancelled by itself, by a task that it waited for, does not end the worker."""
    try:
        return await recover()
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("a handler was cancelled, and not by this worker's end") from error


def _pause(found: Round, shortest: float, took: float) -> float:
    """How long to wait after a round: where thousands are held, looking at them takes a twentieth of the time.

    A round that asked somebody, or that never came to look, may have taken long as well: it is not made up for.
    """
    worked = found.finished or found.failed or found.waiting or found.elsewhere
    looked = found.held or found.unhandled or found.unreadable
    return shortest if worked or not looked else max(shortest, min(LOOKING_TIMES * took, LONGEST_SECONDS))


@contextlib.contextmanager
def _logged() -> Generator[None]:
    """Log what a round raises: the next one tries again."""
    try:
        yield
    except NotwiceError as error:
        _LOG.warning("a round of recovery ended early: %s", error)
    except SystemExit:
        if threading.current_thread() is threading.main_thread():
            raise
        _LOG.exception("a handler asked for the end of its thread; recovery goes on")
    except Exception:  # noqa: BLE001 - whatever it is, the next round is due
        _LOG.exception("a round of recovery failed")


def _pattern(template: str) -> re.Pattern[str]:
    """The scopes that a template fits. A field alone fits any scope as it is; another's value holds no bare ``:``."""
    if "{" not in template:
        return re.compile(re.escape(template))
    fields = template_fields(template)
    value = "(?s:.+)" if _is_one_field(template) else _VALUE
    parts: list[str] = []
    for literal, field, _, _ in Formatter().parse(template):
        parts.append(re.escape(literal))
        if field is not None:
            if field not in fields or any(f"(?P<{field}>" in part for part in parts):
                message = f"{{{field}}} in the scope {template!r} of a handler must be a plain name, and there once"
                raise ValueError(message)
            parts.append(f"(?P<{field}>{value})")
    return re.compile("".join(parts), re.DOTALL)


def _is_one_field(template: str) -> bool:
    """Whether a template is one field and nothing else: it takes the scope as it is."""
    return "{" in template and template == f"{{{''.join(template_fields(template))}}}"


def _check_parameters(function: Callable[..., Any], scope: str, fields: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(None, **dict.fromkeys(fields))
    except TypeError as error:
        taken = ", ".join(("the operation", *fields))
        message = f"the handler of the scope {scope!r} is called with {taken}, and can't be: {error}"
        raise TypeError(message) from error
    except ValueError:  # what is no Python function may not say what it takes
        return
