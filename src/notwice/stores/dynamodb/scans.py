"""Look-ups and purges.

What is not finished stands in an index of its own, spread over sixteen partitions by the digest of its name and sorted
as a scan is: a page of it costs a query of each partition and a read of the records. Any other look-up that does not
name one operation reads the whole table, once a page. There is no index of finished records, for it would cost each of
them a write more when it is finished and when it goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from heapq import merge, nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple

from notwice.errors import StoreUnavailable
from notwice.model import Page, Query, RecordView, State, Unreadable
from notwice.stores.dynamodb.items import (
    KEY,
    OPEN,
    OPEN_INDEX,
    PLACE,
    SAME_AND_EXPIRED,
    Item,
    Kept,
    key_of,
    name_in,
    names,
    place_bytes,
    place_in,
)
from notwice.stores.dynamodb.link import Link
from notwice.stores.dynamodb.place import ConditionFailed
from notwice.stores.shared import Name, Place, cursor_after, matches, place_after

SHARDS: Final = "0123456789abcdef"
"""The first digit of a record's key is its partition of the index: each takes a thousand writes a second."""

LOOK_S: Final = 60
"""How long a look-up may take, whatever it has to read; each of its requests is bounded by the store's time-out."""

BODIES_AT_ONCE: Final = 50
HEADS_AT_ONCE: Final = 50

PURGE_READ: Final = 1_000
"""So many items are looked at in one request of a purge, at most."""

_OPEN_STATES: Final = frozenset({State.IN_PROGRESS, State.ACCEPTED})

Judge = Callable[[Kept], RecordView | Unreadable]
"""Makes of a stored record what a scan gives."""


class Look:
    """One look-up."""

    def __init__(self, link: Link, query: Query, judge: Judge) -> None:
        self._link = link
        self._query = query
        self._judge = judge
        self._limit = max(query.limit, 0)
        self._after = b"" if query.cursor is None else place_bytes(place_after(query.cursor))
        self._until = time.monotonic() + LOOK_S

    def page(self) -> Page:
        """The page that the query asks for."""
        if self._limit == 0 or self._query.states == frozenset():
            return Page((), None)
        found = list(islice(self._found(), self._limit + 1))
        items = tuple(item for _, item in found[: self._limit])
        more = len(found) > self._limit
        return Page(items, cursor_after(found[self._limit - 1][0]) if more else None)

    def _found(self) -> Iterator[tuple[Place, RecordView | Unreadable]]:
        """What the query describes, in order."""
        keys = self._keys()
        at_once = min(self._limit + 1, BODIES_AT_ONCE)
        while wanted := list(islice(keys, at_once)):
            yield from sorted(self._read(wanted), key=lambda found: place_bytes(found[0]))

    def _keys(self) -> Iterator[str]:
        """The keys of what may fit the query, in order."""
        query = self._query
        if query.namespace is not None and query.operation is not None:
            return iter((key_of((query.namespace, query.operation))[KEY]["S"],))
        if query.unresolved or (query.states is not None and query.states <= _OPEN_STATES):
            return (key for _, key in merge(*map(self._in_index, SHARDS)))
        return self._in_table()

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[Place, RecordView | Unreadable]]:
        left = set(keys)
        while left:
            before = len(left)
            for item in self._link.get_all([{KEY: {"S": key}} for key in left]):
                left.discard(item[KEY]["S"])
                name = name_in(item)
                if name is not None and self._fits(name, item):
                    yield place_in(item, name), self._item(item, name)
            self._check_time()
            if len(left) == before:
                return  # they have gone meanwhile

    def _fits(self, name: Name, item: Item) -> bool:
        query = self._query
        if place_bytes(place_in(item, name)) <= self._after:
            return False
        if isinstance(record := self._item(item, name), RecordView):
            return matches(record, query)
        of_namespace = query.namespace is None or query.namespace == name[0]
        return of_namespace and (query.operation is None or query.operation == name[1])

    def _item(self, item: Item, name: Name) -> RecordView | Unreadable:
        return self._judge(Kept.of(item, name))

    def _in_index(self, shard: str) -> Iterator[tuple[bytes, str]]:
        """Place and key of the open records of one partition of the index."""
        values: dict[str, Any] = {":open": {"S": shard}}
        condition = "#open = :open"
        if self._after:
            condition += " AND #place > :after"
            values[":after"] = {"B": self._after}
        request: dict[str, Any] = {
            "IndexName": OPEN_INDEX,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names(OPEN, *[PLACE] * bool(self._after)),
            "ExpressionAttributeValues": values,
            "Limit": min(self._limit + 1, HEADS_AT_ONCE),
        }
        for item in self._all("query", request):
            yield bytes(item[PLACE]["B"]), item[KEY]["S"]

    def _in_table(self) -> Iterator[str]:
        """The keys of the records that fit, by reading the whole table once for so many as make a page."""
        after = self._after
        while True:
            heads = nsmallest(self._limit + 1, self._heads(after))
            yield from (key for _, key in heads)
            if len(heads) <= self._limit:
                return
            after = heads[-1][0]

    def _heads(self, after: bytes) -> Iterator[tuple[bytes, str]]:
        request = _filter_of(self._query) | {"ConsistentRead": True}
        for item in self._all("scan", request):
            name = name_in(item)
            if name is None:
                continue
            place = place_bytes(place_in(item, name))
            if place > after:
                yield place, item[KEY]["S"]

    def _all(self, method: str, request: dict[str, Any]) -> Iterator[Item]:
        """All items of a query or a scan, request by request."""
        start: dict[str, Any] = {}
        while True:
            found = self._link.call(method, **request, **start)
            yield from found["Items"]
            if not found.get("LastEvaluatedKey"):
                return
            start = {"ExclusiveStartKey": found["LastEvaluatedKey"]}
            self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise StoreUnavailable(
                f"{self._link.place.shown}: to look through the table took longer than {LOOK_S} s. Ask for what is "
                "unresolved or in progress, for which there is an index, or for one operation of a namespace"
            )


def _filter_of(query: Query) -> dict[str, Any]:
    """The request that reads the heads of all records that fit a query as far as the service can judge that."""
    conditions = ["attribute_exists(#record)"]
    values: dict[str, Any] = {}
    if query.namespace is not None:
        conditions.append("#namespace = :namespace")
        values[":namespace"] = {"S": query.namespace}
    if query.operation is not None:
        conditions.append("#id = :id")
        values[":id"] = {"S": query.operation}
    if query.states is not None:
        states = {f":{state.value}": {"S": state.value} for state in query.states}
        conditions.append(f"#state IN ({', '.join(states)})")
        values |= states
    if query.scope_prefix:
        conditions.append("begins_with(#scope, :prefix)")
        values[":prefix"] = {"S": query.scope_prefix}
    used = names(KEY, "namespace", "id", "created_ms", "record", "state", "scope")
    text = " AND ".join(conditions)
    projection = "#pk, #namespace, #id, #created_ms"
    return {
        "FilterExpression": text,
        "ProjectionExpression": projection,
        "ExpressionAttributeNames": {name: used[name] for name in used if name in f"{text} {projection}"},
        **({"ExpressionAttributeValues": values} if values else {}),
    }


# --- purge ------------------------------------------------------------------------------------------------------------


class _Stop(NamedTuple):
    """Where a purge stopped: the key after which the next one goes on, ``None``: it came to the end."""

    after: dict[str, Any] | None


class Purge:
    """Goes round the table, from one call to the next, and drops what is expired."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._stop = _Stop(None)

    def run(self, limit: int, now_ms: int) -> int:
        """Drop up to `limit` records that are expired at `now_ms`, within the store's time-out or a little more."""
        until = time.monotonic() + self._link.place.timeout
        gone = 0
        began_anew = self._stop.after is None
        while gone < limit and time.monotonic() < until:
            gone += self._step(limit - gone, now_ms)
            if self._stop.after is None:
                if began_anew or gone:
                    break
                began_anew = True
        return gone

    def _step(self, limit: int, now_ms: int) -> int:
        """Drop what is expired among the next items."""
        start = {} if self._stop.after is None else {"ExclusiveStartKey": self._stop.after}
        now = {":now": {"N": str(now_ms)}}
        found = self._link.call(
            "scan",
            FilterExpression="#expires_ms < :now",
            ExpressionAttributeNames=names("expires_ms"),
            ExpressionAttributeValues=now,
            ConsistentRead=True,
            Limit=PURGE_READ,
            **start,
        )
        gone = 0
        for item in found["Items"]:
            if gone == limit:
                return gone
            gone += self._drop(item, now)
            self._stop = _Stop({KEY: item[KEY]})
        self._stop = _Stop(found.get("LastEvaluatedKey"))
        return gone

    def _drop(self, item: Item, now: dict[str, Any]) -> bool:
        """Drop one item if it is still that one, still expired, and readable: an unreadable one is for a person."""
        name = name_in(item)
        if name is None or isinstance(Kept.of(item, name).record, Unreadable):
            return False
        try:
            self._link.call(
                "delete_item",
                Key={KEY: item[KEY]},
                ConditionExpression=SAME_AND_EXPIRED,
                ExpressionAttributeNames=names("etag", "record", "record_bytes", "expires_ms"),
                ExpressionAttributeValues={":expected": item["etag"], **now},
            )
        except ConditionFailed:
            return False
        return True
