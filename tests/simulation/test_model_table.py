"""The formal model and the code decide alike: spec/table.pml is compared with `core`, row by row and both ways."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from notwice import core
from notwice.core import Own
from notwice.model import Record, Released, Reply, State
from tests.simulation import table as rows
from tests.simulation.table import Table

TABLE = Table.read()


def differs(table: Table) -> bool:
    """Whether the table and the code are found to differ."""
    return any(True for _ in rows.differences(table))


def test_a_begin_decides_as_the_model_does() -> None:
    """Rules 0 to 8: in every situation that the table tells apart, `core.settle` decides as its first row that fits."""
    used: set[int] = set()
    assert list(islice(rows.different_decisions(TABLE, used), 5)) == []
    assert used == set(range(len(TABLE.decides)))  # no row is dead


def test_a_write_leaves_what_the_model_says() -> None:
    """Every claim, every owner's move and every operator's leaves the state, mark, answer and point of its row."""
    used: set[int] = set()
    assert list(rows.different_writes(TABLE, used)) == []
    assert used == set(range(len(TABLE.leaves)))


def test_a_taker_keeps_the_policy_that_the_model_says() -> None:
    """The stored policy stays, or gets stricter; only a taker whose end is committed with its rows keeps the proof."""
    used: set[int] = set()
    assert list(rows.different_terms(TABLE, used)) == []
    assert used == set(range(len(TABLE.keeps)))


def test_an_owner_leaves_the_proof_that_the_model_says() -> None:
    """C09: only a handler that was left without a move takes the proof off that an unfinished atomic record gives."""
    used: set[int] = set()
    assert list(rows.different_proofs(TABLE, used)) == []
    assert used == set(range(len(TABLE.proves)))


def test_the_same_states_follow() -> None:
    """`core.NEXT` allows the model's pairs of states and no others, and every write of the code goes along one."""
    assert list(rows.different_states(TABLE)) == []


@pytest.mark.parametrize("won", [True, False])
def test_what_was_won_is_owned(won: bool) -> None:
    """Rule 0: the table's "ours" is a write that was carried out, or an etag that this begin sent."""
    ask = rows.asking("HOLD")
    record = core.fresh(ask, rows.ETAG)._replace(created_ms=rows.NOW_MS)
    found = core.settle(ask, Reply(won, record, rows.NOW_MS, rows.NOW_MS, 0), () if won else (rows.ETAG,))
    assert isinstance(found, Own)


OTHERWISE = {
    "decides": lambda row: (*row[:-1], "HELD" if row[-1] != "HELD" else "CLAIMS"),
    "leaves": lambda row: (*row[:-1], "KEPT" if row[-1] != "KEPT" else "DROPPED"),
    "keeps": lambda row: (*row[:-1], "NO" if row[-1] == "YES" else "YES"),
    "proves": lambda row: (*row[:-1], "NO" if row[-1] == "YES" else "YES"),
}


@pytest.mark.parametrize(
    ("name", "index"), [(name, index) for name in OTHERWISE for index in range(len(getattr(TABLE, name)))]
)
def test_another_row_is_noticed(name: str, index: int) -> None:
    """Control: each row of the model's table, made to say something else, is found to differ from the code."""
    row = getattr(TABLE, name)[index]
    assert differs(TABLE.changed(name, index, OTHERWISE[name](row)))


def test_a_pair_of_states_less_is_noticed() -> None:
    """Control: a row of FOLLOWS that is not there is found to be missing."""
    for index, row in enumerate(TABLE.follows):
        assert differs(TABLE.changed("follows", index, TABLE.follows[index - 1])), row


@pytest.mark.parametrize("index", range(len(core.BEGIN) - 1))
def test_a_rule_less_in_the_code_is_noticed(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without any one of its rules, `core` is found to differ from the model."""
    monkeypatch.setattr(core, "BEGIN", (*core.BEGIN[:index], *core.BEGIN[index + 1 :]))
    assert differs(TABLE)


def frees_on_exceptions(record: Record, etag: bytes, **_: Any) -> Record:
    return record._replace(etag=etag, state=State.ACCEPTED, released=Released.AS_NEW)


def keeps_its_answer(original: Callable[..., Record]) -> Callable[..., Record]:
    return lambda ask, decision, etag: original(ask, decision, etag)._replace(result=decision.view.record.result)


BROKEN = {
    "strictness": ("_STRICTNESS", dict.fromkeys(core._STRICTNESS, 0)),
    "states": ("NEXT", {**core.NEXT, State.COMPLETED: frozenset(State)}),
    "suspended": ("suspended", frees_on_exceptions),
    "reclaimed": ("reclaimed", keeps_its_answer(core.reclaimed)),
    "mismatch last": ("BEGIN", (core._over, core._running, *core.BEGIN[1:])),
    "exhausted": ("rerun_exhausted", lambda *_: False),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_change_of_the_code_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a laxer policy, one more state, an exception that frees ... in the code are found."""
    name, value = BROKEN[what]
    monkeypatch.setattr(core, name, value)
    assert differs(TABLE)
