"""URLs, tables and their settings, and what errors say."""

import json
import re
import shlex
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from notwice import StoreUnavailable
from notwice.cli import main
from notwice.errors import RecordTooLarge
from notwice.stores import migrate, open_async_store, open_store
from notwice.stores.dynamodb.checks import findings, judged
from notwice.stores.dynamodb.place import ConditionFailed, NotAllowed, Place, translated
from notwice.stores.findings import UnsafeSettingsWarning
from notwice.testing.conformance.records import insert, new_record
from tests.engines.dynamodb import new_table
from tests.engines.private import Server
from tests.engines.settings import assert_found

SOUND: dict[str, Any] = {
    "describe_table": {
        "Table": {
            "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
            "GlobalSecondaryIndexes": [{"IndexName": "open"}],
        }
    },
    "describe_time_to_live": {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": "expires_at"}},
    "describe_continuous_backups": {
        "ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
    },
}
REPLICAS = [{"RegionName": "eu-west-1"}]


def table_with(**changes: object) -> dict[str, Any]:
    return SOUND | {"describe_table": {"Table": SOUND["describe_table"]["Table"] | changes}}


def expiry_with(**description: object) -> dict[str, Any]:
    return SOUND | {"describe_time_to_live": {"TimeToLiveDescription": description}}


@pytest.mark.parametrize(
    ("facts", "name", "severity"),
    [
        (table_with(Replicas=REPLICAS), "Replicas", "unsafe"),
        (table_with(BillingModeSummary={"BillingMode": "PROVISIONED"}), "BillingMode", "warning"),
        (table_with(BillingModeSummary={}), "BillingMode", "warning"),
        (table_with(GlobalSecondaryIndexes=[]), "GlobalSecondaryIndexes", "warning"),
        (expiry_with(TimeToLiveStatus="DISABLED"), "TimeToLive", "warning"),
        (expiry_with(TimeToLiveStatus="ENABLED", AttributeName="created_ms"), "TimeToLive", "warning"),
        (SOUND | {"describe_continuous_backups": {}}, "PointInTimeRecovery", "warning"),
    ],
)
def test_each_setting_is_found(facts: Mapping[str, Any], name: str, severity: str) -> None:
    """Each setting that breaks a promise is found, alone, and said with what it means and what to do."""
    assert judged(SOUND) == []
    assert_found(judged, facts, (name, severity))


def test_strong_replicas_are_safe() -> None:
    """A global table whose regions agree before a write is acknowledged grants a key once."""
    assert judged(table_with(Replicas=REPLICAS, MultiRegionConsistency="STRONG")) == []


def test_settings_that_may_not_be_asked_for() -> None:
    """Credentials that may only read and write records get a warning for each question that is refused."""

    def ask(method: str) -> dict[str, Any]:
        raise NotAllowed(method)

    found = findings(ask)
    assert [(each.name, each.severity) for each in found] == [
        ("dynamodb:DescribeTable", "warning"),
        ("dynamodb:DescribeTimeToLive", "warning"),
        ("dynamodb:DescribeContinuousBackups", "warning"),
    ]


def test_a_table_that_migrate_made_is_sound(emulator: Server) -> None:
    """What `notwice migrate` makes has nothing to be warned of, and is made once."""
    table = new_table(emulator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = open_store(table.url)
        insert(store, new_record())
    assert store.findings() == []  # type: ignore[attr-defined]  # it is a DynamoStore
    assert migrate(table.url, dry_run=False) == []
    assert migrate(table.url, dry_run=True) == []
    store.close()


def test_unsafe_settings_at_open(emulator: Server) -> None:
    """A setting that breaks a promise is warned of at the first call, once; unsafe ones are refused on demand."""
    table = new_table(emulator, safe="warn")
    client = table.client()
    name = table.place.table
    client.update_time_to_live(
        TableName=name, TimeToLiveSpecification={"Enabled": False, "AttributeName": "expires_at"}
    )
    store = open_store(table.url)
    with pytest.warns(UnsafeSettingsWarning, match="TimeToLive = DISABLED"):
        insert(store, new_record())
    insert(store, new_record("b"))
    store.close()
    client.update_table(TableName=name, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
    client.update_table(TableName=name, ReplicaUpdates=[{"Create": {"RegionName": "eu-west-1"}}])
    strict = open_store(table.url.replace("safe=warn", "safe=require"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="eu-west-1"):
            insert(strict, new_record("c"))
    strict.close()


def test_migrate_prints_commands(emulator: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """``notwice migrate --dry-run`` prints commands that a person can run, and makes nothing."""
    url = f"dynamodb://not-made?region=eu-central-1&endpoint=http://127.0.0.1:{emulator.port}"
    assert main(["migrate", "--store", url, "--dry-run"]) == 0
    words = shlex.split(capsys.readouterr().out, comments=True)
    assert words[:3] == ["aws", "dynamodb", "create-table"]
    made = json.loads(words[words.index("--cli-input-json") + 1])
    assert made["TableName"] == "not-made"
    assert made["KeySchema"] == [{"AttributeName": "pk", "KeyType": "HASH"}]
    store = open_store(url)
    with pytest.raises(StoreUnavailable, match="notwice migrate"):
        insert(store, new_record())
    store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("dynamodb://", "names a table"),
        ("dynamodb://ab", "names a table"),
        ("dynamodb://table/more", "names a table"),
        ("dynamodb://user:password@table", "no credentials"),
        ("dynamodb://table?regoin=eu-central-1", "did you mean 'region'"),
        ("dynamodb://table?region=Frankfurt", "name of a region"),
        ("dynamodb://table?endpoint=localhost:4566", "http://"),
        ("dynamodb://table?timeout=0", "more than 0"),
        ("dynamodb://table?pool=0", "from 1 to"),
        ("dynamodb://table?safe=yes", "one of"),
    ],
)
def test_urls_that_can_not_be_used(url: str, said: str) -> None:
    """A URL that can't be used is refused before anything is done, with what is wrong, and never with a password."""
    for opener in (open_store, open_async_store):
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            opener(url)
        assert "password@" not in str(caught.value)


def test_the_driver_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is missing names the extra to install."""
    for name in ("store", "async_store", "link", "scans"):
        monkeypatch.delitem(sys.modules, f"notwice.stores.dynamodb.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    for opener in (open_store, open_async_store):
        with pytest.raises(ImportError, match=r"notwice\[dynamodb\]"):
            opener("dynamodb://table")


class Told(Exception):
    """An error as the driver raises it."""

    def __init__(self, code: str, message: str = "no", status: int = 400, **more: object) -> None:
        super().__init__(message)
        self.response = {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
            **more,
        }


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Told("ConditionalCheckFailedException", Item={}), ConditionFailed, None),
        (Told("ProvisionedThroughputExceededException"), StoreUnavailable, "throttled.*Nothing was done"),
        (Told("ThrottlingException"), StoreUnavailable, "throttled"),
        (Told("ValidationException", "Item size has exceeded the maximum"), RecordTooLarge, "Nothing was done"),
        (Told("ValidationException", "no such index"), StoreUnavailable, "no such index; nothing was done"),
        (Told("AccessDeniedException", "not authorized"), NotAllowed, "not authorized; nothing was done"),
        (Told("InternalServerError", status=500), StoreUnavailable, "not known"),
        (Told("ServiceUnavailable", status=503), StoreUnavailable, "not known"),
        (Told("TransactionConflictException"), StoreUnavailable, "nothing was done"),
        (OSError("broken"), StoreUnavailable, "not known"),
    ],
)
def test_what_errors_say(error: Exception, kind: type[Exception], said: str | None) -> None:
    """Each error says whether the write may have been carried out: nothing is promised that is not known."""
    told = translated(error, Place("payments"))
    assert type(told) is kind
    with pytest.raises(kind, match=said):
        raise told


def test_credentials_are_asked_for(emulator: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without credentials the store says so, and nothing is sent."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store(f"dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:{emulator.port}")
    with pytest.raises(StoreUnavailable, match="no credentials"):
        insert(store, new_record())
    store.close()
