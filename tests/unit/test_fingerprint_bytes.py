"""What is digested of a request, byte for byte, written out by hand: a recipe never changes, not even in a corner."""

from __future__ import annotations

from hashlib import sha256

import pytest

from notwice.fingerprint import JSON_BYTES_MAX, HttpRequest, fingerprint_http, media_type

HEAD = b"notwice http 1;4:POST4:/pay3:a=1"
KIND = "multipart/form-data; boundary=x"


def digest_of(kind: str, body: bytes | list[bytes], method: str = "POST") -> bytes:
    return fingerprint_http(HttpRequest(method, b"/pay", b"a=1", kind, body)).digest


def expected(kind: bytes, mark: bytes, content: bytes, head: bytes = HEAD) -> bytes:
    return sha256(head + b"%d:%b%b;" % (len(kind), kind, mark) + content).digest()


@pytest.mark.parametrize(
    ("kind", "body", "mark", "content"),
    [
        ("text/plain", b"hello", b"bytes", b"hello"),
        ("", b"", b"bytes", b""),
        ("application/json", b'{"b": 1.0, "a": []}', b"json", b'{"a":[],"b":1}'),
        ("application/x+json", b"{", b"json-bytes", b"{"),
        (KIND, b"--x\r\nno end", b"multipart-bytes", b"--x\r\nno end"),
    ],
)
def test_each_form_of_a_body_has_its_mark(kind: str, body: bytes, mark: bytes, content: bytes) -> None:
    """P3: everything before the body is framed by its length, and the form of the body is named."""
    assert digest_of(kind, body) == expected(media_type(kind).encode(), mark, content)


def test_text_that_is_no_text_has_bytes_all_the_same() -> None:
    """P3: an unpaired surrogate in a method, a media type or a boundary is a request like any other odd one."""
    head = b"notwice http 1;4:P\xed\xa0\x804:/pay3:a=1"
    assert digest_of("a/\udc80", b"b", "P\ud800") == expected(b"a/\xed\xb2\x80", b"typed-bytes", b"b", head)
    odd = "multipart/x; boundary=\udc80"
    body = b"--\xed\xb2\x80\r\n\r\n1\r\n--\xed\xb2\x80--"
    assert digest_of(odd, body) == expected(b"multipart/x; boundary=\xed\xb2\x80", b"typed-bytes", body)


def test_only_blanks_and_tabs_are_taken_off_a_media_type() -> None:
    """P3: RFC 9110, section 5.6.3: other white space, and letters, are part of it."""
    assert media_type(" \tX/PlainX\t ; a=b") == "x/plainx"
    assert media_type("\u00a0text/plain\x0b") == "\u00a0text/plain\x0b"


def test_a_document_over_the_limit_goes_by_its_bytes_however_small_its_pieces_are() -> None:
    """P3: the limit is of the whole, so that no more than it is ever held in memory."""
    pieces = [b"[", *[b" " * 1024] * (JSON_BYTES_MAX // 1024), b"]"]
    assert digest_of("application/json", pieces) == expected(b"application/json", b"json-bytes", b"".join(pieces))
    within = [b"[", *[b" " * 1024] * (JSON_BYTES_MAX // 1024 - 1), b"]"]
    assert digest_of("application/json", within) == expected(b"application/json", b"json", b"[]")


def test_the_parts_of_a_form_are_framed() -> None:
    """P3: the number of fields, each field, and the content up to the boundary, blank lines included."""
    body = b"--x\r\nB:  X\tX \r\nA:\tXyX\t\r\nContent-Length: 6\r\n\r\n1\r\n\r\n2\r\n--x\r\n\r\n\r\n--x--\r\n"
    parts = b"2;5:a:XyX5:b:X\tX6:1\r\n\r\n20;0:"
    assert digest_of(KIND, body) == expected(b"multipart/form-data", b"multipart", parts)


def test_the_ends_of_a_field_s_value_are_blanks_and_tabs_alone() -> None:
    """P3: other white space at the ends is part of the value; one that is a control character makes it malformed."""
    body = b"--x\r\nA: \xa0y\x85 \r\n\r\n\r\n--x--"
    assert digest_of(KIND, body) == expected(b"multipart/form-data", b"multipart", b"1;5:a:\xa0y\x850:")
    odd = body.replace(b"\xa0", b"\x0b")
    assert digest_of(KIND, odd) == expected(b"multipart/form-data", b"multipart-bytes", odd)


def test_a_form_begins_with_its_boundary() -> None:
    """P3: what begins with anything else is taken by its bytes, even if it is as long."""
    rest = b"\r\nA: b\r\n\r\n1\r\n--x--"
    assert digest_of(KIND, b"--x" + rest) == expected(b"multipart/form-data", b"multipart", b"1;3:a:b1:1")
    assert digest_of(KIND, b"abc" + rest) == expected(KIND.encode(), b"typed-bytes", b"abc" + rest)
