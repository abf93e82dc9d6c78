"""An independent judge of histories: it knows what notwice promises, and nothing of how it keeps it.

`audit` reads a `History` once, event by event, and says what is wrong with it. It imports neither the rules nor the
guards, so that a mistake in those can't be in the judge as well. It judges by what is certain: where a history leaves
something open (an unanswered call may or may not have written), it believes the better. So each violation that it
finds is one, and what it proves depends on how much was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from notwice.model import State
from notwice.testing.auditor import answers, records, runs
from notwice.testing.auditor.account import FINISHED, Call, Line, Process, Source
from notwice.testing.auditor.violations import Kind, Violation
from notwice.testing.history import (
    Answer,
    Answered,
    Asked,
    Calm,
    Disturbance,
    Disturbed,
    Effect,
    Event,
    Header,
    Held,
    History,
    Move,
    MoveAnswered,
    MoveAsked,
    Name,
    OperatorMove,
    OperatorMoved,
    Outcome,
    Produced,
    Reconciled,
    Started,
)

__all__ = ["Kind", "Violation", "audit"]

_GIVES_UP = frozenset({Outcome.LOST, Outcome.RAISED, Outcome.REFUSED, Outcome.CANCELLED})
_ENDS = frozenset({Move.COMPLETE, Move.FAIL})


def audit(history: History, *, settled: bool = False) -> tuple[Violation, ...]:
    """Give all that is wrong with a history, in the order in which it shows; nothing if it is sound.

    `settled`: the history ends long enough after its last fault (`Calm`), so everything must have come to its end:
    no caller still waits, nothing is in progress, and who asks is not told to come back.

    Raises `ValueError` for a history that contradicts itself, such as an answer to a call that nobody made.
    """
    judge = _Judge(history.header)
    found = [violation for event in history.events for violation in judge.see(event)]
    found.extend(judge.close(history.events[-1].at_ns if history.events else 0, settled=settled))
    return tuple(found)


class _Judge:
    """What was learned so far, and what follows from the next event."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._lines: dict[Name, Line] = {}
        self._calls: dict[str, Call] = {}
        self._processes: dict[str, Process] = {}
        self._calm: Calm | None = None
        self._steps_ms = 0
        self._stepped = False
        self._rebooted_ns = -1

    def see(self, event: Event) -> Iterable[Violation]:
        """Judge one event by all that came before it."""
        match event:
            case Asked():
                self._ask(event)
            case Held():
                return self._held(event)
            case OperatorMoved():
                self._operator(event)
            case Disturbed():
                self._disturbed(event)
            case Calm():
                self._calm = event
            case _:
                return self._of_a_call(event)
        return ()

    def close(self, end_ns: int, *, settled: bool) -> Iterator[Violation]:
        """Judge what is left open at the end."""
        for call in self._calls.values():
            if call.answered is None:
                yield from answers.still_open(self._line(call.asked.name), call, end_ns, settled=settled)
        for line in self._lines.values():
            yield from records.at_the_end(line, self._calm, end_ns, effects=self._header.effects, settled=settled)

    def _line(self, name: Name) -> Line:
        line = self._lines.get(name)
        if line is None:
            line = Line(name, steps_ms=self._steps_ms, stepped=self._stepped, rebooted_ns=self._rebooted_ns)
            self._lines[name] = line
        return line

    def _process(self, name: str) -> Process:
        return self._processes.setdefault(name, Process())

    def _ask(self, event: Asked) -> None:
        if event.call in self._calls:
            message = f"the call {event.call!r} was made twice; each call needs a name of its own"
            raise ValueError(message)
        line, process = self._line(event.name), self._process(event.process)
        call = Call(event, process, process.stopped_until(event.at_ns), len(line.lives) - 1, line.life.finished)
        self._calls[event.call] = call
        line.asks.append(call)
        if event.request is not None:
            line.requests.add(event.request)

    def _of_a_call(
        self, event: Started | Effect | Produced | Reconciled | MoveAsked | MoveAnswered | Answered
    ) -> Iterable[Violation]:
        call = self._calls.get(event.call)
        if call is None:
            message = f"nobody made the call {event.call!r}: {event}"
            raise ValueError(message)
        line = self._line(call.asked.name)
        match event:
            case Started():
                return self._started(line, call, event)
            case Effect():
                return runs.happened(line, event, call)
            case Produced():
                _produced(line, call, event)
            case Reconciled():
                call.verdict = event
            case MoveAsked():
                _move(line, call, event)
            case MoveAnswered():
                return self._moved(line, call, event)
            case Answered():
                return self._answered(line, call, event)
        return ()

    def _started(self, line: Line, call: Call, event: Started) -> Iterator[Violation]:
        if not event.guarded:
            call.started = event
            if not call.asked.proceed:
                what = "a handler ran without a guard, and its policy does not allow that"
                yield Violation(Kind.UNGUARDED_RUN, line.name, what, (call.asked, event))
            return
        yield from runs.claimed(line, call, event, attempt=event.attempt)
        call.started = event
        if self._header.whole:
            yield from records.unwritten(line, event, event.attempt)

    def _moved(self, line: Line, call: Call, event: MoveAnswered) -> Iterator[Violation]:
        yield from answers.moved(line, call, event)
        if event.code or call.move is None:
            return
        if event.move is Move.CHECKPOINT:
            (call.life or line.life).steps_done.setdefault(call.move.point, event)
        if event.move in answers.FENCED_MOVES:
            call.sign_ns = max(call.sign_ns, call.move.at_ns)
        if event.move in _ENDS and self._header.whole:
            yield from records.unended(line, call, event)

    def _answered(self, line: Line, call: Call, event: Answered) -> Iterator[Violation]:
        if call.answered is not None:
            message = f"the call {event.call!r} was answered twice: {event}"
            raise ValueError(message)
        if event.outcome is Outcome.OWNED:
            attempt = event.attempt or 1
            yield from runs.claimed(line, call, event, attempt=attempt)
            if self._header.whole:
                yield from records.unwritten(line, event, attempt)
        yield from answers.told(line, call, event, effects=self._header.effects, others=self._lines.values())
        call.answered = event
        call.gave_up = call.gave_up or event.outcome in _GIVES_UP

    def _held(self, event: Held) -> Iterator[Violation]:
        line = self._line(event.name)
        if event.write and self._header.whole:
            yield from records.written(line, event)
        else:
            yield from records.looked(line, event, whole=self._header.whole)
        if event.write:
            self._note_writer(line, event)
        if not self._header.whole or event.write or line.held is None:
            line.held = event

    def _note_writer(self, line: Line, event: Held) -> None:
        for call in line.asks:
            if call.answered is None and call.asked.call != event.call:
                call.only_writer = False
        writer = self._calls.get(event.call)
        state = event.kept.state if event.kept is not None else None
        if writer is not None:
            writer.sign_ns = max(writer.sign_ns, event.at_ns)
        if writer is not None and state is State.IN_PROGRESS:
            writer.home = writer.home or line.life
        if writer is not None and state is State.ACCEPTED:
            writer.gave_up = True  # if it was interrupted in that, nobody was told
        if event.kept is not None and state in FINISHED:
            line.life.stored_end = event.kept.terms

    def _operator(self, event: OperatorMoved) -> None:
        line = self._line(event.name)
        life, held = line.life, line.held
        if event.forced:
            life.forced.append(event)
        if event.move is OperatorMove.RELEASE:
            life.free(event, held.kept.attempt if held is not None and held.kept is not None else 0)
            if event.from_start:
                life.steps_done.clear()
            return
        life.end(event.at_ns)
        life.finished = life.replayed = None
        life.moved_ns = event.at_ns
        life.sources.append(Source(event.answer or Answer(None), None, True, event))

    def _disturbed(self, event: Disturbed) -> None:
        process = self._process(event.process)
        match event.kind:
            case Disturbance.KILLED:
                for call in self._calls.values():
                    call.killed = call.killed or (call.process is process and call.answered is None)
            case Disturbance.PAUSED:
                process.stopped_at_ns = event.at_ns
            case Disturbance.RESUMED if process.stopped_at_ns is not None:
                process.stopped_ns += event.at_ns - process.stopped_at_ns
                process.stopped_at_ns = None
            case Disturbance.CLOCK_STEP:
                self._steps_ms += max(event.by_ms, 0)
                self._stepped = True
            case Disturbance.REBOOT:
                self._rebooted_ns = event.at_ns
            case _:
                pass
        for line in self._lines.values():
            line.steps_ms, line.stepped = self._steps_ms, self._stepped
            line.rebooted_ns = self._rebooted_ns


def _produced(line: Line, call: Call, event: Produced) -> None:
    call.produced = event
    if event.proves:
        _undo(call)
    if event.answer is None or not event.final:
        call.gave_up = True
    if event.answer is not None:
        life = call.life or line.life
        life.sources.append(Source(event.answer, call.asked.request, event.final, event))
        if event.final:
            life.end(event.at_ns)


def _move(line: Line, call: Call, event: MoveAsked) -> None:
    call.move = event
    match event.move:
        case Move.COMPLETE | Move.FAIL:
            (call.life or line.life).end(event.at_ns)
        case Move.ABANDON:
            _undo(call)
        case Move.CHECKPOINT:
            call.touched = True
        case _:
            pass
    if event.move in {Move.ABANDON, Move.SUSPEND}:
        call.gave_up = True


def _undo(call: Call) -> None:
    """It says that it did nothing: an operator's mark that its claim had taken off may be back."""
    call.undone = call.gave_up = True
    if call.claim is not None and call.life is not None and call.claim.release is not None and not call.touched:
        call.life.mark = call.claim.release
