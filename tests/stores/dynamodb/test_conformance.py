"""The suite on DynamoDB, both faces. All histories of three steps are 31,000 requests, a minute for each face."""

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from notwice.model import Query, RecordView
from notwice.stores.dynamodb.async_store import AsyncDynamoStore
from notwice.stores.dynamodb.items import KEY, key_of
from notwice.stores.dynamodb.sightings import SKEW_MS, Sightings
from notwice.stores.dynamodb.store import DynamoStore
from notwice.stores.port import Store
from notwice.testing import VirtualClock
from notwice.testing.conformance import AsyncEngine, AsyncGuardCases, AsyncStoreCases, Engine, GuardCases, StoreCases
from notwice.testing.conformance.records import followed, get, insert, new_record, swap
from tests.engines.dynamodb import Table

LIMITS: dict[str, Any] = {"alone_length": 1, "body_bytes_max": 180 * 1024}  # the suite keeps a body twice in a record
TIMEOUT_S = 60  # for batches of hundreds, and for purges of a table with thousands, on a busy machine


def opened(table: Table, clock: VirtualClock) -> DynamoStore:
    return DynamoStore(table.place._replace(timeout=TIMEOUT_S), clock=clock)


def damage(_: Store, namespace: str, operation: str, *, table: Table) -> None:
    """Cut off the end of a record, as nothing of ours would."""
    client, place, key = table.client(), table.place, key_of((namespace, operation))
    record = client.get_item(TableName=place.table, Key=key)["Item"]["record"]["B"]
    client.update_item(
        TableName=place.table,
        Key=key,
        ConditionExpression=f"attribute_exists({KEY})",
        UpdateExpression="SET #record = :cut",
        ExpressionAttributeNames={"#record": "record"},
        ExpressionAttributeValues={":cut": {"B": record[:-8]}},
    )


class ObservedClockCases(StoreCases):
    """What differs where the server has no clock."""

    @pytest.mark.usefixtures("engine")
    def test_age_after_a_boot(self, table: Table) -> None:  # type: ignore[override]  # it needs the table itself
        """P5: a process that sees a record for the first time claims by its own watch; who looks is given a guess."""
        clock = VirtualClock()
        record = new_record()
        with closing(DynamoStore(table.place, clock=clock)) as store:
            insert(store, record)
        clock.advance(7_200)
        clock.reboot()
        clock.advance(7_300)
        with closing(DynamoStore(table.place, clock=clock, sightings=Sightings())) as store:
            assert swap(store, followed(record), b"another etag").age_ms == 0
            clock.advance(1)
            assert swap(store, followed(record), b"another etag").age_ms == 1_000
            assert get(store, record).age_ms == 14_501_000 - SKEW_MS
            (view,) = store.scan(Query(unresolved=True)).items
            assert isinstance(view, RecordView)
            assert view.age_ms == 14_501_000 - SKEW_MS
            later = swap(store, followed(record), record.etag)
            clock.advance(1)
            assert (later.age_ms, get(store, record).age_ms) == (0, 1_000)


class SideBySideCases(StoreCases):
    """All histories of three steps."""

    @pytest.mark.timeout(1_200)  # a minute of an idle machine; others may work on it, too
    def test_all_short_histories_at_once(self, store: Store, engine: Engine) -> None:
        """P16: every sequence of up to three operations, side by side, is answered as the reference answers it."""
        super().test_all_short_histories_at_once(store, engine)


class TestDynamo(ObservedClockCases, SideBySideCases, GuardCases):
    """P16: a table, for threads."""

    @pytest.fixture
    def engine(self, table: Table) -> Engine:
        clock = VirtualClock()
        return Engine(open=lambda: opened(table, clock), clock=clock, damage=partial(damage, table=table), **LIMITS)


class TestAsyncDynamo(ObservedClockCases, SideBySideCases, AsyncStoreCases, AsyncGuardCases):
    """P16: a table, for event loops."""

    @pytest.fixture
    def async_engine(self, table: Table) -> AsyncEngine:
        clock = VirtualClock()
        return AsyncEngine(
            open=lambda: AsyncDynamoStore(opened(table, clock)),
            clock=clock,
            damage=partial(damage, table=table),
            **LIMITS,
        )
