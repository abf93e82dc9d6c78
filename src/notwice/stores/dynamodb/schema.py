"""The table: what it is made of, and the steps that make it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from notwice.errors import StoreUnavailable
from notwice.stores.dynamodb.items import KEY, OPEN, OPEN_INDEX, PLACE, TTL
from notwice.stores.dynamodb.link import Link
from notwice.stores.dynamodb.place import Place
from notwice.stores.migrations import Migration

TABLE: Final[Mapping[str, Any]] = {
    "AttributeDefinitions": [
        {"AttributeName": KEY, "AttributeType": "S"},
        {"AttributeName": OPEN, "AttributeType": "S"},
        {"AttributeName": PLACE, "AttributeType": "B"},
    ],
    "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": OPEN_INDEX,
            "KeySchema": [
                {"AttributeName": OPEN, "KeyType": "HASH"},
                {"AttributeName": PLACE, "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
    ],
    "BillingMode": "PAY_PER_REQUEST",
    "DeletionProtectionEnabled": True,
}
"""What ``CreateTable`` is asked for. The key is a digest, so records spread evenly, whoever's they are."""

EXPIRY: Final[Mapping[str, Any]] = {"TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL}}
BACKUPS: Final[Mapping[str, Any]] = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}


class _Step(NamedTuple):
    title: str
    method: str
    request: Mapping[str, Any]


STEPS: Final = (
    _Step("the table and its index of what is open", "create_table", TABLE),
    _Step(f"expiry by the attribute {TTL}", "update_time_to_live", EXPIRY),
    _Step("backups to any point in time", "update_continuous_backups", BACKUPS),
)


def steps_of(place: Place) -> Sequence[Migration]:
    """The steps as commands of the service's own command line."""
    return [
        Migration(number, step.title, 1, (_command(place, step),), language="shell")
        for number, step in enumerate(STEPS, 1)
    ]


def missing(place: Place) -> Sequence[Migration]:
    """The steps that a table lacks."""
    link = Link(place)
    try:
        return [step for step, there in zip(steps_of(place), _there(link), strict=True) if not there]
    finally:
        link.close()


def migrate(place: Place) -> Sequence[Migration]:
    """Carry out the steps that a table lacks, and give them. Raises `StoreUnavailable`."""
    link = Link(place)
    try:
        steps = [step for step, there in zip(steps_of(place), _there(link), strict=True) if not there]
        for step in steps:
            made = STEPS[step.number - 1]
            link.call(made.method, **made.request)
            if made.request is TABLE:
                link.wait_for("table_exists")
        return steps
    finally:
        link.close()


def _there(link: Link) -> Sequence[bool]:
    """Which of the steps are done."""
    try:
        link.call("describe_table")
    except StoreUnavailable as error:
        if "ResourceNotFoundException" not in str(error):
            raise
        return [False] * len(STEPS)
    expiry = link.call("describe_time_to_live")["TimeToLiveDescription"]
    backups = link.call("describe_continuous_backups")["ContinuousBackupsDescription"]
    recovery = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus")
    return [True, expiry.get("TimeToLiveStatus") in {"ENABLED", "ENABLING"}, recovery == "ENABLED"]


def _command(place: Place, step: _Step) -> str:
    request = json.dumps({"TableName": place.table, **step.request}, indent=1)
    words = ["aws", "dynamodb", step.method.replace("_", "-")]
    words += ["--region", place.region] if place.region else []
    words += ["--endpoint-url", place.endpoint] if place.endpoint else []
    return shlex.join([*words, "--cli-input-json", request])
