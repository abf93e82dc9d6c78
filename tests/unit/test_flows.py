"""The conversations with the store alone: what is asked in which order, for each answer that there can be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from notwice import core, flows
from notwice.core import Claim
from notwice.errors import (
    ContentionError,
    OperationEnded,
    OwnershipLost,
    RecordTooLarge,
    UnsupportedRecord,
)
from notwice.flows import CREATED, Ownership
from notwice.model import (
    Fingerprint,
    Get,
    InProgress,
    Insert,
    Mismatch,
    Op,
    Record,
    RecordView,
    RecoveryKind,
    Released,
    Replay,
    Reply,
    State,
    Swap,
    Unreadable,
    Unresolved,
)
from tests.unit.talks import DOWN, Answer, numbered, talk, there, won
from tests.unit.test_core import ASK, DONE, PLAIN, TERMS


class Listed:
    """The process's list, with what was done to it."""

    def __init__(self, claims: Mapping[bytes, Claim] | None = None, *, late: bool = False) -> None:
        self.claims = dict(claims or {})
        self.late = late

    def of(self, namespace: str, operation: str) -> Any:
        assert (namespace, operation) == (PLAIN.namespace, PLAIN.id)
        return frozenset(self.claims)

    def take(self, namespace: str, operation: str, etag: bytes) -> Claim | None:
        assert (namespace, operation) == (PLAIN.namespace, PLAIN.id)
        return None if self.late else self.claims.pop(etag, None)

    def put(self, namespace: str, operation: str, claims: Mapping[bytes, Claim]) -> None:
        assert (namespace, operation) == (PLAIN.namespace, PLAIN.id)
        self.claims.update(claims)


def begin(*answers: Answer, ask: core.Ask = ASK, orphans: Any = None, sent: Any = None) -> tuple[list[Op], Any]:
    """Begin, and hand on what is owned: `sent` holds its claim until then."""
    sent = {} if sent is None else sent
    asked, told = talk(flows.begin(ask, sent, orphans=orphans or Listed(), new_etag=numbered()), *answers)
    if isinstance(told, Ownership):
        assert sent.pop(told.record.etag) == told.claim
    return asked, told


def fresh(etag: bytes) -> Record:
    return core.fresh(ASK, etag)


RERUN = PLAIN._replace(state=State.ACCEPTED, etag=b"old")

# -- begin ------------------------------------------------------------------------------------------------------------


def test_a_begin_inserts_and_owns() -> None:
    """P1: one trip where nothing is stored; nothing is left to be settled."""
    sent: dict[bytes, Claim] = {}
    asked, own = begin(won, sent=sent)
    assert asked == [Insert(fresh(b"e1"))]
    assert isinstance(own, Ownership)
    assert (own.record, own.claim, sent) == (fresh(b"e1"), CREATED, {})
    assert (own.touched, own.ended, own.lost, own.pending, own.change, own.unconfirmed) == (
        *(False, False, False),
        *(None, None, {}),
    )
    assert Claim(created=True, prior=None, asks=False) == CREATED


def test_a_begin_that_creates_nothing_looks_first() -> None:
    """P7: a worker gives up where nothing that counts is there, and takes over what is open."""
    worker = ASK._replace(creates=False)
    sent: dict[bytes, Claim] = {}
    look = Get("n", "idem_1")
    assert begin(there(None), ask=worker, sent=sent) == ([look], None)
    assert begin(there(RERUN._replace(released=Released.AS_NEW)), ask=worker) == ([look], None)
    assert begin(DOWN, there(None), ask=worker) == ([look, look], None)
    asked, own = begin(there(RERUN), won, ask=worker, sent=sent)
    assert asked[0] == look
    assert own.claim == Claim(created=False, prior=RERUN, asks=False)
    assert sent == {}
    asked, refused = begin(there(PLAIN), ask=worker, sent=sent)
    assert isinstance(refused, InProgress)


def test_a_begin_replaces_what_is_over() -> None:
    """P6: by a swap on its etag, with a new record, as if nothing had been there."""
    over = RERUN._replace(released=Released.AS_NEW)
    asked, own = begin(there(over), won)
    assert asked == [Insert(fresh(b"e1")), Swap(fresh(b"e2"), b"old")]
    assert (own.record.etag, own.claim) == (b"e2", CREATED)
    asked, own = begin(there(None), won)
    assert asked == [Insert(fresh(b"e1")), Insert(fresh(b"e2"))]


def test_a_begin_reclaims_what_its_policy_lets_it() -> None:
    """P5: by a swap on the etag that it has seen; the claim knows what was before, and whether to ask first."""
    ask = ASK._replace(can_ask=True, terms=TERMS._replace(recovery=RecoveryKind.RECONCILE))
    for asking in (ASK, ask):
        asked, own = begin(there(RERUN), won, ask=asking)
        assert asked[0] == Insert(fresh(b"e1")._replace(terms=asking.terms))
        assert isinstance(asked[1], Swap)
        assert (asked[1].record.etag, asked[1].expected_etag, asked[1].record.attempt) == (b"e2", b"old", 2)
        assert own.record == asked[1].record
        assert own.claim == Claim(created=False, prior=RERUN, asks=asking is ask)


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (PLAIN, InProgress),
        (RERUN._replace(terms=TERMS._replace(recovery=RecoveryKind.HOLD)), Unresolved),
        (PLAIN._replace(state=State.COMPLETED, result=DONE), Replay),
        (PLAIN._replace(fingerprint=Fingerprint("value-1", b"other")), Mismatch),
    ],
)
def test_a_duplicate_is_told_and_leaves_nothing_behind(record: Record, outcome: type[Any]) -> None:
    """P4, P13: what was refused can't land any more, so nothing is left on the list."""
    sent: dict[bytes, Claim] = {}
    asked, told = begin(there(record), sent=sent)
    assert isinstance(told, outcome)
    assert told.view == RecordView(record, 90_000, 100_000, 0)
    assert (len(asked), sent) == (1, {})


def test_a_begin_that_was_not_answered_is_sent_again() -> None:
    """P13: an insert under a new etag, a swap as it was; whichever landed is owned, and the others are forgotten."""
    sent: dict[bytes, Claim] = {}
    asked, own = begin(DOWN, there(fresh(b"e1")), sent=sent)
    assert asked == [Insert(fresh(b"e1")), Insert(fresh(b"e2"))]
    assert (own.record.etag, own.claim, sent) == (b"e1", CREATED, {})
    asked, own = begin(there(RERUN), DOWN, DOWN, won, sent=sent)
    assert asked[1] == asked[2] == asked[3]
    assert (own.claim.prior, sent) == (RERUN, {})
    asked, own = begin(DOWN, DOWN, won, sent=sent)
    assert [op.record.etag for op in asked if isinstance(op, Insert)] == [b"e1", b"e2", b"e3"]
    assert (own.record.etag, set(sent)) == (b"e3", {b"e1", b"e2"})


def test_a_begin_gives_up_after_three_sends() -> None:
    """P8: what it sent stays to be settled: each claim under its etag."""
    sent: dict[bytes, Claim] = {}
    _asked, error = begin(DOWN, DOWN, DOWN, sent=sent)
    assert error is DOWN
    assert sent == dict.fromkeys([b"e1", b"e2", b"e3"], CREATED)
    sent.clear()
    _asked, error = begin(DOWN, there(RERUN), DOWN, DOWN, sent=sent)
    assert error is DOWN
    assert sent == {b"e1": CREATED, b"e3": Claim(created=False, prior=RERUN)}


def test_a_begin_that_always_loses_stops_after_eight_reads() -> None:
    """P1: rule 9, and says so; nothing is left to be settled."""
    sent: dict[bytes, Claim] = {}
    losses = [there(RERUN._replace(etag=b"r%d" % number)) for number in range(8)]
    asked, error = begin(*losses, sent=sent)
    assert isinstance(error, ContentionError)
    assert "idem_1 changed 8 times" in str(error)
    assert (len(asked), sent) == (8, {})


def test_a_record_that_can_not_be_judged_is_refused() -> None:
    """P14: with its id and the reason."""
    _asked, error = begin(there(Unreadable("n", "idem_1", "it is newer")))
    assert isinstance(error, UnsupportedRecord)
    assert "idem_1 can not be judged: it is newer. Nothing ran" in str(error)


def test_an_orphaned_claim_is_adopted_by_whoever_takes_it_off_the_list() -> None:
    """P13: as new if it created the record; else it is freed first, and judged again."""
    orphan = PLAIN._replace(etag=b"lost")
    listed, taken = Listed({b"lost": CREATED, b"another": CREATED}), dict[bytes, Claim]()
    asked, own = begin(there(orphan), won, orphans=listed, sent=taken)
    assert asked[1] == Swap(fresh(b"e2"), b"lost")
    assert (own.claim, list(listed.claims), taken) == (CREATED, [b"another"], {})
    later = Claim(created=False, prior=RERUN)
    sent: dict[bytes, Claim] = {}
    listed = Listed({b"lost": later})
    asked, own = begin(there(orphan), won, won, orphans=listed, sent=sent)
    assert asked[1] == Swap(core.disowned(orphan, b"e2", claim=later), b"lost")
    assert isinstance(asked[2], Swap)
    assert (asked[2].expected_etag, asked[2].record.state) == (b"e2", State.IN_PROGRESS)
    assert (own.claim, sent, listed.claims) == (Claim(created=False, prior=asked[1].record), {}, {})


def test_who_comes_too_late_for_an_orphan_is_a_duplicate() -> None:
    """P1: the pop is for one; all others are told that it is running, or take over once it has lapsed."""
    orphan = PLAIN._replace(etag=b"lost")
    asked, told = begin(there(orphan), orphans=Listed({b"lost": CREATED}, late=True))
    assert isinstance(told, InProgress)
    assert len(asked) == 1
    asked, own = begin(there(orphan, 60_000), won, orphans=Listed({b"lost": CREATED}, late=True))
    assert own.claim == Claim(created=False, prior=orphan)


def test_an_adoption_that_is_not_answered_stays_on_the_list() -> None:
    """P13: the orphan's etag and the one that was to replace it, each with its claim."""
    sent: dict[bytes, Claim] = {}
    orphan = PLAIN._replace(etag=b"lost")
    _asked, error = begin(there(orphan), DOWN, DOWN, DOWN, orphans=Listed({b"lost": CREATED}), sent=sent)
    assert error is DOWN
    assert sent == {b"lost": CREATED, b"e2": CREATED}
    sent.clear()
    _asked, told = begin(there(orphan), there(PLAIN), orphans=Listed({b"lost": CREATED}), sent=sent)
    assert isinstance(told, InProgress)
    assert sent == {b"lost": CREATED}


def test_no_orphans_is_an_empty_list() -> None:
    """What a begin is given that puts nothing on a list."""
    assert b"lost" not in flows.NO_ORPHANS.of("n", "idem_1")
    flows.NO_ORPHANS.put("n", "idem_1", {b"lost": CREATED})
    assert flows.NO_ORPHANS.take("n", "idem_1", b"lost") is None


# -- an owner's moves -------------------------------------------------------------------------------------------------


def owner(**fields: Any) -> Ownership:
    return Ownership(PLAIN._replace(**fields), CREATED)


def complete(record: Record, etag: bytes) -> Record:
    return core.finished(record, etag, state=State.COMPLETED, result=DONE)


def beat(record: Record, etag: bytes) -> Record:
    return core.beaten(record, etag)


def at_work(record: Record, etag: bytes) -> Record:
    return record._replace(state=State.IN_PROGRESS, etag=etag)


def suspend(record: Record, etag: bytes) -> Record:
    return core.suspended(record, etag, error="e", answer=None)


def move(
    own: Ownership, change: flows.Change, *answers: Answer, ends: bool = True, forgiving: bool = False, **options: Any
) -> tuple[list[Op], Any]:
    made = flows.move(own, change, ends=ends, forgiving=forgiving, new_etag=numbered(), **options)
    return talk(made, *answers)


def test_a_move_swaps_on_the_record_that_is_known() -> None:
    """P1: the last one ends the ownership; any other goes on from what it wrote."""
    own = owner()
    asked, landed = move(own, beat, won, ends=False)
    assert asked == [Swap(PLAIN._replace(etag=b"e1"), b"before")]
    assert landed == own.record == PLAIN._replace(etag=b"e1")
    assert (own.ended, own.lost, own.pending, own.change, own.unconfirmed) == (False, False, None, None, {})
    asked, landed = move(own, complete, won)
    assert asked == [Swap(complete(own.record, b"e1"), b"e1")]
    assert (own.record, own.ended, own.lost, own.pending, own.unconfirmed) == (landed, True, False, None, {})


def test_a_move_whose_acknowledgement_was_lost_is_found_to_have_landed() -> None:
    """P9, P13: an identical swap is sent again; a refusal that shows it is no loss."""
    own = owner()
    asked, landed = move(own, complete, DOWN, lambda op: there(op.record))
    assert asked[0] == asked[1]
    assert landed.etag == b"e1"
    assert own.ended
    assert not own.lost


def test_a_move_goes_on_top_of_whatever_of_ours_has_landed() -> None:
    """P9: an earlier heartbeat that nobody confirmed landed after all; the move is repeated on it."""
    own = owner()
    asked, error = move(own, beat, DOWN, DOWN, DOWN, ends=False)
    assert error is DOWN
    assert set(own.unconfirmed) == {b"e1"}
    assert own.pending is None
    late = own.unconfirmed[b"e1"]
    made = flows.move(own, complete, ends=True, forgiving=False, new_etag=lambda: b"c")
    asked, landed = talk(made, there(late), won)
    assert asked == [Swap(complete(PLAIN, b"c"), b"before"), Swap(complete(late, b"c"), b"e1")]
    assert (own.record, own.ended, own.unconfirmed) == (landed, True, {})


def test_a_heartbeat_that_finds_its_own_end_is_over() -> None:
    """P9: a complete that nobody confirmed has landed: the operation is over, whatever the move was."""
    own = owner()
    done = complete(PLAIN, b"done")
    own.unconfirmed[b"done"] = done
    _asked, landed = move(own, beat, there(done), ends=False)
    assert (landed, own.ended, own.record, own.unconfirmed) == (done, True, done, {})


@pytest.mark.parametrize("stored", [PLAIN._replace(etag=b"theirs"), None, Unreadable("n", "idem_1", "newer")])
@pytest.mark.parametrize("failed", [False, True])
def test_a_move_on_another_s_record_is_a_loss(stored: Record | Unreadable | None, failed: bool) -> None:
    """P5: nothing changed, and the owner knows it; the error shows the taker's record, if it can be read."""
    own = owner()
    _asked, error = move(own, complete, *[DOWN] * failed, there(stored))
    assert isinstance(error, OwnershipLost)
    assert error.operation == "idem_1"
    assert error.view == (RecordView(stored, 90_000, 100_000, 0) if isinstance(stored, Record) else None)
    assert (own.lost, own.ended) == (True, True)


def test_a_suspend_whose_acknowledgement_was_lost_is_done_if_another_has_it() -> None:
    """P5: it may have landed and been taken over since; without a lost acknowledgement it is a loss."""
    own = owner()
    _asked, landed = move(own, suspend, DOWN, there(PLAIN._replace(etag=b"theirs")), forgiving=True)
    assert landed == suspend(PLAIN, b"e1")
    assert (own.ended, own.lost) == (True, False)
    _asked, error = move(owner(), suspend, there(PLAIN._replace(etag=b"theirs")), forgiving=True)
    assert isinstance(error, OwnershipLost)


@pytest.mark.parametrize("sends_max", [1, 2, 3])
def test_a_move_is_sent_so_often_and_then_left_pending(sends_max: int) -> None:
    """P9: an end that nobody confirmed is remembered, with what made it; nothing else may follow."""
    own = owner()
    asked, error = move(own, complete, *[DOWN] * sends_max, sends_max=sends_max)
    assert error is DOWN
    assert len(asked) == sends_max
    assert own.pending == complete(PLAIN, b"e1")
    assert own.change is complete
    assert not own.ended
    assert len(move(owner(), beat, *[DOWN] * core.SENDS_MAX, ends=False)[0]) == 3


def test_a_pending_end_is_repeated_as_it_was() -> None:
    """P9: the same write under the same etag, whatever move is asked for now."""
    own = owner()
    move(own, complete, DOWN, sends_max=1)
    made = flows.move(own, suspend, ends=True, forgiving=False, new_etag=lambda: b"never sent")
    asked, landed = talk(made, won)
    assert asked == [Swap(complete(PLAIN, b"e1"), b"before")]
    assert (own.ended, own.pending, landed.state) == (True, None, State.COMPLETED)
    other = owner()
    move(other, suspend, DOWN, sends_max=1)
    asked, landed = move(other, complete, there(PLAIN._replace(etag=b"theirs")), forgiving=True)
    assert landed == suspend(PLAIN, b"e1")  # the first send may have landed, and another have taken over
    other = owner()
    move(other, suspend, DOWN, sends_max=1)
    _, landed = move(other, suspend, DOWN, there(PLAIN._replace(etag=b"theirs")), forgiving=True)
    assert landed == suspend(PLAIN, b"e1")


def test_a_result_that_is_too_large_is_left_out() -> None:
    """P9: the key must not stay open for that; what has no body can't be made smaller, and nothing is pending."""
    own = owner()
    large = RecordTooLarge("too large")
    asked, landed = move(own, complete, large, won)
    omitted = core.omitting(complete(PLAIN, b"e2"))
    assert asked == [Swap(complete(PLAIN, b"e1"), b"before"), Swap(omitted, b"before")]
    assert (landed, own.ended, own.unconfirmed) == (omitted, True, {})
    own = owner()
    asked, error = move(own, suspend, large)
    assert error is large
    assert (own.pending, own.change, own.unconfirmed, own.ended) == (None, None, {}, False)


def test_a_result_that_is_too_large_counts_no_sends() -> None:
    """P9: the smaller one has all its sends, and what was left out stays so when it is repeated on another record."""
    own = owner()
    own.unconfirmed[b"beat"] = late = PLAIN._replace(etag=b"beat")
    asked, landed = move(own, complete, RecordTooLarge("too large"), DOWN, DOWN, there(late), won)
    assert landed == core.omitting(complete(late, b"e3"))
    assert len(asked) == 5


def test_a_move_that_never_settles_stops() -> None:
    """P1: eight of its own writes turned up, one after the other; it says so."""
    own = owner()
    own.unconfirmed = {b"late": PLAIN._replace(etag=b"late")}
    turned_up = [there(PLAIN._replace(etag=b"late")) for _ in range(8)]

    def again(op: Swap) -> Reply:
        own.unconfirmed[b"late"] = PLAIN._replace(etag=b"late")
        return turned_up.pop()

    asked, error = move(own, beat, *[again] * 8, ends=False)
    assert isinstance(error, ContentionError)
    assert "idem_1 changed 8 times during one move" in str(error)
    assert len(asked) == 8


def test_a_move_that_the_table_does_not_have_is_never_sent() -> None:
    """P10: nobody is at work again on what is finished; the same holds for an operator."""
    asked, error = move(owner(state=State.COMPLETED), at_work)
    assert isinstance(error, AssertionError)
    assert asked == []
    done = RecordView(RERUN._replace(state=State.FAILED), 1, 2, 3)
    flow = flows.operate(done, lambda view, etag: at_work(view.record, etag), force=True, new_etag=numbered())
    asked, error = talk(flow, there(done.record))
    assert isinstance(error, AssertionError)
    assert asked == [Get("n", "idem_1")]


# -- an owner's moves within a transaction ----------------------------------------------------------------------------


def move_within(own: Ownership, change: flows.Change, *answers: Answer) -> tuple[list[Op], Any]:
    return talk(flows.move_within(own, change, begun_there=False, new_etag=numbered()), *answers)


def test_a_move_within_a_transaction_changes_nothing_that_is_known_before_the_commit() -> None:
    """P9: what it wrote is remembered as unconfirmed, and the owner goes on from the record that it knows."""
    own = owner()
    asked, landed = move_within(own, complete, won)
    assert asked == [Swap(complete(PLAIN, b"e1"), b"before")]
    assert own.unconfirmed == {b"e1": landed}
    assert (own.record, own.ended, own.pending) == (PLAIN, False, None)


def test_a_move_within_a_transaction_goes_on_top_of_its_earlier_ones() -> None:
    """P9: a checkpoint in the same transaction is refused for none of its own."""
    own = owner()
    own.unconfirmed[b"mine"] = mine = PLAIN._replace(etag=b"mine")
    asked, landed = move_within(own, complete, there(mine), won)
    assert asked == [Swap(complete(PLAIN, b"e1"), b"before"), Swap(complete(mine, b"e2"), b"mine")]
    assert landed.etag == b"e2"


@pytest.mark.parametrize("stored", [PLAIN._replace(etag=b"theirs"), None])
def test_a_move_within_a_transaction_on_another_s_record_is_a_loss(stored: Record | None) -> None:
    """P5: as outside of one."""
    own = owner()
    answers = (there(stored),) if stored else (there(None), there(None))
    _asked, error = move_within(own, complete, *answers)
    assert isinstance(error, OwnershipLost)
    assert own.lost


def test_a_record_that_a_transaction_does_not_see_is_not_lost() -> None:
    """P5: committed after the transaction began, it is still its owner's, who does the transaction again."""
    own = owner()
    asked, error = move_within(own, complete, there(None), there(PLAIN))
    assert asked[1] == Get("n", "idem_1")
    assert isinstance(error, ContentionError)
    assert str(error) == (
        "operation idem_1 was begun after this transaction, which does not see it; roll back and try it again."
    )
    assert not own.lost


def test_a_claim_that_was_undone_with_a_savepoint_is_over() -> None:
    """C09: what was begun in a transaction and is not there any more is nobody's: it is begun again."""
    prior = PLAIN._replace(etag=b"prior")
    for claim, found in ((Claim(created=True), None), (Claim(created=False, prior=prior), prior)):
        own = Ownership(PLAIN, claim)
        flow = flows.move_within(own, complete, begun_there=True, new_etag=numbered())
        _asked, error = talk(flow, there(found))
        assert isinstance(error, OperationEnded)
        assert str(error) == (
            "operation idem_1 is over: what it was begun in was rolled back, to a savepoint. Nothing of it is there; "
            "begin the operation again"
        )
        assert not own.lost


def test_an_end_may_be_repeated_within_its_transaction_and_by_nothing_else() -> None:
    """P9: the same end again is done; another end, or one that an earlier transaction committed, is refused."""
    done = complete(PLAIN, b"done")
    for committed in (there(PLAIN), there(None), there(Unreadable("n", "idem_1", "newer"))):
        own = owner()
        own.unconfirmed[b"done"] = done
        asked, landed = move_within(own, complete, there(done), committed)
        assert asked[1] == Get("n", "idem_1")
        assert (landed, own.ended) == (done, False)
    own.unconfirmed[b"done"] = done
    for change in (suspend, lambda record, etag: complete(record, etag)._replace(result=None)):
        asked, error = move_within(own, change, there(done), there(PLAIN))
        assert isinstance(error, OperationEnded)
        assert str(error) == "operation idem_1 is over: it is completed in this transaction already"
        assert not own.ended
    asked, error = move_within(own, complete, there(done), there(done))
    assert isinstance(error, OperationEnded)
    assert str(error) == (
        "operation idem_1 is over: it was completed by an earlier transaction, which was committed. "
        "Roll this one back; begin the operation again to get its result"
    )
    assert (own.ended, own.record) == (True, done)


def test_a_move_within_a_transaction_that_never_settles_stops() -> None:
    """P1: as outside of one; the caller is told to roll back."""
    own = owner()
    own.unconfirmed[b"mine"] = mine = PLAIN._replace(etag=b"mine")
    asked, error = move_within(own, beat, *[there(mine)] * 8)
    assert isinstance(error, ContentionError)
    assert "idem_1 changed 8 times during one move; roll back" in str(error)
    assert len(asked) == 8
