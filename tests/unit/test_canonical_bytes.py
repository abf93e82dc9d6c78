"""The form of every kind of value, written out: keys and fingerprints of earlier releases stay valid, everywhere."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest

from notwice.canonical import canonical_facts, canonical_value, stable_text
from notwice.canonical_json import canonical_json
from notwice.errors import EncodingError

EAST = timezone(timedelta(hours=2))
NAIVE = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None)


class Colour(Enum):
    RED = "r"
    BLUE = 7


class Level(IntEnum):
    LOW = 3


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own zone is not UTC: nothing may depend on it."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    yield
    monkeypatch.undo()
    clock.tzset()


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=EAST), b'[NaN,"i","2024-02-28T23:02:03.000004+00:00"]'),
        (NAIVE, b'[NaN,"w","2024-02-29T01:02:03"]'),
        (date(2024, 2, 29), b'[NaN,"d","2024-02-29"]'),
        (time(1, 2, 3, 4), b'[NaN,"c","01:02:03.000004"]'),
        (timedelta(seconds=-1, microseconds=3), b'[NaN,"p",-999997]'),
        (timedelta(days=1), b'[NaN,"p",86400000000]'),
        (UUID(int=1), b'[NaN,"u","00000000000000000000000000000001"]'),
        (b"\xff", b'[NaN,"b","ff"]'),
        (bytearray(b"\x01"), b'[NaN,"b","01"]'),
        (Colour.RED, b'"r"'),
        (Level.LOW, b"3"),
        (Decimal("NaN"), b'[NaN,"n","nan"]'),
        (float("-inf"), b'[NaN,"n","-inf"]'),
        (Decimal("Infinity"), b'[NaN,"n","inf"]'),
        (1e400, b'[NaN,"n","inf"]'),
        (0.1, b'[NaN,"n","1e-1"]'),
        (-0.0, b"0"),
        (10**29, b"100000000000000000000000000000"),
        (10**30, b'[NaN,"n","1e30"]'),
        ({2, 1}, b'[NaN,"e",1,2]'),
        (frozenset(), b'[NaN,"e"]'),
        ({1: "a", (2,): None}, b'[NaN,"m",[1,"a"],[[2],null]]'),
        ((1, [2]), b"[1,[2]]"),
    ],
)
def test_a_request_has_this_form(value: Any, form: bytes) -> None:
    """P14: each kind by its mark."""
    assert canonical_value(value) == form
    assert canonical_value([value]) == b"[" + form + b"]"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, "r"),
        (Colour.BLUE, "7"),
        ("text", "text"),
        (True, "true"),
        (False, "false"),
        (-7, "-7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("19.90"), "19.9"),
        (Decimal("-0.00"), "0"),
        (Decimal("1E+2"), "100"),
        (Decimal("0.05"), "0.05"),
        (Decimal("1e-30"), "0.000000000000000000000000000001"),
        (Decimal("1e-31"), "1e-31"),
        (datetime(2024, 2, 29, 1, 2, 3, tzinfo=EAST), "2024-02-28T23:02:03+00:00"),
        (date(2024, 2, 29), "2024-02-29"),
        (Decimal("NaN"), None),
        (Decimal("-Infinity"), None),
        (NAIVE, None),
        (1.5, None),
        (None, None),
        (b"x", None),
        (time(1), None),
    ],
)
def test_a_fact_has_this_text(value: Any, text: str | None) -> None:
    """P14: by which it is known at every entry point of a flow; what has none is no fact, or has a form of its own."""
    assert stable_text(value) == text
    if text is not None:
        assert canonical_facts([value]) == b'["' + text.encode() + b'"]'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.5, "give an integer in the smallest unit (cents), a Decimal, or text"),
        (NAIVE, "it means another instant elsewhere; give it a zone"),
    ],
)
def test_what_is_no_fact_is_refused_with_what_to_give(value: object, words: str) -> None:
    """P14: in a list, too."""
    for facts in (value, [value], {"a": value}):
        with pytest.raises(EncodingError) as refused:
            canonical_facts(facts)
        assert words in str(refused.value)
        assert str(refused.value).startswith("a ")


def test_an_instant_is_the_same_on_every_machine() -> None:
    """P14: it is written in UTC, not in the zone of the machine."""
    instant = datetime(2024, 1, 1, tzinfo=UTC)
    assert (
        canonical_value(instant) == canonical_value(instant.astimezone(EAST)) == canonical_value(instant.astimezone())
    )


@pytest.mark.parametrize(
    ("document", "form"),
    [
        (b"1" + b"0" * 298, b"1" + b"0" * 298),
        (b"1e298", b"1" + b"0" * 298),
        (b"1e299", b'[NaN,"1e299"]'),
        (b"1" + b"0" * 299, b'[NaN,"1e299"]'),
        (b"0.123456789012345", b"0.123456789012345"),
        (b"0.1234567890123456", b'[NaN,"1234567890123456e-16"]'),
        (b"1e-289", b"1e-289"),
        (b"1e-291", b'[NaN,"1e-291"]'),
        (b"-0.0", b"0"),
        (b"120e-1", b"12"),
    ],
)
def test_a_number_of_a_document_has_this_form(document: bytes, form: bytes) -> None:
    """P14: as long as it can be printed as it is, and else by its digits and its power of ten."""
    assert canonical_json(document) == form
