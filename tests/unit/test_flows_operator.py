"""The conversations of an operator, of whoever looks, and of who settles what nobody waits for."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import core, flows
from notwice.errors import ForceRequired, RecordChanged, UnsupportedRecord
from notwice.flows import CREATED
from notwice.model import Get, Op, Record, RecordView, Released, State, Swap, Unreadable
from tests.unit.talks import DOWN, Answer, numbered, talk, there, won
from tests.unit.test_core import ASK, PLAIN
from tests.unit.test_flows import RERUN, Listed

# -- claims that nobody waits for -------------------------------------------------------------------------------------


def disown(listed: Listed, *answers: Answer) -> tuple[list[Op], Any]:
    return talk(flows.disown("n", "idem_1", orphans=listed, new_etag=numbered()), *answers)


def test_a_claim_that_nobody_waits_for_is_freed() -> None:
    """P13: if its record is there; else it may still be under way."""
    look = Get("n", "idem_1")
    for stored in (None, Unreadable("n", "idem_1", "newer"), PLAIN._replace(etag=b"theirs")):
        listed = Listed({b"before": CREATED})
        assert disown(listed, there(stored)) == ([look], False)
        assert listed.claims == {b"before": CREATED}
    asked, settled = disown(listed, there(PLAIN), won)
    assert asked == [look, Swap(core.disowned(PLAIN, b"e1", claim=CREATED), b"before")]
    assert settled is True
    assert not listed.claims


def test_a_claim_that_could_not_be_freed_stays_on_the_list() -> None:
    """P13: with its claim, to be freed another time."""
    listed = Listed({b"before": CREATED})
    _asked, error = disown(listed, there(PLAIN), DOWN)
    assert error is DOWN
    assert listed.claims == {b"before": CREATED}


# -- an operator's moves and looks ------------------------------------------------------------------------------------


SHOWN = RecordView(RERUN, 1, 2, 3)


def operate(*answers: Answer, force: bool = False) -> tuple[list[Op], Any]:
    def change(view: RecordView, etag: bytes) -> Record:
        assert view.now_ms == 100_000  # judged by the time it is now, not by the one that was shown
        return view.record._replace(etag=etag, error="seen")

    return talk(flows.operate(SHOWN, change, force=force, new_etag=numbered()), *answers)


def test_a_person_moves_exactly_the_record_that_was_shown() -> None:
    """P10: one look, one swap on the shown etag; what is there now is given back."""
    asked, view = operate(there(RERUN), won)
    changed = RERUN._replace(etag=b"e1", error="seen")
    assert asked == [Get("n", "idem_1"), Swap(changed, b"old")]
    assert view == RecordView(changed, 100_000, 100_000, 0)


def test_a_person_s_move_on_a_record_that_has_changed_is_refused() -> None:
    """P10: before the swap, or by it; also if it is gone."""
    for stored in (None, RERUN._replace(etag=b"theirs")):
        for answers in ((there(stored),), (there(RERUN), there(stored))):
            _asked, error = operate(*answers)
            assert isinstance(error, RecordChanged)
            assert "idem_1 has changed since it was shown" in str(error)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": State.COMPLETED}, "finished"),
        ({"state": State.FAILED}, "finished"),
        ({"state": State.IN_PROGRESS}, "running"),
        ({"released": Released.AS_NEW}, "free already"),
    ],
)
def test_a_person_s_move_that_needs_force_says_why(fields: dict[str, Any], state: str) -> None:
    """P10: nothing is written without it."""
    record = RERUN._replace(**fields)
    _asked, error = operate(there(record))
    assert isinstance(error, ForceRequired)
    assert f"operation idem_1 is {state}; only force=True changes it. Nothing changed." == str(error)
    _asked, view = operate(there(record), won, force=True)
    assert view.record.error == "seen"


def test_a_person_s_move_is_sent_three_times() -> None:
    """P10: an identical swap does no harm; then it is not known whether it landed."""
    asked, view = operate(there(RERUN), DOWN, DOWN, won)
    assert asked[1] == asked[2] == asked[3]
    asked, view = operate(there(RERUN), DOWN, lambda op: there(op.record))
    assert view.record.etag == b"e1"
    asked, error = operate(there(RERUN), DOWN, DOWN, DOWN)
    assert error is DOWN


def test_a_look_gives_what_is_stored() -> None:
    """P12: absent is `None`; what can't be read, or is sealed, is said so with its id."""
    look = flows.look("n", "idem_1")
    assert talk(look, there(RERUN, 7)) == ([Get("n", "idem_1")], RecordView(RERUN, 90_000, 100_000, 7))
    assert talk(flows.look("n", "idem_1"), there(None)) == ([Get("n", "idem_1")], None)
    for stored in (Unreadable("n", "idem_1", "it is newer"), RERUN._replace(sealed=b"c")):
        _, error = talk(flows.look("n", "idem_1"), there(stored))
        assert isinstance(error, UnsupportedRecord)
        assert "the record of operation idem_1 can not be read: it " in str(error)


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        (None, True),
        (PLAIN, False),
        (RERUN, False),
        (RERUN._replace(released=Released.AS_NEW), True),
        (RERUN._replace(released=Released.OPERATOR), False),
    ],
)
def test_whether_a_begin_would_be_new_is_known_by_a_look(stored: Record | None, new: bool) -> None:
    """P6: what is absent or over, and nothing else."""
    assert talk(flows.is_new(ASK), there(stored)) == ([Get("n", "idem_1")], new)
