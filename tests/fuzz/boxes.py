"""Targets: what is sealed in a record, the keys that seal, and requests that a record keeps."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from notwice import privacy
from notwice.codec import records, sealing
from notwice.errors import UnsupportedRecord
from notwice.http.exchange import stored
from notwice.model import Record, Unreadable
from tests.fuzz.stored import NAME, RECORD, check_record, record_of
from tests.fuzz.target import Target, check_says, refused, texts_of


class Mirror(NamedTuple):
    """A cipher that hides nothing and binds everything, so that the search gets behind it."""

    name: str = "k"

    def encrypt(self, content: bytes, bound: bytes) -> bytes:
        """The two, with the length of the first."""
        return len(bound).to_bytes(4, "big") + bound + content[::-1]

    def decrypt(self, sealed: bytes, bound: bytes) -> bytes:
        """Raises `ValueError` unless they are the two."""
        size = int.from_bytes(sealed[:4], "big")
        if sealed[4 : 4 + size] != bound:
            raise ValueError("it is bound to something else")
        return sealed[4 + size :][::-1]


LONG = 20  # characters; shorter ones may be words of a sentence
CIPHERS = {"k": Mirror()}


def box(data: bytes) -> None:
    """Any bytes as a box: unreadable, still closed, or this very record; a record that is sealed comes back."""
    record = RECORD._replace(sealed=data)
    mirrored = b"e\1k" + Mirror().encrypt(data, sealing._bound(RECORD, b"k"))
    for given in (record, RECORD._replace(sealed=b"c" + data), RECORD._replace(sealed=mirrored)):
        found = sealing.unseal(given, CIPHERS)
        check_record(found, NAME)
        assert sealing.closed_reason(given)
        if isinstance(found, Record) and found != given:
            assert not found.sealed
            assert found._replace(progress=(), result=None, error="", request=None) == RECORD
    name, encoded = record_of(data)
    whole = records.decode_record(encoded, *name)
    if isinstance(whole, Unreadable) or whole.sealed:
        return
    for cipher, above_bytes in ((None, 0), (Mirror(), None), (Mirror(), 0), (None, None)):
        closed = sealing.seal(whole, cipher, compress_above_bytes=above_bytes)
        assert sealing.unseal(closed, CIPHERS) == whole
        if closed.sealed:
            for moved in (closed._replace(scope=f"{closed.scope}x"), closed._replace(attempt=closed.attempt + 1)):
                assert isinstance(sealing.unseal(moved, CIPHERS), Unreadable)


def sealing_keys(data: bytes) -> None:
    """A text of keys: keys, or `ValueError` that does not repeat a secret."""
    text = data.decode("utf-8", "surrogateescape")
    if refused(lambda: privacy.keys_in(text, "the text"), ValueError):
        return
    keys = privacy.keys_in(text, "the text")
    assert "".join(keys) == "".join(text.replace(",", " ").split()) or not text.isascii()
    try:
        made = privacy.Privacy(keys=keys)
    except ValueError as error:
        for secret in (key.partition(":")[2] for key in keys):
            check_says(error, but_not=secret if len(secret) >= LONG else None)
        return
    assert all(key.partition(":")[2] not in repr(made) for key in keys)


def kept_request(data: bytes) -> None:
    """A request that a record keeps, JSON in the first line and a body: a scope of its types, or unsupported."""
    first, _, body = data.partition(b"\n")
    try:
        value: Any = json.loads(first)
    except (ValueError, RecursionError):
        value = texts_of(first)
    if isinstance(value, dict):
        value = {"body": body, **value}
    if refused(lambda: stored.restored(value), UnsupportedRecord):
        return
    found = stored.restored(value)
    assert type(found.body) is bytes
    texts = ("method", "scheme", "path", "root_path")
    assert {type(text) for text in (*map(found.scope.__getitem__, texts), *found.left_out)} == {str}
    assert type(found.scope["raw_path"]) is type(found.scope["query_string"]) is bytes
    assert all(type(name) is type(line) is bytes for name, line in found.scope["headers"])
    assert found.scope["client"] is None or type(found.scope["client"][0]) is str


TARGETS = (
    Target("box", box, bytes_max=1024),
    Target("sealing_keys", sealing_keys),
    Target("kept_request", kept_request),
)
