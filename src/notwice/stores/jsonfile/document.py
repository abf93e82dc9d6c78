"""The document as text: ``{"entries": {name: {…}, …}}``, taken apart so that what is not understood stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

ENTRIES: Final = "entries"

_BLANKS = re.compile(r"[ \t\n\r]*")


class Member(NamedTuple):
    """One member of an object: its name, its value as it is written, and its value."""

    name: str
    text: str
    value: object


class Document(NamedTuple):
    """A whole document. ``others`` are the members beside the entries, if a program put any there."""

    entries: Sequence[Member]
    others: Sequence[Member]


def parse(data: bytes) -> Document:
    """Take a document apart. Raises `ValueError`, with the reason, for anything else."""
    try:
        text = data.decode()
        members, end = _members(text, _after_blanks(text, 0))
        if _after_blanks(text, end) != len(text):
            raise ValueError("something follows the document")
        return _document(members)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write(entries: Iterable[tuple[str, str]], others: Iterable[Member]) -> bytes:
    """Give the bytes of a document whose entries are (name, text). A line an entry."""
    lines = ",\n".join([f"{json.dumps(name)}: {text}" for name, text in entries])
    rest = "".join([f",\n{json.dumps(member.name)}: {member.text}" for member in others])
    return f'{{"{ENTRIES}": {{\n{lines}\n}}{rest}}}\n'.encode()


def _document(members: Sequence[Member]) -> Document:
    found = [member for member in members if member.name == ENTRIES]
    others = [member for member in members if member.name != ENTRIES]
    if not found and not others:
        return Document((), ())
    if len(found) != 1:
        raise ValueError(f'it has {len(found)} members named "{ENTRIES}", and a document has one')
    if found[0].value is None:
        return Document((), others)
    entries, _ = _members(found[0].text, 0)
    return Document(entries, others)


def _members(text: str, at: int) -> tuple[list[Member], int]:
    """The members of the object that begins at a place in the text, and where it ends."""
    found: list[Member] = []
    at = _after(text, at, "{")
    if text.startswith("}", at):
        return found, at + 1
    while True:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError("the name of a member is no text")  # noqa: TRY004 - of the document, not of an argument
        at = _after(text, _after_blanks(text, at), ":")
        value, end = _DECODER.raw_decode(text, at)
        found.append(Member(name, text[at:end], value))
        at = _after_blanks(text, end)
        if text.startswith("}", at):
            return found, at + 1
        at = _after(text, at, ",")


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    assert found is not None  # it matches nothing, too
    return found.end()


def _after(text: str, at: int, mark: str) -> int:
    if not text.startswith(mark, at):
        raise ValueError(f"{mark!r} is missing at character {at}")
    return _after_blanks(text, at + len(mark))


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refused)
