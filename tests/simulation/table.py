"""The rows of the formal model's table, and what the code says in each situation that the table tells apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Final

from notwice import core
from notwice.core import Ask, Claim, Decision
from notwice.model import (
    Fingerprint,
    InProgress,
    Mismatch,
    Record,
    RecordView,
    RecoveryKind,
    Released,
    Replay,
    Reply,
    Result,
    ResultKind,
    State,
    Terms,
    Unreadable,
    Unresolved,
)

SPEC = Path(__file__).resolve().parents[2] / "spec"
ANY = "ANY"
LEASE_MS = RETENTION_MS = 1_000
NOW_MS = 1_000_000
ATTEMPTS_MAX = 5
ETAG, NEW_ETAG = b"e" * 16, b"n" * 16
POLICIES = {kind.name: kind for kind in RecoveryKind}
MARKS = {"NONE": Released.NO, "BY_OPERATOR": Released.OPERATOR, "AS_NEW": Released.AS_NEW}
STATES = {
    "IN_PROGRESS": (State.IN_PROGRESS,),
    "ACCEPTED": (State.ACCEPTED,),
    "TERMINAL": (State.COMPLETED, State.FAILED),
}
KEPT = Result(ResultKind.VALUE, b"kept")
GIVEN = Result(ResultKind.VALUE, b"given")
PROGRESS = (("charge", b"done"),)

Row = tuple[str, ...]
Difference = tuple[Row, str, str]
"""Where they differ, what the table says, and what the code says."""


@dataclass(frozen=True)
class Table:
    """The rows of table.pml, in their order."""

    decides: tuple[Row, ...]
    leaves: tuple[Row, ...]
    keeps: tuple[Row, ...]
    proves: tuple[Row, ...]
    follows: tuple[Row, ...]

    @classmethod
    def read(cls, folder: Path = SPEC) -> Table:
        text = re.sub(r"/\*.*?\*/", "", (folder / "table.pml").read_text(), flags=re.DOTALL)
        found: dict[str, list[Row]] = {"DECIDES": [], "LEAVES": [], "KEEPS": [], "PROVES": [], "FOLLOWS": []}
        for name, columns in re.findall(r"(\w+)\(([^)]*)\)", text):
            found[name].append(tuple(column.strip() for column in columns.split(",")))
        return cls(*map(tuple, found.values()))

    def changed(self, name: str, index: int, row: Row) -> Table:
        """The table with another row in one place."""
        rows: list[Row] = [*getattr(self, name)]
        rows[index] = row
        return replace(self, **{name: tuple(rows)})


def first(rows: tuple[Row, ...], found: Row) -> int:
    """Which row fits first what was found in its leading columns."""
    for index, row in enumerate(rows):
        if all(wanted in (ANY, column) for wanted, column in zip(row, found, strict=False)):
            return index
    message = f"no row fits {found}"
    raise LookupError(message)


# -- what a begin decides ---------------------------------------------------------------------------------------------

COLUMNS = (
    tuple(STATES),
    ("YES", "NO"),  # ours
    ("YES", "NO"),  # over
    tuple(MARKS),
    ("SAME", "OTHER", "UNKNOWN"),  # request
    ("YES", "NO"),  # listed
    ("YES", "NO"),  # live
    tuple(POLICIES),  # stored
    tuple(POLICIES),  # asked
    ("YES", "NO"),  # spent
    ("YES", "NO"),  # atomic
    ("YES", "NO"),  # kept
    ("YES", "NO"),  # paused
    ("YES", "NO"),  # asks
)


def situations(step: int = 1) -> Iterator[Row]:
    """Every combination of the table's columns, or every `step`-th."""
    anything = tuple(column[0] for column in COLUMNS[1:])
    yield ("ABSENT", *anything)
    yield ("UNREADABLE", *anything)
    yield from islice(product(*COLUMNS), 0, None, step)


@cache
def terms(recovery: str, *, atomic: bool = False) -> Terms:
    return Terms(
        lease_ms=LEASE_MS,
        retention_ms=RETENTION_MS,
        recovery=POLICIES[recovery],
        rerun_within_ms=None,
        attempts_max=ATTEMPTS_MAX,
        settle_ms=LEASE_MS,
        deduplicated=False,
        atomic=atomic,
    )


@cache
def asking(recovery: str, *, atomic: bool = False, can_ask: bool = False) -> Ask:
    return Ask("", "idem_1", "pay", "k", Fingerprint("now", b"1"), None, terms(recovery, atomic=atomic), can_ask)


_PRINTS = {"SAME": Fingerprint("now", b"1"), "OTHER": Fingerprint("now", b"2"), "UNKNOWN": Fingerprint("then", b"1")}
_BASE = Record("", "idem_1", "pay", "k", State.ACCEPTED, ETAG, None, terms("HOLD"), created_ms=NOW_MS)


def decided(found: Row) -> tuple[str, ...]:
    """What the code decides; one decision for each state that the table takes for the same."""
    state, ours, over, mark, request, listed, live, stored, asked, spent, atomic, kept, paused, asks = found
    ask = asking(asked, can_ask=asks == "YES")
    if state == "ABSENT":
        return (named(core.settle(ask, Reply(won=False, record=None), ())),)
    if state == "UNREADABLE":
        return (named(core.settle(ask, Reply(won=False, record=Unreadable("", "idem_1", "newer")), ())),)
    age_ms = LEASE_MS - 1 if live == "YES" else LEASE_MS
    record = _BASE._replace(
        fingerprint=_PRINTS[request],
        terms=terms(stored, atomic=atomic == "YES"),
        attempt=ATTEMPTS_MAX if spent == "YES" else ATTEMPTS_MAX - 1,
        released=MARKS[mark],
        result=KEPT if kept == "YES" else None,
        pause_ms=age_ms + 1 if paused == "YES" else age_ms,
    )
    sent, orphaned = (ETAG,) * (ours == "YES"), (ETAG,) * (listed == "YES")
    written_ms = NOW_MS - RETENTION_MS - (over == "YES")
    return tuple(
        named(
            core.settle(
                ask, Reply(False, record._replace(state=one), written_ms, NOW_MS, age_ms), sent, orphaned=orphaned
            )
        )
        for one in STATES[state]
    )


def named(decision: Decision) -> str:
    """The table's word for a decision."""
    match decision:
        case core.Own():
            return "OWNS"
        case core.Replace(prior):
            return "INSERTS" if prior is None else "REPLACES"
        case core.Reclaim(asks=asks):
            return "ASKS" if asks else "CLAIMS"
        case core.Adopt():
            return "ADOPTS"
        case core.Refuse():
            return "REFUSED"
        case Replay():
            return "REPLAYED"
        case InProgress():
            return "WAITS"
        case Unresolved():
            return "HELD"
        case Mismatch():
            return "MISMATCHED"


def different_decisions(table: Table, used: set[int] | None = None, *, step: int = 1) -> Iterator[Difference]:
    """Where a begin decides otherwise than the table's first row that fits. `used` gathers the rows that were asked.

    Only every `step`-th situation is looked at.
    """
    for found in situations(step):
        index = first(table.decides, found)
        if used is not None:
            used.add(index)
        for decision in decided(found):
            if decision != table.decides[index][-1]:
                yield found, table.decides[index][-1], decision


# -- what a write leaves ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """One write: its name in the table, what its claim knows, the record before, and the one that the code writes."""

    found: Row
    before: Record | None
    after: Record


def writes() -> Iterator[Write]:
    """Every write that the code knows, on every record that it may be made on."""
    ask = asking("RERUN", atomic=True)
    running = _BASE._replace(state=State.IN_PROGRESS, recovery_point="charge", progress=PROGRESS)
    nothing = ("NO", "NO", "NO")
    yield Write(("INSERT", *nothing), None, core.fresh(ask, NEW_ETAG))
    yield Write(("REPLACE", *nothing), None, core.fresh(ask, NEW_ETAG))
    accepted = running._replace(state=State.ACCEPTED, result=KEPT)
    for before, anew, asks in product((running, accepted), (True, False), (True, False)):
        decision = core.Reclaim(RecordView(before, 0, NOW_MS, LEASE_MS), anew=anew, asks=asks)
        yield Write(("CLAIM", *nothing), before, core.reclaimed(ask, decision, NEW_ETAG))
    for created, touched, was in product((True, False), repeat=3):
        claim = Claim(created, None if created else accepted._replace(released=MARKS["BY_OPERATOR" if was else "NONE"]))
        knows = tuple("YES" if known else "NO" for known in (created, touched, was))
        for name, change in owners_moves(claim, touched=touched):
            yield Write((name, *knows), running, change(running, NEW_ETAG))
        yield Write(("ADOPT", *knows), running, core.adopted(ask, running, NEW_ETAG, claim=claim))
    for state in State:
        yield from operators_moves(running._replace(state=state, result=None if state is State.IN_PROGRESS else KEPT))


def owners_moves(claim: Claim, *, touched: bool) -> Iterator[tuple[str, partial[Record]]]:
    """The owner's moves under one claim, as changes of its record."""
    yield "BEAT", partial(core.beaten)
    yield "BEAT", partial(core.started)
    yield "CHECKPOINT", partial(core.checkpointed, point="mail", data=b"sent")
    yield "COMPLETE", partial(core.finished, state=State.COMPLETED, result=GIVEN)
    yield "COMPLETE", partial(core.finished, state=State.FAILED, result=GIVEN)
    yield "SUSPEND", partial(core.suspended, error="", answer=None)
    yield "ANSWER", partial(core.suspended, error="", answer=GIVEN)
    yield "FORGET", partial(core.suspended, error="", answer=None, proves=False)
    yield "PUT_BACK", partial(core.put_back, error="")
    yield "ABANDON", partial(core.abandoned, claim=claim, touched=touched)
    yield "DISOWN", partial(core.disowned, claim=claim)


def operators_moves(before: Record) -> Iterator[Write]:
    """An operator's moves on a record in any state."""
    view, nothing = RecordView(before, 0, NOW_MS, 0), ("NO", "NO", "NO")
    for state in (State.COMPLETED, State.FAILED):
        after = core.resolved(view, NEW_ETAG, state=state, result=GIVEN, who="ann", why="seen")
        yield Write(("RESOLVE", *nothing), before, after)
    for name, from_start in (("RELEASE", False), ("RESTART", True)):
        after = core.released(
            view, NEW_ETAG, who="ann", why="seen", from_start=from_start, new_downstream_key=from_start
        )
        yield Write((name, *nothing), before, after)


def left(write: Write) -> tuple[set[str], ...]:
    """The table's words that are right for each column of what a write leaves."""
    before, after = write.before, write.after
    state = {name for name, states in STATES.items() if after.state in states}
    mark = {name for name, released in MARKS.items() if after.released is released}
    answer = {
        name
        for name, right in (
            ("DROPPED", after.result is None),
            ("KEPT", after.result == GIVEN),
            ("STAYS", before is not None and after.result == before.result),
        )
        if right
    }
    points = (after.recovery_point, after.progress)
    point = {
        name
        for name, right in (
            ("DROPPED", points == ("", ())),
            ("KEPT", points == ("mail", (*PROGRESS, ("mail", b"sent")))),
            ("STAYS", before is not None and points == (before.recovery_point, before.progress)),
        )
        if right
    }
    return state, mark, answer, point


def different_writes(table: Table, used: set[int] | None = None) -> Iterator[Difference]:
    """Where a write leaves another record than the table says."""
    for write in writes():
        index = first(table.leaves, write.found)
        if used is not None:
            used.add(index)
        row = table.leaves[index]
        for wanted, right in zip(row[len(write.found) :], left(write), strict=True):
            if wanted not in right:
                yield row, wanted, "or ".join(sorted(right))


# -- what a taker keeps, and which state may follow --------------------------------------------------------------------


def different_terms(table: Table, used: set[int] | None = None) -> Iterator[Difference]:
    """Where a taker leaves another policy, or another mark "atomic", than the table says."""
    for found in product(("YES", "NO"), ("YES", "NO"), POLICIES, POLICIES):
        atomic, takers, stored, asked = found
        before = _BASE._replace(terms=terms(stored, atomic=atomic == "YES"))
        decision = core.Reclaim(RecordView(before, 0, NOW_MS, 0))
        after = core.reclaimed(asking(asked, atomic=takers == "YES"), decision, NEW_ETAG).terms
        index = first(table.keeps, found)
        if used is not None:
            used.add(index)
        policy, mark = table.keeps[index][len(found) :]
        wanted = (stored if policy == "STAYS" else policy, mark)
        right = (after.recovery.name, "YES" if after.atomic else "NO")
        if wanted != right:
            yield found, str(wanted), str(right)


def different_proofs(table: Table, used: set[int] | None = None) -> Iterator[Difference]:
    """Where an owner's last move leaves another mark "atomic" than the table says."""
    atomic = _BASE._replace(state=State.IN_PROGRESS, terms=terms("HOLD", atomic=True))
    for name, change in owners_moves(Claim(created=False, prior=_BASE), touched=False):
        after = change(atomic, NEW_ETAG)
        rows = [index for index, row in enumerate(table.proves) if row[0] == name]
        for index in rows:
            if used is not None:
                used.add(index)
            wanted, right = table.proves[index][1], "YES" if after.terms.atomic else "NO"
            if wanted != right:
                yield (name,), wanted, right
        if not rows and not after.terminal and not after.terms.atomic:
            yield (name,), "no row", "NO"


def different_states(table: Table) -> Iterator[Difference]:
    """Where `core.NEXT` and the table allow different pairs of states, and writes that go along none."""
    pairs = {(before, after) for one, other in table.follows for before, after in product(STATES[one], STATES[other])}
    for before, after in product(State, State):
        wanted, right = (before, after) in pairs, after in core.NEXT[before]
        if wanted != right:
            yield (before, after), str(wanted), str(right)
    for write in writes():
        if write.before is not None and (write.before.state, write.after.state) not in pairs:
            yield write.found, "no row", f"{write.before.state} to {write.after.state}"


SAMPLE: Final = 11  # no divisor of any column's length, so that each value meets each other


def differences(table: Table) -> Iterator[Difference]:
    """What the table and the code differ in, by a sample of the situations."""
    yield from different_states(table)
    yield from different_terms(table)
    yield from different_writes(table)
    yield from different_proofs(table)
    yield from different_decisions(table, step=SAMPLE)
