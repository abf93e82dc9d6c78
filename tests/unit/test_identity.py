"""Scopes, keys, ids and business keys."""

import hashlib
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notwice.errors import EncodingError, InvalidKey
from notwice.identity import (
    check_key,
    check_namespace,
    downstream_key,
    downstream_uuid,
    fill_key,
    fill_scope,
    join_scope,
    operation_id,
    template_fields,
)

ORDER = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001 - a naive one is what is refused
NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20).filter(
    lambda t: not t.isspace()
)


class Kind(Enum):
    REFUND = "refund"


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    PAY = "pay"


# --- scopes ---------------------------------------------------------------------------------------------------------


def test_a_scope_given_as_text_is_taken_as_it_is() -> None:
    """Text is the scope, its colons and backslashes included."""
    assert join_scope("refund:ord_123") == "refund:ord_123"
    assert join_scope("a\\b:c") == "a\\b:c"


def test_a_scope_given_as_a_tuple_is_joined_by_colons() -> None:
    """A tuple and the text that it stands for are one scope."""
    assert join_scope(("refund", "ord_123")) == "refund:ord_123"
    assert join_scope(("refund",)) == "refund"


def test_separators_inside_parts_do_not_collide() -> None:
    """C21: ("a:b", "c") and ("a", "b:c") are two scopes, and so are parts that end in a backslash."""
    joined = {join_scope(parts) for parts in [("a:b", "c"), ("a", "b:c"), ("a", "b", "c"), ("a\\", "b"), ("a\\:b",)]}
    assert len(joined) == 5


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(NAMES, min_size=1, max_size=4))
def test_two_tuples_of_text_never_give_one_scope(left: list[str], right: list[str]) -> None:
    """Joining is one to one."""
    assert (join_scope(tuple(left)) == join_scope(tuple(right))) == (left == right)


@given(st.text(":\\ab", min_size=1, max_size=4), st.text(":\\ab", min_size=1, max_size=4), st.text(":\\ab", max_size=6))
def test_joining_is_one_to_one_for_separators_alone(first: str, second: str, other: str) -> None:
    """A pair never gives the scope of one part, whatever separators the parts are made of."""
    if other:
        assert join_scope((first, second)) != join_scope((other,))


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (7, "7"),
        (-(2**70), str(-(2**70))),
        (True, "true"),
        (Decimal("19.90"), "19.9"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.0"), "0"),
        (Decimal("1E+999999"), "1e999999"),
        (ORDER, str(ORDER)),
        (Kind.REFUND, "refund"),
        (Level.HIGH, "3"),
        (Word.PAY, "pay"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))), "2024-01-01T10\\:00\\:00+00\\:00"),
    ],
)
def test_a_part_is_known_by_its_stable_text(part: object, text: str) -> None:
    """Numbers, ids, dates, instants and Enum members stand for one text in every process."""
    assert join_scope(("x", part)) == f"x:{text}"


@pytest.mark.parametrize("part", [0.5, float("nan"), object(), b"a", [1], ("a",), {}, NAIVE, 1j, Decimal("NaN")])
def test_a_part_without_a_stable_text_is_refused(part: object) -> None:
    """C29, T15: floats, naive datetimes and objects known by their address name nothing."""
    with pytest.raises(EncodingError, match="no text that is the same everywhere"):
        join_scope(("x", part))


@pytest.mark.parametrize(
    "scope",
    [
        "",
        "  ",
        "\u2003",
        (),
        ("a", None),
        ("a", ""),
        (" ", "a"),
        "a\0b",
        "a\r\nb",
        ("a", "\x85"),
        "\ud800",
        "x" * 1025,
        ("y" * 1024, "z"),
        None,
    ],
)
def test_what_names_nothing_is_no_scope(scope: Any) -> None:
    """C26, C27: missing, blank, too long and unprintable scopes are refused before anything is stored."""
    with pytest.raises(InvalidKey):
        join_scope(scope)


def test_a_scope_is_counted_in_characters() -> None:
    """1024 characters of any alphabet fit."""
    assert join_scope("\u00e9" * 1024) == "\u00e9" * 1024


def test_a_namespace_may_be_empty_and_must_be_clean() -> None:
    """The default namespace is the empty text; all others are checked as a scope is."""
    assert check_namespace("") == ""
    assert check_namespace("tenant-7") == "tenant-7"
    for wrong in ["\0", " ", "x" * 256]:
        with pytest.raises(InvalidKey):
            check_namespace(wrong)


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", "x" * 255, "Ab", "aB", "Ab ", "stra\u00dfe", "\U0001f4b6", "a:b\\c"])
def test_a_key_is_kept_byte_for_byte(key: str) -> None:
    """C27, C28: up to 255 characters of any alphabet are the key, unchanged."""
    assert check_key(key) == key


@pytest.mark.parametrize(
    "key", [None, "", " ", "\t", (), (None,), (None, None), ("a", None), ("", ""), ("a", " "), True, False]
)
def test_no_key_is_not_a_key(key: object) -> None:
    """C26: what was left out never becomes one key for everybody."""
    with pytest.raises(InvalidKey):
        check_key(key)


@pytest.mark.parametrize("key", ["x" * 256, "x" * 10_000, "a\0b", "a\r\nb", "\x7f", "\ud800", "a\x9f"])
def test_a_malformed_key_is_refused_with_a_sentence(key: str) -> None:
    """C27, T11: too long or unprintable keys never reach a store, and the message says what to give."""
    with pytest.raises(InvalidKey, match="; give "):
        check_key(key)


def test_a_business_key_of_parts_is_joined() -> None:
    """A tuple of stable ids is a key, and two tuples are two keys."""
    assert check_key(("charge", 7)) == "charge:7"
    assert check_key(ORDER) == str(ORDER)
    assert check_key(("a:b", "c")) != check_key(("a", "b:c"))


def test_a_long_business_key_is_digested() -> None:
    """C27: a joined key over 255 characters becomes a digest, and stays distinct from its neighbours."""
    long, other = ("charge", "x" * 300), ("charge", "x" * 299 + "y")
    assert check_key(("charge", "x" * 248)) == "charge:" + "x" * 248
    assert check_key(long) == "sha256:" + hashlib.sha256(("charge:" + "x" * 300).encode()).hexdigest()
    assert check_key(long) != check_key(other)


@pytest.mark.parametrize("key", [1.5, object(), ["a"], {"a": 1}])
def test_a_key_without_a_stable_text_is_refused(key: object) -> None:
    """C29: an object's default text is never a key."""
    with pytest.raises(EncodingError):
        check_key(key)


# --- ids ------------------------------------------------------------------------------------------------------------


def test_an_operation_id_is_the_documented_digest() -> None:
    """The id is 128 bits of SHA-256 over scope, NUL and key, in hexadecimal: stored ids stay valid for ever."""
    expected = hashlib.sha256(b"refund:ord_123\0k-1").hexdigest()[:32]
    assert operation_id("refund:ord_123", "k-1") == f"idem_{expected}"
    assert operation_id("stra\u00dfe", "k") != operation_id("strasse", "k")


ARGUMENTS: dict[str, Any] = {"namespace": "t", "scope": "s", "key": "k", "generation": 0, "name": "charge"}


def test_a_downstream_key_is_short_and_stable() -> None:
    """The next system's key fits 38 characters and never changes between releases."""
    key = downstream_key(**ARGUMENTS)
    framed = b"notwice downstream key 1;1:t1:s1:k1:06:charge"
    assert key == "nw_" + hashlib.sha256(framed).hexdigest()[:32]
    assert len(key) <= 38


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "u"},
        {"scope": "r"},
        {"key": "j"},
        {"generation": 1},
        {"name": "mail"},
        {"scope": "", "key": "sk"},
        {"namespace": "ts", "scope": ""},
    ],
)
def test_each_value_changes_the_downstream_key(change: dict[str, Any]) -> None:
    """P11: no two lists of values share a downstream key, wherever the borders between them lie."""
    assert downstream_key(**(ARGUMENTS | change)) != downstream_key(**ARGUMENTS)
    assert downstream_uuid(**(ARGUMENTS | change)) != downstream_uuid(**ARGUMENTS)


def test_a_downstream_uuid_is_a_valid_uuid_of_version_4() -> None:
    """Systems that check a UUID's version and variant accept it."""
    made = downstream_uuid(**ARGUMENTS)
    assert (made.version, made.variant) == (4, "specified in RFC 4122")
    assert made == downstream_uuid(**ARGUMENTS)


# --- templates ------------------------------------------------------------------------------------------------------


def test_a_template_names_its_fields() -> None:
    """Each value that the template asks for is named once, in order."""
    assert template_fields("refund:{order.id}:{lines[0]}:{order.day}") == ("order", "lines")
    assert template_fields("daily") == ()


def test_a_template_is_filled_as_a_tuple_is_joined() -> None:
    """C24: the template and the tuple of the same parts are one scope, and values can't run into one another."""
    assert fill_scope("refund:{order_id}", {"order_id": "ord_123"}) == join_scope(("refund", "ord_123"))
    assert fill_scope("{a}:{b}", {"a": "x:y", "b": "z"}) != fill_scope("{a}:{b}", {"a": "x", "b": "y:z"})
    assert fill_scope("{{x}}:{a}", {"a": 1}) == "{x}:1"


def test_a_template_reaches_attributes_and_items() -> None:
    """Attributes, list places and mapping names can be written as in a format text."""
    values = {"order": SimpleNamespace(id=7, lines=[{"sku": "s"}]), "names": {"0": "n"}}
    assert fill_scope("pay:{order.id}:{order.lines[0][sku]}:{names[0]}", values) == "pay:7:s:n"


def test_a_template_of_one_field_takes_its_value_as_it_is() -> None:
    """The key given to a decorated function and the key given to a guard are one key, whatever it holds."""
    assert fill_key("{key}", {"key": "a:b"}) == check_key("a:b")
    assert fill_key("{key}", {"key": ("charge", 7)}) == "charge:7"
    assert fill_scope("{scope}", {"scope": "a:b"}) == "a:b"
    assert fill_scope("{scope}", {"scope": ("a:b", 1)}) == "a\\:b:1"


def test_a_filled_key_is_checked_and_digested_like_a_tuple() -> None:
    """A long key of several values becomes a digest; the same values as a tuple give the same one."""
    assert fill_key("charge:{order}", {"order": "x" * 300}) == check_key(("charge", "x" * 300))


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_field_without_a_value_is_no_key(value: object) -> None:
    """C26: a template never turns a missing value into a key or a scope."""
    for template in ["{key}", "charge:{key}"]:
        with pytest.raises(InvalidKey):
            fill_key(template, {"key": value})
        with pytest.raises(InvalidKey):
            fill_scope(template, {"key": value})


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("", "empty"),
        ("{a", "malformed"),
        ("a}", "malformed"),
        ("{}", "no field"),
        ("x:{0}", "no field"),
        ("{a b}", "no field"),
        ("{a[}", "malformed|no field"),
        ("{a!r}", "format"),
        ("{a:>3}", "format"),
        ("{a}{b}", "no ':' between"),
        ("{a}-{b}", "no ':' between"),
        ("x\\{a}", "backslash"),
    ],
)
def test_a_template_that_could_mislead_is_refused(template: str, match: str) -> None:
    """C24: malformed and ambiguous templates are refused, when they are read."""
    with pytest.raises(InvalidKey, match=match):
        template_fields(template)


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("x:{ordr}", "did you mean order"),
        ("x:{order.idd}", "has no idd"),
        ("x:{order[0]}", "has no 0"),
        ("x:{names[9]}", "has no 9"),
    ],
)
def test_a_field_that_is_not_there_is_named(template: str, match: str) -> None:
    """A misspelt field is refused with a sentence that names it."""
    with pytest.raises(InvalidKey, match=match):
        fill_scope(template, {"order": SimpleNamespace(id=1), "names": ["a"]})


def test_a_field_without_a_stable_text_is_refused() -> None:
    """C29: a template never takes an object's default text."""
    with pytest.raises(EncodingError, match=r"\{order\}"):
        fill_scope("x:{order}", {"order": object()})


@given(NAMES, NAMES, NAMES, NAMES)
def test_filling_is_one_to_one(a: str, b: str, c: str, d: str) -> None:
    """Two pairs of values never give one scope."""
    first = fill_scope("x{a}y:z{b}", {"a": a, "b": b})
    second = fill_scope("x{a}y:z{b}", {"a": c, "b": d})
    assert (first == second) == ((a, b) == (c, d))
