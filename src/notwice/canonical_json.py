"""Canonical JSON: two documents that say the same have the same bytes, and no document makes it fail.

The one rule for what is "the same":

- Members of an object are sorted, at every depth; the order of an array counts.
- Numbers are compared by their exact decimal value: ``1``, ``1.0``, ``1e0`` and ``100e-2`` are one number, ``-0`` is
  ``0``, and integers beyond 2^53 keep every digit. ``1`` and ``"1"`` differ.
- ``null`` and an absent member differ.
- Text is compared by its characters, however they are escaped. Unicode is not normalised: NFC and NFD differ.

A document has **no** canonical form, and is then compared by its bytes, if it is not JSON (RFC 8259) in UTF-8, if an
object has two members of one name, if a text holds an unpaired surrogate, if it is nested deeper than `NESTING_MAX`,
or if a number's exponent has more than `EXPONENT_DIGITS_MAX` digits. Whether it has one depends on its bytes
alone: not on the stack, on the interpreter's limits or on the hash seed.

Why the work is bounded: the nesting is measured by striking out innermost pairs of brackets, before anything
recurses; and a number is never multiplied out, so ``1e999999999`` costs eleven characters.
"""

from __future__ import annotations

import json
import math
import re

from notwice.plain import writer

NESTING_MAX = 64
EXPONENT_DIGITS_MAX = 15
WRITTEN_OUT_DIGITS_MAX = 30

_PLAIN_DIGITS_MAX = 300  # longer ones stay text: reading them is quadratic, and the interpreter limits it
_EXACT_DIGITS_MAX = 15  # so many decimal digits survive a double, and repr gives them back
_EXACT_POWER_MIN = -290  # below it doubles lose digits
_LONG_DIGITS = re.compile(rf"[0-9]{{{_PLAIN_DIGITS_MAX}}}")
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_QUOTED = re.compile(rb'"[^"]*"')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


def canonical_json(body: bytes) -> bytes | None:
    """Give the canonical form of a JSON document, or ``None`` where it has none. Never fails, never multiplies out."""
    if nesting_exceeds(body, NESTING_MAX):
        return None
    try:
        text = body.decode().strip(" \t\n\r")
        decoder = _LONG_DECODER if len(body) >= _PLAIN_DIGITS_MAX and _LONG_DIGITS.search(text) else _DECODER
        value, end = decoder.raw_decode(text)
        return _written(value).encode() if end == len(text) else None
    except ValueError:  # not UTF-8, not JSON, a member twice, a surrogate alone, or a huge exponent
        return None


def nesting_exceeds(body: bytes, depth: int) -> bool:
    """Say whether the brackets of a JSON document in UTF-8 nest deeper than `depth`, or do not match."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    if b"\\" in body:
        body = _ESCAPE.sub(b"", body)
    brackets = _QUOTED.sub(b"", body.translate(_BRACKETS, _NOT_STRUCTURE))
    for _ in range(depth):
        size = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if len(brackets) == size:
            break
    return bool(brackets)


def number_parts(literal: str) -> tuple[str, str, int]:
    """Split a decimal literal into sign, digits and power of ten, with no zeros at either end of the digits.

    Zero has no sign and no digits. Raises `ValueError` if the exponent has more than `EXPONENT_DIGITS_MAX` digits.
    """
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("+-").partition(".")
    digits = (whole + fraction).lstrip("0")
    kept = digits.rstrip("0")
    if len(exponent.lstrip("+-0")) > EXPONENT_DIGITS_MAX:
        raise ValueError("the exponent is too large")
    if not kept:
        return "", "", 0
    power = int(exponent or "0") - len(fraction) + len(digits) - len(kept)
    return "-" if mantissa[0] == "-" else "", kept, power


def number_text(literal: str) -> str:
    """Give the one text of a decimal literal's value: ``100``, ``5e-1`` for 0.5, ``0`` for -0, ``1e40``.

    Integers of up to `WRITTEN_OUT_DIGITS_MAX` digits are written out; all else is digits and a power of ten.
    """
    sign, digits, power = number_parts(literal)
    if not digits:
        return "0"
    if 0 <= power <= WRITTEN_OUT_DIGITS_MAX - len(digits):
        return f"{sign}{digits}{'0' * power}"
    return f"{sign}{digits}e{power}" if power else f"{sign}{digits}"


def _read_number(literal: str) -> object:
    """Give an integer or a double that prints as this very value; else an array that no JSON document can hold."""
    sign, digits, power = number_parts(literal)
    if power >= 0 and len(digits) + power < _PLAIN_DIGITS_MAX:
        return int(f"{sign}{digits}{'0' * power}") if digits else 0
    if power < 0 and len(digits) <= _EXACT_DIGITS_MAX and len(digits) + power > _EXACT_POWER_MIN:
        return float(f"{sign}{digits}e{power}")
    return [math.nan, number_text(literal)]


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _read_object(members: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(members)
    if len(result) != len(members):
        raise ValueError("an object has two members of one name")
    return result


_DECODER = json.JSONDecoder(object_pairs_hook=_read_object, parse_float=_read_number, parse_constant=_refuse_constant)
_LONG_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_object,
    parse_float=_read_number,
    parse_int=_read_number,
    parse_constant=_refuse_constant,
)
_written = writer(sort_keys=True, allow_nan=True)
