"""Fingerprints: the digest that tells a retry from another request under the same key.

A fingerprint is made by a recipe, and says by which. A recipe never changes: a better one gets a new name, and the
old one stays here, because a stored fingerprint is compared by the recipe that made it (`compute`).

==================  ===================================================================================================
recipe              covers
==================  ===================================================================================================
``http-1``          method, raw path, query, media type, and the body: JSON in its canonical form
                    (`notwice.canonical_json` states the rule), multipart by its parts, anything else by its bytes
``http-bytes-1``    the same, with every body by its bytes
``body-sha256``     the body's bytes and nothing else, as SHA-256
``value-1``         a Python value in its canonical form (`notwice.canonical` states the rule)
``bytes-1``         bytes that the author of a guard chose
==================  ===================================================================================================

Of the parameters of a media type only those count that say how the body is to be read: a ``charset`` that is not
UTF-8 (JSON under one is taken by its bytes), and whatever a multipart type has but its boundary. A part of a multipart
body is its header fields (the name, the file name and the type are among them, a true length is not) and its bytes;
the boundary is not looked at. A JSON or multipart body that is malformed, or larger than the limits below, is taken
by its bytes, under a mark of its own. Where two readers could read a Content-Type differently, or a multipart body
does not begin with its boundary, the whole Content-Type counts, and the body by its bytes, under a mark of their own.
So one request may have two fingerprints, but never two requests one.

Everything that is digested is framed by its length, and each form of a body by its mark, so that no two requests run
into one another. The time is linear in the size of the body, and nothing here recurses over what a client sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
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
    kind = _kind(request.content_type)
    if kind is None:
        return _by_type(request, _chunks(request.body))
    if kind.boundary:
        return _by_parts(request, kind)
    mark, chunks = _json_form(request.body) if kind.is_json else (b"bytes", _chunks(request.body))
    return _digest(request, kind.text, mark, chunks=chunks)


def _by_parts(request: HttpRequest, kind: _Kind) -> bytes:
    begun, body = _begun(request.body, kind.boundary)
    mark, chunks = _multipart_form(body, kind.boundary)
    if mark == b"multipart-bytes" and not begun:
        return _by_type(request, chunks)
    return _digest(request, kind.text, mark, chunks=chunks)


def _by_bytes(request: HttpRequest) -> bytes:
    kind = _kind(request.content_type)
    begun, body = _begun(request.body, kind.boundary) if kind and kind.boundary else (True, request.body)
    if kind is None or not begun:
        return _by_type(request, _chunks(body))
    return _digest(request, kind.text, b"bytes", chunks=_chunks(body))


def _by_type(request: HttpRequest, chunks: Iterable[bytes]) -> bytes:
    """By all of the Content-Type, and the body's bytes: for what may say one thing to one reader, another to the next.

    Before 0.1.0 these, too, counted by their media type alone, so that two of them could be one: a fingerprint that
    was stored of them proved nothing, and the recipes keep their names, for all others are as they were.
    """
    return _digest(request, request.content_type.strip(" \t"), b"typed-bytes", chunks=chunks)


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


def _digest(request: HttpRequest, text: str, mark: bytes, *, chunks: Iterable[bytes]) -> bytes:
    method, kind = request.method.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass")
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


def _multipart_form(body: bytes | Iterable[bytes], boundary: bytes) -> tuple[bytes, Iterable[bytes]]:
    whole, chunks = _within(body, MULTIPART_BYTES_MAX)
    form = None if whole is None else _framed_parts(whole, boundary)
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


# --- content types (RFC 9110, sections 5.6 and 8.3.1) -----------------------------------------------------------------

_WORD = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_MEDIA_TYPE = re.compile(rf"(?:{_WORD}/{_WORD})?")
_PARAMETER = re.compile(rf"[ \t]*;[ \t]*(?:({_WORD})=(?:({_WORD})|\"([ !#-:<-\[\]-~]*)\"))?[ \t]*")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, section 5.1.1
_UTF_8 = frozenset({"utf-8", "utf8"})


class _Kind(NamedTuple):
    """What counts of a Content-Type that all readers read alike, and the boundary, which doesn't."""

    text: str
    is_json: bool
    boundary: bytes


@lru_cache(maxsize=128)  # most requests have one of a few
def _kind(content_type: str) -> _Kind | None:
    """Read a Content-Type; ``None`` if it is not exactly well-formed, or if two readers could read it differently.

    Some take the first of two parameters of one name and some the last; some look for ``boundary=`` inside of quotes,
    stop at the first odd character of a value, or put ``boundary*0`` and ``boundary*1`` together (RFC 2231).
    """
    media = media_type(content_type)
    parameters = _parameters(content_type)
    if parameters is None or not _MEDIA_TYPE.fullmatch(media):
        return None
    charset = parameters.get("charset", "utf-8").lower()
    if charset in _UTF_8:
        parameters.pop("charset", None)
    if media.startswith("multipart/"):
        boundary = parameters.pop("boundary", "")
        said = "".join([f";{name}={value}" for name, value in parameters.items()])
        return _Kind(media + said, is_json=False, boundary=boundary.encode()) if _BOUNDARY.fullmatch(boundary) else None
    if charset not in _UTF_8:
        return _Kind(f"{media};charset={charset}", is_json=False, boundary=b"")
    return _Kind(media, is_json=media == "application/json" or media.endswith("+json"), boundary=b"")


def _parameters(content_type: str) -> dict[str, str] | None:
    """Give the parameters of a Content-Type by their names in lower case; ``None`` if they can be read in two ways."""
    at, found = len(content_type.partition(";")[0]), dict[str, str]()
    while at < len(content_type):
        parameter = _PARAMETER.match(content_type, at)
        if parameter is None:
            return None
        at = parameter.end()
        name = (parameter[1] or "").lower()
        if name in found or "*" in name:
            return None
        if name:
            found[name] = parameter[2] or parameter[3]
    return found


def _begun(body: bytes | Iterable[bytes], boundary: bytes) -> tuple[bool, bytes | Iterable[bytes]]:
    """Say whether a body begins with its boundary, and give it again. So no other boundary can be its own."""
    line = b"--%b\r\n" % boundary
    if isinstance(body, bytes):
        return body.startswith(line), body
    rest, start = iter(body), b""
    for chunk in rest:
        start += chunk
        if len(start) >= len(line):
            break
    return start.startswith(line), chain((start,), rest)


# --- multipart (RFC 2046, section 5.1.1; RFC 7578) -------------------------------------------------------------------

_FIELD_NAME = re.compile(_WORD.encode())
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def _framed_parts(body: bytes, boundary: bytes) -> list[bytes] | None:
    """Give the parts of a multipart body as framed bytes; ``None`` if it is not exactly well-formed.

    Strict on purpose: where two parsers could see other parts in it, its bytes are what counts.
    """
    delimiter = b"--" + boundary
    if not body.startswith(delimiter) or body.count(delimiter) > PARTS_MAX + 1:
        return None
    *parts, end = body[len(delimiter) :].split(b"\r\n" + delimiter)
    if end not in {b"--", b"--\r\n"} or body.count(delimiter) != len(parts) + 1:
        return None
    framed = [frame for part in parts for frame in _framed_part(part)]
    return framed if len(framed) == 2 * len(parts) else None


def _framed_part(part: bytes) -> Iterator[bytes]:
    """Give a part's header fields and its bytes, each framed; nothing if it is malformed, or says a thing twice."""
    head, blank, content = part.partition(b"\r\n\r\n")
    if head.count(b"\r\n") > PART_FIELDS_MAX:
        return
    fields = [_header_field(line) for line in head.split(b"\r\n")[1:]]
    named = dict(field for field in fields if field)
    if not blank or head[:2] not in {b"", b"\r\n"} or len(named) != len(fields):
        return
    if named.pop(b"content-length", b"%d" % len(content)) != b"%d" % len(content):
        return
    kept = sorted([b"%b:%b" % field for field in named.items()])
    yield b"%d;%b" % (len(kept), b"".join([b"%d:%b" % (len(field), field) for field in kept]))
    yield b"%d:%b" % (len(content), content)


def _header_field(line: bytes) -> tuple[bytes, bytes] | None:
    name, colon, value = line.partition(b":")
    if not colon or not _FIELD_NAME.fullmatch(name) or _CONTROL.search(value):
        return None
    return name.lower(), value.strip()
