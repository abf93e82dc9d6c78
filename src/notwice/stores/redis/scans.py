"""Look-ups and purges.

What is open stands in a sorted set of its shard, in the order of a scan, so a page of unresolved operations costs a
read of each set and of the records on the page. Any other look-up reads the beginning of every record, once a page:
there is no index of finished records, for it would have to be kept up when they expire, and it would cost each write.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import Any, Final

from notwice.errors import StoreUnavailable
from notwice.model import Get, Page, Query, RecordView, Unreadable
from notwice.stores.redis.flows import Doubts, Exchange, Flow, Lost, Terms, moves, refused, routes_known, unanswered
from notwice.stores.redis.routes import Address, Routes
from notwice.stores.redis.rows import Command, Keys, index_member, kept, peek_of, place_in, unreadable
from notwice.stores.redis.script import DROP, EXPIRY_SLACK_MS
from notwice.stores.shared import Place, cursor_after, matches, place_after

KEYS_AT_ONCE: Final = 1_000
BODIES_AT_ONCE: Final = 50
"""A body may have a megabyte or more."""

MEMBERS_AT_ONCE: Final = 16
"""So many are read of each shard's set at once; a page of a hundred comes from one or two such rounds."""

ROUNDS_MAX: Final = 100
"""A page that is not full after so many rounds is given as it is, with a cursor."""

_READS: Final = Terms(replicas=0, wait_ms=0, doubts=Doubts())

Found = tuple[Place, RecordView | Unreadable]
"""A record that a query describes, with its place."""


def page(query: Query, keys: Keys, routes: Routes) -> Flow[Page]:
    """Give one page of the records that `query` describes."""
    after = None if query.cursor is None else place_after(query.cursor)
    limit = max(query.limit, 0)
    if query.unresolved:
        return (yield from _open_page(query, keys, routes, after=after))
    if query.namespace is not None and query.operation is not None:
        place = (0, query.namespace, query.operation)
        found = yield from _looked_up([place], query, keys, routes=routes)
        found = [each for each in found if after is None or each[0] > after]
    else:
        found = yield from _all(query, keys, routes, after=after)
    items = tuple(item for _, item in found[:limit])
    return Page(items, cursor_after(found[limit - 1][0]) if items and len(found) > limit else None)


def purged(limit: int, keys: Keys, routes: Routes) -> Flow[int]:
    """Drop up to `limit` expired records, each by a script that looks once more, and say how many went."""
    yield from routes_known(routes)
    gone = 0
    for address in routes.owners():
        cursor: int | None = 0
        while cursor is not None and gone < limit:
            cursor, some = yield from _some_keys(address, cursor, keys)
            left_ms = yield from _asked(address, [("PTTL", key) for key in some])
            expired = [key for key, left in zip(some, left_ms, strict=True) if 0 <= left < EXPIRY_SLACK_MS]
            gone += sum((yield from _asked(address, [("EVAL", DROP, 1, key) for key in expired[: limit - gone]])))
    return gone


# --- what is open -----------------------------------------------------------------------------------------------------


def _open_page(query: Query, keys: Keys, routes: Routes, *, after: Place | None) -> Flow[Page]:
    items: list[RecordView | Unreadable] = []
    last = after
    for _ in range(ROUNDS_MAX):
        places, ended = yield from _places_after(last, keys, routes)
        for start in range(0, len(places), BODIES_AT_ONCE):
            for place, item in (
                yield from _looked_up(places[start : start + BODIES_AT_ONCE], query, keys, routes=routes)
            ):
                if len(items) >= query.limit:
                    return Page(tuple(items), cursor_after(last) if items and last else None)
                items.append(item)
                last = place
        if ended:
            return Page(tuple(items), None)
        last = places[-1]
    return Page(tuple(items), cursor_after(last) if last else None)


def _places_after(after: Place | None, keys: Keys, routes: Routes) -> Flow[tuple[list[Place], bool]]:
    """The next open records of all shards, in order, and whether there are no more."""
    yield from routes_known(routes)
    shards: dict[Address, list[str]] = {}
    for shard in keys.shards:
        shards.setdefault(routes.owner(shard), []).append(shard)
    first = b"-" if after is None else b"(" + index_member(after)
    answers = yield Exchange(
        {
            address: [("ZRANGEBYLEX", keys.open_of(shard), first, "+", "LIMIT", 0, MEMBERS_AT_ONCE) for shard in some]
            for address, some in shards.items()
        }
    )
    lists: list[list[bytes]] = [members for address in shards for members in _understood(answers[address], address)]
    horizon = min((members[-1] for members in lists if len(members) == MEMBERS_AT_ONCE), default=None)
    members = sorted(each for members in lists for each in members if horizon is None or each <= horizon)
    return [place for member in members if (place := place_in(member)) is not None], horizon is None


def _looked_up(places: Sequence[Place], query: Query, keys: Keys, *, routes: Routes) -> Flow[list[Found]]:
    """Those of the records at `places` that the query describes, in the same order."""
    replies = yield from moves([Get(*name) for _, *name in places], keys, routes, terms=_READS)
    found: list[Found] = []
    for place, (_, record, *times) in zip(places, replies, strict=True):
        if isinstance(record, Unreadable):
            found.append((place, record))
        elif record is not None and matches(view := RecordView(record, *times), query):
            found.append(((record.created_ms, *place[1:]), view))
    return found


# --- everything -------------------------------------------------------------------------------------------------------


def _all(query: Query, keys: Keys, routes: Routes, *, after: Place | None) -> Flow[list[Found]]:
    """The first records after a place that the query describes, one more than its limit. Looks at every record."""
    best: list[Found] = []
    routes.doubt()
    yield from routes_known(routes)
    before = routes.assignment
    for address in routes.owners():
        cursor: int | None = 0
        while cursor is not None:
            cursor, some = yield from _some_keys(address, cursor, keys)
            yield from _choose(some, best, query, address=address, after=after)
    routes.doubt()
    yield from routes_known(routes)
    if routes.assignment != before:
        raise StoreUnavailable("slots moved between nodes during the look-up; repeat it when the cluster is at rest")
    return best


def _some_keys(address: Address, cursor: int, keys: Keys) -> Flow[tuple[int | None, list[bytes]]]:
    """Some keys of records, and the cursor of the next ones. A key may come twice."""
    scan: Command = ("SCAN", cursor, "MATCH", keys.pattern, "COUNT", KEYS_AT_ONCE)
    ((following, some),) = yield from _asked(address, [scan])
    return int(following) or None, some


def _choose(
    some: Sequence[bytes], best: list[Found], query: Query, *, address: Address, after: Place | None
) -> Flow[None]:
    """Put those of the records that the query describes where they belong among the best."""
    beginnings = yield from _asked(address, [peek_of(key) for key in some])
    wanted: list[bytes] = []
    for key, beginning in zip(some, beginnings, strict=True):
        head = kept(beginning)
        if not beginning or (head and not _may_be(head.place, best, query, after=after)):
            continue
        wanted.append(key)
    for start in range(0, len(wanted), BODIES_AT_ONCE):
        part = wanted[start : start + BODIES_AT_ONCE]
        *values, clock = yield from _asked(address, [*(("GET", key) for key in part), ("TIME",)])
        now_ms = int(clock[0]) * 1_000 + int(clock[1]) // 1_000
        for key, value in zip(part, values, strict=True):
            place, item = _item(key, value, now_ms)
            described = isinstance(item, Unreadable) or (item is not None and matches(item, query))
            if item is not None and described and _may_be(place, best, query, after=after):
                insort(best, (place, item), key=lambda each: each[0])
                del best[max(query.limit, 0) + 1 :]


def _may_be(place: Place, best: Sequence[Found], query: Query, *, after: Place | None) -> bool:
    """Whether a record at a place may be among those that are looked for, by its place and names."""
    _, namespace, identifier = place
    return (
        (query.namespace is None or namespace == query.namespace)
        and (query.operation is None or identifier == query.operation)
        and (after is None or place > after)
        and (len(best) <= max(query.limit, 0) or place < best[-1][0])
        and all(place != each for each, _ in best)
    )


def _item(key: bytes, value: bytes | None, now_ms: int) -> tuple[Place, RecordView | Unreadable | None]:
    """What a scan gives for a string; ``None`` for one that is gone."""
    found = None if value is None else kept(value)
    if value is None or found is not None:
        return (found.place, found.item(now_ms)) if found else ((0, "", ""), None)
    name = ("", key.decode())  # nobody knows any more whose it is
    return (0, *name), unreadable(value, name)


def _asked(address: Address, commands: Sequence[Command]) -> Flow[list[Any]]:
    """The answers of one node, none of which is an error."""
    if not commands:
        return []
    answers = yield Exchange({address: commands})
    return _understood(answers[address], address)


def _understood(answers: Sequence[Any] | Lost, address: Address) -> list[Any]:
    if isinstance(answers, Lost):
        raise unanswered(answers, address)
    for answer in answers:
        if isinstance(answer, Exception):
            raise refused(answer)
    return list(answers)
