"""A request that has no stable form is told by where the part is that has none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from notwice import EncodingError, Guard, business_key
from notwice.canonical import SIZE_MAX, canonical_value

WHAT = "a value of type Odd has no stable form; give its id"


class Odd:
    """Nothing that could be compared."""

    def __repr__(self) -> str:
        return "Odd()"


@dataclasses.dataclass
class Item:
    price: object


class Bill(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    written: Any = None
    odd: Any = None


def refusal(request: object) -> str:
    with pytest.raises(EncodingError) as refused:
        canonical_value(request)
    return str(refused.value)


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        ({"amount": Odd()}, "amount"),
        ({"order": 7, "items": [1, (2,), Item(Odd())]}, "items[2].price"),
        ([1, {"a": {"b": [Odd()]}}], "[1].a.b[0]"),
        ({"tags": {1, Odd()}}, "tags"),
        ({"bill": Item(Item([0, Odd()]))}, "bill.price.price[1]"),
        ({"a": {7: 1, "7": 2}, "b": {Odd(): 1}}, "b[...]"),
        ({"amount": float("inf"), "day": {"a": Odd()}}, "day.a"),
    ],
    ids=str,
)
def test_the_part_is_named(request_: object, place: str) -> None:
    """C30: names of fields, places in lists; the members of a set have none."""
    assert refusal(request_).startswith(f"in the request, at {place}: {WHAT}")


def test_the_whole_has_no_place() -> None:
    """A request that has no stable form itself is told by its type alone."""
    assert refusal(Odd()).startswith(WHAT)


@pytest.mark.parametrize("name", ["card 4711", "ann@shop.example", "", 4711, "x" * 41, ("a", 1)], ids=repr)
def test_a_name_that_is_no_field_s_is_not_shown(name: object) -> None:
    """P15: a mapping may have names that somebody sent; only what looks like a field's name stands in the sentence."""
    assert refusal({"by_name": {name: [Odd()]}}).startswith(f"in the request, at by_name[...][0]: {WHAT}")


def test_a_field_that_only_its_model_can_write() -> None:
    """What was tried for it before is no part of the place of another one."""
    assert refusal([Bill(odd=Odd())]).startswith("in the request, at [0].odd: field odd of Bill has no stable form")
    assert refusal(Bill(written=[Odd()], odd=Odd())).startswith("in the request, at written: ")


def test_a_deep_place_is_cut() -> None:
    """What holds itself would have a place without an end."""
    loop: list[object] = []
    loop.append(loop)
    told = refusal({"a": {"loop": loop}})
    assert told.startswith("in the request, at a.loop[0][0][0][0][0][0]...: a value is nested deeper than 64 levels")


def test_what_is_too_large_has_no_place() -> None:
    """Where the room ended says nothing: the whole is what is too large."""
    assert refusal({"texts": ["x" * (SIZE_MAX // 2 + 1)] * 3}).startswith("a value is larger than")


def test_a_parameter_is_named_by_the_decorator() -> None:
    """The call of a guarded function names the parameter, and nothing runs."""
    with Guard.open("memory://") as guard:

        @guard.idempotent(scope="refund:{order}", key="{order}")
        def refund(order: str, amount: object) -> str:
            return pytest.fail("it ran")

        with pytest.raises(EncodingError, match=f"in the request, at amount: {WHAT}"):
            refund("7", Odd())


def test_facts_have_no_request() -> None:
    """A business key is made of facts, which are few: the sentence names the type."""
    with pytest.raises(EncodingError, match=f"^{WHAT}"):
        business_key("payout", Odd())
