"""The formal model of the rules, searched exhaustively within small bounds; `spec/check` searches all of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
SECONDS_MAX = 240


@pytest.fixture(scope="module", autouse=True)
def _spin() -> None:
    """Where everything must run, a missing checker is a failure; elsewhere a reason to skip."""
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"missing: {', '.join(missing)} (apt-get install spin gcc)")
    if missing:
        pytest.skip(f"missing: {', '.join(missing)} (apt-get install spin gcc)")


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the folder's check."""
    command = [sys.executable, str(folder / "check"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)


def doctored(folder: Path, *, model_prefix: str = "", idle_mutant: str = "") -> Path:
    """A copy of the specification with a line before its model, or with a mutant that changes nothing."""
    (folder / "rules.pml").write_text(model_prefix + (SPEC / "rules.pml").read_text())
    text = (SPEC / "check").read_text()
    (folder / "check").write_text(text.replace(idle_mutant, "M_IDLE") if idle_mutant else text)
    return folder


def test_the_rules_hold_and_their_mutants_are_caught() -> None:
    """P1, P3, P5, P6, P7, P10, P13: the small clean configurations hold; each small mutant breaks a promise."""
    done = check(SPEC, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds") >= 4
    assert done.stdout.count("caught") >= 8


def test_a_broken_rule_fails_the_check(tmp_path: Path) -> None:
    """A clean configuration of a model without rule 0 is reported as violated."""
    done = check(doctored(tmp_path, model_prefix="#define M_RIVAL\n"), "hold")
    assert done.returncode == 1
    assert "VIOLATED" in done.stdout


def test_a_surviving_mutant_fails_the_check(tmp_path: Path) -> None:
    """A mutant that changes nothing survives, and the check says so."""
    done = check(doctored(tmp_path, idle_mutant="M_MISMATCH_LATE"), "mismatch checked after the lease")
    assert done.returncode == 1
    assert "SURVIVED" in done.stdout


def test_a_missing_checker_is_named() -> None:
    """Without spin and gcc the check says what to install, and fails."""
    command = [sys.executable, str(SPEC / "check")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""}, timeout=SECONDS_MAX)
    assert done.returncode == 2
    assert "apt-get install spin gcc" in done.stderr
