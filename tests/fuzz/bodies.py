"""Targets: what a request's fingerprint is made of."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from itertools import pairwise
from typing import Any

from notwice import canonical_json, fingerprint
from notwice.fingerprint import HTTP, HTTP_BYTES, HttpRequest
from tests.fuzz.target import Target, all_equal


class _NoMeaning(Exception):
    """The document has no canonical form."""


def _number(literal: str) -> tuple[str, int, str, int]:
    """A number by its exact value, worked out with integers."""
    found = re.fullmatch(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?", literal)
    assert found, literal
    sign, whole, fraction, exponent = found[1], found[2], found[3] or "", found[4] or "0"
    if len(exponent.lstrip("+-0")) > canonical_json.EXPONENT_DIGITS_MAX:
        raise _NoMeaning
    digits = (whole + fraction).lstrip("0")
    power = int(exponent) - len(fraction)
    kept = digits.rstrip("0")
    return ("n", 0, "", 0) if not kept else ("n", 1, sign + kept, power + len(digits) - len(kept))


def _members(pairs: list[tuple[str, Any]]) -> tuple[Any, ...]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise _NoMeaning
    return ("o", tuple(sorted(pairs, key=lambda pair: pair[0])))


def _settled(value: Any, depth: int) -> Any:
    """Check text and depth, and make it comparable by type: 1, true and "1" differ."""
    if isinstance(value, list):
        if depth >= canonical_json.NESTING_MAX:
            raise _NoMeaning
        return ("a", tuple(_settled(item, depth + 1) for item in value))
    if isinstance(value, tuple) and value[0] == "o":
        if depth >= canonical_json.NESTING_MAX:
            raise _NoMeaning
        return ("o", tuple((_settled(name, depth), _settled(item, depth + 1)) for name, item in value[1]))
    if isinstance(value, str):
        try:
            return ("s", value.encode())
        except UnicodeEncodeError:
            raise _NoMeaning from None
    return ("c", repr(value)) if value is None or isinstance(value, bool) else value


def _refuse(name: str) -> None:
    raise _NoMeaning


def meaning(body: bytes) -> Any:
    """What a document says, read another way than the library reads it; ``None`` if it has no canonical form."""
    try:
        read = json.loads(
            body.decode(), parse_int=_number, parse_float=_number, parse_constant=_refuse, object_pairs_hook=_members
        )
        return _settled(read, 0)
    except (_NoMeaning, ValueError, RecursionError):
        return None


def _respelled(value: Any) -> str:
    """Another document that says the same: members in the other order, everything escaped, numbers with exponents."""
    match value:
        case ("a", items):
            return "[ " + " ,\n".join(map(_respelled, items)) + "\t]"
        case ("o", members):
            said = [f"{_respelled(name)} :\r{_respelled(item)}" for name, item in reversed(members)]
            return "{ " + " , ".join(said) + " }"
        case ("s", encoded):
            units = encoded.decode().encode("utf-16-be")
            return '"' + "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)) + '"'
        case ("n", _, digits, power):
            return f"{digits or '-0'}0e{power - 1}" if digits else "-0.0e7"
        case _:
            return {"None": "null", "True": "true", "False": "false"}[value[1]]


def json_document(data: bytes) -> None:
    """Two documents with a NUL between: their forms are equal exactly if they say the same; nothing is ever raised."""
    bodies = data.split(b"\0", 1)
    forms = [canonical_json.canonical_json(body) for body in bodies]
    meanings = [meaning(body) for body in bodies]
    for body, form, meant in zip(bodies, forms, meanings, strict=True):
        assert (form is None) == (meant is None), body
        again = b"" if form is None else _respelled(meant).encode()
        if meaning(again) is not None:  # another spelling may need an exponent of more digits than are read
            assert canonical_json.canonical_json(again) == form
    if None not in meanings:
        assert all_equal(forms) == all_equal(meanings)


def http_body(data: bytes) -> None:
    """A media type in the first line, then a body: a digest, whatever they are, and the same for the same request."""
    first, _, body = data.partition(b"\n")
    kind = first.decode("latin-1")
    request = HttpRequest("POST", b"/pay", b"a=1", kind, body)
    for recipe in (HTTP, HTTP_BYTES):
        whole = fingerprint.fingerprint_http(request, recipe)
        assert (whole.recipe, len(whole.digest)) == (recipe, 32)
        chunked = request._replace(body=[body[at : at + 3] for at in range(0, len(body), 3)])
        assert fingerprint.fingerprint_http(chunked, recipe) == whole == fingerprint.compute(recipe, request)
        assert fingerprint.fingerprint_http(request._replace(raw_path=b"/pay/a=1", query=b""), recipe) != whole
    bare = fingerprint.media_type(kind)
    assert fingerprint.media_type(f"{bare} ; charset=utf-8") == bare
    assert not kind.isascii() or fingerprint.media_type(kind.upper()) == bare
    if bare == "application/json":
        spaced = fingerprint.fingerprint_http(request._replace(body=b"\n " + body + b"\t"))
        assert (spaced == fingerprint.fingerprint_http(request)) == (meaning(body) is not None)


def _form(parts: list[tuple[bytes, bytes]], boundary: bytes) -> HttpRequest:
    lines = [b"--%b\r\nContent-Disposition: form-data; name=%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts]
    kind = f'multipart/form-data; boundary="{boundary.decode()}"'
    return HttpRequest("POST", b"/", b"", kind, b"".join(lines) + b"--%b--\r\n" % boundary)


def form(data: bytes) -> None:
    """Two forms of (name, content) lines with a NUL between: one fingerprint exactly if they have the same parts."""
    made = []
    for half in data.split(b"\0", 1):
        lines = half.replace(b"\r", b"").split(b"\n")
        made.append([(b'"%b"' % name.hex().encode(), content) for name, content in pairwise(lines)])
    for parts in made:
        spellings = [fingerprint.fingerprint_http(_form(parts, boundary)) for boundary in (b"=_one", b"=_another")]
        assert all_equal(spellings) or b"=_" in data or not parts
    if len(made) == 2 and all(made) and b"=_" not in data:
        one, other = (fingerprint.fingerprint_http(_form(parts, b"=_one")) for parts in made)
        assert (one == other) == (made[0] == made[1])


def number(data: bytes) -> None:
    """A decimal literal has one text, which is a literal of the same value."""
    literal = data.decode("latin-1")
    if not re.fullmatch(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", literal, re.ASCII):
        return
    try:
        text = canonical_json.number_text(literal)
    except ValueError:
        return
    if len(text.partition("e")[2].lstrip("-")) > canonical_json.EXPONENT_DIGITS_MAX:
        return  # the zeros of the digits made the exponent longer than any that is read
    assert canonical_json.number_text(text) == text
    assert _number(text) == _number(literal)
    if len(literal) < 40 and abs(_number(literal)[3]) < 1000:
        assert Decimal(text) == Decimal(literal)


TARGETS = (
    Target("json_document", json_document),
    Target("number", number, bytes_max=64),
    Target("http_body", http_body),
    Target("form", form),
)
