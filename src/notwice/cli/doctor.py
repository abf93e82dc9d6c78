"""``notwice doctor``: what a store is worth."""

from __future__ import annotations

import argparse
import dataclasses
import json
from contextlib import closing
from typing import Final

from notwice.cli.arguments import FINE, REFUSED
from notwice.doctor import Report, examine
from notwice.stores import open_store
from notwice.stores.urls import parsed

_JUDGED_AT_OPEN: Final = frozenset(
    {"dynamodb", "mysql", "postgresql", "redis", "redis+cluster", "rediss", "rediss+cluster"}
)


def carry_out(url: str, said: argparse.Namespace) -> int:
    """Examine the store and tell what was found; the exit status says whether all is well."""
    with closing(open_store(_unjudged(url))) as store:
        report = examine(store)
    print(json.dumps(_document(report)) if said.json else "\n".join(_lines(report)))
    return FINE if report.sound else REFUSED


def _unjudged(url: str) -> str:
    """The URL without the judgement at open: here the findings are told in full."""
    place = parsed(url)
    if place.scheme not in _JUDGED_AT_OPEN:
        return url
    base, _, query = url.partition("?")
    kept = [part for part in query.split("&") if part and not part.startswith("safe=")]
    return f"{base}?{'&'.join((*kept, 'safe=ignore'))}"


def _lines(report: Report) -> list[str]:
    lines = [f"{'ok' if check.held else 'BROKEN':<8}{check.name}: {check.seen}" for check in report.checks]
    lines += [f"{finding.severity:<8}{finding}" for finding in report.findings]
    lines.append(
        f"{'':<8}claim {report.claim_ms:.2f} ms, complete {report.complete_ms:.2f} ms, replay {report.replay_ms:.2f} ms"
    )
    lines.append("This store keeps its promises." if report.sound else "Do not move money over this store as it is.")
    return lines


def _document(report: Report) -> dict[str, object]:
    return {
        "sound": report.sound,
        "checks": [check._asdict() for check in report.checks],
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "claim_ms": round(report.claim_ms, 3),
        "complete_ms": round(report.complete_ms, 3),
        "replay_ms": round(report.replay_ms, 3),
        "skew_ms": round(report.skew_ms, 1),
    }
