"""Fingerprints: what makes two requests one."""

import hashlib
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notwice import fingerprint
from notwice.errors import EncodingError
from notwice.fingerprint import (
    BODY_SHA256,
    BYTES,
    HTTP,
    HTTP_BYTES,
    RECIPES,
    VALUE,
    BytesRequest,
    HttpRequest,
    ValueRequest,
    compute,
    fingerprint_bytes,
    fingerprint_http,
    fingerprint_value,
    media_type,
)
from notwice.model import Fingerprint

JSON = "application/json"


def request(body: Any = b"", content_type: str = JSON, **changes: Any) -> HttpRequest:
    plain = HttpRequest(method="POST", raw_path=b"/refunds", query=b"", content_type=content_type, body=body)
    return plain._replace(**changes)


def digest(*arguments: Any, **changes: Any) -> bytes:
    return fingerprint_http(request(*arguments, **changes)).digest


# --- the request line -------------------------------------------------------------------------------------------------

PLAIN = {"method": "POST", "raw_path": b"/a", "query": b"x=1", "content_type": "text/plain", "body": b"b"}


@pytest.mark.parametrize(
    "change",
    [
        {"method": "PATCH"},
        {"method": "post"},
        {"raw_path": b"/b"},
        {"raw_path": b"/a/"},
        {"raw_path": b"/A"},
        {"raw_path": b"/%61"},
        {"query": b"x=2"},
        {"query": b""},
        {"raw_path": b"/ax=1", "query": b""},
        {"content_type": "text/html"},
        {"content_type": ""},
        {"body": b"B"},
        {"body": b""},
        {"query": b"x=1b", "body": b""},
    ],
)
def test_each_part_of_a_request_counts(change: dict[str, Any]) -> None:
    """C20, C23: method, path, query, media type and body make the request, and don't run into one another."""
    assert digest(**PLAIN) != digest(**(PLAIN | change))


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "TEXT/Plain", "text/plain; charset=utf-8", 'text/plain;Charset="UTF8";', " text/plain ;x=y"],
)
def test_the_media_type_counts_without_its_parameters(content_type: str) -> None:
    """C20: a media type's case, and parameters that don't say how to read the body, are not looked at."""
    assert media_type(content_type) == "text/plain"
    assert digest(b"b", content_type) == digest(b"b", "text/plain")


def test_the_same_bytes_under_another_media_type_are_another_request() -> None:
    """C20: JSON sent as text is not the JSON request."""
    bodies = {
        digest(b'{"a":1}', kind) for kind in [JSON, "text/plain", "application/vnd.x+json", "multipart/form-data", ""]
    }
    assert len(bodies) == 5


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JSON, "application/problem+json", "Application/JSON; charset=utf-8"])
def test_json_counts_by_what_it_says(kind: str) -> None:
    """C17: member order, spacing and spelling of numbers make no other request; array order and values do."""
    first = digest(b'{"a":1,"b":{"x":1,"y":2}}', kind)
    assert digest(b'{ "b":{"y":2.0,"x":1e0},\n"a":1 }', kind) == first
    assert digest(b'{"a":1,"b":{"x":1,"y":3}}', kind) != first
    assert digest(b"[1,2]", kind) != digest(b"[2,1]", kind)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", "application/jsonl", ""]
)
def test_other_bodies_count_by_their_bytes(kind: str) -> None:
    """C17: what is no JSON is compared byte for byte."""
    assert digest(b'{"a":1}', kind) != digest(b'{"a": 1}', kind)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a":1,"a":1}', b'"\\ud800"', b"\xff", b"[" * 100_000, b"1e9999999999999999"]
)
def test_json_without_a_canonical_form_counts_by_its_bytes(body: bytes) -> None:
    """C17: malformed and ambiguous documents are no error, and equal themselves only."""
    assert digest(body) == digest(body)
    assert digest(body) != digest(body + b" ")


def test_a_canonical_form_is_not_mistaken_for_bytes() -> None:
    """A form, and a body that has the form's bytes but no form of its own, are two requests."""
    assert digest(b"1e400") != digest(b'[NaN,"1e400"]')


def test_a_large_json_body_counts_by_its_bytes() -> None:
    """C20: above the limit nothing is parsed, under a mark of its own."""
    size = fingerprint.JSON_BYTES_MAX
    small, large = b"[" + b" " * (size - 2) + b"]", b"[" + b" " * (size - 1) + b"]"
    assert digest(small) == digest(b"[]")
    assert digest(large) != digest(b"[]")
    assert digest(iter([small])) == digest(b"[]")
    assert digest(iter([large])) == digest(large)


@pytest.mark.parametrize("body", [b"[" * 10_485_760, b"\xff" * 10_485_760, b"9" * 1_000_000, b'{"a":' * 200_000])
def test_hostile_bodies_cost_linear_time(body: bytes) -> None:
    """C20: ten mebibytes of anything end in a fingerprint."""
    assert len(digest(body)) == 32


def chunked(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("kind", [JSON, "text/plain", "multipart/form-data; boundary=b"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_in_chunks_is_the_same_request(kind: str, size: int) -> None:
    """C20: how a body is cut into chunks, or spooled, makes no difference."""
    for body in [b'{"a": [1, 2]}', b"", form("b", FIELDS)]:
        assert digest(chunked(body, size), kind) == digest(body, kind)


def test_a_large_body_in_chunks_is_read_once_and_to_its_end() -> None:
    """C20: a body above the limits is digested as it comes, every chunk of it."""
    chunks = [b"x" * 65_536] * 300
    for kind in [JSON, "multipart/form-data; boundary=b", "text/plain"]:
        first = digest(iter(chunks), kind)
        assert first == digest(b"".join(chunks), kind)
        assert first != digest(iter([*chunks[:-1], b"y" * 65_536]), kind)


# --- multipart --------------------------------------------------------------------------------------------------------

FIELDS: list[tuple[bytes, bytes]] = [
    (b'Content-Disposition: form-data; name="order"', b"7"),
    (b'Content-Disposition: form-data; name="file"; filename="a.bin"\r\nContent-Type: image/png', b"\0\r\n\xff--b\n"),
]


def form(boundary: str, parts: list[tuple[bytes, bytes]], end: bytes = b"\r\n") -> bytes:
    mark = b"--" + boundary.encode()
    return b"".join(mark + b"\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts) + mark + b"--" + end


def form_digest(boundary: str, parts: list[tuple[bytes, bytes]], **changes: Any) -> bytes:
    return digest(form(boundary, parts), f"multipart/form-data; boundary={boundary}", **changes)


def test_the_same_form_with_two_boundaries_is_one_request() -> None:
    """C20: an identical upload under a new boundary is a retry."""
    assert form_digest("aaa", FIELDS) == form_digest("zzzzzz", FIELDS)
    assert digest(form("a b", FIELDS), 'multipart/form-data; charset=utf-8; boundary="a b"') == form_digest(
        "aaa", FIELDS
    )
    assert digest(form("q", FIELDS, end=b""), "Multipart/Form-Data;BOUNDARY=q") == form_digest("aaa", FIELDS)


def test_a_part_s_header_fields_count_by_name_and_value() -> None:
    """C20: case and order of a part's header fields, and its length if that is true, are not looked at."""
    lines = b'content-type:  image/png \r\nContent-Length: 8\r\nCONTENT-DISPOSITION: form-data; name="file"; '
    lines += b'filename="a.bin"'
    assert form_digest("q", [FIELDS[0], (lines, FIELDS[1][1])]) == form_digest("q", FIELDS)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        FIELDS[:1],
        FIELDS[::-1],
        [*FIELDS, FIELDS[0]],
        [(FIELDS[0][0], b"8"), FIELDS[1]],
        [(FIELDS[0][0].replace(b"order", b"Order"), b"7"), FIELDS[1]],
        [FIELDS[0], (FIELDS[1][0].replace(b"a.bin", b"b.bin"), FIELDS[1][1])],
        [FIELDS[0], (FIELDS[1][0].replace(b"png", b"gif"), FIELDS[1][1])],
        [FIELDS[0], (FIELDS[1][0] + b"\r\nContent-Transfer-Encoding: base64", FIELDS[1][1])],
        [FIELDS[0], (FIELDS[1][0], FIELDS[1][1].replace(b"\r\n", b"\n"))],
        [FIELDS[0], (FIELDS[1][0], FIELDS[1][1] + b"\r\n")],
        [(b"A: 1", b"\r\n\r\n"), (b"B: 2", b"")],
        [(b"A: 1\r\nB: 2", b"")],
    ],
)
def test_another_form_is_another_request(parts: list[tuple[bytes, bytes]]) -> None:
    """C20: names, file names, types, bytes, line ends and the order of the parts count."""
    assert form_digest("q", parts) != form_digest("q", FIELDS)


@given(
    st.lists(st.tuples(st.text("ab:", max_size=3), st.binary(max_size=6)), max_size=3),
    st.lists(st.tuples(st.text("ab:", max_size=3), st.binary(max_size=6)), max_size=3),
)
def test_two_forms_are_one_request_exactly_if_their_parts_are_equal(
    left: list[tuple[str, bytes]], right: list[tuple[str, bytes]]
) -> None:
    """C20: parts never run into one another, and the boundary never counts."""
    first, second = ([(f"x-name: {name}".encode(), body) for name, body in parts] for parts in (left, right))
    assert (form_digest("boundary-one", first) == form_digest("boundary2", second)) == (left == right)


WELL_FORMED = form("q", FIELDS)
TYPE = "multipart/form-data; boundary=q"


def by_type(body: Any, kind: str) -> bytes:
    """The digest of a body by its bytes and all of its Content-Type."""
    head = b"notwice http 1;4:POST8:/refunds0:%d:%btyped-bytes;" % (len(kind.encode()), kind.encode())
    return hashlib.sha256(head + body).digest()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (WELL_FORMED, "multipart/form-data"),
        (WELL_FORMED, "multipart/form-data; boundary="),
        (WELL_FORMED, "multipart/form-data; boundary=other"),
        (WELL_FORMED, "multipart/form-data; boundary=q; boundary=q"),
        (WELL_FORMED, "multipart/form-data; boundary=q; boundary=r"),
        (WELL_FORMED, "multipart/form-data; boundary=r; Boundary=q"),
        (WELL_FORMED, 'multipart/form-data; boundary="q"; boundary=r'),
        (WELL_FORMED, 'multipart/form-data; x="; boundary=r"; boundary=q'),
        (WELL_FORMED, 'multipart/form-data; boundary="\\q"'),
        (WELL_FORMED, 'multipart/form-data; boundary="q'),
        (WELL_FORMED, "multipart/form-data; boundary=q; boundary*=utf-8''r"),
        (WELL_FORMED, "multipart/form-data; boundary*0=q"),
        (WELL_FORMED, "multipart/form-data; boundary=q; charset"),
        (WELL_FORMED, "multipart/form-data; boundary=q, multipart/form-data; boundary=r"),
        (WELL_FORMED, "multipart/form-data, text/plain; boundary=q"),
        (WELL_FORMED, "multipart/form-data\ntext/plain; boundary=q"),
        (WELL_FORMED, "multipart/; boundary=q"),
        (form("q/r", FIELDS), "multipart/form-data; boundary=q/r"),
        (form("q=r", FIELDS), "multipart/form-data; boundary=q=r"),
        (form("q!r", FIELDS), "multipart/form-data; boundary=q!r"),
        (form("q ", FIELDS), 'multipart/form-data; boundary="q "'),
        (WELL_FORMED, f"multipart/form-data; boundary={'q' * 71}"),
        (form("q" * 71, FIELDS), f"multipart/form-data; boundary={'q' * 71}"),
        (b"preamble\r\n" + WELL_FORMED, TYPE),
        (WELL_FORMED.replace(b"\r\n", b"\n"), TYPE),
        (WELL_FORMED.replace(b"--q\r\n", b"--q \r\n", 1), TYPE),
        (WELL_FORMED.replace(b"--q\r\n", b"--qq\r\n"), TYPE),
        (b"--q", TYPE),
        (b"--q--\r\nepilogue", TYPE),
        (b"", TYPE),
    ],
)
def test_a_form_of_an_uncertain_boundary_counts_by_its_bytes_and_all_of_its_type(body: bytes, kind: str) -> None:
    """C20, P3: where two readers could look for two boundaries, bytes and Content-Type decide; nothing is raised."""
    assert digest(body, kind) == by_type(body, kind)
    assert digest(chunked(body, 3), kind) == by_type(body, kind)
    assert fingerprint_http(request(body, f" {kind}\t"), HTTP_BYTES).digest == by_type(body, kind)


@pytest.mark.parametrize(
    "body",
    [
        WELL_FORMED + b"epilogue",
        WELL_FORMED[:-4],
        WELL_FORMED.replace(b"\r\n\r\n", b"\r\n", 1),
        WELL_FORMED.replace(b"Content-Type: image", b" folded: image"),
        WELL_FORMED.replace(b"Content-Type: image", b"no colon "),
        WELL_FORMED.replace(b"Content-Type: image", b"Content-Type : image"),
        WELL_FORMED.replace(b"Content-Type: image", b"Content,Type: image"),
        WELL_FORMED.replace(b"Content-Type: image", b": image"),
        WELL_FORMED.replace(b"image/png", b"image/png\nX: y"),
        WELL_FORMED.replace(b"image/png", b"image/png\rX: y"),
        WELL_FORMED.replace(b"image/png", b"image/\0png"),
        WELL_FORMED.replace(b"image/png", b"image/png\r\nContent-Length: 9"),
        WELL_FORMED.replace(b"image/png", b"image/png\r\nContent-Length: 8\r\nContent-Length: 8"),
        WELL_FORMED.replace(b"image/png", b"image/png\r\ncontent-type: image/gif"),
        WELL_FORMED.replace(b"\xff--b\n", b"\xff\n--q\r\n"),
        form("q", FIELDS[:1] * (fingerprint.PARTS_MAX + 1)),
        form("q", [(b"\r\n".join([b"a%d: 1" % each for each in range(fingerprint.PART_FIELDS_MAX + 1)]), b"")]),
    ],
)
def test_a_malformed_form_counts_by_its_bytes(body: bytes) -> None:
    """C20: where two parsers could see two forms, the bytes decide; nothing is raised."""
    assert body != WELL_FORMED
    assert fingerprint._multipart_form(body, b"q") == (b"multipart-bytes", (body,))
    plain = hashlib.sha256(b"notwice http 1;4:POST8:/refunds0:19:multipart/form-datamultipart-bytes;" + body)
    assert digest(body, TYPE) == plain.digest()


@pytest.mark.parametrize("recipe", [HTTP, HTTP_BYTES])
@pytest.mark.parametrize("between", ["; boundary=", "; boundary=A; boundary=", '; x="; boundary=A"; boundary='])
@pytest.mark.parametrize("start", [b"", b"preamble\r\n", b"--A\r\n\r\n\r\n"])
def test_a_body_is_another_request_under_another_boundary(recipe: str, between: str, start: bytes) -> None:
    """P3: a body with parts of two boundaries is two requests, however a reader finds the boundary in its type."""
    body = start + form("B1", FIELDS[:1]) + form("B2", FIELDS[1:])
    one, other = (f"multipart/form-data{between}{boundary}" for boundary in ("B1", "B2"))
    assert fingerprint_http(request(body, one), recipe) != fingerprint_http(request(body, other), recipe)


@pytest.mark.parametrize("recipe", [HTTP, HTTP_BYTES])
@pytest.mark.parametrize("body", [b"--a--\r\n", b"--a--", b"--a--\r\nx", b"--a--\r\n\r\nx\r\n--a----"])
def test_a_boundary_that_ends_like_an_end_is_another_boundary(recipe: str, body: bytes) -> None:
    """P3: the end of an empty form is no beginning of a form whose boundary has two hyphens more."""
    one, other = (request(body, f"multipart/form-data; boundary={boundary}") for boundary in ("a", "a--"))
    assert fingerprint_http(one, recipe) != fingerprint_http(other, recipe)


def test_part_fields_of_one_name_keep_their_order() -> None:
    """P3: some readers take the first of two Content-Disposition lines, and some the last."""
    first, last = (b'Content-Disposition: form-data; name="%b"' % name for name in (b"amount", b"fee"))
    assert form_digest("q", [(first + b"\r\n" + last, b"1")]) != form_digest("q", [(last + b"\r\n" + first, b"1")])


def test_the_other_parameters_of_a_multipart_type_count() -> None:
    """P3: they say which part is the root, or how the parts are to be read; in a retry only the boundary is new."""
    kinds = [
        "related",
        'related; start=""',
        'related; start="<a>"',
        'related; start="<b>"',
        "related; charset=latin-1",
        "mixed",
    ]
    one, other = (
        [digest(form(boundary, FIELDS), f"multipart/{kind}; boundary={boundary}") for kind in kinds]
        for boundary in ("q", "r")
    )
    assert one == other
    assert len(set(one)) == len(kinds)
    assert digest(form("q", FIELDS), "multipart/related;; ;boundary=q; ") == one[0]


def test_a_charset_that_is_not_utf_8_counts_and_json_goes_by_its_bytes_then() -> None:
    """P3: what is one text in UTF-8 may be two in another charset, and the same bytes two texts."""
    one, other = '"é"'.encode(), b'"\\u00e9"'
    assert digest(one, "application/json; charset=utf-8") == digest(other, "application/json")
    for kind in [JSON, "text/plain", "application/x-www-form-urlencoded"]:
        found = {
            digest(one, f"{kind}{charset}")
            for charset in ["", "; charset=latin-1", "; charset=utf-16", "; charset", "; charset=utf-8; charset=x"]
        }
        assert len(found) == 5
        assert digest(one, f"{kind}; charset=latin-1") != digest(other, f"{kind}; charset=latin-1")
        assert digest(one, f"{kind}; Charset=LATIN-1") == digest(one, f'{kind};charset="latin-1"; x=y')


@pytest.mark.parametrize(
    "kind",
    [
        "application/json, text/plain",
        "X/X, X",
        "\u00a0text/plain\u00a0",
        "application/json\ntext/plain",
        "json",
        "a/b/c",
        "application/json; a=1; A=2",
    ],
)
def test_a_type_that_can_be_read_in_two_ways_counts_as_a_whole(kind: str) -> None:
    """P3: such as two Content-Type lines; the body then counts by its bytes."""
    assert digest(b'{"a": 1}', kind) == by_type(b'{"a": 1}', kind)


def test_a_form_may_have_a_thousand_parts() -> None:
    """The limits on parts and on their header fields are the last numbers that work."""
    most = b"\r\n".join([b"a%d: 1" % each for each in range(fingerprint.PART_FIELDS_MAX)])
    parts = [(most, b""), *(FIELDS[:1] * (fingerprint.PARTS_MAX - 1))]
    assert form_digest("q", parts) == form_digest("other", parts)


def test_forms_without_parts_and_parts_without_headers_are_forms() -> None:
    """The smallest forms have parts of their own."""
    assert digest(b"--a--\r\n", "multipart/mixed; boundary=a") == digest(b"--b--", "multipart/mixed; boundary=b")
    bare = [digest(f"--{mark}\r\n\r\nx\r\n--{mark}--".encode(), f"multipart/mixed; boundary={mark}") for mark in "ab"]
    assert bare[0] == bare[1]


# --- recipes ----------------------------------------------------------------------------------------------------------


def test_a_recipe_never_changes() -> None:
    """P14: fingerprints stored by this release are made again by later ones; the digests are pinned here."""
    head = b"notwice http 1;4:POST8:/refunds0:16:application/json"
    body = b'{"b":1.0,"a":2}'
    assert digest(body) == hashlib.sha256(head + b'json;{"a":2,"b":1}').digest()
    assert digest(b"{") == hashlib.sha256(head + b"json-bytes;{").digest()
    assert fingerprint_http(request(body), HTTP_BYTES).digest == hashlib.sha256(head + b"bytes;" + body).digest()
    assert fingerprint_http(request(body), BODY_SHA256).digest == hashlib.sha256(body).digest()
    assert fingerprint_http(request(iter([b"a", b"b"])), BODY_SHA256).digest == hashlib.sha256(b"ab").digest()
    assert fingerprint_value({"a": 1}).digest == hashlib.sha256(b"notwice value 1;" + b'{"a":1}').digest()
    assert fingerprint_bytes(b"x") == Fingerprint(BYTES, hashlib.sha256(b"x").digest())
    parts = b'1;41:content-disposition:form-data; name="a:b"1:7'
    sent = form("q", [(b'Content-Disposition: form-data; name="a:b"', b"7")])
    assert (
        digest(sent, TYPE)
        == hashlib.sha256(b"notwice http 1;4:POST8:/refunds0:19:multipart/form-datamultipart;" + parts).digest()
    )


def test_a_stored_fingerprint_is_compared_by_its_own_recipe() -> None:
    """P3: whatever recipe made the stored one, the request is digested by that one."""
    sent = request(b'{"a": 1}')
    for recipe in [HTTP, HTTP_BYTES, BODY_SHA256]:
        assert compute(recipe, sent) == fingerprint_http(sent, recipe)
    assert compute(VALUE, ValueRequest({"a": 1})) == fingerprint_value({"a": 1})
    assert compute(BYTES, BytesRequest(b"x")) == fingerprint_bytes(b"x")


def test_an_unknown_recipe_is_told_from_a_mismatch() -> None:
    """P14: a recipe of a later release gives nothing, so that the caller can refuse."""
    asked: fingerprint.Request
    for asked in (request(b"x"), ValueRequest(1), BytesRequest(b"x")):
        assert compute("http-2", asked) is None


@pytest.mark.parametrize(
    "asked", [request(b"x"), ValueRequest(b"x"), BytesRequest(b"x")], ids=["http", "value", "bytes"]
)
def test_a_request_of_another_kind_is_another_request(asked: Any) -> None:
    """P3: a recipe that can't be applied to a request gives a fingerprint that equals no stored one of that recipe."""
    own = {"HttpRequest": {HTTP, HTTP_BYTES, BODY_SHA256}, "ValueRequest": {VALUE}, "BytesRequest": {BYTES}}
    for recipe in RECIPES:
        found = compute(recipe, asked)
        assert found is not None
        assert (found.recipe == recipe) == (recipe in own[type(asked).__name__])


def test_values_are_told_apart() -> None:
    """P3, C18: another amount is another request; an equal number is not."""
    asked = [100, "100", 9000, [100], {"amount": 100}, {"amount": None}, {}, None]
    for left, right in itertools.combinations(asked, 2):
        assert fingerprint_value(left) != fingerprint_value(right)
    assert fingerprint_value(100) == fingerprint_value(Decimal("100.0"))


def test_a_value_without_a_stable_form_is_refused_before_anything_runs() -> None:
    """C29, C30: an object known only by its address makes no fingerprint."""
    with pytest.raises(EncodingError):
        fingerprint_value(object())
    with pytest.raises(EncodingError):
        compute(VALUE, ValueRequest([object()]))


@given(st.text(st.characters()), st.binary(max_size=20), st.binary(max_size=20), st.text(st.characters()), st.binary())
def test_nothing_that_can_be_sent_raises(method: str, path: bytes, query: bytes, kind: str, body: bytes) -> None:
    """C17: a fingerprint never fails, whatever bytes and headers a client sends."""
    for prefix in ["", "application/json;", "multipart/form-data; boundary=b;"]:
        sent = HttpRequest(method, path, query, prefix + kind, body)
        assert len(fingerprint_http(sent).digest) == 32
