"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import bodies, boxes, control, headers, lookups, names, options, stored
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (names, bodies, stored, boxes, options, headers, lookups)
    for target in module.TARGETS
}
EVERY = {**TARGETS, control.TARGET.name: control.TARGET}
