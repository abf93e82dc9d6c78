"""What may be shown of a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Final
from uuid import UUID

from notwice.canonical import fields_of
from notwice.model import Result

REDACTED: Final = "[redacted]"

Redactor = Callable[[object], object]
"""Is given a handler's value, or a body as JSON has it, and gives what may be shown in its place."""

_DEPTH_MAX: Final = 50
_NAMED_BY_OTHERS: Final = (str, int, float, Decimal, date, time, timedelta, UUID, Enum)
"""What is shown where a name says what it is, and the name is not among the hidden ones."""


def redacting(*names: str) -> Redactor:
    """Make a function that gives a value with the members and fields of these names replaced, at any depth.

    For ``Privacy(redact=…)``. Case, dashes and underscores make no difference: ``cardNumber`` and ``card_number`` are
    one name. Dicts, dataclasses, models, named tuples, lists and tuples are looked into; whatever else is no scalar
    under a name of its own is replaced as a whole, for nothing says what is in it.

    Raises `ValueError` if no name is given.
    """
    hidden = frozenset(map(_plain, names)) - {""}
    if not hidden:
        raise ValueError("name at least one field to redact, as in redacting('card_number')")
    return lambda value: _shown(value, hidden, depth=0)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _shown(value: object, hidden: frozenset[str], *, depth: int) -> object:
    if value is None or depth > _DEPTH_MAX:
        return None if value is None else REDACTED
    if isinstance(value, Result):
        return {"kind": str(value.kind), "status": value.status, "body": REDACTED}
    as_dict: Callable[[], Mapping[str, object]] | None = getattr(value, "_asdict", None)
    fields = as_dict() if as_dict is not None and isinstance(value, tuple) else fields_of(value)
    if fields is not None:
        return {
            name: REDACTED if _plain(name) in hidden else _shown(part, hidden, depth=depth + 1)
            for name, part in fields.items()
        }
    if isinstance(value, list | tuple):
        return [_shown(part, hidden, depth=depth + 1) for part in value]
    return value if depth and isinstance(value, _NAMED_BY_OTHERS) else REDACTED
