"""The grammar of the key header: a structured-field string (RFC 9651, section 3.3.3), or a bare word.

The one rule for both faces, although WSGI servers join several header lines with commas and ASGI servers do not: the
value is read as a list. Equal members are one key, two different ones are refused. So a bare key holds no comma, no
blank and no quotation mark; one that needs them is sent as a string. ``"k"`` and ``k`` are the same key. Parameters of
the string are read and have no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from notwice.errors import InvalidKey

KEY_CHARACTERS_MAX: Final = 255  # counted after decoding
HEADER_CHARACTERS_MAX: Final = 4096  # a string of 255 escaped characters takes 512; the rest is for repeated lines

_TEXT: Final = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
_NUMBER: Final = r"-?[0-9]{1,15}(?:\.[0-9]{1,3})?"
_TOKEN: Final = r"[A-Za-z*][-!#$%&'*+.^_`|~0-9A-Za-z:/]*"  # noqa: S105 - a token of the grammar, no secret
_OTHER: Final = r":[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15}|%\"[\x20\x21\x23-\x7e]*\""
_PARAMETER: Final = rf";\x20*[a-z*][-a-z0-9_.*]*(?:=(?:{_TEXT}|{_NUMBER}|{_TOKEN}|{_OTHER}))?"
_STRING: Final = re.compile(rf"({_TEXT})(?:{_PARAMETER})*")
_BARE: Final = re.compile(r"([!#-+\--~]+)")
_COMMA: Final = re.compile(r"[ \t]*,[ \t]*")
_ESCAPED: Final = re.compile(r"\\(.)")


def read_key(lines: Sequence[str], *, strict: bool = False) -> str:
    """Give the one key that the header's lines hold. `strict` takes strings only.

    Raises `InvalidKey` if it is empty, blank, malformed, longer than 255 characters, or if there are two.
    """
    return checked_key(_only({key for line in lines for key in _members(line, strict=strict)}))


def checked_key(key: str) -> str:
    """Give `key` back if it is 1 to 255 printable ASCII characters and not blank. Raises `InvalidKey`."""
    if not key.strip(" "):
        raise InvalidKey("The idempotency key is empty. Send one of 1 to 255 characters.")
    if len(key) > KEY_CHARACTERS_MAX:
        raise InvalidKey("The idempotency key is longer than 255 characters.")
    if not (key.isascii() and key.isprintable()):
        raise InvalidKey("The idempotency key holds a character that is not printable ASCII.")
    return key


def read_query_key(texts: Sequence[str]) -> str:
    """Give the one key that a query's decoded parameters hold: strings in quotation marks, or the key itself.

    Raises `InvalidKey` as `read_key` does.
    """
    keys = {read_key([text], strict=True) if text.startswith('"') else checked_key(text) for text in texts}
    return _only(keys)


def _only(keys: set[str]) -> str:
    if len(keys) != 1:
        raise InvalidKey("The request has two different idempotency keys. Send one.")
    [key] = keys
    return key


def _members(line: str, *, strict: bool) -> list[str]:
    text = line.strip(" \t")
    if not text:
        raise InvalidKey("The idempotency key is empty. Send one of 1 to 255 characters.")
    if len(text) > HEADER_CHARACTERS_MAX:
        raise InvalidKey("The idempotency key is longer than 255 characters.")
    members, position = [], 0
    while True:
        member = _member(text, position, strict=strict)
        members.append(_decoded(member[1]))
        if member.end() == len(text):
            return members
        comma = _COMMA.match(text, member.end())
        if comma is None:
            raise _malformed(strict=strict)
        position = comma.end()


def _member(text: str, position: int, *, strict: bool) -> re.Match[str]:
    member = _STRING.match(text, position) or (None if strict else _BARE.match(text, position))
    if member is None:
        raise _malformed(strict=strict)
    return member


def _decoded(member: str) -> str:
    return _ESCAPED.sub(r"\1", member[1:-1]) if member.startswith('"') else member


def _malformed(*, strict: bool) -> InvalidKey:
    shape = "in quotation marks (RFC 9651)" if strict else "bare, or in quotation marks if it holds a blank or a comma"
    return InvalidKey(f"The idempotency key is malformed. Send printable ASCII characters, {shape}.")
