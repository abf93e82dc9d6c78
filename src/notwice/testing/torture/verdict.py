"""What a run of torture came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from notwice.testing import history
from notwice.testing.auditor import audit
from notwice.testing.history import Disturbance, Disturbed, Effect, Event, Header, History, Produced
from notwice.testing.linearizable import UNKNOWN, Name, Seen, unexplained
from notwice.testing.torture import records
from notwice.testing.torture.payments import Provider
from notwice.testing.torture.plan import Plan


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of a run, and what was wrong.

    operations: store operations, or guarded calls. unknown: those without an answer. records: on how many records.
    faults: by their kind. errors: what the store, or the guard, refused with, and how often. violations: each with
    what proves it; empty if all promises were kept. seconds: of the run, its judgement not counted.
    """

    operations: int
    unknown: int
    records: int
    faults: dict[str, int]
    errors: dict[str, int]
    violations: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """The report in a few lines."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        errors = "".join(f"\n  {count} x {what}" for what, count in sorted(self.errors.items()))
        wrong = "".join(f"\n{each}" for each in self.violations[:5])
        return (
            f"{self.operations} operations on {self.records} records in {self.seconds:.1f} s, {self.unknown} of them "
            f"without an answer; {faults}; {len(self.violations)} violations{errors}{wrong}"
        )


def judged(plan: Plan, folder: Path, seconds: float) -> Report:
    """Read what a run left behind, and judge it."""
    faults = Counter(str(event.kind) for event in _driver(folder) if isinstance(event, Disturbed))
    judge = _records if plan.work == "records" else _payments
    return judge(folder, dict(faults), seconds)


def _driver(folder: Path) -> list[Event]:
    with (folder / "driver.log").open() as lines:
        return _events(lines)


def _events(lines: Iterable[str]) -> list[Event]:
    return [event for event in history.values_of(lines) if not isinstance(event, Header)]


def _logs(folder: Path) -> Iterable[list[str]]:
    for path in sorted(folder.glob("client-*.log")):
        with path.open() as lines:
            yield list(lines)


def _records(folder: Path, faults: dict[str, int], seconds: float) -> Report:
    histories: dict[Name, list[Seen]] = {}
    errors: Counter[str] = Counter()
    for lines in _logs(folder):
        errors.update(records.errors(lines))
        for name, each in records.heard(lines):
            histories.setdefault(name, []).append(each)
    every = [each for operations in histories.values() for each in operations]
    unknown = sum(each.replied_ns == UNKNOWN for each in every)
    wrong = tuple(_shown(name, left) for name, seen in sorted(histories.items()) if (left := unexplained(seen)))
    return Report(len(every), unknown, len(histories), faults, dict(errors), wrong, seconds)


def _shown(name: Name, left: Iterable[Seen]) -> str:
    return "\n  ".join([f"no order explains what was seen of {name}:", *map(str, left)])


def _payments(folder: Path, faults: dict[str, int], seconds: float) -> Report:
    parts: list[list[Event]] = [_driver(folder), *(_events(lines) for lines in _logs(folder))]
    parts.append(list(_dated(Provider(folder / "provider").all_effects(), parts)))
    told = history.merged(Header(clock="real"), parts)
    (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in told.lines()))
    return _report(told, faults, seconds)


def _dated(effects: Iterable[Effect], parts: Iterable[Iterable[Event]]) -> Iterator[Effect]:
    """Effects with the time by which they had happened: that of their call's next event, or of the end of its process.

    A client writes down the time, and then makes the effect; between the two it may have been stopped for long.
    """
    ends: dict[str, list[int]] = {}
    for event in (event for part in parts for event in part):
        if isinstance(event, Disturbed) and event.kind is Disturbance.KILLED:
            ends.setdefault(event.process, []).append(event.at_ns)
        elif isinstance(event, Produced):
            ends.setdefault(event.call, []).append(event.at_ns)
    for effect in effects:
        after = [*ends.get(effect.call, ()), *ends.get(effect.call.rpartition(".")[0], ())]
        yield replace(effect, until_ns=min((end for end in after if end >= effect.at_ns), default=effect.at_ns))


def _report(told: History, faults: dict[str, int], seconds: float) -> Report:
    asked = {event.call: event for event in told.events if isinstance(event, history.Asked)}
    answered = [event for event in told.events if isinstance(event, history.Answered)]
    errors = Counter(f"{event.outcome} {event.code}".strip() for event in answered)
    wrong = tuple(map(str, audit(told, settled=True)))
    names = {event.name for event in asked.values()}
    return Report(len(asked), len(asked) - len(answered), len(names), faults, dict(errors), wrong, seconds)
