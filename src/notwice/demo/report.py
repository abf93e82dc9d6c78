"""What a run found, as a table of words and numbers and as one JSON object."""

from __future__ import annotations

from typing import NamedTuple

from notwice.demo.run import Comparison, Outcome


class Row(NamedTuple):
    """One line of the table. ``None``: the question makes no sense for that side."""

    label: str
    bare: int | None
    guarded: int | None
    bad: bool = False  # whether anything but 0 is a fault
    indent: int = 0


def rows(comparison: Comparison) -> list[Row]:
    """The table, from what was meant to what is still open."""
    bare, guarded = comparison.bare, comparison.guarded
    return [
        Row("orders intended", bare.accounts.intended, guarded.accounts.intended),
        Row("charges in the ledger", bare.accounts.charged, guarded.accounts.charged),
        Row("double", bare.accounts.double, guarded.accounts.double, bad=True, indent=1),
        Row("of another amount", bare.accounts.other_amount, guarded.accounts.other_amount, bad=True, indent=1),
        Row("lost", bare.accounts.lost, guarded.accounts.lost, bad=True),
        Row("not charged, nobody told so", bare.accounts.not_charged, guarded.accounts.not_charged, bad=True),
        Row("replays of the first answer", None, guarded.journal.replays),
        Row("reused keys refused", None, guarded.journal.seen["key_reused"]),
        Row("kills: service", _kills(bare, "payments service"), _kills(guarded, "payments service")),
        Row("kills: gateway with the guard", None, _kills(guarded, "gateway")),
        Row("requests on their way then", bare.journal.hit_by_kills, guarded.journal.hit_by_kills, indent=1),
        Row("held: outcome unknown", None, guarded.held),
        Row("in the ledger: resolved", None, guarded.resolved, indent=1),
        Row("not in the ledger: released", None, guarded.released, indent=1),
        Row("still unresolved", None, guarded.unresolved, bad=True, indent=1),
    ]


def _kills(outcome: Outcome, name: str) -> int:
    return outcome.journal.killed_processes[name]


def document(comparison: Comparison) -> dict[str, object]:
    """The JSON object. What begins with ``unguarded_`` was measured without the guard; all else with it."""
    guarded, bare = comparison.guarded, comparison.bare
    return {
        "intended": guarded.accounts.intended,
        "charged": guarded.accounts.charged,
        "double_charges": guarded.accounts.double,
        "lost": guarded.accounts.lost,
        "replays": guarded.journal.replays,
        "unresolved": guarded.unresolved,
        "unguarded_double_charges": bare.accounts.double,
        "seed": comparison.plan.seed,
        "other_amount_charges": guarded.accounts.other_amount,
        "contradictory_answers": guarded.accounts.contradicted,
        "not_charged": guarded.accounts.not_charged,
        "pending": guarded.accounts.pending,
        "mismatches_refused": guarded.journal.seen["key_reused"],
        "held": guarded.held,
        "resolved_by_ledger": guarded.resolved,
        "released": guarded.released,
        "kills": guarded.journal.kills,
        "service_kills": _kills(guarded, "payments service"),
        "gateway_kills": _kills(guarded, "gateway"),
        "requests_hit_by_kills": guarded.journal.hit_by_kills,
        "answers": dict(sorted(guarded.journal.seen.items())),
        "unguarded_charged": bare.accounts.charged,
        "unguarded_other_amount_charges": bare.accounts.other_amount,
        "unguarded_lost": bare.accounts.lost,
        "unguarded_kills": bare.journal.kills,
        "unguarded_answers": dict(sorted(bare.journal.seen.items())),
        "took_s": round(comparison.took_s, 1),
    }
