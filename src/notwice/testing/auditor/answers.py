"""What callers were told: answers, refusals, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from notwice.model import State
from notwice.testing.auditor.account import Call, Life, Line, Source
from notwice.testing.auditor.violations import Kind, Violation
from notwice.testing.history import Answer, Answered, Event, Held, Move, MoveAnswered, Outcome, Produced

FINAL_MOVES = frozenset({Move.COMPLETE, Move.FAIL})
FENCED_MOVES = FINAL_MOVES | {Move.CHECKPOINT, Move.HEARTBEAT, Move.CONFIRM}
"""Moves that are never told as done unless they were. Others are also done where they have nothing left to do."""

_REFUSALS = frozenset({Outcome.IN_PROGRESS, Outcome.UNRESOLVED, Outcome.MISMATCH, Outcome.REFUSED})


def told(line: Line, call: Call, event: Answered, *, effects: bool, others: Iterable[Line]) -> Iterator[Violation]:
    """A call came back. `effects`: a success means an effect. `others`: where a foreign answer may be from."""
    yield from _late(line, call, event)
    if event.answer is not None and event.outcome is Outcome.REPLAY:
        yield from _replayed(line, call, event, effects=effects, others=others)
    elif event.answer is not None and event.outcome is Outcome.DONE:
        yield from _done(line, call, event, effects=effects)
    elif event.outcome in _REFUSALS:
        yield from _refused(line, call, event)


def _late(line: Line, call: Call, event: Event) -> Iterator[Violation]:
    """Whoever runs no handler has an answer in time; a handler begins in time."""
    until = call.started or call.verdict or event
    limit_ms = call.asked.answer_within_ms
    if limit_ms is not None and (waited_ms := call.waited_ms(until.at_ns)) > limit_ms:
        what = f"an answer took {waited_ms:g} ms, and {limit_ms} ms are allowed"
        yield Violation(Kind.UNBOUNDED_WAIT, line.name, what, (call.asked, until))


def _done(line: Line, call: Call, event: Answered, *, effects: bool) -> Iterator[Violation]:
    produced = call.produced.answer if call.produced is not None else None
    assert event.answer is not None  # only such are told as done
    if call.produced is None or produced is None:
        what = "a caller was told that its own handler gave this answer, and it did not"
        yield Violation(Kind.WRONG_REPLAY, line.name, what, (call.asked, event))
    elif (produced.body, produced.status, produced.failed) != (
        event.answer.body,
        event.answer.status,
        event.answer.failed,
    ):
        what = "a caller was given another answer than its own handler's"
        yield Violation(Kind.WRONG_REPLAY, line.name, what, (call.produced, event))
    elif effects and call.produced.final and not produced.failed and not (call.life or line.life).effects:
        what = "a caller was told of an effect that did not happen"
        yield Violation(Kind.LOST_EFFECT, line.name, what, (call.produced, event))


def _replayed(line: Line, call: Call, event: Answered, *, effects: bool, others: Iterable[Line]) -> Iterator[Violation]:
    answer = event.answer
    assert answer is not None  # only such are replays
    if not event.marked:
        what = "a replay does not say that it is one"
        yield Violation(Kind.WRONG_REPLAY, line.name, what, (call.asked, event))
    found = _source(line.lives_since(call), answer, call.asked.request)
    if found is None:
        yield _unknown_answer(line, call, event, others=others)
        return
    life, source = found
    if source.request is not None and call.asked.request not in (None, source.request):
        what = f"the answer of the request {source.request!r} was given to {call.asked.request!r}"
        yield Violation(Kind.FOREIGN_REPLAY, line.name, what, (source.event, call.asked, event))
    by_a_handler = isinstance(source.event, Produced)
    if effects and source.final and by_a_handler and not source.answer.failed and not life.effects:
        what = "a duplicate was told of an effect that did not happen"
        yield Violation(Kind.LOST_EFFECT, line.name, what, (source.event, event))
    if call.asked.at_ns > life.moved_ns:
        yield from _other_than_before(line, life, source, event=event)


def _source(lives: Iterable[Life], answer: Answer, request: str | None) -> tuple[Life, Source] | None:
    """Where the answer comes from, the same request's before others', the last before earlier ones."""
    fitting = [(life, source) for life in lives for source in life.sources if source.gives(answer)]
    fitting.sort(
        key=lambda found: (
            request in (None, found[1].request),
            not _differs(*found),
            found[1].final,
            found[1].event.at_ns,
        )
    )
    return fitting[-1] if fitting else None


def _differs(life: Life, source: Source) -> bool:
    """Whether duplicates were given another answer in this life."""
    return source.final and life.replayed is not None and not life.replayed[0].gives(source.answer)


def _unknown_answer(line: Line, call: Call, event: Answered, *, others: Iterable[Line]) -> Violation:
    assert event.answer is not None  # only such are replays
    whole = event.answer.body is not None
    for other in others if whole else ():
        if other is not line and (found := _source(other.lives, event.answer, None)) is not None:
            what = f"the answer is that of {tuple(other.name)}"
            return Violation(Kind.FOREIGN_REPLAY, line.name, what, (found[1].event, call.asked, event))
    what = "a duplicate was given an answer that nobody had produced"
    return Violation(Kind.WRONG_REPLAY, line.name, what, (*(s.event for s in line.life.sources), call.asked, event))


def _other_than_before(line: Line, life: Life, source: Source, *, event: Answered) -> Iterator[Violation]:
    """Once a final answer has been replayed, no other is, unless an operator released it."""
    if not source.final:
        return
    if life.replayed is not None and _differs(life, source):
        what = "a duplicate was given another answer than one before it"
        yield Violation(Kind.WRONG_REPLAY, line.name, what, (life.replayed[1], event))
        return
    life.replayed = (source, event)
    life.finished = life.finished or event
    life.end(event.at_ns)


def _refused(line: Line, call: Call, event: Answered) -> Iterator[Violation]:
    match event.outcome:
        case Outcome.REFUSED if call.started is not None:
            what = "a caller was told that nothing ran, and its handler had run"
            yield Violation(Kind.UNGUARDED_RUN, line.name, what, (call.started, event))
        case Outcome.MISMATCH if line.requests <= {call.asked.request} or call.asked.request is None:
            what = "a caller was told that the key was used for another request, and none had been made"
            yield Violation(Kind.WRONG_REFUSAL, line.name, what, (call.asked, event))
        case Outcome.IN_PROGRESS if event.retry_after is not None and event.retry_after < 1:
            what = "a duplicate was told to come back at once"
            yield Violation(Kind.WRONG_REFUSAL, line.name, what, (call.asked, event))
        case Outcome.IN_PROGRESS | Outcome.UNRESOLVED if call.started is None:
            yield from _of_itself(line, call, event)
        case _:
            pass


def _of_itself(line: Line, call: Call, event: Answered) -> Iterator[Violation]:
    """Nobody is a duplicate of itself: told so though only its own write stands in the store."""
    held = line.held
    if held is None or held.kept is None or held.kept.state is not State.IN_PROGRESS or call.verdict is not None:
        return
    if held.write and held.call == call.asked.call and call.only_writer:
        what = "a caller was told that its own claim is somebody else's"
        yield Violation(Kind.WRONG_REFUSAL, line.name, what, (call.asked, held, event))


def moved(line: Line, call: Call, event: MoveAnswered) -> Iterator[Violation]:
    """An owner's move came back."""
    asked, life = call.move, call.life or line.life
    if asked is None or event.code:
        yield from _lost_to_nobody(line, call, event)
        return
    if event.move in FENCED_MOVES and call.claim is not None:
        yield from _passed_the_fence(line, call, event)
    if event.move in FINAL_MOVES and not life.forced:
        if isinstance(life.finished, MoveAnswered):
            what = "two owners were told that their answer is the first"
            yield Violation(Kind.BROKEN_FENCE, line.name, what, (life.finished, event))
        life.finished = event


def _passed_the_fence(line: Line, call: Call, event: MoveAnswered) -> Iterator[Violation]:
    """A move that began when a later owner was known must not be told as done."""
    claim, asked = call.claim, call.move
    assert claim is not None  # checked by whoever asks
    assert asked is not None  # an answer follows a move
    later = [each for each in claim.call.life.claims if each.attempt > claim.attempt] if claim.call.life else []
    for each in later:
        if each.event.at_ns < asked.at_ns:
            what = f"an owner of attempt {claim.attempt} moved on though attempt {each.attempt} had begun"
            yield Violation(Kind.BROKEN_FENCE, line.name, what, (each.event, asked, event))
            return


def _lost_to_nobody(line: Line, call: Call, event: MoveAnswered) -> Iterator[Violation]:
    held = line.held
    mine = held is not None and held.write and held.call == call.asked.call
    if event.code == "ownership_lost" and event.move in FENCED_MOVES and mine and isinstance(held, Held):
        what = "an owner was told that it lost its operation, and the last write was its own"
        yield Violation(Kind.WRONG_REFUSAL, line.name, what, (held, event))


def still_open(line: Line, call: Call, end_ns: int, *, settled: bool) -> Iterator[Violation]:
    """A call has no answer, and the history is over."""
    if call.killed or call.process.stopped_at_ns is not None:
        return
    limit_ms, ran = call.asked.answer_within_ms, call.started or call.verdict
    late = limit_ms is not None and not ran and call.waited_ms(end_ns) > limit_ms
    if late or settled:
        what = "a caller never got an answer"
        events = chain([call.asked], [ran] if ran else [])
        yield Violation(Kind.UNBOUNDED_WAIT, line.name, what, tuple(events))
