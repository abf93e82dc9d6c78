"""Targets: what operators write. Durations, sizes, the gateway's options in each of their places, URLs of stores."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from notwice.server import durations, options, settings
from notwice.server.app import http_policy_of, policy_of
from notwice.stores import jsonfile, sqlite, urls
from notwice.stores.dynamodb import place as dynamodb_place
from notwice.stores.mysql import place as mysql_place
from notwice.stores.postgres import place as postgres_place
from notwice.stores.redis import settings as redis_settings
from tests.fuzz.target import Target, check_says, refused

SECRET = "hunter2hunter2hunter2"


def duration(data: bytes) -> None:
    """A duration or a size: a number that can be counted with, or `ValueError`."""
    text = data.decode("utf-8", "surrogateescape")
    if not refused(lambda: durations.parse_duration(text), ValueError):
        seconds = durations.parse_duration(text)
        assert 0 <= seconds < math.inf
        assert durations.parse_duration(f" {text}\t") == seconds
    if not refused(lambda: durations.parse_size(text), ValueError):
        size = durations.parse_size(text)
        assert size >= 0
        assert durations.parse_size(str(size)) == size or size >= 2**53
        assert durations.parse_size(text.lower()) == size


def _check_sentences(sentences: Sequence[str], *, hidden: bool) -> None:
    assert sentences
    for sentence in sentences:
        assert sentence.endswith((".", "?", "!")), sentence
        assert not hidden or SECRET not in sentence


def _settings(read: Callable[[], settings.Settings], *, hidden: bool = False) -> settings.Settings | None:
    """Settings that the gateway can be put together of, or `None` if they are refused, each fault in a sentence.

    `hidden`: `SECRET` stands where a secret belongs and nowhere else.
    """
    try:
        found = read()
    except options.SettingsError as error:
        _check_sentences(error.sentences, hidden=hidden)
        return None
    assert not hidden or SECRET not in repr(found)
    if found.principal.kind != "jwt":  # keys would be read from files
        refused(lambda: (policy_of(found), http_policy_of(found)), TypeError, ValueError)
    return found


def settings_file(data: bytes) -> None:
    """A file of options: settings, or sentences."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notwice.toml"
        path.write_bytes(data)
        flags = {"config": str(path)}
        hidden = re.search(rb'^jwt_secret = "%b"$' % SECRET.encode(), data, re.MULTILINE) is not None
        hidden &= data.count(SECRET.encode()) == 1
        found = _settings(lambda: options.read(settings.Settings, flags, {}), hidden=hidden)
        needed = {"upstream": "http://127.0.0.1:1", "principal": "shared"}
        fuller = _settings(lambda: options.read(settings.Settings, flags | needed, {}))
        assert fuller is not None or found is None or found.principal.kind == "jwt" or found.jwt_secret


def settings_text(data: bytes) -> None:
    """An option by its name and its text: a flag, a variable and the file mean the same."""
    name, _, text = data.decode("utf-8", "surrogateescape").partition("=")
    known = {option.name: option for option in options.options(settings.Settings)}
    needed = {"upstream": "http://127.0.0.1:1", "principal": "shared"}
    by_variable = _settings(
        lambda: options.read(settings.Settings, needed | {name: None}, {f"NOTWICE_{name.upper()}": text}),
        hidden=name == "jwt_secret" or (name == "upstream" and f":{SECRET}@" in text),
    )
    if name not in known or text.encode("utf-8", "replace") != text.encode("utf-8", "surrogateescape"):
        return
    flags = needed | {name: text}
    by_flag = _settings(lambda: options.read(settings.Settings, flags, {}))
    assert by_flag == by_variable or name in needed
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notwice.toml"
        path.write_text(f"{name} = {_toml(text)}\n")
        rest = {key: value for key, value in needed.items() if key != name} | {"config": str(path)}
        assert _settings(lambda: options.read(settings.Settings, rest, {})) == by_flag


def _toml(text: str) -> str:
    """A text as TOML writes it: JSON's escapes, and those of characters that a TOML file may not hold."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _sqlite(url: urls.StoreUrl) -> object:
    return url.read_options(sqlite.OPTIONS)


def _json_file(url: urls.StoreUrl) -> object:
    return url.read_options(jsonfile.OPTIONS)


_PLACES: Mapping[str, Callable[[urls.StoreUrl], Any]] = {
    "dynamodb": dynamodb_place.place_of,
    "file": _json_file,
    "mysql": mysql_place.place_of,
    "postgresql": postgres_place.place_of,
    "redis": redis_settings.settings_of,
    "redis+cluster": redis_settings.settings_of,
    "rediss": redis_settings.settings_of,
    "rediss+cluster": redis_settings.settings_of,
    "sqlite": _sqlite,
}


def store_url(data: bytes) -> None:
    """A store's URL: a place, or `ValueError`; a password stands in no message and in nothing that is shown."""
    text = data.decode("utf-8", "surrogateescape").replace("PASSWORD", SECRET)
    hidden = text.count(SECRET) == 1 and re.match(rf"[a-z+]+://[^/?#@]*:{SECRET}(@|/|$)", text) is not None
    try:
        url = urls.parsed(text)
        place = _PLACES[url.scheme](url) if url.scheme in _PLACES else None
    except ValueError as error:
        check_says(error, but_not=SECRET if hidden else None)
        return
    assert not hidden or SECRET not in getattr(place, "shown", "")
    for timeout in (getattr(place, "timeout", 1.0), getattr(getattr(place, "login", None), "timeout", 1.0)):
        assert 0 < timeout <= urls.TIMEOUT_MAX
    if isinstance(place, mysql_place.Place):
        assert place.driver["database"] == unquote(url.path.removeprefix("/")) or "%" in text


_URLS = (
    "notwice.stores.urls",
    "notwice.stores.redis.settings",
    "notwice.stores.mysql.place",
    "notwice.stores.postgres.place",
    "notwice.stores.dynamodb.place",
)


TARGETS = (
    Target("duration", duration),
    Target("settings_file", settings_file),
    Target("settings_text", settings_text, bytes_max=128),
    Target("store_url", store_url, bytes_max=256),
)
