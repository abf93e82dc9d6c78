"""Content codings: a replay decodes to equal bytes for any client.

A kept body stays as the app encoded it, with its ``Content-Encoding``. A client that does not take that coding gets the
body decoded. That is possible for what the standard library can decode, gzip and deflate; so a guarded request does
not offer the app any other: ``br`` and ``zstd`` are taken out of its ``Accept-Encoding``. An app that uses another
coding unasked has its bytes replayed as they are, which is what it did to the first client.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from notwice.http.exchange.headers import Headers, members, values, with_vary, without

DECODED_BYTES_MAX: Final = 64 * 1024 * 1024  # a body of 1 MiB can stand for a thousand times as much; this is enough
_GZIP: Final = 16 + zlib.MAX_WBITS
_DECODABLE: Final = ("gzip", "x-gzip", "deflate", "identity")


def offered(accept_encoding: Sequence[str]) -> str | None:
    """The ``Accept-Encoding`` that the app is shown; ``None`` if the client sent none.

    Only codings that can be decoded again are left; ``*`` offers gzip.
    """
    if not accept_encoding:
        return None
    listed = members(accept_encoding)
    named = {member.partition(";")[0].strip().lower() for member in listed}
    shown = []
    for member in listed:
        coding, semicolon, weight = member.partition(";")
        if coding.strip() == "*" and not named & {"gzip", "x-gzip"}:
            coding = "gzip"
        if coding.strip().lower() in _DECODABLE:
            shown.append(f"{coding.strip()}{semicolon}{weight}")
    return ", ".join(shown) or "identity"


def accepts(accept_encoding: Sequence[str], coding: str) -> bool:
    """Whether a client with this ``Accept-Encoding`` takes the coding. Without the header it takes none."""
    weights = dict(map(_weight, members(accept_encoding)))
    alias = {"gzip": "x-gzip", "x-gzip": "gzip"}.get(coding, coding)
    return weights.get(coding, weights.get(alias, weights.get("*", 0.0))) > 0


def for_client(headers: Headers, body: bytes, accept_encoding: Sequence[str]) -> tuple[Headers, bytes]:
    """The kept headers and body as this client can read them."""
    codings = [coding.lower() for coding in members(values(headers, "content-encoding"))]
    if not codings or all(coding == "identity" or accepts(accept_encoding, coding) for coding in codings):
        return headers, body
    decoded = _decoded(body, codings)
    if decoded is None:
        return headers, body
    return with_vary(without(headers, "content-encoding"), "Accept-Encoding"), decoded


def _weight(member: str) -> tuple[str, float]:
    coding, _, parameters = member.partition(";")
    name, _, value = parameters.partition("=")
    if name.strip().lower() != "q":
        return coding.strip().lower(), 1.0
    try:
        return coding.strip().lower(), float(value)
    except ValueError:
        return coding.strip().lower(), 1.0


def _decoded(body: bytes, codings: Sequence[str]) -> bytes | None:
    for coding in reversed(codings):
        match coding:
            case "identity":
                continue
            case "gzip" | "x-gzip":
                plain = _inflated(body, _GZIP)
            case "deflate":  # in a zlib frame, as it should be, or raw, as some send it
                plain = _inflated(body, zlib.MAX_WBITS)
                plain = _inflated(body, -zlib.MAX_WBITS) if plain is None else plain
            case _:
                return None
        if plain is None:
            return None
        body = plain
    return body


def _inflated(body: bytes, window: int) -> bytes | None:
    """The decoded bytes, ``None`` if they are too many, cut short or damaged. A gzip body may have several members."""
    plain = bytearray()
    while body:
        inflate = zlib.decompressobj(window)
        try:
            plain += inflate.decompress(body, DECODED_BYTES_MAX + 1 - len(plain))
        except zlib.error:
            return None
        if not inflate.eof or len(plain) > DECODED_BYTES_MAX:
            return None
        body = inflate.unused_data if window == _GZIP else b""
    return bytes(plain)
