"""Refuses a policy that no endpoint could keep, before a request is taken."""

from __future__ import annotations

from collections.abc import Callable

from notwice.http.exchange import HttpPolicy, RequestView
from notwice.policy import Policy


def check_atomic(joins: bool, own: Policy, http_policy: HttpPolicy) -> None:  # noqa: FBT001 - what is checked
    """Raise `ValueError` for ``atomic`` on a store that a handler's transaction can't reach (``joins`` is false)."""
    policy: Policy | Callable[[RequestView], Policy] | None = http_policy.policy
    effective = own if policy is None else policy
    if not joins and isinstance(effective, Policy) and effective.atomic:
        raise ValueError(
            "the policy is atomic, and this guard's store is in no database of yours: every handler would run, and none"
            " could complete its operation together with its rows. Leave atomic out, or keep the records where the rows"
            " are, on SQLite, PostgreSQL, MariaDB or MySQL"
        )
