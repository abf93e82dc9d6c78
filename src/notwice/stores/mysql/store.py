"""The blocking store, on PyMySQL."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Page, Query, RecordView, Reply
from notwice.stores.findings import Finding, heed
from notwice.stores.mysql.dialect import EXPIRED, PURGE, literal
from notwice.stores.mysql.opening import opened
from notwice.stores.mysql.place import Busy, Place, Undone, is_harmless, locked
from notwice.stores.mysql.rows import (
    Asked,
    asked_of,
    load_of,
    loading_of,
    packets_of,
    refuse_too_large,
    replies_to,
    scan_of,
    text_of,
)
from notwice.stores.mysql.session import Session
from notwice.stores.pool import Pool
from notwice.stores.port import Joined
from notwice.stores.shared import KeyLocked, name_of, refuse_repeated_names, replies_or_raise
from notwice.stores.sweeping import SWEPT_MAX, Sweeping
from notwice.stores.tables import HeldKeys, answer_while_locked, page_of

_T = TypeVar("_T")

TRIES_MAX: Final = 8
"""How often a batch is sent again while rivals commit in between or undo it: the second time nearly always tells."""

LOCK_S: Final = 0.05
"""How long a call waits for rows and keys that others hold: a commit takes less, an open transaction any time.

MariaDB is asked again and again without waiting. MySQL can't wait for less than a second.
"""

PAUSE_MAX_S: Final = 0.002

LOADED_MAX: Final = 64


class MysqlStore:
    """A `Store` in tables of a MariaDB or MySQL database, for threads.

    Each call is one trip that commits by itself. A connection on which anything went wrong is closed. The server's
    clock judges everything.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._table = place.names.records
        self._opened = False
        self._sweeping = Sweeping()
        self._held = HeldKeys()
        self._pool = Pool(
            self._connected, is_harmless=is_harmless, size=place.pool, timeout=place.timeout, shown=place.shown
        )

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        """Carry out a batch that names no id twice, in one trip and one commit; in more if it fits into no packet."""
        if len(ops) != 1:
            refuse_repeated_names(ops)
            if not ops:
                return []
        replies = self._applied(ops)
        if self._sweeping.is_due(ops, replies):
            with suppress(StoreUnavailable):  # what was asked for is done
                self.purge(SWEPT_MAX)
        return replies

    def scan(self, query: Query) -> Page:
        """Give one page of the records that `query` describes, oldest first, with those it can't decode."""
        with self._pool.turn() as session:
            return page_of(session.ask(scan_of(query, self._table)), query)

    def purge(self, limit: int) -> int:
        """Drop up to `limit` expired records. Goes round those that it can't decode, or that are busy."""
        with self._pool.turn() as session:
            found = session.ask(EXPIRED.format(table=self._table, limit=max(limit, 0)))
            names = [literal(name) for (name,) in found]
            if not names:
                return 0
            try:
                return self._dropped(session, names)
            except KeyLocked:
                return sum(self._dropped_if_free(session, name) for name in names)

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        """Take in records of another store with their times, some in each commit."""
        stored: set[int] = set()
        with self._pool.turn() as session:
            asked = loading_of(views)
            refuse_too_large(asked, session.packet_max)
            for start in range(0, len(asked), LOADED_MAX):
                for part in packets_of(asked[start : start + LOADED_MAX], session.packet_max):
                    stored |= self._loaded(session, part)
        return [place in stored for place in range(len(views))]

    def join(self, transaction: object) -> Joined:
        """The same records on a transaction that is open on a connection of PyMySQL's to this database."""
        from notwice.stores.mysql.joined import join  # noqa: PLC0415 - it uses this module

        return join(self, transaction)

    def findings(self) -> list[Finding]:
        """The server's settings that break promises."""
        with self._pool.turn() as session:
            return session.findings()

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        self._pool.close()

    # --- one call -----------------------------------------------------------------------------------------------------

    def _connected(self, deadline: float) -> Session:
        session = Session(self._place, deadline)
        try:
            first = not self._opened
            opened(session, self._place.names, first=first, makes=self._place.tables == "make")
            if first:
                heed(session.findings(), safe=self._place.safe, shown=self._place.shown)
        except BaseException:
            session.close()
            raise
        self._opened = True
        return session

    def _applied(self, ops: Sequence[Op]) -> Sequence[Reply]:
        outcomes: dict[int, Reply | KeyLocked] = {}
        waiting = asked_of(ops)
        with self._pool.turn() as session:
            refuse_too_large(waiting, session.packet_max)
            for _ in range(TRIES_MAX):
                apart = [each for each in waiting if self._held.has(each.op)]
                together = [each for each in waiting if each not in apart] if apart else waiting
                packets = packets_of(together, session.packet_max) if together else ()
                for asked in (*packets, *([each] for each in apart)):
                    outcomes |= self._carried_out(session, asked, alone=not outcomes)
                waiting = [each for each in waiting if each.place not in outcomes]
                if not waiting:
                    return replies_or_raise([outcomes[place] for place in range(len(ops))])
        raise StoreUnavailable(f"others changed a record {TRIES_MAX} times while it was asked for; try again")

    def _carried_out(self, session: Session, asked: Sequence[Asked], *, alone: bool) -> Mapping[int, Reply | KeyLocked]:
        """Send one packet and give its replies. Not `alone`: another packet of the batch has been committed."""
        if len(asked) > 1:
            try:
                return self._sent(session, asked)
            except KeyLocked:
                self._held.note(each.op for each in asked)
                if alone:
                    raise
        outcomes: dict[int, Reply | KeyLocked] = {}
        for each in asked:
            try:
                outcomes |= self._sent_by_itself(session, each)
            except KeyLocked as error:
                outcomes[each.place] = error
        return outcomes

    def _sent(self, session: Session, asked: Sequence[Asked], *, lock_s: float = LOCK_S) -> dict[int, Reply]:
        text = text_of(asked, self._table, compound=session.compound)
        return replies_to(asked, self._patiently(session, lambda: session.ask(text), lock_s=lock_s))

    def _sent_by_itself(self, session: Session, asked: Asked) -> dict[int, Reply]:
        """Send one operation. If somebody holds its row or its key, it is answered by what can be read."""
        with suppress(KeyLocked):
            return self._sent(session, [asked], lock_s=0 if self._held.has(asked.op) else LOCK_S)
        self._held.note([asked.op])
        look = self._sent(session, asked_of([Get(*name_of(asked.op))]))
        return {asked.place: answer_while_locked(asked.op, look[0])}

    def _patiently(self, session: Session, attempt: Callable[[], _T], *, lock_s: float = LOCK_S) -> _T:
        """Do `attempt` again while the server undoes it because of others, within bounds."""
        until = time.monotonic() + min(lock_s, session.remaining())
        undone = 0
        while True:
            try:
                return attempt()
            except Busy as error:
                if time.monotonic() >= until:
                    raise locked(self._place) from error
            except Undone as error:
                undone += 1
                if undone >= TRIES_MAX:
                    raise locked(self._place) from error
            time.sleep(random.uniform(0, PAUSE_MAX_S))  # noqa: S311 - rivals must not come back all at once; no secret

    def _dropped(self, session: Session, names: Sequence[str]) -> int:
        text = PURGE.format(table=self._table, names=", ".join(names))
        return self._patiently(session, lambda: session.change(text))

    def _dropped_if_free(self, session: Session, name: str) -> int:
        with suppress(KeyLocked):
            return self._dropped(session, [name])
        return 0

    def _loaded(self, session: Session, asked: Sequence[Asked]) -> set[int]:
        """Load one packet, and give the places of what was stored."""
        text = load_of(asked, self._table, compound=session.compound)
        rows = self._patiently(session, lambda: session.ask_all(text))
        before, after = (dict[bytes, bytes](found) for found in rows)  # type: ignore[arg-type]  # rows of two columns
        return {
            each.place
            for each in asked
            if isinstance(each.op, Insert) and each.digest not in before and after[each.digest] == each.op.record.etag
        }
