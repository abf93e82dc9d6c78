"""Settings of a server that lose acknowledged claims, or answers that are still needed, and what to set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from notwice.stores.findings import Finding, Severity
from notwice.stores.redis.flows import Exchange, Flow, Lost, routes_known, unanswered
from notwice.stores.redis.routes import Routes

SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory-policy",
    "min-replicas-to-write",
    "replica-read-only",
    "cluster-allow-reads-when-down",
)
"""What is asked of each server, one by one: an older one does not know them all."""

Facts = Mapping[str, str]
"""What one server says: its settings by name, its ``role`` and ``connected_slaves``; and ``wait`` of our own URL."""


class _Rule(NamedTuple):
    name: str
    breaks: Callable[[Facts], bool]
    meaning: str
    remedy: str
    severity: Severity = "unsafe"


def _is(name: str, value: str) -> Callable[[Facts], bool]:
    return lambda facts: facts.get(name) == value


def _count(facts: Facts, name: str) -> int:
    return int(facts.get(name, "0"))


def _logs(facts: Facts) -> bool:
    return facts.get("appendonly") == "yes"


def _syncs_late(facts: Facts) -> bool:
    return _logs(facts) and facts.get("appendfsync", "always") != "always"


def _pauses_syncs(facts: Facts) -> bool:
    return _logs(facts) and facts.get("no-appendfsync-on-rewrite") == "yes"


def _evicts(facts: Facts) -> bool:
    return facts.get("maxmemory-policy", "noeviction") != "noeviction"


def _waits_for_none(facts: Facts) -> bool:
    return not _count(facts, "wait") and _count(facts, "connected_slaves") > 0


def _waits_for_some(facts: Facts) -> bool:
    return 0 < _count(facts, "wait") < _count(facts, "connected_slaves")


def _waits_in_vain(facts: Facts) -> bool:
    return facts.get("role") == "master" and _count(facts, "wait") > _count(facts, "connected_slaves")


def _goes_on_alone(facts: Facts) -> bool:
    return _waits_for_none(facts) and facts.get("min-replicas-to-write") == "0"


_RULES: Final = (
    _Rule(
        "role",
        _is("role", "slave"),
        "this is a replica: it refuses every claim, and what it knows is old",
        "Name the master in the URL",
    ),
    _Rule(
        "appendonly",
        _is("appendonly", "no"),
        "a crash of the server loses every claim since its last snapshot, and grants them again",
        "Set appendonly yes and appendfsync always",
    ),
    _Rule(
        "appendfsync",
        _syncs_late,
        "a power cut loses the claims of the last second or more, and grants them again",
        "Set appendfsync always",
    ),
    _Rule(
        "no-appendfsync-on-rewrite",
        _pauses_syncs,
        "while the log is rewritten nothing is synced, and a power cut loses the claims of that time",
        "Set no-appendfsync-on-rewrite no",
    ),
    _Rule(
        "maxmemory-policy",
        _evicts,
        "a server whose memory is full drops records, and grants the same keys again",
        "Set maxmemory-policy noeviction, and keep caches on another server",
    ),
    _Rule(
        "replica-read-only",
        _is("replica-read-only", "no"),
        "a server that is made a replica goes on granting claims, which its new master never hears of",
        "Set replica-read-only yes",
    ),
    _Rule(
        "wait",
        _waits_for_none,
        "a fail-over or a partition loses claims that the replica did not have yet, and grants them again",
        "Put wait= into the URL, with as many replicas as may be promoted",
    ),
    _Rule(
        "wait",
        _waits_for_some,
        "more replicas than that are connected, and one that does not have a claim yet may be promoted",
        "Put wait= into the URL, with as many replicas as may be promoted",
        "warning",
    ),
    _Rule(
        "connected_slaves",
        _waits_in_vain,
        "fewer replicas than wait= asks for, so that no claim can be acknowledged",
        "Connect the replicas, or lower wait= in the URL",
        "warning",
    ),
    _Rule(
        "min-replicas-to-write",
        _goes_on_alone,
        "a master that is cut off from its replicas goes on granting claims, which end with the partition",
        "Put wait= into the URL, or set min-replicas-to-write 1, which only shortens that time",
        "warning",
    ),
    _Rule(
        "cluster-allow-reads-when-down",
        _is("cluster-allow-reads-when-down", "yes"),
        "a node that is cut off from its cluster goes on giving old records to look-ups",
        "Set cluster-allow-reads-when-down no",
        "warning",
    ),
    _Rule(
        "CONFIG",
        _is("CONFIG", "refused"),
        "the server does not say how it keeps what it acknowledged, nor what it does when its memory is full",
        "Let this user run CONFIG GET, or make sure of appendfsync always and maxmemory-policy noeviction",
        "warning",
    ),
)


def judged(facts: Facts) -> list[Finding]:
    """What a server says, as far as it breaks a promise."""
    return [
        Finding(rule.name, facts.get(rule.name, ""), rule.meaning, rule.remedy, rule.severity)
        for rule in _RULES
        if rule.breaks(facts)
    ]


def looked_at(routes: Routes, *, replicas: int, thorough: bool) -> Flow[list[Finding]]:
    """Ask every node that owns records for its settings, and say what they mean: each finding once.

    A node that gives no answer is passed over, unless it is the only one or the look is to be `thorough`.
    """
    yield from routes_known(routes)
    commands = [*(("CONFIG", "GET", name) for name in SETTINGS), ("INFO", "replication")]
    answers = yield Exchange(dict.fromkeys(routes.owners(), commands))
    found: dict[str, Finding] = {}
    for address, said in answers.items():
        if isinstance(said, Lost):
            if thorough or len(answers) == 1:
                raise unanswered(said, address)
            continue
        facts = {"wait": str(replicas), **_settings(said[:-1]), **_info(said[-1])}
        found |= {finding.name: finding for finding in judged(facts)}
    return list(found.values())


def _settings(answers: Sequence[object]) -> Facts:
    if any(isinstance(answer, Exception) for answer in answers):
        return {"CONFIG": "refused"}
    texts = [[each.decode() for each in answer] for answer in answers if isinstance(answer, list)]
    return {text[0]: text[1] for text in texts if text}


def _info(answer: object) -> Facts:
    lines = answer.decode().splitlines() if isinstance(answer, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)
