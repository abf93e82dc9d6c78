"""Settings of a server that lose acknowledged writes, or answers that are still needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from redis.exceptions import ResponseError

from notwice.stores.findings import Finding
from notwice.stores.redis.flows import Exchange, Flow, Lost, routes_known, unanswered
from notwice.stores.redis.routes import Routes

SETTINGS: Final = (
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
    "replica-read-only",
    "cluster-require-full-coverage",
    "cluster-allow-reads-when-down",
    "cluster-allow-replica-migration",
)
"""What is asked of each server, one by one: an older one does not know them all."""


class Facts(NamedTuple):
    """What one server says of itself; ``settings`` is ``None`` where it does not say."""

    settings: Mapping[str, str] | None
    replication: Mapping[str, str]


def looked_at(routes: Routes, *, replicas: int) -> Flow[list[Finding]]:
    """Ask every node that owns records for its settings, and say what they mean: each finding once."""
    yield from routes_known(routes)
    commands = [*(("CONFIG", "GET", name) for name in SETTINGS), ("INFO", "replication")]
    answers = yield Exchange(dict.fromkeys(routes.owners(), commands))
    found: dict[str, Finding] = {}
    for address, said in answers.items():
        if isinstance(said, Lost):
            raise unanswered(said, address)
        *settings, replication = said
        facts = Facts(_settings(settings), _info(replication))
        found |= {finding.name: finding for finding in findings(facts, replicas=replicas, cluster=routes.may_change)}
    return list(found.values())


def findings(facts: Facts, *, replicas: int, cluster: bool) -> list[Finding]:
    """What one server's settings mean for a guard that waits for so many `replicas`."""
    found = list(_of_replication(facts, replicas))
    if facts.settings is None:
        found.append(
            Finding(
                "CONFIG",
                "refused",
                "the server does not say how it keeps what it acknowledged, nor what it does when its memory is full",
                "Let this user run CONFIG GET, or make sure of appendfsync always and maxmemory-policy noeviction",
                "warning",
            )
        )
        return found
    found += _of_the_log(facts.settings)
    found += _of_memory(facts.settings)
    if cluster:
        found += _of_the_cluster(facts.settings)
    return found


def _of_the_log(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("appendonly") != "yes":
        yield Finding(
            "appendonly",
            settings.get("appendonly", "no"),
            "a crash of the server loses every claim since the last snapshot, and their effects happen twice",
            "Set appendonly yes and appendfsync always",
            "unsafe",
        )
    elif settings.get("appendfsync") != "always":
        yield Finding(
            "appendfsync",
            settings.get("appendfsync", ""),
            "a power cut loses the claims of the last second or more, and their effects happen twice",
            "Set appendfsync always",
            "unsafe",
        )
    elif settings.get("no-appendfsync-on-rewrite") == "yes":
        yield Finding(
            "no-appendfsync-on-rewrite",
            "yes",
            "while the log is rewritten nothing is synced, and a power cut loses the claims of that time",
            "Set no-appendfsync-on-rewrite no",
            "unsafe",
        )


def _of_memory(settings: Mapping[str, str]) -> Iterator[Finding]:
    policy = settings.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        limited = settings.get("maxmemory", "0") != "0"
        yield Finding(
            "maxmemory-policy",
            policy,
            "a server that is full drops records, and the same keys are granted again"
            if limited
            else "once maxmemory is set, a server that is full drops records, and the same keys are granted again",
            "Set maxmemory-policy noeviction, and keep other caches on another server",
            "unsafe" if limited else "warning",
        )


def _of_replication(facts: Facts, replicas: int) -> Iterator[Finding]:
    if facts.replication.get("role", "master") != "master":
        yield Finding(
            "role",
            facts.replication["role"],
            "this is a replica: it refuses every claim, and what it knows is old",
            "Name the master in the URL",
            "unsafe",
        )
    connected = int(facts.replication.get("connected_slaves", "0"))
    if connected and not replicas:
        yield Finding(
            "wait",
            "0",
            "a fail-over to a replica, or a partition, loses claims that the replica did not have yet, and grants them "
            "twice",
            "Put wait=1 into the URL, or as many as there are replicas that may be promoted",
            "unsafe",
        )
    if 0 < replicas < connected:
        yield Finding(
            "wait",
            str(replicas),
            f"{connected} replicas are connected, and one that does not have a claim yet may be promoted",
            f"Put wait={connected} into the URL",
            "warning",
        )
    if replicas > connected:
        yield Finding(
            "connected_slaves",
            str(connected),
            f"no claim can be acknowledged by {replicas} replicas",
            "Connect the replicas, or lower wait in the URL",
            "warning",
        )
    needed = (facts.settings or {}).get("min-replicas-to-write", "0")
    if connected and needed == "0" and not replicas:
        yield Finding(
            "min-replicas-to-write",
            needed,
            "a master that is cut off from its replicas goes on granting claims, which end with the partition",
            "Put wait=1 into the URL, or set min-replicas-to-write 1, which only shortens that time",
            "warning",
        )


def _of_the_cluster(settings: Mapping[str, str]) -> Iterator[Finding]:
    if settings.get("cluster-allow-reads-when-down") == "yes":
        yield Finding(
            "cluster-allow-reads-when-down",
            "yes",
            "a node that is cut off from the cluster goes on giving old records to look-ups",
            "Set cluster-allow-reads-when-down no",
            "warning",
        )
    if settings.get("cluster-require-full-coverage") == "no":
        yield Finding(
            "cluster-require-full-coverage",
            "no",
            "while some slots have no owner, their keys are refused and all others go on",
            "That is safe; set it to yes if all keys should stop together",
            "warning",
        )


def _settings(answers: Sequence[object]) -> Mapping[str, str] | None:
    if any(isinstance(answer, ResponseError) for answer in answers):
        return None
    texts = [[each.decode() for each in answer] for answer in answers if isinstance(answer, list)]
    return {text[0]: text[1] for text in texts if text}


def _info(answer: object) -> Mapping[str, str]:
    if not isinstance(answer, bytes):
        return {}
    lines = (line.partition(":") for line in answer.decode().splitlines())
    return {name: value for name, _, value in lines if value}
