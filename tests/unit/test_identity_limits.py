"""Names at their limits, and what is said of those beyond."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from notwice.canonical import DEPTH_MAX
from notwice.errors import EncodingError, InvalidKey
from notwice.identity import (
    business_key,
    business_key_of,
    check_key,
    check_namespace,
    fill_key,
    fill_scope,
    join_scope,
    looks_volatile,
)


def nested(depth: int, inner: object = 1) -> dict[str, Any]:
    value: Any = inner
    for _ in range(depth):
        value = {"a": value}
    return {"a": value}


def test_fields_may_be_nested_so_deep_and_no_deeper() -> None:
    """A value that holds itself ends in an error with a sentence, in mappings, in lists and in both."""
    assert business_key_of(nested(DEPTH_MAX - 2))
    loop: dict[str, Any] = {}
    loop["a"] = loop
    ring: dict[str, Any] = {"a": []}
    ring["a"].append(ring)
    items: list[Any] = []
    items.append(items)
    rows: Any = 1
    for _ in range(DEPTH_MAX - 3):
        rows = [rows]
    assert business_key_of({"a": rows})
    for source in (nested(DEPTH_MAX + 1), loop, ring, {"a": items}):
        with pytest.raises(EncodingError, match=rf"nested deeper than {DEPTH_MAX} levels"):
            business_key_of(source)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: check_namespace("\n"), "the namespace has a control character"),
        (lambda: check_namespace("n" * 256), "the namespace has 256 characters, and 255 are the most"),
        (lambda: check_key("k" * 256), "the key has 256 characters, and 255 are the most"),
        (lambda: check_key(("a", "x\n")), "the key has a control character"),
        (lambda: check_key(" "), "the key is empty or blank"),
        (lambda: join_scope("s" * 1025), "the scope has 1025 characters, and 1024 are the most"),
        (lambda: join_scope(("a", None)), "a part of the scope is missing"),
        (lambda: check_key(True), "the key is a boolean"),
        (lambda: business_key_of({"id": " "}, include=["id"]), "field id of the business key is empty or blank"),
        (lambda: business_key_of({"id": 1}, include=["idd"]), "did you mean id?"),
        (
            lambda: business_key_of({"id": 1}, include=["x"]),
            "x to make the business key of; give one of the names",
        ),
        (lambda: business_key_of({"a": {"createdAt": 1}}), "exclude it, or include by name the fields that identify"),
        (lambda: fill_scope("{a}", {"b": 1}), "there is no value for {a}"),
        (lambda: fill_scope("a:{a}", {"a": "x\n"}), "the scope has a control character"),
        (lambda: join_scope(cast("Any", None)), "the scope is missing"),
        (lambda: check_namespace(cast("Any", 7)), "a namespace is text, and this is of type int; give text"),
        (business_key, "a business key needs facts, and none were given; give an id that stays the same"),
        (lambda: business_key(1, None), "fact 2 of the business key is missing"),
        (lambda: business_key_of({"a": {"time": 1}}), "field a.time looks as if it changed at every try"),
        (lambda: business_key_of({"a": {"b": {"ts": 1}}}), "field a.b.ts looks as if it changed at every try"),
        (lambda: fill_key("x{a}", {"a": "x\n"}), "the key has a control character"),
    ],
)
def test_what_names_nothing_is_told_by_what_it_is(call: Any, words: str) -> None:
    """The sentence says which name is meant, and what to do."""
    with pytest.raises(InvalidKey, match=re.escape(words)) as refused:
        call()
    assert re.search(r"; (give|exclude|did)", str(refused.value))


def test_a_value_without_a_stable_text_is_told_by_its_type() -> None:
    """What can't be a name is named by its type, and it is said what can."""
    with pytest.raises(
        EncodingError, match=r"a part of the scope is of type float, .* give its id as text, an integer"
    ):
        join_scope(("a", 0.5))
    with pytest.raises(
        InvalidKey, match=r"\{a.b\} can't be reached: a value of type int has no b; give a value that has"
    ):
        fill_scope("{a.b}", {"a": 1})


@pytest.mark.parametrize("name", ["my_other_request_id", "aDateOfTheLastRetry", "theCreatedOn", "at_first_sent_at"])
def test_a_name_of_many_words_is_known_by_its_end_or_by_one_of_them(name: str) -> None:
    """However long a field's name is, what shows in it that its value changes at every try is seen."""
    assert looks_volatile(name)
    assert not looks_volatile(f"{name}_of_the_order".replace("Retry", "Sale").replace("at_", ""))


@pytest.mark.parametrize(
    ("template", "values", "scope"),
    [
        ("payouts", {}, "payouts"),
        ("{a}:x", {"a": "b:c"}, "b\\:c:x"),
        ("{a.b[c]}:{d[0]}", {"a": SimpleNamespace(b={"c": 1}), "d": [2]}, "1:2"),
    ],
)
def test_a_template_may_be_all_text_or_begin_with_a_field(template: str, values: dict[str, object], scope: str) -> None:
    """A template without a field is its own text; a field in front of text is escaped like any other."""
    assert fill_scope(template, values) == scope


def test_letters_of_any_alphabet_are_checked_as_ascii_is() -> None:
    """A control character is found beside letters that are no ASCII, and those are names by themselves."""
    assert check_key("\u00fcber") == "\u00fcber"
    for text in ("\u00fc\x85", "\u00fc\n", "a\x7f"):
        with pytest.raises(InvalidKey, match="control character"):
            check_key(text)


def test_names_at_their_limits_are_names() -> None:
    """255 characters of a namespace and a key, 1024 of a scope; a longer key is digested only if it is joined."""
    assert check_namespace("n" * 255) == "n" * 255
    assert check_namespace("") == ""
    assert check_key("k" * 255) == "k" * 255
    assert join_scope("s" * 1024) == "s" * 1024
    assert check_key(("k" * 200, "l" * 54)) == f"{'k' * 200}:{'l' * 54}"
    assert re.fullmatch("sha256:[0-9a-f]{64}", check_key(("k" * 200, "l" * 55)))
    assert re.fullmatch("sha256:[0-9a-f]{64}", fill_key("x{a}", {"a": "k" * 255}))
    assert fill_key("{a}:x", {"a": "b:c"}) == "b\\:c:x"
    assert fill_key("{a}", {"a": "b:c"}) == "b:c"
    assert business_key_of({"a": {"at": 1}}, exclude=["a.at"]) == business_key_of({"a": {}})
