"""Settings of a table that break a promise, and what to set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from notwice.stores.dynamodb.items import OPEN_INDEX, TTL
from notwice.stores.dynamodb.place import Ask, NotAllowed
from notwice.stores.findings import Finding

Facts = Mapping[str, Any]
"""What the service says of a table, by the method that asked for it; a method that is not allowed is not there."""

ASKED: Final = ("describe_table", "describe_time_to_live", "describe_continuous_backups")


def findings(ask: Ask) -> list[Finding]:
    """Ask for a table's settings, and say what they mean. Raises `StoreUnavailable` if there is no such table."""
    facts: dict[str, Any] = {}
    refused: list[str] = []
    for method in ASKED:
        try:
            facts[method] = ask(method)
        except NotAllowed:
            refused.append(method)
    return [*map(_refused, refused), *judged(facts)]


def judged(facts: Facts) -> list[Finding]:
    """The findings for what the service says."""
    table: Facts = facts.get("describe_table", {}).get("Table", {})
    found = list(_of_table(table)) if table else []
    if "describe_time_to_live" in facts:
        found += _of_expiry(facts["describe_time_to_live"].get("TimeToLiveDescription", {}))
    if "describe_continuous_backups" in facts:
        found += _of_backups(facts["describe_continuous_backups"].get("ContinuousBackupsDescription", {}))
    return found


def _of_table(table: Facts) -> Iterator[Finding]:
    regions = ", ".join(sorted(str(each.get("RegionName")) for each in table.get("Replicas") or ()))
    if regions and table.get("MultiRegionConsistency") != "STRONG":
        yield Finding(
            "Replicas",
            regions,
            "a global table grants one key in each region at the same time, and the later write wins: effects happen "
            "twice; after a region fails, acknowledged claims are missing in the others",
            "Keep the records in a table of one region, or in a global table with multi-region strong consistency",
            "unsafe",
        )
    if table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED") == "PROVISIONED":
        yield Finding(
            "BillingMode",
            "PROVISIONED",
            "beyond the capacity that was bought, claims and completions are refused, and operations stay open",
            "Set it to PAY_PER_REQUEST, or buy for the peak, for the table and its index alike",
            "warning",
        )
    indexes = {str(index.get("IndexName")) for index in table.get("GlobalSecondaryIndexes") or ()}
    if OPEN_INDEX not in indexes:
        yield Finding(
            "GlobalSecondaryIndexes",
            ", ".join(sorted(indexes)),
            f"the index {OPEN_INDEX!r} is missing, so nobody can list what is unresolved",
            "Run `notwice migrate`",
            "warning",
        )


def _of_expiry(expiry: Facts) -> Iterator[Finding]:
    status = str(expiry.get("TimeToLiveStatus", "DISABLED"))
    enabled = status in {"ENABLED", "ENABLING"}
    attribute = str(expiry.get("AttributeName", ""))
    if not enabled:
        yield Finding(
            "TimeToLive",
            status,
            "what is expired stays in the table until a purge, which has to read all of it",
            f"Enable it on the attribute {TTL}: `notwice migrate`",
            "warning",
        )
    elif attribute != TTL:
        yield Finding(
            "TimeToLive",
            attribute,
            "it goes by an attribute that records don't have, or not as a time in seconds: expired ones stay",
            f"Disable it, then enable it on the attribute {TTL}",
            "warning",
        )


def _of_backups(backups: Facts) -> Iterator[Finding]:
    status = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus", "DISABLED")
    if status != "ENABLED":
        yield Finding(
            "PointInTimeRecovery",
            str(status),
            "a table that is deleted or overwritten by mistake can't be had back, and all its keys are granted again",
            "Enable it: `notwice migrate`",
            "warning",
        )


def _refused(method: str) -> Finding:
    action = "dynamodb:" + "".join(word.capitalize() for word in method.split("_"))
    return Finding(
        action,
        "refused",
        "these credentials may not ask for it, so the table's settings are not known",
        "Allow it, or see to it that the table expires by its attribute, is backed up and has no replicas",
        "warning",
    )
