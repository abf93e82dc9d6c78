"""Target: what a provider answers to a lookup. Only a plain answer decides; everything else leaves the outcome open."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from notwice import NOT_APPLIED, UNKNOWN, Applied, lookups
from notwice.lookups import LookupFailed, RestLookup, judged
from notwice.model import Record, RecordView, RecoveryKind, State, Terms
from tests.fuzz.target import Target, check_says

_TERMS: Final = Terms(300_000, None, RecoveryKind.HOLD, None, None, 300_000, deduplicated=False)
_RECORD: Final = Record("n", "idem_1", "refund:1", "k", State.IN_PROGRESS, b"e", None, _TERMS)
_ASKED: Final[dict[str, Any]] = {"url": "https://api.example.com/refunds", "matches": {"ref": "{key}"}}
_STATES: Final[dict[str, Any]] = {"state": "state", "applied": ["done"], "not_applied": ["no"]}

LOOKUPS: Final = (
    RestLookup(**_ASKED),
    RestLookup(**_ASKED, **_STATES, absent=NOT_APPLIED),
    RestLookup(**_ASKED, items="", absent=NOT_APPLIED),
    RestLookup(**_ASKED, **_STATES, items="", absent=NOT_APPLIED),
    RestLookup(**_ASKED, **_STATES, items="data.0", more="more", absent=NOT_APPLIED),
    RestLookup(**_ASKED, **_STATES, items="data.0", more="more"),
)
"""What the first byte of an input chooses among, as a digit."""


class _Operation(NamedTuple):
    """As much of an operation as a lookup asks for."""

    view: RecordView = RecordView(_RECORD, 0, 0, 0)


class _Pairs(list[tuple[str, Any]]):
    """An object as it stands in the text, each of its members with its name."""


def lookup_answer(data: bytes) -> None:
    """A digit for the lookup, one for the status, and a body: the verdict is what a plain reading gives, or open."""
    lookup = LOOKUPS[data[0] % len(LOOKUPS)] if data else LOOKUPS[0]
    status = 404 if data[1:2] == b"4" else 500 if data[1:2] == b"5" else 200
    try:
        verdict: object = judged(lookup, _Operation(), lookups._Answer(status, data[2:]))
    except LookupFailed as error:
        check_says(error)
        return
    if status != 200:
        assert verdict is NOT_APPLIED
        assert (status, lookup.items, lookup.absent) == (404, None, NOT_APPLIED)
        return
    document = json.loads(data[2:], object_pairs_hook=_Pairs)
    assert _names_once(document)
    effects = _effects(lookup, document)
    ours = [effect for effect in effects if _member(effect, "ref") == "k"]
    happened = [effect for effect in ours if lookup.state is None or _member(effect, "state") == "done"]
    if isinstance(verdict, Applied):
        assert len(happened) == 1
        assert repr(verdict.result) == repr(_plain(happened[0]))
        return
    assert verdict is NOT_APPLIED
    assert not happened
    assert not _goes_on(lookup, document)
    if ours:
        assert all(_member(effect, "state") == "no" for effect in ours)
    else:
        assert effects == []
        assert lookup.absent is not UNKNOWN


def _member(part: object, name: str) -> object:
    return dict(part).get(name) if isinstance(part, _Pairs) else None


def _effects(lookup: RestLookup, document: object) -> list[Any]:
    if lookup.items is None:
        return [document]
    found = document
    if lookup.items:
        several = _member(document, "data")
        found = _member(several, "0") if isinstance(several, _Pairs) else several[0] if isinstance(several, list) else 0
    assert isinstance(found, list)
    assert not isinstance(found, _Pairs)
    return found


def _goes_on(lookup: RestLookup, document: object) -> bool:
    return lookup.more is not None and bool(_member(document, "more"))


def _names_once(part: object) -> bool:
    if isinstance(part, _Pairs):
        return len(dict(part)) == len(part) and all(_names_once(value) for _, value in part)
    return not isinstance(part, list) or all(map(_names_once, part))


def _plain(part: object) -> object:
    if isinstance(part, _Pairs):
        return {name: _plain(value) for name, value in part}
    return [_plain(value) for value in part] if isinstance(part, list) else part


TARGETS = [Target("lookup_answer", lookup_answer)]
