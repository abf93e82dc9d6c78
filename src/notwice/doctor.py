"""Whether a store keeps its promises here and now: a probe is claimed, replayed, fenced and purged, and timed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from statistics import median
from typing import Final, NamedTuple

from notwice import identity
from notwice.model import (
    Get,
    Insert,
    Op,
    Record,
    RecoveryKind,
    Reply,
    Result,
    ResultKind,
    State,
    Swap,
    Terms,
)
from notwice.runtime import new_etag
from notwice.stores.findings import Finding
from notwice.stores.port import Store

NAMESPACE: Final = "notwice:doctor"
SCOPE: Final = "doctor"
ROUNDS: Final = 10
SKEW_MS_MAX: Final = 1_000  # more than a second apart: leases would be judged by clocks that do not agree
PURGES_MAX: Final = 20

_TERMS: Final = Terms(60_000, 0, RecoveryKind.HOLD, None, None, 0, deduplicated=False)


class Check(NamedTuple):
    """One promise that was tried: whether it held, and what was seen."""

    name: str
    held: bool
    seen: str


class Report(NamedTuple):
    """What was found. Times are medians in milliseconds; `skew_ms` is the store's clock less this host's."""

    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]
    claim_ms: float
    complete_ms: float
    replay_ms: float
    skew_ms: float

    @property
    def sound(self) -> bool:
        """Whether every promise held and no setting is unsafe."""
        return all(check.held for check in self.checks) and not any(
            finding.severity == "unsafe" for finding in self.findings
        )


class _Probe:
    """One operation of the doctor's own, in a namespace of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        key = secrets.token_hex(16)
        operation = identity.operation_id(SCOPE, key)
        self.record = Record(NAMESPACE, operation, SCOPE, key, State.IN_PROGRESS, new_etag(), None, _TERMS)
        self.times_ms: dict[str, list[float]] = {"claim": [], "complete": [], "replay": []}

    def ask(self, op: Op, timed: str = "") -> Reply:
        """Carry one operation out."""
        began = time.perf_counter()
        (reply,) = self._store.apply((op,))
        if timed:
            self.times_ms[timed].append((time.perf_counter() - began) * 1000)
        return reply

    def anew(self) -> Record:
        """The record under an etag of its own."""
        return self.record._replace(etag=new_etag())


def examine(store: Store) -> Report:
    """Try the promises of `store` on probes that are purged again, and read its settings.

    Raises `StoreUnavailable` if it does not answer. A probe that can't be purged is left behind, and said so; it is
    finished, so it expires by itself.
    """
    probes = [_Probe(store) for _ in range(ROUNDS)]
    checks = [check for probe in probes for check in _tried(probe)]
    skew_ms = _skew_ms(probes[0])
    checks.append(_purged(store, probes))
    find: Callable[[], list[Finding]] | None = getattr(store, "findings", None)
    times = {
        name: median(time_ms for probe in probes for time_ms in probe.times_ms[name]) for name in probes[0].times_ms
    }
    apart = f"the store's clock is {round(skew_ms):+d} ms from this host's"
    skewed = Check("clock", abs(skew_ms) <= SKEW_MS_MAX, apart)
    return Report(
        checks=(*_merged(checks), skewed),
        findings=() if find is None else tuple(find()),
        claim_ms=times["claim"],
        complete_ms=times["complete"],
        replay_ms=times["replay"],
        skew_ms=skew_ms,
    )


def _tried(probe: _Probe) -> list[Check]:
    """Claim it, meet it as a duplicate, finish it, replay it, and try to write it under an etag that is gone."""
    claimed = probe.ask(Insert(probe.record), "claim")
    rival = probe.ask(Insert(probe.anew()))
    done = probe.anew()._replace(state=State.COMPLETED, result=Result(ResultKind.VALUE, b"probe"))
    completed = probe.ask(Swap(done, probe.record.etag), "complete")
    fenced = probe.ask(Swap(probe.anew(), probe.record.etag))
    replayed = probe.ask(Get(NAMESPACE, probe.record.id), "replay")
    return [
        Check("claim", claimed.won, "an operation that is not there is claimed"),
        Check("duplicate", not rival.won and _etag(rival) == probe.record.etag, "a second claim is shown the first"),
        Check("complete", completed.won, "its owner finishes it"),
        Check("fence", not fenced.won and _etag(fenced) == done.etag, "a write on an older reading changes nothing"),
        Check("replay", _body(replayed) == b"probe", "the answer is what was stored, byte for byte"),
    ]


def _purged(store: Store, probes: list[_Probe]) -> Check:
    time.sleep(0.005)  # what is kept for no time is expired one millisecond after its write
    for _ in range(PURGES_MAX):
        if not store.purge(1000):
            break
    left = [probe for probe in probes if probe.ask(Get(NAMESPACE, probe.record.id)).record is not None]
    return Check("purge", not left, f"{len(left)} finished probes are left" if left else "expired records leave")


def _skew_ms(probe: _Probe) -> float:
    """How far the store's clock is ahead of this host's, by the quickest of a few looks."""
    looks: list[tuple[float, float]] = []
    for _ in range(5):
        before = time.time()
        now_ms = probe.ask(Get(NAMESPACE, probe.record.id)).now_ms
        after = time.time()
        looks.append((after - before, now_ms - (before + after) / 2 * 1000))
    return min(looks)[1]


def _merged(checks: list[Check]) -> list[Check]:
    """One check of each name: it held if it always did."""
    held: dict[str, Check] = {}
    for check in checks:
        if check.name not in held or not check.held:
            held[check.name] = check
    return list(held.values())


def _etag(reply: Reply) -> bytes | None:
    return reply.record.etag if isinstance(reply.record, Record) else None


def _body(reply: Reply) -> bytes | None:
    record = reply.record
    return record.result.body if isinstance(record, Record) and record.result is not None else None
