"""Fingerprints: the digest that tells a retry from another request under the same key.

A fingerprint is made by a recipe, and says by which. A recipe never changes: a better one gets a new name, and the
old one stays here, because a stored fingerprint is compared by the recipe that made it (`compute`).

==================  ===================================================================================================
recipe              covers
==================  ===================================================================================================
``http-1``          method, raw path, query, media type without its parameters, and the body: JSON in its canonical form
                    (`notwice.canonical_json` states the rule), multipart by its parts, anything else by its bytes
``http-bytes-1``    the same, with every body by its bytes
``body-sha256``     the body's bytes and nothing else, as SHA-256
``value-1``         a Python value in its canonical form (`notwice.canonical` states the rule)
``bytes-1``         bytes that the author of a guard chose
==================  ===================================================================================================

A part of a multipart body is its header fields (the name, the file name and the type are among them, the length is
not) and its bytes; the boundary is not looked at. A JSON or multipart body that is malformed, or larger than the
limits below, is taken by its bytes, under a mark of its own: so one request may have two fingerprints, but never two
requests one.

Everything that is digested is framed by its length, and each form of a body by its mark, so that no two requests run
into one another. The time is linear in the size of the body, and nothing here recurses over what a client sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

from notwice.canonical import canonical_value
from notwice.canonical_json import canonical_json
from notwice.model import Fingerprint

HTTP = "http-1"
HTTP_BYTES = "http-bytes-1"
BODY_SHA256 = "body-sha256"
VALUE = "value-1"
BYTES = "bytes-1"

JSON_BYTES_MAX = 1024 * 1024  # about 50 ms of work; 350 ms if every item of it is a decimal fraction
MULTIPART_BYTES_MAX = 16 * 1024 * 1024  # held in memory once; above the 10 MiB that a guarded request may have
PARTS_MAX = 1_000
PART_FIELDS_MAX = 64


class HttpRequest(NamedTuple):
    """What counts of an HTTP request. A body that is no `bytes` is iterated over once for each fingerprint."""

    method: str
    raw_path: bytes
    query: bytes
    content_type: str
    body: bytes | Iterable[bytes]


class ValueRequest(NamedTuple):
    """A request that is a Python value."""

    value: object


class BytesRequest(NamedTuple):
    """A request of which its guard's author gave the bytes that count."""

    data: bytes


Request = HttpRequest | ValueRequest | BytesRequest


def fingerprint_http(request: HttpRequest, recipe: str = HTTP) -> Fingerprint:
    """Give an HTTP request's fingerprint by `HTTP`, `HTTP_BYTES` or `BODY_SHA256`. Never fails, whatever was sent."""
    return Fingerprint(recipe, _HTTP_RECIPES[recipe](request))


def fingerprint_value(value: object) -> Fingerprint:
    """Give the fingerprint of a Python value.

    Raises `EncodingError` if a part of the value has no stable form: call it before anything is stored.
    """
    return Fingerprint(VALUE, sha256(b"notwice value 1;" + canonical_value(value)).digest())


def fingerprint_bytes(data: bytes) -> Fingerprint:
    """Give the fingerprint of bytes that the author of a guard chose."""
    return Fingerprint(BYTES, sha256(data).digest())


def compute(recipe: str, request: Request) -> Fingerprint | None:
    """Make a request's fingerprint by the recipe that made a stored one; ``None`` if this release does not know it.

    A known recipe for another kind of request gives the request's own fingerprint, which equals no stored one of
    that recipe: a value is never the same request as an HTTP request. Raises `EncodingError` as `fingerprint_value`
    does.
    """
    if recipe not in RECIPES:
        return None
    match request:
        case HttpRequest():
            return fingerprint_http(request, recipe if recipe in _HTTP_RECIPES else HTTP)
        case ValueRequest(value):
            return fingerprint_value(value)
        case BytesRequest(data):
            return fingerprint_bytes(data)


def media_type(content_type: str) -> str:
    """Give the media type of a Content-Type field without its parameters, in lower case (RFC 9110, section 8.3.1)."""
    return content_type.partition(";")[0].strip(" \t").lower()


# --- recipes --------------------------------------------------------------------------------------------------------


def _by_form(request: HttpRequest) -> bytes:
    media = media_type(request.content_type)
    if media == "application/json" or media.endswith("+json"):
        mark, chunks = _json_form(request.body)
    elif media.startswith("multipart/"):
        mark, chunks = _multipart_form(request.body, request.content_type)
    else:
        mark, chunks = b"bytes", _chunks(request.body)
    return _digest(request, media, mark, chunks=chunks)


def _by_bytes(request: HttpRequest) -> bytes:
    return _digest(request, media_type(request.content_type), b"bytes", chunks=_chunks(request.body))


def _by_body(request: HttpRequest) -> bytes:
    digest = sha256()
    for chunk in _chunks(request.body):
        digest.update(chunk)
    return digest.digest()


_HTTP_RECIPES: dict[str, Callable[[HttpRequest], bytes]] = {
    HTTP: _by_form,
    HTTP_BYTES: _by_bytes,
    BODY_SHA256: _by_body,
}
RECIPES = frozenset({*_HTTP_RECIPES, VALUE, BYTES})


def _digest(request: HttpRequest, media: str, mark: bytes, *, chunks: Iterable[bytes]) -> bytes:
    method, kind = request.method.encode("utf-8", "surrogatepass"), media.encode("utf-8", "surrogatepass")
    path, query = request.raw_path, request.query
    digest = sha256(
        b"notwice http 1;%d:%b%d:%b%d:%b%d:%b%b;"
        % (len(method), method, len(path), path, len(query), query, len(kind), kind, mark)
    )
    for chunk in chunks:
        digest.update(chunk)
    return digest.digest()


def _json_form(body: bytes | Iterable[bytes]) -> tuple[bytes, Iterable[bytes]]:
    whole, chunks = _within(body, JSON_BYTES_MAX)
    form = None if whole is None else canonical_json(whole)
    return (b"json-bytes", chunks) if form is None else (b"json", (form,))


def _multipart_form(body: bytes | Iterable[bytes], content_type: str) -> tuple[bytes, Iterable[bytes]]:
    whole, chunks = _within(body, MULTIPART_BYTES_MAX)
    form = None if whole is None else _framed_parts(whole, content_type)
    return (b"multipart-bytes", chunks) if form is None else (b"multipart", form)


def _chunks(body: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return (body,) if isinstance(body, bytes) else body


def _within(body: bytes | Iterable[bytes], bytes_max: int) -> tuple[bytes | None, Iterable[bytes]]:
    """Give a body as one piece if it is small enough, and in any case all its chunks."""
    if isinstance(body, bytes):
        return (body if len(body) <= bytes_max else None), (body,)
    taken: list[bytes] = []
    size = 0
    rest: Iterator[bytes] = iter(body)
    for chunk in rest:
        taken.append(chunk)
        size += len(chunk)
        if size > bytes_max:
            return None, chain(taken, rest)
    whole = b"".join(taken)
    return whole, (whole,)


# --- multipart (RFC 2046, section 5.1.1; RFC 7578) -------------------------------------------------------------------

_BOUNDARY = re.compile(r';[ \t]*boundary=(?:"([^"\\]{1,70})"|([^ \t;"]{1,70}))[ \t]*(?:;|\Z)', re.IGNORECASE)


def _framed_parts(body: bytes, content_type: str) -> list[bytes] | None:
    """Give the parts of a multipart body as framed bytes; ``None`` if it is not exactly well-formed.

    Strict on purpose: where two parsers could see other parts in it, its bytes are what counts.
    """
    found = _BOUNDARY.search(content_type)
    delimiter = b"--" + (found[1] or found[2]).encode("utf-8", "surrogatepass") if found else b""
    if not delimiter or not body.startswith(delimiter) or body.count(delimiter) > PARTS_MAX + 1:
        return None
    *parts, end = body[len(delimiter) :].split(b"\r\n" + delimiter)
    if end not in {b"--", b"--\r\n"}:
        return None
    framed = [frame for part in parts for frame in _framed_part(part)]
    return framed if len(framed) == 2 * len(parts) else None


def _framed_part(part: bytes) -> Iterator[bytes]:
    """Give a part's header fields and its bytes, each framed; nothing if it is malformed."""
    head, blank, content = part.partition(b"\r\n\r\n")
    if head.count(b"\r\n") > PART_FIELDS_MAX:
        return
    fields = [_header_field(line) for line in head.split(b"\r\n")[1:]]
    if not blank or head[:2] not in {b"", b"\r\n"} or None in fields:
        return
    kept = sorted(field for field in fields if field and not field.startswith(b"content-length:"))
    yield b"%d;%b" % (len(kept), b"".join([b"%d:%b" % (len(field), field) for field in kept]))
    yield b"%d:%b" % (len(content), content)


def _header_field(line: bytes) -> bytes | None:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip():
        return None
    return b"%b:%b" % (name.lower(), value.strip(b" \t"))
