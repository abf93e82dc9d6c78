"""What `notwice.stores.port.Loads` promises: records move between stores with their times."""

from __future__ import annotations

from notwice.model import Query, Record, RecordView, State
from notwice.stores.port import Store
from notwice.testing.conformance.engine import Engine
from notwice.testing.conformance.records import (
    TERMS,
    finished,
    followed,
    full_record,
    get,
    insert,
    new_record,
    stored,
    swap,
)

MINUTE_MS = 60_000


class LoadCases:
    """Records of another store are taken in."""

    def test_load_keeps_times(self, store: Store, engine: Engine) -> None:
        """What is loaded is stored whole and counts as written when it was; owners go on by its etag."""
        now_ms = get(store, new_record()).now_ms
        running, full = new_record(created_ms=now_ms - 9 * MINUTE_MS), full_record()
        done = finished("done", created_ms=now_ms - 3 * MINUTE_MS)
        written = {running: now_ms - 2 * MINUTE_MS, full: now_ms - 60 * MINUTE_MS, done: now_ms - MINUTE_MS}
        assert list(engine.load_views(store, [_kept(record, at_ms) for record, at_ms in written.items()])) == [True] * 3
        for record, at_ms in written.items():
            found = get(store, record)
            assert (found.record, found.written_ms) == (record, at_ms)
            assert found.now_ms - at_ms <= found.age_ms + 1 <= found.now_ms - at_ms + 2
        with engine.handles(2) as (_, other):
            assert "reopen" in engine.cannot or stored(other, done) == done
        views = [item for item in store.scan(Query()).items if isinstance(item, RecordView)]
        assert {view.record: view.written_ms for view in views} == written
        assert swap(store, followed(running, state=State.COMPLETED), running.etag).won

    def test_load_keeps_what_is_there(self, store: Store, engine: Engine) -> None:
        """What is stored already stays as it is, readable or not, and loading twice changes nothing."""
        mine = new_record()
        insert(store, mine)
        theirs = new_record(state=State.COMPLETED, created_ms=1)
        fresh = new_record("b", created_ms=1)
        views = [_kept(record, mine.created_ms + 2) for record in (theirs, fresh)]
        assert list(engine.load_views(store, views)) == [False, True]
        assert list(engine.load_views(store, views)) == [False, False]
        assert stored(store, mine).etag == mine.etag
        assert stored(store, fresh) == fresh
        assert list(engine.load_views(store, [])) == []
        if "damage" not in engine.cannot:
            engine.damage_record(store, mine.namespace, mine.id)
            assert list(engine.load_views(store, views[:1])) == [False]
            assert not isinstance(get(store, mine).record, Record)

    def test_load_expires(self, store: Store, engine: Engine) -> None:
        """What is loaded expires when it would have where it came from; what is open never does."""
        now_ms = get(store, new_record()).now_ms
        terms = TERMS._replace(retention_ms=MINUTE_MS)
        late, fresh = (
            finished(name, retention_ms=MINUTE_MS, created_ms=now_ms - 2 * MINUTE_MS) for name in ("late", "fresh")
        )
        running = new_record("running", terms=terms, created_ms=1)
        soon_ms = now_ms - MINUTE_MS + 500
        engine.load_views(store, [_kept(late, soon_ms), _kept(fresh, now_ms), _kept(running, 2)])
        engine.advance(0.6)
        store.purge(100)
        assert get(store, late).record is None
        assert get(store, fresh).record == fresh
        assert get(store, running).record == running


def _kept(record: Record, written_ms: int) -> RecordView:
    """The record as another store kept it, whose clock says nothing here."""
    return RecordView(record, written_ms, written_ms + 7, 7)
