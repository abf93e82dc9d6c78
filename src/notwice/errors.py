"""The errors of notwice.

::

    NotwiceError
    ├── OperationInProgress   the same operation is running elsewhere, or pauses; nothing ran here
    ├── OperationUnresolved   its outcome is unknown and its policy holds it; nothing ran here
    ├── UnresolvedFull        the namespace has as many unresolved operations as its policy allows; nothing ran
    ├── RequestMismatch       the key was used for another request; nothing ran
    ├── RecordedFailure       the first attempt failed for good, and this is its replay
    ├── ResultOmitted         the operation is finished, and its result was too large or impossible to keep
    ├── OwnershipLost         another owner took the operation over; nothing of ours was written
    ├── NotCompleted          the operation was left without an answer; it is suspended
    ├── OperationEnded        a move after the last one; nothing changed
    ├── NotAwaited            a move was called and not awaited, so it never ran; nothing was finished
    ├── StepsChanged          the handler asks for other steps than those that are kept; nothing new ran
    ├── StepRunning           a step of this name has not ended; it was not run a second time
    ├── ProgressFull          the operation keeps as much progress as it may
    ├── ContentionError       eight reads, eight lost swaps; nothing ran
    ├── StoreUnavailable      the store is down, too slow, or its answer was lost
    │   └── RecordTooLarge    the engine keeps no record of that size; nothing was written
    ├── UnsupportedRecord     the stored record is newer than this release, or damaged
    ├── InvalidKey            the key, scope or namespace can't be used (a ValueError)
    ├── EncodingError         a value can't be stored without loss (a TypeError)
    ├── ForceRequired         an operator's move on a live or finished record needs force=True
    └── RecordChanged         the record is not the one that the operator was shown

`NotApplied` is not one of them: a handler raises it to say that nothing happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from notwice.model import InProgress, Mismatch, RecordView, Unresolved
from notwice.problems import KINDS, PAUSES, Problem, problem


def not_installed(what: str, extra: str) -> str:
    """The sentence for `what` needs something that is optional: how the extra that brings it is installed."""
    return (
        f"{what}, which comes with the extra `{extra}`: pip install '.[{extra}]' in a clone of notwice, or "
        f"pip install 'notwice[{extra}]' where a release is published"
    )


class NotApplied(Exception):
    """Raised by a handler: nothing happened, the operation may run again. The guard abandons it."""

    def problem(self) -> Problem:
        """What an HTTP client is told if the key is free again. A type of yours may say it in words of its own."""
        return problem("not_applied", retry_after=1)


class NotwiceError(Exception):
    """Base of all errors that notwice raises.

    ``code`` names the kind, ``http_status`` is the status that fits it, ``retry_after`` the seconds to wait before
    the same call may be repeated (or ``None``), ``safe_new_key`` whether the call may be repeated under a new key.
    """

    code: ClassVar[str] = "store_unavailable"
    retry_after: int | None = None
    operation: str | None = None

    @property
    def http_status(self) -> int:
        """The HTTP status that fits this error."""
        return KINDS[self.code].status

    @property
    def safe_new_key(self) -> bool:
        """Whether the same call under a new key could make no effect happen twice."""
        return KINDS[self.code].safe_new_key

    def problem(self) -> Problem:
        """The error as (status, headers, body) of RFC 9457."""
        return problem(self.code, operation=self.operation, retry_after=self.retry_after, detail=str(self) or None)


class OperationInProgress(NotwiceError):
    """The same operation is running elsewhere, or waits to be tried again; nothing ran here.

    Repeat the same call after ``retry_after`` seconds. `inside`: it was called by the operation's own handler.
    """

    code = "in_progress"

    def __init__(self, outcome: InProgress, *, inside: bool = False) -> None:
        if inside:
            message = (
                f"operation {outcome.view.operation} is running, and this call is made inside of its own handler, so "
                "it would wait for itself; nothing more ran. Call the inner function without the guard, or give the "
                "inner operation a scope of its own"
            )
        elif outcome.pauses:
            message = f"operation {outcome.view.operation} pauses for {outcome.retry_after} s. {PAUSES}"
        else:
            message = f"operation {outcome.view.operation} is running elsewhere. {KINDS[self.code].detail}"
        super().__init__(message)
        self.outcome = outcome
        self.operation = outcome.view.operation
        self.retry_after = outcome.retry_after

    def problem(self) -> Problem:
        """The error as (status, headers, body) of RFC 9457."""
        return self.outcome.problem()


class OperationUnresolved(NotwiceError):
    """The outcome is unknown and the policy holds the operation; nothing ran here. Look it up, and resolve it.

    With a ``retry_after``, what became of it is asked again after so many seconds: repeat the same call then.
    """

    code = "unresolved"

    def __init__(self, outcome: Unresolved) -> None:
        operation = outcome.view.operation
        unknown = f"the outcome of operation {operation} is not known: it may have taken effect"
        if outcome.retry_after is None:
            what = f"Find out what happened, then resolve or release it (`notwice show {operation}`)"
        else:
            what = f"What became of it is asked again in {outcome.retry_after} s: repeat the same call then"
        super().__init__(f"{unknown}. {what}; a new key could make it happen twice")
        self.outcome = outcome
        self.operation = operation
        self.retry_after = outcome.retry_after

    def problem(self) -> Problem:
        """The error as (status, headers, body) of RFC 9457."""
        return self.outcome.problem()


class UnresolvedFull(NotwiceError):
    """The namespace has as many unresolved operations as ``Policy.unresolved_max`` allows; nothing new ran.

    Resolve or release some (`notwice ls --unresolved`); what they are tells what has been failing.
    """

    code = "unresolved_full"
    retry_after: int | None = 30

    def __init__(self, operation: str, limit: int) -> None:
        super().__init__(
            f"operation {operation} was not begun: its namespace has {limit} unresolved operations, and unresolved_max "
            "allows no more. Nothing ran. Find out what keeps failing, then resolve or release them"
        )
        self.operation = operation


class RequestMismatch(NotwiceError):
    """The key was used for another request. Nothing ran, nothing changed. Use a new key for a new request."""

    code = "key_reused"

    def __init__(self, outcome: Mismatch) -> None:
        super().__init__(f"the key of operation {outcome.view.operation} was used for another request. Nothing ran.")
        self.outcome = outcome
        self.operation = outcome.view.operation

    def problem(self) -> Problem:
        """The error as (status, headers, body) of RFC 9457."""
        return self.outcome.problem()


class RecordedFailure(NotwiceError):
    """The first attempt failed for good, and this is its replay: ``kind`` and ``message`` are the first error's."""

    code = "recorded_failure"

    def __init__(self, kind: str, message: str, *, operation: str, value: object = None) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
        self.operation = operation
        self.value = value


class ResultOmitted(NotwiceError):
    """The operation is finished, once, and its result was too large or impossible to keep. Do not repeat it.

    Look the result up where the effect happened.
    """

    code = "result_omitted"


class OwnershipLost(NotwiceError):
    """Another owner has taken the operation over, and nothing of ours was written. Do not repeat the effect."""

    code = "ownership_lost"

    def __init__(self, operation: str, view: RecordView | None = None) -> None:
        super().__init__(f"operation {operation} has another owner now. {KINDS[self.code].detail}")
        self.operation = operation
        self.view = view


class NotCompleted(NotwiceError):
    """The operation was left without an answer and is suspended: its outcome counts as unknown."""

    code = "not_completed"


class OperationEnded(NotwiceError, RuntimeError):
    """A move on an operation whose last move was made. Nothing changed: a fault of the calling code."""

    code = "not_completed"


class NotAwaited(NotwiceError, RuntimeError):
    """A move of an `AsyncOperation` was called and not awaited, so it never ran; the operation was not finished.

    Its handler is not believed: leaving it suspends the operation. Write ``await op.step(...)`` in an ``async def``;
    from a thread of one, ``anyio.from_thread.run(op.step, ...)``.
    """

    code = "not_awaited"

    def __init__(self, names: Sequence[str], *, operation: str, in_a_loop: bool) -> None:
        what, first = " and ".join(map(repr, names)), names[0]
        if in_a_loop:
            message = (
                f"{what} of operation {operation} was called and never ran, so nothing was finished. Write `await "
                f"op.{first}(...)`, and await each task and gather that was given such a call"
            )
        else:
            message = (
                f"{what} of operation {operation} did not run: no event loop runs here, and it is to be awaited. Make "
                f"the handler `async def`, and write `await op.{first}(...)`; in the thread of a plain `def`, where a "
                f"framework runs it in one, call `anyio.from_thread.run(op.{first}, ...)`"
            )
        super().__init__(message)
        self.operation = operation


class StepsChanged(NotwiceError):
    """The handler asks for other steps than an earlier attempt has done: which of them happened is not guessed.

    No new step ran. The operation stays unresolved: finish it with the release that began it, or look its effects up
    and resolve it.
    """

    code = "steps_changed"

    def __init__(self, label: str, unasked: Sequence[str], *, operation: str) -> None:
        asks = f"asks for the new step {label!r}" if label else "ends"
        missing = f", and has not asked for {', '.join(map(repr, unasked))}, done before" if unasked else " once more"
        super().__init__(
            f"the steps of operation {operation} have changed since an earlier attempt: its handler {asks}{missing}. "
            "Nothing new ran. Finish it with the release that began it, or look its effects up and resolve it"
        )
        self.operation = operation


class StepRunning(NotwiceError, RuntimeError):
    """A step of this name has not ended yet, so this one was not run: parallel branches need names of their own."""

    code = "step_running"

    def __init__(self, label: str, *, operation: str) -> None:
        super().__init__(
            f"the step {label!r} of operation {operation} is running already, and nothing would tell its results "
            "apart. Give the steps of parallel branches names of their own, such as f'pay {item.id}'"
        )
        self.operation = operation


class ProgressFull(NotwiceError):
    """The operation keeps as many steps and checkpoints, or as many bytes of them, as it may.

    Keep references instead of data; or put the steps of a loop into one step around it, which keeps only its own
    result when it is done; or make each turn an operation of its own.
    """

    code = "progress_full"


class ContentionError(NotwiceError):
    """Each of eight swaps lost against another writer; nothing ran. Repeat the same call."""

    code = "contention"
    retry_after = 1


class StoreUnavailable(NotwiceError):
    """The store is down, slower than ``store_timeout``, or its acknowledgement was lost. Repeat the same call.

    From a begin: nothing ran. From complete or fail: the effect is done, and the guard goes on repeating the write
    with the same etag while the process lives.
    """

    code = "store_unavailable"
    retry_after: int | None = 1


class RecordTooLarge(StoreUnavailable):
    """The engine that keeps the records keeps none of that size. Nothing was written, and sending it again is in vain.

    From a complete or fail the guard keeps the answer without its body (the marker ``omitted``), and raises nothing.
    From a checkpoint: the operation goes on without it; keep a reference to the data instead.
    """

    retry_after = None


class UnsupportedRecord(NotwiceError):
    """The stored record was written by a newer release, or is damaged. Nothing ran. Upgrade this process."""

    code = "unsupported_record"
    retry_after = 30


class InvalidKey(NotwiceError, ValueError):
    """The key, scope or namespace can't be used; the message says why. Nothing ran, nothing was stored."""

    code = "key_invalid"


class EncodingError(NotwiceError, TypeError):
    """A value can't be stored without loss; the message names it. Raised before anything runs, where that can be."""

    code = "encoding_error"


class ForceRequired(NotwiceError):
    """An operator's move on a live lease, or on a finished record, needs ``force=True``. Nothing changed."""

    code = "in_progress"


class RecordChanged(NotwiceError):
    """The record is not the one that the operator was shown. Nothing changed. Look it up again, then decide."""

    code = "contention"
