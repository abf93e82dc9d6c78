"""What the methods of a store promise besides: look-ups, bounded purges, closing."""

from __future__ import annotations

import pytest

from notwice.model import Page, Query, Record, RecordView, Released, State, Unreadable
from notwice.stores.port import Store
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.records import finished, followed, full_record, get, insert, new_record, swap


class ScanCases:
    """Look-ups, bounded purges and closing."""

    def test_scan_filters(self, store: Store, engine: Engine) -> None:
        """A scan gives the records that its query describes, and no other, whatever it asks for."""
        _various(store, engine)
        queries = {
            Query(namespace="n1"): "abcdef",
            Query(namespace="N1"): "",
            Query(): "abcdefg",
            Query(states=frozenset({State.COMPLETED, State.FAILED})): "cd",
            Query(states=frozenset()): "",
            Query(scope_prefix="refund:"): "ab",
            Query(scope_prefix="refund_"): "c",
            Query(scope_prefix="re%"): "",
            Query(scope_prefix="REFUND"): "d",
            Query(operation="idem_b"): "b",
            Query(namespace="n2", operation="idem_b"): "",
            Query(unresolved=True): "b",
            Query(unresolved=False): "acdefg",
            Query(namespace="n1", unresolved=False, states=frozenset({State.ACCEPTED})): "ef",
            Query(older_than_ms=500): "abcdef",
            Query(older_than_ms=3_600_000): "",
        }
        for query, expected in queries.items():
            assert _keys(store.scan(query)) == expected, query

    def test_scan_lapsed(self, store: Store, engine: Engine) -> None:
        """An operation counts as unresolved from the moment that its lease is over."""
        terms = new_record().terms._replace(lease_ms=500)
        insert(store, new_record("short", terms=terms))
        insert(store, new_record("long"))
        assert _names(store.scan(Query(unresolved=True))) == []
        engine.advance(0.6)
        assert _names(store.scan(Query(unresolved=True))) == ["short"]
        assert _names(store.scan(Query(unresolved=False))) == ["long"]

    def test_scan_gives_views(self, store: Store, engine: Engine) -> None:
        """A scan shows each record whole, with its times."""
        record = full_record()
        reply = insert(store, record)
        engine.advance(0.05)
        (view,) = store.scan(Query(namespace=record.namespace)).items
        assert isinstance(view, RecordView)
        assert (view.record, view.written_ms) == (record, reply.written_ms)
        assert view.now_ms - view.written_ms >= 50
        assert view.age_ms >= 50

    def test_scan_order(self, store: Store) -> None:
        """Pages come ordered by (created, namespace, id), and hold each record once, however small they are."""
        made = [
            new_record(name, namespace=namespace, created_ms=created_ms)
            for created_ms in (3, 1, 2)
            for namespace in ("n2", "n1")
            for name in (f"z{created_ms}", f"a{created_ms}")
        ]
        for record in made:
            insert(store, record)
        expected = sorted((record.created_ms, record.namespace, record.id) for record in made)
        for limit in (1, 5, 12, 100):
            pages = _pages(store, Query(limit=limit))
            found = [_readable(item) for page in pages for item in page.items]
            assert [(record.created_ms, record.namespace, record.id) for record in found] == expected
            assert all(len(page.items) <= limit for page in pages)

    def test_scan_while_written(self, store: Store) -> None:
        """Writes between two pages neither hide a record that was there all the time nor show one twice."""
        made = [new_record(str(number), created_ms=number + 1) for number in range(6)]
        for record in made:
            insert(store, record)
        first = store.scan(Query(limit=3))
        assert first.cursor is not None
        for record in made:
            swap(store, followed(record), record.etag)
        insert(store, new_record("early", created_ms=1))
        rest = _pages(store, Query(limit=3, cursor=first.cursor))
        assert _names(first) + [name for page in rest for name in _names(page)] == list("012345")

    def test_scan_unreadable(self, store: Store, engine: Engine) -> None:
        """A scan gives a record that can't be decoded as such, and those around it as ever."""
        for name in "abc":
            insert(store, new_record(name))
        engine.damage_record(store, new_record().namespace, "idem_b")
        items = [item for page in _pages(store, Query(limit=2)) for item in page.items]
        broken = [item for item in items if isinstance(item, Unreadable)]
        assert [(item.namespace, item.id) for item in broken] == [(new_record().namespace, "idem_b")]
        assert all(item.reason for item in broken)
        assert sorted(item.record.key for item in items if isinstance(item, RecordView)) == ["a", "c"]

    def test_purge_is_bounded(self, store: Store, engine: Engine) -> None:
        """A purge drops up to its limit and says how many went; what is left goes with the next."""
        for number in range(7):
            insert(store, finished(str(number), retention_ms=1_000))
        assert store.purge(100) == 0
        engine.advance(1.1)
        counts = [store.purge(3) for _ in range(4)]
        assert all(count <= 3 for count in counts)
        assert counts[-1] == 0
        assert _names(store.scan(Query())) == []
        if engine.clock is not None:
            assert counts == [3, 3, 1, 0]

    def test_close(self, engine: Engine) -> None:
        """Closing twice is harmless; using a store afterwards raises, and unused ones can be closed."""
        store = engine.open()
        insert(store, new_record())
        store.close()
        store.close()
        for use in (lambda: store.scan(Query()), lambda: store.purge(1), lambda: get(store, new_record())):
            with pytest.raises(Exception):  # noqa: B017, PT011 - which error it is, the engine decides
                use()
        engine.open().close()


def _various(store: Store, engine: Engine) -> None:
    """Seven records, named a to g, that differ in what a query can ask for."""
    insert(store, new_record("a", namespace="n1", scope="refund:1"))
    insert(store, new_record("b", namespace="n1", scope="refund:2", state=State.ACCEPTED))
    insert(store, finished("c", namespace="n1", scope="refund_3"))
    insert(store, new_record("d", namespace="n1", scope="REFUND:4", state=State.FAILED))
    insert(store, new_record("e", namespace="n1", scope="x", state=State.ACCEPTED, released=Released.AS_NEW))
    insert(store, new_record("f", namespace="n1", scope="", state=State.ACCEPTED, released=Released.OPERATOR))
    engine.advance(0.6)
    insert(store, new_record("g", namespace="n2", scope="x"))


def _pages(store: Store, query: Query) -> list[Page]:
    """All pages from the query's cursor on."""
    pages = [store.scan(query)]
    while (cursor := pages[-1].cursor) is not None:
        pages.append(store.scan(query._replace(cursor=cursor)))
        assert len(pages) < 1_000, "the pages have no end"
    return pages


def _readable(item: RecordView | Unreadable) -> Record:
    assert isinstance(item, RecordView)
    return item.record


def _names(page: Page) -> list[str]:
    return [_readable(item).key for item in page.items]


def _keys(page: Page) -> str:
    return "".join(sorted(_names(page)))
