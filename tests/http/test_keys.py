"""The grammar of the key header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notwice.errors import InvalidKey
from notwice.http.exchange.keys import read_key, read_query_key

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
BARE = "".join(sorted(set(PRINTABLE) - set(' ",')))
keys = st.text(PRINTABLE, min_size=1, max_size=255).filter(lambda key: key.strip(" "))
bare_keys = st.text(BARE, min_size=1, max_size=255)


def quoted(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@given(keys)
def test_a_quoted_key_is_read_as_it_was_meant(key: str) -> None:
    """C28: A structured-field string gives the very key that was quoted, blanks and escapes included."""
    assert read_key([quoted(key)]) == key
    assert read_key([quoted(key)], strict=True) == key
    assert read_query_key([quoted(key)]) == key


@given(bare_keys)
def test_a_bare_key_and_the_quoted_one_are_the_same(key: str) -> None:
    """A bare key is the key that stands in the quotes."""
    assert read_key([key]) == read_key([quoted(key)]) == key
    assert read_key([f" \t{key} "]) == key
    assert read_key([key, quoted(key), f"{key},{quoted(key)}"]) == key


@given(bare_keys)
def test_strict_takes_strings_only(key: str) -> None:
    """With ``strict``, a bare key is malformed."""
    with pytest.raises(InvalidKey, match="malformed"):
        read_key([key], strict=True)


@given(bare_keys, bare_keys)
def test_two_different_keys_are_refused(one: str, other: str) -> None:
    """Two different values are refused, in two lines or in one; equal ones are one key."""
    if one == other:
        assert read_key([one, other]) == one
        return
    for lines in ([one, other], [f"{one}, {other}"], [quoted(one), other]):
        with pytest.raises(InvalidKey, match="two different"):
            read_key(lines)


@given(st.text(st.characters(max_codepoint=255), max_size=300))
def test_any_line_is_read_or_refused(line: str) -> None:
    """C27: Whatever a header holds, a key of 1 to 255 printable ASCII characters comes out, or `InvalidKey`."""
    try:
        key = read_key([line])
    except InvalidKey:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    assert key.strip()


@pytest.mark.parametrize("line", ["", " ", "\t", '""', '"   "', ",", "k,", ",k", "k,,k"])
def test_an_empty_or_blank_key_is_refused(line: str) -> None:
    """C26: What names nothing is refused, never taken for a key that everybody shares."""
    with pytest.raises(InvalidKey):
        read_key([line])


@pytest.mark.parametrize(
    "line",
    ["a b", '"a', 'a"b', '"a"b', '"a" b', '"\\a"', '"a\\"', "ä", "\x00", "a\r\nb", "a\x7f", '"\t"', '"ä"', '"a";A=1'],
)
def test_a_malformed_key_is_refused(line: str) -> None:
    """C27: A blank outside of quotes, a control character, a bad escape and what is not ASCII are refused."""
    with pytest.raises(InvalidKey):
        read_key([line])


@pytest.mark.parametrize("count", [1, 254, 255, 256, 1000, 10_000])
def test_the_length_is_counted_after_decoding(count: int) -> None:
    """C27, T11: 255 characters are the most, however many bytes their escapes take."""
    for line in ("k" * count, quoted("k" * count), quoted('"' * count)):
        if count <= 255:
            assert len(read_key([line])) == count
        else:
            with pytest.raises(InvalidKey, match="255"):
                read_key([line])


@pytest.mark.parametrize(
    "parameters",
    [";a", ";a=1", "; a=-1.5;b", ';a="x;y"', ";a=tok/en", ";a=:YWJj:", ";a=?1", ";a=@1659578233", ';a=%"f%c3%bc"'],
)
def test_parameters_of_the_string_are_read_and_ignored(parameters: str) -> None:
    """RFC 9651: An item's parameters, of every type, do not change the key."""
    assert read_key([f'"k"{parameters}'], strict=True) == "k"


def test_a_query_gives_the_key_as_it_is() -> None:
    """A key in a query needs no quotation marks, whatever it holds; two different ones are refused."""
    assert read_query_key(["a b, c"]) == "a b, c"
    assert read_query_key(["k", '"k"']) == "k"
    for wrong in ([""], [" "], ["ä"], ["k" * 256], ["a", "b"], ['"a'], ["a\nb"]):
        with pytest.raises(InvalidKey):
            read_query_key(wrong)
