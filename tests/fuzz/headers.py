"""Targets: headers beside the key, content codings, bearer tokens, key sets."""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import zlib
from collections.abc import Coroutine
from typing import Any

import jwt

from notwice.http.exchange import codings, headers
from notwice.http.exchange.request import RequestHeaders, RequestView
from notwice.server import forwarding, principals
from notwice.server.kinds import PrincipalSource
from notwice.server.settings import Settings
from tests.fuzz.target import Target, check_says

SECRET = "a secret that is long enough for HS256"


def coding(data: bytes) -> None:
    """Three lines, ``Accept-Encoding``, ``Content-Encoding``, a body: a replay is as kept, or decoded."""
    accepted, named, body = ([*data.split(b"\n", 2), b"", b""])[:3]
    accept = [accepted.decode("latin-1")]
    shown = codings.offered(accept)
    assert shown
    assert all(codings.accepts([shown], each) in (True, False) for each in ("gzip", "br"))
    assert not codings.accepts([shown], "br")
    kept: headers.Headers = (("content-encoding", named.decode("latin-1")), ("vary", "Origin"))
    told, plain = codings.for_client(kept, body, accept)
    assert (told, plain) == (kept, body) or not headers.values(told, "content-encoding")
    for name, encoded in (("gzip", gzip.compress(body, mtime=0)), ("deflate", zlib.compress(body))):
        told, plain = codings.for_client((("content-encoding", name),), encoded, accept)
        read = plain if not headers.values(told, "content-encoding") else encoded
        assert read == (body if not codings.accepts(accept, name) else encoded)
        assert headers.values(told, "vary") == ([] if codings.accepts(accept, name) else ["Accept-Encoding"])


def header_lines(data: bytes) -> None:
    """Lines of a response's headers: what is kept is on the list, and what is added is added once."""
    lines = tuple(
        (name, value) for line in data.decode("latin-1").split("\n") for name, _, value in [line.partition(":")]
    )
    kept = headers.kept(lines, headers.KEPT_HEADERS)
    assert {name for name, _ in kept} <= headers.KEPT_HEADERS
    assert not any(headers.never_kept(name) for name, _ in kept)
    assert headers.kept(kept, headers.KEPT_HEADERS) == kept
    varied, told = headers.with_vary(lines, "Origin"), headers.exposed(lines, ["Retry-After"])
    assert headers.with_vary(varied, "Origin") == varied
    assert headers.exposed(told, ["Retry-After"]) == told
    view = RequestHeaders(lines)
    assert len(view) == len({name.lower() for name, _ in lines}) == len(list(view))
    assert all(view[name] is not None for name, _ in lines)
    request = RequestView("POST", "/", "/", "", view, {})
    assert 0 <= request.content_length < 10**20
    raw = [(name.lower().encode("latin-1", "replace"), value.encode("latin-1")) for name, value in lines]
    sent = forwarding.response_headers(raw, 200)
    assert not any(set(value) & {0, 10, 13} for _, value in sent)
    assert forwarding.response_headers(sent, 200) == sent


def _now(waiting: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine gives that never waits."""
    try:
        waiting.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def bearer(data: bytes) -> None:
    """``Authorization``: nobody, or somebody whose token the secret has signed. Nothing is ever raised."""
    source = PrincipalSource("jwt", "sub")
    known = principals.TokenPrincipal(Settings(principal=source), principals.OneKey(SECRET))
    lines = [("authorization", line) for line in data.decode("latin-1").split("\n")]
    account = _now(known(RequestView("POST", "/", "/", "", RequestHeaders(lines), {})))
    if account is not None:
        signed, _, signature = lines[0][1].partition(" ")[2].strip().rpartition(".")
        assert _decoded(signature) == hmac.digest(SECRET.encode(), signed.encode(), "sha256")
        assert str(json.loads(_decoded(signed.partition(".")[2]))["sub"]) == account
    by_header = principals.HeaderPrincipal("authorization")
    named = _now(by_header(RequestView("POST", "/", "/", "", RequestHeaders(lines), {})))
    sent = {line.strip(" \t") for _, line in lines}
    assert named is None or (named and sent == {named.encode().decode("latin-1")})


def key_set(data: bytes) -> None:
    """A file of public keys: keys, or an error that is told as one of the options."""
    try:
        principals._public_keys(data.decode("utf-8", "surrogateescape"))
    except (jwt.PyJWTError, ValueError) as error:
        check_says(error)


TARGETS = (
    Target("coding", coding),
    Target("header_lines", header_lines),
    Target("bearer", bearer, bytes_max=1024),
    Target("key_set", key_set, bytes_max=1024),
)
