"""Settings of a server that break a promise of its store: what is found, and what is done about it at open."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from notwice.errors import StoreUnavailable

Severity = Literal["unsafe", "warning"]
"""``unsafe``: acknowledged claims can be lost, and effects happen twice. ``warning``: only after a fail-over."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One setting: its name and value, what they mean for a guard, and what to set instead."""

    name: str
    value: str
    meaning: str
    remedy: str
    severity: Severity

    def __str__(self) -> str:
        return f"{self.name} = {self.value or 'nothing'}: {self.meaning}. {self.remedy}."


class UnsafeSettingsWarning(UserWarning):
    """The server that a store is kept on is set so that acknowledged writes can be lost."""


def heed(findings: Sequence[Finding], *, safe: str, shown: str) -> None:
    """Warn about what is found when a store is opened, in one warning; refuse unsafe settings if `safe` is "require".

    Raises `StoreUnavailable` for what is refused. `shown` names the store without a password.
    """
    unsafe = [finding for finding in findings if finding.severity == "unsafe"]
    if safe == "require" and unsafe:
        raise StoreUnavailable(f"{shown} is refused (safe=require): {_told(unsafe)}")
    if safe != "ignore" and findings:
        warnings.warn(f"{shown}: {_told(findings)}", UnsafeSettingsWarning, stacklevel=2)


def _told(findings: Sequence[Finding]) -> str:
    return " ".join(map(str, findings))
