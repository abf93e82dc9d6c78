"""The entries in memory, and the way back to how they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from notwice.model import Record, Unreadable
from notwice.stores.jsonfile.entries import Entry, Meaning, meanings
from notwice.stores.shared import Name, Place


class Contents:
    """Entries by their names in the document, by their records' names, and for the older cache's by what may be meant.

    `undo` takes back every change since the last `settle`.
    """

    def __init__(self, entries: Iterable[tuple[str, Entry]]) -> None:
        self._entries: dict[str, Entry] = {}
        self._owned: dict[Name, str] = {}
        self._meant: dict[str, tuple[str, Meaning]] = {}
        self._undo: list[tuple[str, Entry | None]] = []
        self._order: list[tuple[Place, str]] | None = None
        for name, entry in entries:
            self.put(name, entry)
        self.settle()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def changed(self) -> bool:
        """Whether anything changed since the last `settle`."""
        return bool(self._undo)

    def at(self, name: str) -> Entry | None:
        """The entry with a name in the document."""
        return self._entries.get(name)

    def owned(self, name: Name) -> str | None:
        """Where the entry stands that carries a record's name."""
        return self._owned.get(name)

    def meant(self, operation: str) -> tuple[str, Meaning] | None:
        """Where an entry of the older cache stands that may be this operation, and the scope and key it has then."""
        return self._meant.get(operation)

    def put(self, name: str, entry: Entry) -> None:
        """Put an entry in the place of what has its name."""
        self._undo.append((name, self._entries.get(name)))
        self._set(name, entry)

    def drop(self, name: str) -> None:
        """Take an entry out."""
        self._undo.append((name, self._entries.get(name)))
        self._set(name, None)

    def settle(self) -> None:
        """Let what was changed be so."""
        self._undo.clear()

    def undo(self) -> None:
        """Take back what was changed, the last first."""
        while self._undo:
            name, entry = self._undo.pop()
            self._set(name, entry)

    def texts(self) -> Iterator[tuple[str, str]]:
        """All entries as they are written, readable or not."""
        return ((name, entry.text) for name, entry in self._entries.items())

    def listed(self, operation: str | None = None) -> Iterator[tuple[Place, Entry]]:
        """All entries of which it is known whose they are, in order. What may be `operation` is shown as that."""
        if self._order is None:
            items = self._entries.items()
            self._order = sorted((place_of(entry), name) for name, entry in items if entry.listed)
        meant = None if operation is None else self._meant.get(operation)
        for place, name in self._order:
            entry = self._entries[name]
            if meant is not None and isinstance(entry.found, Record) and name == meant[0]:
                entry = entry._replace(found=as_meant(entry.found, meant[1]))
            yield place, entry

    def leaving(self) -> list[tuple[int, str]]:
        """When each entry that may ever leave was written, with its name, the oldest first."""
        return sorted(
            (entry.written_ms, name)
            for name, entry in self._entries.items()
            if isinstance(entry.found, Record) and (entry.found.terminal or entry.expires_ms is not None)
        )

    def expired(self, now_ms: int, limit: int) -> list[str]:
        """Up to `limit` names of entries whose time is over."""
        found: list[str] = []
        for name, entry in self._entries.items():
            if len(found) >= limit:
                break
            expires_ms = entry.expires_ms
            if expires_ms is not None and expires_ms < now_ms:
                found.append(name)
        return found

    def _set(self, name: str, entry: Entry | None) -> None:
        before = self._entries.pop(name, None)
        if before is not None:
            self._forget(name, before)
        if entry is not None:
            self._entries[name] = entry
            self._learn(name, entry)
        if before is None or entry is None or place_of(before) != place_of(entry) or before.listed != entry.listed:
            self._order = None

    def _learn(self, name: str, entry: Entry) -> None:
        if entry.owned:
            self._owned[_name(entry.found)] = name
        for meaning in () if entry.owned else _meanings(name, entry):
            self._meant[meaning.operation] = (name, meaning)

    def _forget(self, name: str, entry: Entry) -> None:
        if entry.owned and self._owned.get(_name(entry.found)) == name:
            del self._owned[_name(entry.found)]
        for meaning in () if entry.owned else _meanings(name, entry):
            self._meant.pop(meaning.operation, None)


def place_of(entry: Entry) -> Place:
    """Where an entry stands in a scan."""
    return entry.created_ms, entry.found.namespace, entry.found.id


def as_meant(record: Record, meaning: Meaning) -> Record:
    """An entry of the older cache as one of the operations that it may be."""
    return record._replace(scope=meaning.scope, key=meaning.key, id=meaning.operation)


def _name(found: Record | Unreadable) -> Name:
    return found.namespace, found.id


def _meanings(name: str, entry: Entry) -> Iterator[Meaning]:
    """What the name may mean, and the meaning under which a scan shows the entry."""
    try:
        yield from meanings(name)
    except UnicodeEncodeError:  # no request has such a name
        return
    found = entry.found
    if isinstance(found, Record):
        yield Meaning(found.scope, found.key, found.id)
