"""Settings of a MariaDB or MySQL server that break a promise, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from notwice.stores.findings import Finding, Severity

Settings = Mapping[str, str]

_SEMI_SYNC: Final = ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")

PACKET_MIN: Final = 4 * 1024 * 1024


class _Rule(NamedTuple):
    name: str
    breaks: Callable[[Settings], bool]
    meaning: str
    remedy: str
    severity: Severity = "unsafe"


def _is(name: str, *values: str) -> Callable[[Settings], bool]:
    return lambda settings: settings.get(name, "").upper() in values


def _not(name: str, value: str) -> Callable[[Settings], bool]:
    return lambda settings: settings.get(name, value) != value


def _logs(settings: Settings) -> bool:
    return settings.get("log_bin", "").upper() in {"1", "ON"}


def _unsynced(settings: Settings) -> bool:
    return _logs(settings) and settings.get("sync_binlog", "1") != "1"


def _asynchronous(settings: Settings) -> bool:
    waits = any(_is(name, "1", "ON")(settings) for name in _SEMI_SYNC)
    return settings.get("replicas", "0") != "0" and not waits


def _is_replica(settings: Settings) -> bool:
    return bool(settings.get("replica_of"))


def _has_no_transactions(settings: Settings) -> bool:
    return settings.get("engine", "InnoDB").lower() != "innodb"


def _logs_statements(settings: Settings) -> bool:
    return _logs(settings) and settings.get("binlog_format", "").upper() == "STATEMENT"


def _small(settings: Settings) -> bool:
    return int(settings.get("max_allowed_packet", PACKET_MIN)) < PACKET_MIN


_RULES: Final = (
    _Rule(
        "innodb_flush_log_at_trx_commit",
        _not("innodb_flush_log_at_trx_commit", "1"),
        "a commit is reported before it is on disk, so a crash loses claims that were acknowledged",
        "Set it to 1",
    ),
    _Rule(
        "sync_binlog",
        _unsynced,
        "a power cut can leave the server and its replicas with different records",
        "Set it to 1",
        "warning",
    ),
    _Rule(
        "innodb_doublewrite",
        _is("innodb_doublewrite", "0", "OFF", "DETECT_ONLY"),
        "a power cut in the middle of a page leaves it damaged, unless the file system can't tear pages",
        "Set it to ON",
    ),
    _Rule(
        "innodb_flush_method",
        _is("innodb_flush_method", "NOSYNC", "O_DIRECT_NO_FSYNC", "LITTLESYNC"),
        "not everything is forced to disk, so a power cut can lose or damage claims that were acknowledged",
        "Set it to O_DIRECT or fsync",
    ),
    _Rule(
        "read_only",
        _is("read_only", "1", "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN"),
        "the server takes no claims, as replicas don't, and what a replica shows may be old",
        "Name the primary in the URL",
    ),
    _Rule(
        "replica_of",
        _is_replica,
        "this server is a replica: what it shows may be old, and what it takes the primary does not know",
        "Name the primary in the URL",
    ),
    _Rule(
        "wsrep_on",
        _is("wsrep_on", "1", "ON"),
        "a Galera cluster was reported to lose commits that it had acknowledged, when nodes fail",
        "Keep records of money on a single primary",
    ),
    _Rule(
        "engine",
        _has_no_transactions,
        "the table has no transactions, and is not safe after a crash",
        "ALTER TABLE … ENGINE = InnoDB",
    ),
    _Rule(
        "innodb_force_recovery",
        _not("innodb_force_recovery", "0"),
        "the server was started to save what is left of damaged data",
        "Restore it from a backup, and set it to 0",
    ),
    _Rule(
        "binlog_format",
        _logs_statements,
        "the server refuses these writes, for statements alone do not say what they did",
        "Set it to ROW",
    ),
    _Rule(
        "replicas",
        _asynchronous,
        "no commit waits for a replica; if one of them takes over, acknowledged claims are lost and run again",
        "Have the server wait for one (semi-synchronous replication), or let none take over by itself",
        "warning",
    ),
    _Rule(
        "max_allowed_packet",
        _small,
        "larger results can't be stored, and their operations stay open",
        "Set it to 16 MiB or more",
        "warning",
    ),
)

_ASKED: Final = (
    *("innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "innodb_doublewrite", "innodb_flush_method"),
    *("read_only", "wsrep_on", "innodb_force_recovery", "binlog_format", "max_allowed_packet"),
    *_SEMI_SYNC,
)

_VARIABLES: Final = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({', '.join(map(repr, _ASKED))})"

_FACTS: Final = """
SELECT 'engine', engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = '{table}'
UNION ALL SELECT 'replicas', COUNT(*) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'
"""

_SOURCES: Final = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS")
"""What a replica says of its source: MariaDB's statement, MySQL's. A user needs a privilege for them."""


def judged(settings: Settings) -> list[Finding]:
    """The findings for settings by name."""
    return [
        Finding(rule.name, settings.get(rule.name, ""), rule.meaning, rule.remedy, rule.severity)
        for rule in _RULES
        if rule.breaks(settings)
    ]


def findings(connection: Any, table: str = "notwice_record") -> list[Finding]:  # noqa: ANN401 - a DB-API connection, of any driver
    """Ask a server, over a connection to its database, and judge what it says."""
    with connection.cursor() as cursor:
        cursor.execute(_VARIABLES)
        settings = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
        cursor.execute(_FACTS.format(table=table))
        settings |= {str(_text(name)): str(_text(value)) for name, value in cursor.fetchall()}
        for statement in _SOURCES:
            with suppress(Exception):  # another server's statement, or not allowed
                cursor.execute(statement)
                if cursor.fetchall():
                    settings["replica_of"] = "another server"
    return judged(settings)


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
