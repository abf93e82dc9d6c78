"""Each target can fail: a parser that is broken on purpose is caught by the inputs that are kept for it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import ANY

import pytest

from tests.fuzz.targets import TARGETS


class Broken(NamedTuple):
    """What is put in the place of a part of the library: ``made`` is given the part as it is."""

    target: str
    module: str
    part: str
    made: Callable[[Any], Any]


def _old_place(member: bytes) -> tuple[int, str, str]:
    namespace, _, identifier = member[16:].rpartition(b"\0")
    return int(member[:16]), namespace.decode(), identifier.decode()


def _old_cursor(cursor: str) -> tuple[int, str, str]:
    created_ms, namespace, identifier = json.loads(base64.urlsafe_b64decode(cursor))
    return int(created_ms), str(namespace), str(identifier)


def _as_list(encode: Any) -> Any:
    return lambda value: encode(list(value) if isinstance(value, tuple) else value)


def _rewritten(read: Any) -> Any:
    return lambda member, reading: read(member, reading)._replace(text="{}")


def _talkative(_: Any) -> Any:
    def read(name: str, secret: str) -> bytes:
        raise ValueError(f"the key {name} must not be {secret}")

    return read


def _unsigned(decode: Any) -> Any:
    return lambda token, *_, **__: decode(token, options={"verify_signature": False})


BROKEN = [
    Broken("key_header", "notwice.http.exchange.keys", "_decoded", lambda _: lambda member: member),
    Broken("query_key", "notwice.http.exchange.keys", "checked_key", lambda _: lambda key: key),
    Broken("names", "notwice.identity", "_escaped", lambda _: lambda text: text),
    Broken("template", "notwice.identity", "_escaped", lambda _: lambda text: text),
    Broken("json_document", "notwice.canonical_json", "nesting_exceeds", lambda _: lambda body, depth: False),
    Broken("number", "notwice.canonical_json", "number_text", lambda _: lambda text: str(float(text))),
    Broken("http_body", "notwice.fingerprint", "canonical_json", lambda _: lambda body: None),
    Broken("form", "notwice.fingerprint", "_framed_parts", lambda _: lambda body, kind: None),
    Broken("stored_value", "notwice.codec", "encode_value", _as_list),
    Broken("stored_record", "notwice.codec.records", "_typed", lambda _: lambda value, *kinds: value),
    Broken("sqlite_row", "notwice.stores.sqlite.rows", "crc32_of", lambda _: lambda column: ANY),
    Broken("sql_row", "notwice.stores.tables", "_text", lambda _: str),
    Broken("redis_string", "notwice.stores.redis.rows", "unreadable", lambda _: lambda value, name: None),
    Broken("redis_member", "notwice.stores.redis.rows", "place_in", lambda _: _old_place),
    Broken("dynamodb_item", "notwice.stores.dynamodb.items", "place_in", lambda _: lambda item, name: (-1, *name)),
    Broken("json_file", "notwice.stores.jsonfile.entries", "read", _rewritten),
    Broken("json_entry", "notwice.stores.jsonfile.entries", "_bytes", lambda _: lambda plain, name: b""),
    Broken("cursor", "notwice.stores.shared", "place_after", lambda _: _old_cursor),
    Broken("box", "notwice.codec.sealing", "_inflated", lambda _: lambda content: content[1:]),
    Broken("sealing_keys", "notwice.privacy", "_secret_bytes", _talkative),
    Broken("kept_request", "notwice.http.exchange.stored", "restored", lambda _: lambda value: value["method"]),
    Broken("duration", "notwice.server.durations", "parse_duration", lambda _: float),
    Broken("settings_file", "notwice.server.options", "sentence", lambda _: lambda text: text),
    Broken("settings_text", "notwice.server.options", "_from_environment", lambda _: lambda environment: {}),
    Broken("store_url", "notwice.stores.mysql.place", "check_ports", lambda _: lambda host: None),
    Broken("coding", "notwice.http.exchange.codings", "_inflated", lambda _: lambda body, window: body),
    Broken("header_lines", "notwice.http.exchange.headers", "never_kept", lambda _: lambda name: name == "vary"),
    Broken("bearer", "jwt", "decode", _unsigned),
    Broken("lookup_answer", "notwice.lookups", "_members", lambda _: dict),
    Broken("key_set", "notwice.server.principals", "_usable", lambda _: lambda read: read()),
]


def test_every_target_has_its_control() -> None:
    """A target that was never seen to fail may be blind."""
    assert {broken.target for broken in BROKEN} == set(TARGETS)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.target)
def test_a_broken_parser_is_caught(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept inputs of the target alone see the fault."""
    module = import_module(broken.module)
    monkeypatch.setattr(module, broken.part, broken.made(getattr(module, broken.part)))
    target = TARGETS[broken.target]
    with pytest.raises(Exception):  # noqa: B017, PT011 - an oracle's word, or whatever the broken parser lets out
        list(map(target.run, target.inputs()))
