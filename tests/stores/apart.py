"""A JSON file store whose records never share a name in the document, for the cases of the conformance suite.

The suite counts on namespaces that never meet, and chooses ids and keys freely. In this document two records whose
scope and key are one text can't both be, which tests of its own are about. So here each scope begins with the record's
namespace and id, on the way to the store, and does not on the way back.

The suite opens several stores on the same records, as several processes would. Here they are handles of one.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from notwice.errors import StoreUnavailable
from notwice.model import Get, Op, Page, Query, Record, RecordView, Reply, Unreadable
from notwice.stores.batching import Batching
from notwice.stores.jsonfile import JsonFileStore
from notwice.stores.port import Store
from notwice.testing import VirtualClock


class Apart:
    """`JsonFileStore`, with names apart. Each of all the short histories has the file for itself."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        self.path = path
        self.clock = clock
        self.history = ""
        self.inner = JsonFileStore(path, clock=clock)

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        for op in ops[:1]:
            self.begin(op.namespace if isinstance(op, Get) else op.record.namespace)
        replies = self.inner.apply([op if isinstance(op, Get) else op._replace(record=apart(op.record)) for op in ops])
        return [reply._replace(record=together(reply.record)) for reply in replies]

    def begin(self, namespace: str) -> None:
        if namespace.startswith("history-") and namespace != self.history:
            self.history = namespace
            self.inner.close()
            self.path.unlink(missing_ok=True)
            self.inner = JsonFileStore(self.path, clock=self.clock)

    def scan(self, query: Query) -> Page:
        items: list[RecordView | Unreadable] = []
        cursor, wanted = query.cursor, max(query.limit, 0)
        while True:
            page = self.inner.scan(query._replace(scope_prefix=None, cursor=cursor, limit=1))
            items += [each for item in page.items if fits(each := shown(item), query)]
            cursor = page.cursor
            if cursor is None or len(items) >= wanted:
                return Page(tuple(items), cursor)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        return self.inner.load([view._replace(record=apart(view.record)) for view in views])

    def close(self) -> None:
        self.inner.close()


class Opener:
    """Opens handles of one store, which is closed with the last of them and opened anew with the next."""

    def __init__(self, path: Path, clock: VirtualClock) -> None:
        self.path = path
        self.clock = clock
        self.store: Apart | None = None
        self.handles: list[Handle] = []

    def __call__(self) -> "Handle":
        self.store = self.store or Apart(self.path, self.clock)
        self.handles.append(Handle(self, self.store))
        return self.handles[-1]

    def close(self, handle: "Handle") -> None:
        self.handles.remove(handle)
        if not self.handles and self.store is not None:
            self.store.close()
            self.store = None


class Handle:
    def __init__(self, opener: Opener, store: Apart) -> None:
        self.opener = opener
        self.store = store
        self.closed = False

    def open(self) -> Apart:
        if self.closed:
            raise StoreUnavailable("this handle is closed")
        return self.store

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        return self.open().apply(ops)

    def scan(self, query: Query) -> Page:
        return self.open().scan(query)

    def purge(self, limit: int) -> int:
        return self.open().purge(limit)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        return self.open().load(views)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.opener.close(self)


def apart(record: Record) -> Record:
    return record._replace(scope=prefix(record) + record.scope)


def together(record: Record | Unreadable | None) -> Record | Unreadable | None:
    return record._replace(scope=record.scope.removeprefix(prefix(record))) if isinstance(record, Record) else record


def prefix(record: Record) -> str:
    return json.dumps([record.namespace, record.id])


def shown(item: RecordView | Unreadable) -> RecordView | Unreadable:
    record = together(item.record) if isinstance(item, RecordView) else None
    return item._replace(record=record) if isinstance(item, RecordView) and isinstance(record, Record) else item


def fits(item: RecordView | Unreadable, query: Query) -> bool:
    return isinstance(item, Unreadable) or item.record.scope.startswith(query.scope_prefix or "")


def damage(store: Store, namespace: str, operation: str) -> None:
    """Overwrite a record's bytes, as a failing disk would, and have the file opened anew."""
    handle = store._store if isinstance(store, Batching) else store
    assert isinstance(handle, Handle)
    behind = handle.store
    document = json.loads(behind.path.read_bytes())
    (entry,) = (entry for entry in document["entries"].values() if named(entry) == (namespace, operation))
    scribbled = b"\x01scribbled" + base64.b64decode(entry["notwice"]["record_base64"])[10:]
    entry["notwice"]["record_base64"] = base64.b64encode(scribbled).decode()
    behind.inner._let_go()
    behind.path.write_text(json.dumps(document))


def named(entry: dict[str, dict[str, str]]) -> tuple[str, str]:
    return entry["notwice"]["namespace"], entry["notwice"]["operation"]
