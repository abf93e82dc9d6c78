"""What a simulated call writes into the history: what it asked, what its handler did, what it was told."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from notwice.codec import encode_value
from notwice.errors import (
    NotApplied,
    NotwiceError,
    OperationInProgress,
    OperationUnresolved,
    OwnershipLost,
    RecordedFailure,
    RequestMismatch,
    ResultOmitted,
)
from notwice.guard_base import Done
from notwice.model import InProgress, Mismatch, Replay, Result, ResultKind, Terms, Unresolved
from notwice.operation_base import OperationBase
from notwice.policy import Policy
from notwice.results import result_of
from notwice.testing.history import (
    Answer,
    Answered,
    Asked,
    Event,
    Move,
    MoveAnswered,
    MoveAsked,
    Name,
    Outcome,
    Produced,
    Reconciled,
    Started,
    Verdict,
    answer_of,
)

if TYPE_CHECKING:
    from notwice.testing.simulate.process import Process

_ERRORS: Final[dict[type, Outcome]] = {
    OperationInProgress: Outcome.IN_PROGRESS,
    OperationUnresolved: Outcome.UNRESOLVED,
    RequestMismatch: Outcome.MISMATCH,
}


class StepMove:
    """The checkpoint of a step: a move only if the step's function ran. `asked` says that it did."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._ran = False

    def asked(self) -> None:
        """The function has run; its result is kept next."""
        self._ran = True
        self._note(
            MoveAsked(at_ns=self._recorder.now_ns, call=self._recorder.call, move=Move.CHECKPOINT, point=self._name)
        )

    def __enter__(self) -> None:
        """Nothing: what counts is whether the function runs."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ran:
            code = "" if error is None else error.code if isinstance(error, NotwiceError) else "cancelled"
            recorder = self._recorder
            self._note(MoveAnswered(at_ns=recorder.now_ns, call=recorder.call, move=Move.CHECKPOINT, code=code))

    def _note(self, event: Event) -> None:
        self._recorder.process.note(event)


class Recorder:
    """The events of one call. Once its process is dead, nothing is recorded any more.

    Arguments:
        process: where it runs.
        call: its name, which no other call of the run has.
        caller: who made it.
    """

    def __init__(self, process: Process, call: str, caller: str) -> None:
        self.process: Final = process
        self.call: Final = call
        self.caller: Final = caller
        self.started = False
        self.outcome: Outcome | None = None
        self.retry_after: int | None = None
        self._owned = False

    @property
    def now_ns(self) -> int:
        """The time of the next event."""
        return self.process.world.now_ns

    def asked(
        self,
        name: Name,
        request: str | None,
        policy: Policy,
        *,
        terms: Terms | None = None,
        answer_within_ms: int | None = None,
    ) -> None:
        """The call is made. `request` is the digest of its fingerprint, in hexadecimal; `terms`: not the policy's."""
        self.process.note(
            Asked(
                at_ns=self.now_ns,
                call=self.call,
                caller=self.caller,
                process=self.process.name,
                name=name,
                request=request,
                terms=terms or policy.terms,
                wait_ms=int(policy.wait_seconds * 1000),
                answer_within_ms=answer_within_ms,
            )
        )

    def entered(self, operation: OperationBase) -> None:
        """The handler is entered."""
        self.started = True
        generation = operation.view.record.generation
        self.process.note(Started(at_ns=self.now_ns, call=self.call, attempt=operation.attempt, generation=generation))

    def produced(self, value: object, *, failed: bool = False, final: bool = True) -> None:
        """The handler, or the reconcile function, has an answer. `final`: it ends the operation."""
        self._produced(answer_of(result_of(value), failed=failed), final=final)

    def answers(self, answer: Answer, *, final: bool) -> None:
        """The handler has an answer that is ready to send. `final`: it ends the operation."""
        self._produced(answer, final=final)

    def refused(self, error: BaseException) -> None:
        """The handler raised an error that is an answer."""
        self._produced(answer_of(result_of(error), failed=True), error=type(error).__name__)

    def failed(self, error: BaseException) -> None:
        """The handler raised."""
        self._produced(None, error=type(error).__name__, proves=isinstance(error, NotApplied))

    def _produced(self, answer: Answer | None, *, error: str = "", final: bool = True, proves: bool = False) -> None:
        self.process.note(
            Produced(at_ns=self.now_ns, call=self.call, answer=answer, error=error, final=final, proves=proves)
        )

    def reconciled(self, verdict: Verdict) -> None:
        """The reconcile function has a verdict."""
        self.process.note(Reconciled(at_ns=self.now_ns, call=self.call, verdict=verdict))

    @contextmanager
    def move(self, move: Move, point: str = "") -> Generator[None, None, None]:
        """The owner makes a move, and is told what became of it."""
        self.process.note(MoveAsked(at_ns=self.now_ns, call=self.call, move=move, point=point))
        code = "cancelled"
        try:
            yield
            code = ""
        except NotwiceError as error:
            code = error.code
            raise
        finally:
            self.process.note(MoveAnswered(at_ns=self.now_ns, call=self.call, move=move, code=code))

    def step(self, name: str) -> StepMove:
        """A step is about to be run, or to be skipped."""
        return StepMove(self, name)

    def left(self) -> None:
        """The owner leaves its operation without a move, which suspends it."""
        self.process.note(MoveAsked(at_ns=self.now_ns, call=self.call, move=Move.SUSPEND))

    # -- what the call came to

    def owned(self, operation: OperationBase) -> None:
        """Begin gave the operation."""
        self._owned = True
        outcome = Outcome.OWNED if operation.guarded else Outcome.UNGUARDED
        self.told(outcome, attempt=operation.attempt)

    def given(self, outcome: Replay | InProgress | Unresolved | Mismatch) -> None:
        """Begin gave what a duplicate gets."""
        match outcome:
            case Replay():
                answer = answer_of(outcome.stored, failed=outcome.failed)
                self.told(Outcome.REPLAY, answer, marked=True, attempt=outcome.view.record.attempt)
            case InProgress():
                self.told(Outcome.IN_PROGRESS, retry_after=outcome.retry_after)
            case Unresolved():
                self.told(Outcome.UNRESOLVED, retry_after=outcome.retry_after)
            case Mismatch():
                self.told(Outcome.MISMATCH)

    def done(self, done: Done) -> None:
        """The call gave a value."""
        outcome = Outcome.REPLAY if done.replayed else Outcome.DONE
        self.told(outcome, answer_of(result_of(done.result), failed=False), marked=done.replayed)

    def cancelled(self) -> None:
        """The caller went away."""
        self.told(Outcome.CANCELLED)

    def raised(self, error: Exception) -> None:
        """The call raised."""
        code = error.code if isinstance(error, NotwiceError) else type(error).__name__
        retry_after = error.retry_after if isinstance(error, NotwiceError) else None
        answer, marked = None, False
        if isinstance(error, RecordedFailure):
            outcome, marked = Outcome.REPLAY, True
            answer = answer_of(_recorded(error), failed=True)
        elif isinstance(error, ResultOmitted):
            outcome, answer, marked = Outcome.REPLAY, Answer(None), True
        elif type(error) in _ERRORS:
            outcome = _ERRORS[type(error)]
        elif isinstance(error, OwnershipLost):
            outcome = Outcome.LOST
        else:
            outcome = Outcome.RAISED if self.started else Outcome.REFUSED
        self.told(outcome, answer, marked=marked, retry_after=retry_after, code=code)

    def told(
        self,
        outcome: Outcome,
        answer: Answer | None = None,
        *,
        marked: bool = False,
        attempt: int | None = None,
        retry_after: int | None = None,
        code: str = "",
    ) -> None:
        """The call came back."""
        if self._owned and self.outcome is not None:
            return  # what becomes of an operation that was given are moves
        self.outcome, self.retry_after = outcome, retry_after
        self.process.note(
            Answered(
                at_ns=self.now_ns,
                call=self.call,
                outcome=outcome,
                answer=answer,
                marked=marked,
                attempt=attempt,
                retry_after=retry_after,
                code=code,
            )
        )


def _recorded(error: RecordedFailure) -> Result:
    """What was stored of a refusal that was replayed: a value that the owner failed with, or an exception."""
    if error.value is not None:
        return result_of(error.value)
    return Result(ResultKind.ERROR, encode_value([error.kind, error.message]))
