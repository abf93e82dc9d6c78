"""Settings of a PostgreSQL server that break a promise, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from notwice.stores.findings import Finding, Severity

SETTINGS: Final = """
SELECT name, CASE WHEN name IN ('fsync', 'full_page_writes', 'synchronous_commit') THEN current_setting(name)
    ELSE setting END
FROM pg_settings WHERE name = ANY ($1::text[])
UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
"""
"""What `judged` goes by, as (name, value)."""


class _Rule(NamedTuple):
    name: str
    breaks: Callable[[Mapping[str, str]], bool]
    meaning: str
    remedy: str
    severity: Severity = "unsafe"


def _is(name: str, *values: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda settings: settings.get(name) in values


def _asynchronous(settings: Mapping[str, str]) -> bool:
    return settings.get("standbys", "0") != "0" and not settings.get("synchronous_standby_names")


def _local(settings: Mapping[str, str]) -> bool:
    return settings.get("synchronous_commit") == "local" and bool(settings.get("synchronous_standby_names"))


_RULES: Final = (
    _Rule(
        "in_recovery",
        _is("in_recovery", "true", "on"),
        "this server is a standby: what it shows may be old, and it takes no claims",
        "Name the primary in the URL",
    ),
    _Rule(
        "synchronous_commit",
        _is("synchronous_commit", "off"),
        "a commit is reported before it is on disk, so a crash of the server loses claims that were acknowledged",
        "Set it to on, for the server, the database or the role of this store",
    ),
    _Rule(
        "fsync",
        _is("fsync", "off"),
        "nothing is ever forced to disk, so a power cut can lose or damage anything",
        "Set it to on",
    ),
    _Rule(
        "full_page_writes",
        _is("full_page_writes", "off"),
        "a power cut in the middle of a page leaves it damaged, unless the file system can't tear pages",
        "Set it to on",
    ),
    _Rule(
        "zero_damaged_pages",
        _is("zero_damaged_pages", "on"),
        "a damaged page is read as empty, so its records count as absent and run again",
        "Set it to off",
    ),
    _Rule(
        "ignore_checksum_failure",
        _is("ignore_checksum_failure", "on"),
        "damaged pages are read as if they were whole",
        "Set it to off",
    ),
    _Rule(
        "synchronous_commit",
        _local,
        "a commit does not wait for the standby, so a fail-over loses claims that were acknowledged",
        "Set it to on",
        "warning",
    ),
    _Rule(
        "synchronous_standby_names",
        _asynchronous,
        "no commit waits for a standby; if one of them takes over, acknowledged claims are lost and run again",
        "Name those that may take over, or let none do so by itself",
        "warning",
    ),
)

NAMES: Final = sorted({rule.name for rule in _RULES} | {"synchronous_standby_names"})


def judged(settings: Mapping[str, str]) -> list[Finding]:
    """The findings for settings by name."""
    return [
        Finding(rule.name, settings.get(rule.name, ""), rule.meaning, rule.remedy, rule.severity)
        for rule in _RULES
        if rule.breaks(settings)
    ]


def findings(connection: Any) -> list[Finding]:  # noqa: ANN401 - a psycopg connection, which this module need not import
    """Ask a server, over a psycopg connection of whatever kind, and judge what it says."""
    text = SETTINGS.replace("$1", "%s")
    return judged(dict(connection.execute(text, (NAMES,)).fetchall()))
