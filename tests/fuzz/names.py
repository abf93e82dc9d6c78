"""Targets: the key header, names of operations, templates."""

from __future__ import annotations

import re
from collections.abc import Callable

from notwice import identity
from notwice.errors import EncodingError, InvalidKey
from notwice.http.exchange import keys
from tests.fuzz.target import Target, check_says, refused, texts_of


def _quoted(key: str) -> str:
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(lines: list[str], *, strict: bool) -> str | None:
    try:
        return keys.read_key(lines, strict=strict)
    except InvalidKey:
        return None


def key_header(data: bytes) -> None:
    """The lines of a key header: one key of 1 to 255 printable ASCII characters, or `InvalidKey`."""
    lines = data.decode("latin-1").split("\n")
    key, strict = _read(lines, strict=False), _read(lines, strict=True)
    assert strict is None or strict == key
    if key is None:
        return
    assert 1 <= len(key) <= 255
    assert all(" " <= character <= "~" for character in key)
    assert key.strip()
    if len(lines) == 1:
        for same in ([*lines, *lines], [f" \t{lines[0]}\t"]):
            assert _read(same, strict=False) == key
    quoted = _quoted(key)
    for again in ([quoted], [quoted, quoted], [f"{quoted},{quoted}"], [f"{quoted};a=1;b"], [f"\t{quoted} "]):
        assert _read(again, strict=True) == _read(again, strict=False) == key
    assert keys.read_query_key([quoted]) == key
    assert _read([quoted, _quoted(key[:-1] + ("y" if key[-1] == "x" else "x"))], strict=True) is None


def query_key(data: bytes) -> None:
    """The decoded parameters of a look-up: one key, or `InvalidKey`."""
    texts = texts_of(data)
    if refused(lambda: keys.read_query_key(texts), InvalidKey):
        return
    key = keys.read_query_key(texts)
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    assert keys.read_query_key([*texts, *texts]) == key == keys.read_query_key([_quoted(key)])


def _parts_of(joined: str) -> list[str]:
    """Take a joined tuple apart again, another way than it was put together."""
    parts = re.findall(r"(?:[^:\\]|\\[:\\])+", joined)
    assert ":".join(parts) == joined
    return [re.sub(r"\\(.)", r"\1", part) for part in parts]


def _named(check: Callable[[], str], characters_max: int) -> str | None:
    try:
        name = check()
    except (InvalidKey, EncodingError):
        return None
    assert name.strip()
    assert len(name) <= characters_max
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name)
    return name


def names(data: bytes) -> None:
    """Scopes, keys and namespaces as text and as tuples: what is named is named once, and by nothing else."""
    parts = texts_of(data)
    text = "\n".join(parts)
    for check, characters_max in ((identity.join_scope, 1024), (identity.check_key, 255)):
        name = _named(lambda check=check: check(text), characters_max)  # type: ignore[misc]  # bound at once
        assert name is None or name == text
        joined = _named(lambda check=check: check(tuple(parts)), characters_max)  # type: ignore[misc]  # bound at once
        if joined is not None:
            assert joined.startswith("sha256:") or _parts_of(joined) == parts
            assert check(joined) == joined
    if not refused(lambda: identity.check_namespace(text), InvalidKey):
        assert identity.check_namespace(text) == text
    scope, key = _named(lambda: identity.join_scope(parts[0]), 1024), _named(lambda: identity.check_key(parts[-1]), 255)
    if scope and key:
        assert re.fullmatch("idem_[0-9a-f]{32}", identity.operation_id(scope, key))


def template(data: bytes) -> None:
    """A template and two sets of values: two texts are equal exactly if the values are."""
    written, *values = texts_of(data)
    try:
        fields = identity.template_fields(written)
    except InvalidKey:
        assert refused(lambda: identity.fill_scope(written, {}), InvalidKey)
        return
    half = len(values) // 2
    filled = []
    for given in (values[:half], values[half:]):
        named = dict(zip(fields, given, strict=False))
        try:
            filled.append((named, identity.fill_scope(written, named)))
            assert identity.fill_key(written, named)
        except (InvalidKey, EncodingError) as error:
            check_says(error)
    if len(filled) == 2:
        (one, text), (other, same) = filled
        whole = not re.search(r"\{\w+[.\[]", written)  # parts of different values may be equal
        assert (one == other) == (text == same) if whole else one != other or text == same


TARGETS = (
    Target("key_header", key_header),
    Target("query_key", query_key),
    Target("names", names),
    Target("template", template),
)
