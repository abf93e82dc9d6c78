"""Business keys: keys derived from stable facts."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel
from pydantic.v1 import BaseModel as OldBaseModel

from notwice import identity
from notwice.errors import EncodingError, InvalidKey
from notwice.identity import business_key, business_key_of, check_key

ORDER = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - a naive one is what is refused


class Kind(Enum):
    REFUND = "refund"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    day: date
    kind: Kind
    lines: list[Line]
    tags: set[str] = field(default_factory=set)


class Model(BaseModel):
    id: UUID
    day: date
    tags: set[str]
    at: datetime
    price: Decimal
    blob: bytes


class OldModel(OldBaseModel):
    id: UUID
    day: date
    tags: set[str]
    at: datetime
    price: Decimal
    blob: bytes


FIELDS: dict[str, Any] = {
    "id": ORDER,
    "day": date(2024, 1, 2),
    "tags": {"a", "b", "c"},
    "at": datetime(2024, 1, 2, 3, tzinfo=UTC),
    "price": Decimal("19.90"),
    "blob": b"\0\xff",
}


def test_two_entry_points_of_one_order_derive_one_key() -> None:
    """C45: an order number as a number, as text or as an Enum's value is one fact."""
    assert business_key("charge", 7) == business_key("charge", "7")
    assert business_key("charge", ORDER) == business_key("charge", str(ORDER))
    assert business_key(Kind.REFUND, Decimal("7.0")) == business_key("refund", 7)


def test_two_purchases_that_are_meant_derive_two_keys() -> None:
    """C45, T17: other facts, another key; facts don't run into one another."""
    keys = [
        business_key("charge", 7),
        business_key("charge", 8),
        business_key("charge7"),
        business_key("char", "ge7"),
        business_key(["charge", 7]),
        business_key("charge", "7", {"a": None}),
        business_key("charge", "7", {}),
    ]
    assert len(set(keys)) == len(keys)


def test_a_business_key_is_a_valid_key() -> None:
    """Whatever the facts, the key has 67 printable characters."""
    key = business_key("x" * 10_000, {"\0": b"\xff"})
    assert check_key(key) == key
    assert re.fullmatch(r"bk_[0-9a-f]{64}", key)


@pytest.mark.parametrize("model", [Model, OldModel])
def test_models_dataclasses_and_mappings_with_equal_fields_derive_one_key(model: type[Any]) -> None:
    """C30: a model of either pydantic version, and a mapping, stand for their fields."""
    assert business_key(model(**FIELDS)) == business_key(FIELDS)


SCRIPT = """
from datetime import date
from decimal import Decimal
from uuid import UUID
from notwice.identity import business_key
from tests.unit.test_business_key import FIELDS, Kind, Line, Model, Order
order = Order(UUID(int=1), date(2024, 1, 2), Kind.REFUND, [Line("a", Decimal("1.50"))], {"x", "y", "z"})
print(business_key(order, Model(**FIELDS), frozenset({"p", "q", (1, "r")}), {"b": 1, "a": {2, 1}}))
"""


def test_a_business_key_does_not_depend_on_the_hash_seed() -> None:
    """C29, C30: dataclasses, models, sets and mappings derive one key in two processes with other hash seeds."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ["1", "2", "77"]
    }
    assert len(printed) == 1
    assert printed.pop().startswith("bk_")


@pytest.mark.parametrize("fact", [0.1, [0.1], {"amount": 1.0}, object(), SimpleNamespace(), NAIVE, 1j, print, iter([])])
def test_a_fact_that_is_not_stable_is_refused(fact: object) -> None:
    """C29, T15: floats, naive datetimes and plain objects derive no key, at any depth."""
    with pytest.raises(EncodingError):
        business_key("charge", fact)


@pytest.mark.parametrize("facts", [(), (None,), ("charge", None), ("", 1), ("charge", "  ")])
def test_a_missing_fact_is_no_business_key(facts: tuple[object, ...]) -> None:
    """C26: a key is never derived from what is not there."""
    with pytest.raises(InvalidKey):
        business_key(*facts)


def test_facts_that_are_one_text_may_not_be_two_names() -> None:
    """A mapping with the names 7 and "7" has no stable form."""
    with pytest.raises(EncodingError, match="one in their stable form"):
        business_key({7: "a", "7": "b"})


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def test_a_window_gives_one_key_to_what_comes_soon_after() -> None:
    """Within one window of time the facts have one key, in the next one another."""
    window = timedelta(minutes=10)
    keys = [business_key("mail", 7, window=window, at=NOON + timedelta(minutes=m)) for m in (0, 9, 10)]
    assert keys[0] == keys[1] != keys[2]
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert business_key("mail", 7, window=window, at=there) == keys[0]
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert business_key("mail", 7, window=window, at=start) != business_key("mail", 7, window=window * 2, at=start)
    assert business_key("mail", 7) not in keys


def test_the_fields_of_a_value_have_windows_too() -> None:
    """Fields in one window of time have one key, in the next one another, and another one without a window."""
    window = timedelta(minutes=10)
    first, soon, later = (
        business_key_of({"order": 7}, window=window, at=NOON + timedelta(minutes=minutes)) for minutes in (0, 9, 10)
    )
    assert first == soon
    assert len({first, later, business_key_of({"order": 7})}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": timedelta(minutes=1)},
        {"at": NOON},
        {"window": timedelta(0), "at": NOON},
        {"window": timedelta(minutes=-1), "at": NOON},
        {"window": timedelta(minutes=1), "at": NOON.replace(tzinfo=None)},
    ],
)
def test_a_window_needs_a_length_and_an_aware_instant(wrong: dict[str, Any]) -> None:
    """Half a window, an empty one and a naive instant are refused."""
    with pytest.raises(InvalidKey):
        business_key("mail", 7, **wrong)


PAYLOAD: dict[str, Any] = {"order": 7, "amount": 100, "createdAt": "10:00", "meta": {"attemptId": "a1", "shop": "s"}}
VOLATILE = ("createdAt", "meta.attemptId")


def test_volatile_fields_that_are_excluded_do_not_change_the_key() -> None:
    """C45: the same payload with another createdAt and attemptId is the same purchase."""
    again = {**PAYLOAD, "createdAt": "10:01", "meta": {"attemptId": "a2", "shop": "s"}}
    assert business_key_of(PAYLOAD, exclude=VOLATILE) == business_key_of(again, exclude=VOLATILE)
    other = {**PAYLOAD, "order": 8}
    assert business_key_of(other, exclude=VOLATILE) != business_key_of(PAYLOAD, exclude=VOLATILE)


@pytest.mark.parametrize("exclude", [(), ("createdAt",), ("meta.attemptId",), ("meta", "attemptId")])
def test_a_field_that_looks_volatile_is_refused_at_any_depth(exclude: tuple[str, ...]) -> None:
    """C45: a field that changes at every try may not slip into a key unseen."""
    with pytest.raises(InvalidKey, match="looks as if it changed at every try"):
        business_key_of(PAYLOAD, exclude=exclude)


def test_included_fields_are_all_that_counts() -> None:
    """The author's choice holds, and a field that is named by its author may look volatile."""
    assert business_key_of(PAYLOAD, include=["order"]) == business_key_of({"order": "7", "x": 1}, include=["order"])
    assert business_key_of(PAYLOAD, include=["createdAt"]) != business_key_of(PAYLOAD, include=["order"])
    assert business_key_of(PAYLOAD, include=["meta.shop"]) == business_key_of(
        {"meta": {"shop": "s"}}, include=["meta.shop"]
    )
    with pytest.raises(InvalidKey, match=r"meta\.attemptId"):
        business_key_of(PAYLOAD, include=["meta"])


@pytest.mark.parametrize(
    ("include", "match"),
    [(["ordr"], "did you mean order"), (["zzz"], "no field zzz"), (["order.id"], "no field"), ([], "no field is left")],
)
def test_an_included_field_must_be_there(include: list[str], match: str) -> None:
    """A misspelt field is refused with a suggestion, rather than left out of the key."""
    with pytest.raises(InvalidKey, match=match):
        business_key_of(PAYLOAD, include=include)


def test_an_included_field_must_have_a_value() -> None:
    """C26: a selection that finds nothing is no key."""
    with pytest.raises(InvalidKey):
        business_key_of({"order": None}, include=["order"])
    with pytest.raises(InvalidKey):
        business_key_of({"order": 1}, exclude=["order"])


def test_a_business_key_of_lists_and_objects() -> None:
    """Fields inside lists and dataclasses are looked at too; what has no fields is refused."""
    order = Order(ORDER, date(2024, 1, 2), Kind.REFUND, [Line("a", Decimal(1))])
    assert business_key_of(order) == business_key_of(order)
    with pytest.raises(InvalidKey, match=r"lines\.nonce"):
        business_key_of({"lines": [{"nonce": 1}]})
    assert business_key_of({"lines": [{"nonce": 1, "a": 2}]}, exclude=["lines.nonce"])
    with pytest.raises(EncodingError):
        business_key_of([1])


def test_fields_that_hold_themselves_are_refused() -> None:
    """A cycle ends in a sentence, not in a full stack."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(EncodingError):
        business_key_of({"loop": loop})
    with pytest.raises(EncodingError):
        business_key(loop)


@pytest.mark.parametrize(
    "name",
    [
        "createdAt",
        "created_at",
        "updatedAt",
        "sent_at",
        "timestamp",
        "requestTimestamp",
        "attempt_id",
        "attempt",
        "nonce",
        "request_id",
        "requestId",
        "RequestID",
        "traceId",
        "retry_count",
        "cryptogram",
        "created",
        "ts",
    ],
)
def test_names_that_look_volatile(name: str) -> None:
    """C45: the usual names of times, tries and random values are known in snake case and camel case."""
    assert identity.looks_volatile(name)


@pytest.mark.parametrize(
    "name",
    [
        "order_id",
        "amount",
        "customer",
        "at",
        "format",
        "category",
        "delivery_date",
        "id",
        "state",
        "paymentMethod",
        "entry",
        "tsar",
    ],
)
def test_names_that_look_stable(name: str) -> None:
    """Ordinary fields are left in peace."""
    assert not identity.looks_volatile(name)
