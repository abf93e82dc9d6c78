"""The doctor: it finds a store sound, finds a broken one out, and leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from notwice.cli import main
from notwice.doctor import examine
from notwice.model import Insert, Op, Reply, Swap
from notwice.stores import open_store
from notwice.stores.findings import Finding
from notwice.stores.memory import MemoryStore


def test_a_sound_store_is_found_sound() -> None:
    """P16: every promise is tried and holds, round trips are timed, and the probes are gone afterwards."""
    store = open_store("memory://")
    report = examine(store)
    assert report.sound
    assert {check.name for check in report.checks} == {
        "claim",
        "duplicate",
        "complete",
        "fence",
        "replay",
        "purge",
        "clock",
    }
    assert min(report.claim_ms, report.complete_ms, report.replay_ms) > 0
    assert store.purge(1000) == 0


class Broken(MemoryStore):
    """A store with one promise broken."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def apply(self, ops: Sequence[Op]) -> Sequence[Reply]:
        (op,) = ops
        if self.how == "fence" and isinstance(op, Swap):
            [there] = super().apply([op])
            return [there] if there.won else super().apply([Swap(op.record, there.record.etag)])  # type: ignore[union-attr]  # it is there
        if self.how == "duplicate" and isinstance(op, Insert):
            return [reply._replace(won=True) for reply in super().apply(ops)]
        if self.how == "clock":
            return [reply._replace(now_ms=reply.now_ms + 5_000) for reply in super().apply(ops)]
        return super().apply(ops)

    def purge(self, limit: int) -> int:
        return 0 if self.how == "purge" else super().purge(limit)

    def findings(self) -> list[Finding]:
        unsafe = Finding("sync", "off", "claims are lost", "Set it on", "unsafe")
        return [unsafe] if self.how == "settings" else []


@pytest.mark.parametrize("how", ["fence", "duplicate", "clock", "purge", "settings"])
def test_a_broken_store_is_found_out(how: str) -> None:
    """P16: a broken promise, a skewed clock and an unsafe setting each make the report unsound, and are named."""
    report = examine(Broken(how))
    assert not report.sound
    assert how == "settings" or how in [check.name for check in report.checks if not check.held]


@pytest.mark.parametrize(("skew_ms", "text"), [(-0.4, "+0 ms"), (0.4, "+0 ms"), (-1.2, "-1 ms")])
def test_clocks_that_agree_are_not_said_to_be_behind(
    monkeypatch: pytest.MonkeyPatch, skew_ms: float, text: str
) -> None:
    """No clock is -0 ms from another one."""
    monkeypatch.setattr("notwice.doctor._skew_ms", lambda _: skew_ms)
    assert f"clock is {text} from" in examine(MemoryStore()).checks[-1].seen


def test_the_command_tells_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 0 for a sound store, 3 for one that is not there; --json gives one object."""
    url = f"sqlite:///{tmp_path}/guard.db"
    assert main(["doctor", "--store", url]) == 3
    (tmp_path / "guard.db").touch()
    assert main(["doctor", "--store", url]) == 3
    assert "no store was made here yet" in capsys.readouterr().err
    assert main(["migrate", "--store", url, "--dry-run"]) == 0
    assert "CREATE TABLE" in capsys.readouterr().out
    open_store(url).close()
    capsys.readouterr()
    assert main(["doctor", "--store", url]) == 0
    assert "keeps its promises" in capsys.readouterr().out
    assert main(["doctor", "--store", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    assert main(["doctor"]) == 2
