"""Histories as lines of JSON: what was recorded is what is read, also after a recorder was killed."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from notwice.model import (
    Fingerprint,
    Record,
    RecordView,
    RecoveryKind,
    Released,
    Result,
    ResultKind,
    State,
    Terms,
    Unreadable,
)
from notwice.testing import history
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
    Kept,
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
    Verdict,
)

NAME = Name("tenant", "refund:1", "\U0001f511 key")
TERMS = Terms(300_000, None, RecoveryKind.RECONCILE, 72_000_000, 5, 300_000, deduplicated=True)
ANSWER = Answer(b"\x00\xff", 201, failed=False, headers=(("content-type", "text/plain"),))
KEPT = Kept(State.ACCEPTED, b"etag", 2, 1, 3, 4, Released.OPERATOR, "r", TERMS, ANSWER, "charged", lapsed=True)

EVENTS: tuple[Event, ...] = (
    Asked(at_ns=1, call="1", caller="a", process="p", name=NAME, request="r", terms=TERMS, answer_within_ms=2_000),
    Started(at_ns=2, call="1", attempt=1),
    Effect(at_ns=3, call="1", effect="charge-1", downstream_key="k", step="charge"),
    Produced(at_ns=4, call="1", answer=ANSWER),
    Produced(at_ns=4, call="1", error="ValueError", proves=True),
    Reconciled(at_ns=5, call="1", verdict=Verdict.NOT_APPLIED),
    MoveAsked(at_ns=6, call="1", move=Move.CHECKPOINT, point="charged"),
    MoveAnswered(at_ns=7, call="1", move=Move.COMPLETE, code="ownership_lost"),
    Answered(at_ns=8, call="1", outcome=Outcome.REPLAY, answer=Answer(None), marked=True, retry_after=3),
    Held(at_ns=9, name=NAME, kept=KEPT, write=True, call="1", replaced=b"before"),
    Held(at_ns=9, name=NAME, kept=None),
    OperatorMoved(at_ns=10, name=NAME, move=OperatorMove.RESOLVE, who="ada", forced=True, answer=ANSWER),
    Disturbed(at_ns=11, kind=Disturbance.CLOCK_STEP, process="p", detail="back", by_ms=-3_600_000),
    Calm(at_ns=12),
)
WHOLE = History(Header(seed="7", clock="real", whole=True, note="made by hand"), EVENTS)


def test_what_is_read_is_what_was_recorded() -> None:
    """Each kind of event comes back equal, with its enumerations, bytes and tuples, whatever its alphabet."""
    assert {type(event) for event in EVENTS} == set(Event.__args__)
    found = history.parse(WHOLE.lines())
    assert found == WHOLE
    held = found.events[9]
    assert isinstance(held, Held)
    assert held.kept is not None
    assert held.kept.state is State.ACCEPTED
    assert held.kept.terms is not None
    assert held.kept.terms.recovery is RecoveryKind.RECONCILE


def test_each_line_is_ascii_json_that_names_its_kind() -> None:
    """Other programs can read a history: a line is one JSON object, and ``is`` says what."""
    kinds = [json.loads(line)["is"] for line in WHOLE.lines() if line.isascii()]
    assert kinds == ["Header", *(type(event).__name__ for event in EVENTS)]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    """A recorder that was killed in the middle of a line loses that line only; damage elsewhere is an error."""
    path = tmp_path / "part"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for event in EVENTS[:3]:
        history.append(descriptor, event)
    os.write(descriptor, history.line_of(EVENTS[3]).encode()[:20])
    os.close(descriptor)
    assert history.values_of(path.read_text().splitlines()) == list(EVENTS[:3])
    with pytest.raises(json.JSONDecodeError):
        history.values_of(['{"is":', history.line_of(EVENTS[0])])


def test_parts_are_merged_by_their_time() -> None:
    """What several recorders saw becomes one history, and events of one recorder at one time keep their order."""
    merged = history.merged(WHOLE.header, [EVENTS[1::2], EVENTS[::2]])
    assert [event.at_ns for event in merged.events] == sorted(event.at_ns for event in EVENTS)
    assert set(merged.events) == set(EVENTS)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [history.line_of(EVENTS[0])],
        [history.line_of(replace(WHOLE.header, version=2))],
        ['{"is":"Sandwich"}'],
    ],
    ids=["nothing", "no header", "another version", "another kind"],
)
def test_what_is_no_history_is_refused(lines: list[str]) -> None:
    """A file of something else, or of another release, is an error that says so."""
    with pytest.raises(ValueError, match="history"):
        history.parse(lines)


def test_a_record_as_it_looks_from_outside() -> None:
    """What a store holds is taken over with what a judge needs, and what can't be decoded is there, unread."""
    record = Record("tenant", "id", "refund:1", "k", State.FAILED, b"etag", Fingerprint("v1", b"\x01"), TERMS, 3)
    record = record._replace(result=Result(ResultKind.HTTP, b"no", 402), created_ms=5)
    kept = history.kept_of(RecordView(record, 6, 7, 1))
    assert (kept.state, kept.attempt, kept.created_ms, kept.written_ms) == (State.FAILED, 3, 5, 6)
    assert kept.request == "01"
    assert kept.answer == Answer(b"no", 402, failed=True)
    assert history.kept_of(record, "refund of 5").request == "refund of 5"
    assert history.kept_of(Unreadable("tenant", "id", "damaged")).state is None
