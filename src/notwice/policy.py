"""What a guard is told to do: one frozen, validated `Policy`, and the three answers to "what after a crash?"."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal, TypeVar, cast

from notwice.errors import (
    NotApplied,
    NotAwaited,
    NotCompleted,
    NotwiceError,
    OperationUnresolved,
    OwnershipLost,
    StepsChanged,
    StoreUnavailable,
)
from notwice.model import RecoveryKind, Terms

Duration = float | int | timedelta
"""Seconds, or a timedelta."""

DAY: Final = 86_400
DURATION_MAX: Final = 100 * 366 * DAY  # a hundred years: a longer one is a mistake of units, or would overflow
MAY_COME_AFTER: Final = (
    TimeoutError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
    OwnershipLost,
    NotAwaited,
    NotCompleted,
    OperationUnresolved,
    StepsChanged,
    StoreUnavailable,
)
"""What is raised before an effect as well as after it: neither these types nor what includes one prove anything.

Nor do the standard library's kinds of them. One that is defined elsewhere may be raised where it proves something.
"""

BEATS_PER_LEASE: Final = 3
BEAT_SECONDS_MIN: Final = 0.05  # a lease of a few milliseconds is for tests; beating it would only burn time

_T = TypeVar("_T")


class Verdict(Enum):
    """What a ``reconcile`` function found, if not a result."""

    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


NOT_APPLIED: Final = Verdict.NOT_APPLIED
UNKNOWN: Final = Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class Applied:
    """What a ``reconcile`` function returns when the effect happened: the result that completes the operation."""

    result: object


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a later begin may do with an unresolved operation: `hold`, `rerun`, or what `reconcile` makes."""

    kind: RecoveryKind
    function: Callable[[Any], Any] | None = None
    deduplicated: bool = False


hold: Final = Recovery(RecoveryKind.HOLD)
"""Never run it again: give the kept answer, or refuse, until a person or `reconcile` finds out what happened."""

rerun: Final = Recovery(RecoveryKind.RERUN)
"""Run it again: right where the next system de-duplicates by the downstream key, or the effect is harmless twice."""


def reconcile(function: Callable[[Any], Any], *, deduplicated: bool = False) -> Recovery:
    """Ask `function` what became of the effect before anything runs again.

    It is called with the operation and returns ``Applied(result)``, `NOT_APPLIED` or `UNKNOWN`; anything else, and
    any exception, counts as unknown. It may be a coroutine function under an `AsyncGuard`. `deduplicated` says that
    the provider refuses a second effect under the same downstream key, so that "not applied" may run it at once;
    without it the guard first waits until every earlier owner has been silent for ``Policy.settle``.
    """
    if not callable(cast("object", function)):
        message = "reconcile takes a function that is given the operation and says what became of its effect"
        raise TypeError(message)
    _check_switch("deduplicated", deduplicated)
    return Recovery(RecoveryKind.RECONCILE, function, deduplicated)


def suggesting(cls: type[_T]) -> type[_T]:
    """Make a dataclass refuse unknown keyword arguments with a suggestion."""
    made: Any = cls
    original = made.__init__
    names = [field.name for field in dataclasses.fields(made) if field.init]

    @functools.wraps(original)
    def init(self: _T, *args: object, **options: object) -> None:
        for name in options:
            if name not in names:
                raise TypeError(unknown_option(cls.__name__, name, names))
        original(self, *args, **options)

    made.__init__ = init
    return cls


def unknown_option(owner: str, name: str, known: list[str]) -> str:
    """The sentence for an option that does not exist."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
    return f"{owner} has no option {name!r}; {hint}"


def seconds(name: str, value: object, *, zero: bool = False, otherwise: str = "") -> float:
    """Check a duration and give it in seconds. Zero is refused unless `zero`; negative and endless ones always are.

    `otherwise` says in the refusal what to give in its place where no such duration is meant.
    """
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    else:
        message = f"{name} must be a number of seconds or a timedelta, not {type(value).__name__}"
        raise TypeError(message)
    if math.isnan(number) or number < 0 or (number == 0 and not zero):
        message = f"{name} must be {'zero or more' if zero else 'more than zero'} seconds{otherwise}, not {value!r}"
        raise ValueError(message)
    if number > DURATION_MAX:
        message = f"{name} must be at most a hundred years, not {value!r}; use None where no limit is meant"
        raise ValueError(message)
    return number


def milliseconds(duration: float) -> int:
    """Whole milliseconds, rounded up, so that a positive duration never becomes zero."""
    return math.ceil(duration * 1000)


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one kind of operation is guarded. Durations are seconds or timedeltas.

    lease: how long an owner may be silent before it is presumed gone. Heartbeats renew it three times as often.
    recovery: what a later begin may do with an unresolved operation: `hold`, `rerun` or ``reconcile(fn)``.
    rerun_within: how long after the first claim `rerun` may still run it again, more than zero; ``None``: for ever.
        Keep it below the time for which the next system remembers the downstream key.
    attempts_max: how many attempts `rerun` may make in all; ``None``: any number. The pauses between them are 0, 2, 4,
        8 ... seconds, at most five minutes: 5 attempts are over in half a minute, 20 in an hour, 250 in twenty hours.
    settle: how long every earlier owner must have been silent before `reconcile` runs it again; ``None``: one lease;
        0: at once, although a late owner may still act.
    unresolved_max: how many operations of one namespace may be unresolved before new ones are refused, so that no
        tenant fills the store; ``None``: any number. See `notwice.backlog` for how exact that is.
    retention: how long a finished record is kept, more than zero; ``None``: for ever. A retry that comes later runs
        again, so without any there would be no guard.
    wait: how long a duplicate of a running operation waits for its answer before it is refused; 0: not at all.
    run_max: how long the heartbeat goes on; a handler that runs longer loses its lease.
    store_timeout: how long the store may take before the operation is refused.
    store_failure: ``refuse`` (nothing runs unguarded), or ``proceed``: run without a guard, and say so.
    atomic: whether the operation's whole effect is in one database transaction, with which its end is committed:
        ``complete(…, transaction=…)``. An unfinished record then proves that nothing happened, so it may run again.
    store_request: whether the record keeps the request until the operation is finished, for `guard.recover` and for
        ``operation.request``; it then has to be a value that can be stored, of at most 256 KiB.
    final_errors: exception types of the handler that are an answer: they fail the operation, and are replayed as
        `RecordedFailure` with their type's name and message.
    not_applied_errors: exception types of the handler that prove that nothing happened: they free the operation. A
        type that may come after the effect is refused: `Exception`, `OSError`, `TimeoutError`, what cancels and
        interrupts. Of both lists the most specific type decides; the same type can't stand in both.

    Raises `TypeError` or `ValueError` with a sentence for anything else.
    """

    lease: Duration = 300
    recovery: Recovery = hold
    rerun_within: Duration | None = 20 * 3600
    attempts_max: int | None = 5
    settle: Duration | None = None
    unresolved_max: int | None = None
    retention: Duration | None = 30 * DAY
    wait: Duration = 0
    run_max: Duration = 3600
    store_timeout: Duration = 2
    store_failure: Literal["refuse", "proceed"] = "refuse"
    atomic: bool = False
    store_request: bool = False
    final_errors: tuple[type[BaseException], ...] = ()
    not_applied_errors: tuple[type[BaseException], ...] = ()
    terms: Terms = dataclasses.field(init=False, repr=False, compare=False)
    wait_seconds: float = dataclasses.field(init=False, repr=False, compare=False)
    beat_seconds: float = dataclasses.field(init=False, repr=False, compare=False)
    run_max_seconds: float = dataclasses.field(init=False, repr=False, compare=False)
    store_timeout_seconds: float = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Validate every field once, and derive what the hot path needs."""
        if not isinstance(cast("object", self.recovery), Recovery):
            message = f"recovery must be hold, rerun or reconcile(fn), not {self.recovery!r}"
            raise TypeError(message)
        if self.store_failure not in ("refuse", "proceed"):
            message = f"store_failure must be 'refuse' or 'proceed', not {self.store_failure!r}"
            raise ValueError(message)
        _check_switch("atomic", self.atomic)
        _check_switch("store_request", self.store_request)
        _check_count("attempts_max", self.attempts_max)
        _check_count("unresolved_max", self.unresolved_max)
        _check_types("final_errors", self.final_errors)
        _check_types("not_applied_errors", self.not_applied_errors)
        _check_proofs(self.not_applied_errors)
        for kind in set(self.final_errors) & set(self.not_applied_errors):
            message = f"{kind.__qualname__} can't be both: an answer (final_errors), and proof that nothing happened"
            raise ValueError(message)
        put = object.__setattr__
        put(self, "terms", self._terms())
        put(self, "wait_seconds", seconds("wait", self.wait, zero=True))
        put(self, "beat_seconds", max(self.terms.lease_ms / 1000 / BEATS_PER_LEASE, BEAT_SECONDS_MIN))
        put(self, "run_max_seconds", seconds("run_max", self.run_max))
        put(self, "store_timeout_seconds", seconds("store_timeout", self.store_timeout))

    def _terms(self) -> Terms:
        lease_ms = milliseconds(seconds("lease", self.lease))
        return Terms(
            lease_ms=lease_ms,
            retention_ms=_optional_ms("retention", self.retention, ", or None to keep answers for ever"),
            recovery=self.recovery.kind,
            rerun_within_ms=_optional_ms(
                "rerun_within", self.rerun_within, ", or None for ever (recovery=hold runs nothing again)"
            ),
            attempts_max=self.attempts_max,
            settle_ms=lease_ms if self.settle is None else milliseconds(seconds("settle", self.settle, zero=True)),
            deduplicated=self.recovery.deduplicated,
            atomic=self.atomic,
        )

    def says_of(self, error: BaseException) -> Literal["final", "not_applied", "unknown"]:
        """What an exception of the handler says of the operation: it is an answer, nothing happened, or nobody knows.

        The most specific type that is listed decides, so ``final_errors=(Declined,)`` may stand beside
        ``not_applied_errors=(PaymentError,)``. An error of notwice's own counts only where its type is listed (a store
        that did not answer in the middle is no answer). What is no `Exception` never proves that nothing happened, for
        a cancelled or interrupted handler may have done its work, and is an answer only where its type is listed.
        """
        for kind in type(error).__mro__:
            if kind is BaseException and not isinstance(error, Exception):
                break
            if kind is NotApplied or kind in self.not_applied_errors:
                return "not_applied"
            if kind in self.final_errors:
                return "final"
            if kind is NotwiceError:
                break
        return "unknown"

    @classmethod
    def money_guard(cls) -> Policy:
        """The older money guard: stale after five minutes, re-run, and nothing ever expires or gives up.

        It runs an operation again however late the retry comes: only for effects that the next system de-duplicates
        for ever, or that are harmless twice. For new work choose ``reconcile(fn)``, or `hold`.
        """
        return cls(recovery=rerun, retention=None, attempts_max=None, rerun_within=None)

    @classmethod
    def api_cache(cls) -> Policy:
        """The older API cache: what a restart left open is held; finished answers are kept for a day."""
        return cls(recovery=hold, retention=DAY)


def _optional_ms(name: str, value: Duration | None, otherwise: str) -> int | None:
    return None if value is None else milliseconds(seconds(name, value, otherwise=otherwise))


def _check_switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        message = f"{name} must be True or False, not {value!r}"
        raise TypeError(message)


def _check_count(name: str, value: object) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return
    message = f"{name} must be a whole number from 1 on, or None for any number, not {value!r}"
    raise ValueError(message)


def _check_types(name: str, value: object) -> None:
    if isinstance(value, tuple) and all(isinstance(item, type) and issubclass(item, BaseException) for item in value):
        return
    message = f"{name} must be a tuple of exception types, not {value!r}"
    raise TypeError(message)


def _check_proofs(kinds: tuple[type[BaseException], ...]) -> None:
    """Refuse what can't prove that nothing happened, for it would free a key whose effect may have happened."""
    for kind in kinds:
        why = _why_no_proof(kind)
        if why:
            message = (
                f"not_applied_errors can't hold {kind.__qualname__}: it does not prove that nothing happened, for "
                f"{why}. Name the errors that do, such as ConnectionRefusedError, or raise NotApplied where you know it"
            )
            raise ValueError(message)


def _why_no_proof(kind: type[BaseException]) -> str:
    if not issubclass(kind, Exception):
        return "whoever is cancelled or interrupted may have done its work"
    for late in MAY_COME_AFTER:
        if issubclass(late, kind):
            subject = "it" if late is kind else f"it includes {late.__name__}, which"
            return f"{subject} may come after the effect"
        if issubclass(kind, late) and kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            return f"it is a kind of {late.__name__}, which may come after the effect"
    return ""
