"""What the store held: each write in its place, and nothing gone before its time."""

from __future__ import annotations

from collections.abc import Iterator

from notwice.model import RecoveryKind, Released, State
from notwice.testing.auditor import runs
from notwice.testing.auditor.account import FINISHED, Call, Line, ms_between
from notwice.testing.auditor.violations import Kind, Violation
from notwice.testing.history import Answered, Calm, Event, Held, Kept, Outcome, Produced


def written(line: Line, event: Held) -> Iterator[Violation]:
    """A write took effect, in a history that has all of them."""
    before, kept = line.held, event.kept
    there = before.kept if before is not None else None
    if kept is None:
        yield from _dropped(line, event)
        return
    named = there.etag if there is not None else None
    proof = (before, event) if before is not None else (event,)
    if event.replaced != named:
        what = "a write took effect on another record than the one that it named"
        yield Violation(Kind.BROKEN_FENCE, line.name, what, proof)
    if kept.etag in line.etags:
        yield Violation(Kind.BROKEN_FENCE, line.name, "an etag was used for two writes", proof)
    line.etags.add(kept.etag)
    if kept.state is State.IN_PROGRESS:
        line.attempts_written.add(kept.attempt)
    if before is not None and there is not None:
        yield from _followed(line, before, event)
    if there is None or _is_new(there, kept):
        line.born_ns = event.at_ns
        yield from runs.begun(line, event)
    done = [effect for effect, _ in line.life.applied if effect.at_ns >= line.born_ns]
    if kept.released is Released.AS_NEW and (kept.attempt > 1 or done):
        what = "it was marked as new by one who can't know that nothing happened"
        yield Violation(Kind.FREED_KEY, line.name, what, (*done, event))


def _followed(line: Line, before: Held, event: Held) -> Iterator[Violation]:
    there, kept = before.kept, event.kept
    assert there is not None  # the caller has looked
    assert kept is not None
    anew = _is_new(there, kept)
    if there.state in FINISHED and not line.life.forced and not (anew and _may_drop(line, before, event.at_ns)):
        yield Violation(Kind.BROKEN_FENCE, line.name, "a finished record was overwritten", (before, event))
    elif anew and there.attempt > 1 and not _may_drop(line, before, event.at_ns):
        what = "a record that others had claimed was replaced by a new one"
        yield Violation(Kind.FREED_KEY, line.name, what, (before, event))
    elif not anew and kept.attempt > there.attempt and there.state is kept.state is State.IN_PROGRESS:
        yield from _taken_early(line, before, event)
    if not anew and line.life.claims and None not in (pair := (there.request, kept.request)) and len({*pair}) > 1:
        what = "the record of one request became another's"
        yield Violation(Kind.FOREIGN_RUN, line.name, what, (before, event))


def _is_new(there: Kept, kept: Kept) -> bool:
    over = there.state in FINISHED or there.released is Released.AS_NEW or there.attempt > 1
    return kept.attempt == 1 and kept.state is State.IN_PROGRESS and over


def _taken_early(line: Line, before: Held, event: Held) -> Iterator[Violation]:
    assert before.kept is not None  # two records are compared
    terms, silent_ms = before.kept.terms, ms_between(before.at_ns, event.at_ns)
    if terms is not None and silent_ms <= terms.lease_ms - 1 and line.rebooted_ns < before.at_ns:
        what = f"its owner had written {silent_ms:g} ms ago, and has a lease of {terms.lease_ms} ms"
        yield Violation(Kind.EARLY_TAKEOVER, line.name, what, (before, event))


def _may_drop(line: Line, before: Held, at_ns: int) -> bool:
    """Whether what was there may be gone, or begin anew."""
    kept = before.kept
    if kept is None or kept.terms is None:
        return kept is None
    if kept.released is Released.AS_NEW:
        return True
    retention_ms = kept.terms.retention_ms
    finished = kept.state in FINISHED and retention_ms is not None
    return finished and line.expired(before.at_ns, at_ns, float(retention_ms or 0))


def _dropped(line: Line, event: Held) -> Iterator[Violation]:
    """Nothing is there any more, or a younger record than before."""
    before = line.held
    if before is not None and before.kept is not None:
        if not _may_drop(line, before, event.at_ns):
            what = f"a record that was {_described(before.kept)} is gone"
            yield Violation(Kind.VANISHED_RECORD, line.name, what, (before, event))
    elif before is None and not runs.may_be_absent(line, event.at_ns):
        what = "nothing is stored of an operation that somebody owned"
        yield Violation(Kind.VANISHED_RECORD, line.name, what, (line.life.claims[-1].event, event))


def _described(kept: Kept) -> str:
    return "unreadable" if kept.state is None else str(kept.state)


def looked(line: Line, event: Held, *, whole: bool) -> Iterator[Violation]:
    """Somebody looked, and this was there. `whole`: all writes are known, so it must be what the last one left."""
    before, kept = line.held, event.kept
    there = before.kept if before is not None else None
    if kept is None:
        yield from _dropped(line, event)
    elif whole and there is not None and before is not None and kept.etag != there.etag:
        what = "the store holds another record than the one that was last written"
        yield Violation(Kind.VANISHED_RECORD, line.name, what, (before, event))
    else:
        yield from _undone(line, event, kept)


def _undone(line: Line, event: Held, kept: Kept) -> Iterator[Violation]:
    """A record must not be older than what was seen or confirmed before."""
    before, life = line.held, line.life
    there = before.kept if before is not None else None
    proof: Event | None = None
    if before is not None and there is not None and not _may_drop(line, before, event.at_ns):
        reopened = there.state in FINISHED and kept.state not in FINISHED and not life.forced
        younger = kept.created_ms != there.created_ms or kept.attempt < there.attempt
        proof = before if kept.state is not None and (reopened or younger) else None
    if proof is None and kept.state is not None and not runs.may_be_absent(line, event.at_ns):
        newer = next((each.event for each in life.claims if each.attempt > kept.attempt), None)
        proof = newer or (life.finished if kept.state not in FINISHED else None)
    if proof is not None:
        what = "what was seen or confirmed before is not there any more"
        yield Violation(Kind.VANISHED_RECORD, line.name, what, (proof, event))


def unwritten(line: Line, event: Event, attempt: int) -> Iterator[Violation]:
    """An owner is at work, in a history that has all writes: one of them must have been its claim."""
    if attempt not in line.attempts_written:
        what = f"attempt {attempt} runs, and no record of it was written"
        yield Violation(Kind.UNGUARDED_RUN, line.name, what, (event,))


def unended(line: Line, call: Call, event: Event) -> Iterator[Violation]:
    """An owner was told that its answer is stored, in a history that has all writes."""
    if not (call.life or line.life).stored_end:
        what = "an owner was told that its answer is stored, and it was not"
        yield Violation(Kind.VANISHED_RECORD, line.name, what, (event,))


def at_the_end(line: Line, calm: Calm | None, end_ns: int, *, effects: bool, settled: bool) -> Iterator[Violation]:
    """The history is over. `settled`: everything must have come to its end by now."""
    kept = line.held.kept if line.held is not None else None
    if line.held is None or kept is None:
        pass
    elif kept.state is State.COMPLETED and effects and not line.life.effects and _by_a_handler(line):
        what = "it is completed, and its effect did not happen"
        yield Violation(Kind.LOST_EFFECT, line.name, what, (line.held,))
    elif settled and kept.state is State.IN_PROGRESS and not _lapsed(kept, line.held.at_ns, end_ns):
        yield Violation(Kind.UNSETTLED, line.name, "it is still in progress", (line.held,))
    if settled and calm is not None:
        last = next((call for call in reversed(line.asks) if call.answered is not None), None)
        if last is not None and last.answered is not None and last.asked.at_ns >= calm.at_ns:
            yield from _open_at_last(line, last, last.answered)


def _lapsed(kept: Kept, at_ns: int, end_ns: int) -> bool:
    return kept.lapsed or (kept.terms is not None and ms_between(at_ns, end_ns) >= kept.terms.lease_ms)


def _by_a_handler(line: Line) -> bool:
    return all(isinstance(source.event, Produced) for source in line.life.sources)


def _open_at_last(line: Line, call: Call, event: Answered) -> Iterator[Violation]:
    again = call.terms.recovery is RecoveryKind.RERUN and line.stored(line.life).recovery is RecoveryKind.RERUN
    unlimited = call.terms.attempts_max is None and call.terms.rerun_within_ms is None
    if event.outcome in {Outcome.IN_PROGRESS, Outcome.REFUSED} or (
        event.outcome is Outcome.UNRESOLVED and again and unlimited
    ):
        what = f"the last who asked was told {event.outcome}"
        yield Violation(Kind.UNSETTLED, line.name, what, (call.asked, event))
