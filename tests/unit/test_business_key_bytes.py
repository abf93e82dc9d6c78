"""Business keys, byte for byte: a release that derived another one would let every effect run once more."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest

from notwice import EncodingError, InvalidKey
from notwice.identity import business_key, business_key_of, check_key, join_scope

AT = datetime(2024, 1, 2, 3, 59, tzinfo=UTC)
HOUR = timedelta(hours=1)
ORDER = {"order": {"id": 7, "lines": [1, 2]}, "kind": "refund"}


def digest(form: bytes) -> str:
    """How a key follows from the canonical form of its facts and its window."""
    return f"bk_{sha256(b'notwice business key 1;' + form).hexdigest()}"


def test_keys_never_change() -> None:
    """P14, C29: the keys of this release, as they stand in stores and in other systems."""
    assert business_key("charge", 7) == "bk_c80c89cbf2efb3fccee25a4ed24e28bd14ee7d314ad8f3cc4c9eb691603247d8"
    facts = ("charge", Decimal("19.90"), UUID(int=1), date(2024, 1, 2))
    assert business_key(*facts, window=HOUR, at=AT) == (
        "bk_8e50a4b8c9f9f6cbe52393c1f5afd68bbb878072abfb4afc364a007d5ec96277"
    )
    assert business_key_of(ORDER) == "bk_b77ce7887d4a4d3362abb99e323586cbcfce4d82209b5252fb57a478ceabea7a"
    assert business_key_of(ORDER, include=["order.id"]) == (
        "bk_8257144189224288fe39a85a8c886dc3eb5ed7a13e94fdf288fff1c6b991868a"
    )


def test_how_a_key_is_derived() -> None:
    """P14: a digest of the facts and the window, so that another program can derive the same key."""
    assert business_key("charge", 7) == digest(b'[["charge","7"],null]')
    assert business_key("charge", window=HOUR, at=AT) == digest(b'[["charge"],[[NaN,"p",3600000000],"473379"]]')
    assert business_key_of(ORDER) == digest(b'[{"kind":"refund","order":{"id":"7","lines":["1","2"]}},null]')
    assert business_key_of(ORDER, include=["order.id"]) == digest(b'[{"order.id":"7"},null]')


def test_a_window_is_counted_in_utc() -> None:
    """C30: an instant has one window in every zone; its first moment is in it, and its last one, too."""
    first, last = datetime(2024, 1, 2, 3, tzinfo=UTC), datetime(2024, 1, 2, 4, tzinfo=UTC) - timedelta.resolution
    elsewhere = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    keys = {business_key("charge", window=HOUR, at=at) for at in (first, AT, elsewhere, last)}
    assert len(keys) == 1
    assert business_key("charge", window=HOUR, at=last + timedelta.resolution) not in keys


@pytest.mark.parametrize(
    "options",
    [{"window": HOUR}, {"at": AT}, {"window": HOUR, "at": datetime(2024, 1, 2)}],  # noqa: DTZ001 - what is refused
    ids=["no instant", "no window", "naive"],
)
def test_half_a_window(options: dict[str, Any]) -> None:
    """C30: the refusal says what both must be."""
    with pytest.raises(InvalidKey) as caught:
        business_key("charge", **options)
    assert str(caught.value) == (
        "a business key for a window of time needs both window and at, and at must be an aware datetime"
    )


@pytest.mark.parametrize("window", [timedelta(0), -HOUR])
def test_a_window_of_nothing(window: timedelta) -> None:
    """C30: the refusal says what to give."""
    with pytest.raises(InvalidKey) as caught:
        business_key("charge", window=window, at=AT)
    assert str(caught.value) == "the window of a business key must be longer than nothing; give a positive timedelta"


def test_what_has_no_fields() -> None:
    """The refusal names the type, and what else there is."""
    with pytest.raises(EncodingError) as caught:
        business_key_of(7)
    assert str(caught.value) == (
        "a value of type int has no named fields; "
        "give a mapping, a dataclass or a pydantic model, or call business_key with the facts themselves"
    )


def test_a_field_that_is_not_there() -> None:
    """C29: the refusal suggests the one name that is near, or says that there are others."""
    for path, hint in (
        ("order.idd", "did you mean id?"),
        ("knid", "did you mean kind?"),
        ("total", "give one of the names that are there"),
    ):
        with pytest.raises(InvalidKey) as caught:
            business_key_of(ORDER, include=[path])
        assert str(caught.value) == f"there is no field {path} to make the business key of; {hint}"


def nested(levels: int) -> Any:
    value: Any = "leaf"
    for _ in range(levels):
        value = {"a": value}
    return value


def test_how_deep_fields_may_be() -> None:
    """C29: fields as deep as a value may be count, and what is deeper is refused by a sentence, not by a full stack."""
    assert business_key_of(nested(63)) != business_key_of(nested(62))
    for levels in (64, 65, 100_000):
        with pytest.raises(EncodingError, match="nested deeper than 64 levels"):
            business_key_of(nested(levels))


def test_an_empty_tuple_names_nothing() -> None:
    """The refusal says which of the two it was, and what to give."""
    for call, what in ((join_scope, "scope"), (check_key, "key")):
        with pytest.raises(InvalidKey) as caught:
            call(())
        assert str(caught.value) == f"the {what} is an empty tuple, which names nothing; give its parts"
