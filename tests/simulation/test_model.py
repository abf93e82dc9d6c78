"""The formal model of the rules, searched exhaustively within bounds; `spec/check` searches the largest ones, too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SPEC = Path(__file__).resolve().parents[2] / "spec"
SECONDS_MAX = 600
RUNS = tomllib.loads((SPEC / "runs.toml").read_text())
CLEAN = [run["name"] for run in RUNS["clean"] if run.get("quick")]
MUTANTS = [run["name"] for run in RUNS["mutant"]]
SITUATIONS = [run["name"] for run in RUNS["situation"]]
GROUP = 8  # names for one call of the check


@pytest.fixture(scope="module", autouse=True)
def _spin() -> None:
    """Where everything must run, a missing checker is a failure; elsewhere a reason to skip."""
    missing = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"missing: {', '.join(missing)} (apt-get install spin gcc)")
    if missing:
        pytest.skip(f"missing: {', '.join(missing)} (apt-get install spin gcc)")


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the folder's check, one search at a time."""
    command = [sys.executable, str(folder / "check"), "--jobs", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)


def doctored(folder: Path, file: str, text: str, other: str) -> Path:
    """A copy of the specification with another text in one of its files."""
    shutil.copytree(SPEC, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    original = (folder / file).read_text()
    assert text in original
    (folder / file).write_text(original.replace(text, other, 1))
    return folder


@pytest.mark.parametrize("name", CLEAN)
def test_the_rules_hold(name: str) -> None:
    """P1, P2, P3, P5, P6, P7, P10, P13: in every order of events within the bounds, no promise is broken."""
    done = check(SPEC, name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "holds" in done.stdout


@pytest.mark.parametrize("first", range(0, len(MUTANTS), GROUP))
def test_each_mutant_is_caught(first: int) -> None:
    """Without any one rule, a promise is broken, and the check says which."""
    names = MUTANTS[first : first + GROUP]
    done = check(SPEC, *names)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"caught \w", done.stdout)) == len(names)


@pytest.mark.parametrize("first", range(0, len(SITUATIONS), GROUP))
def test_each_situation_is_reached(first: int) -> None:
    """What holds does not hold for want of reaching the situations that matter."""
    names = SITUATIONS[first : first + GROUP]
    done = check(SPEC, *names)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("reached") == len(names)


def test_a_broken_rule_fails_the_check(tmp_path: Path) -> None:
    """Control: a clean configuration of a model without rule 0 is reported as violated."""
    folder = doctored(tmp_path, "rules.pml", "#define IDLE 0", "#define M_RIVAL\n#define IDLE 0")
    done = check(folder, "hold")
    assert done.returncode == 1
    assert "VIOLATED" in done.stdout


def test_a_changed_row_of_the_table_fails_the_check(tmp_path: Path) -> None:
    """Control: the model runs the rows of its table: with another decision in one of them, a promise is broken."""
    folder = doctored(tmp_path, "table.pml", "HELD) ", "CLAIMS) ")
    done = check(folder, "hold")
    assert done.returncode == 1
    assert "VIOLATED" in done.stdout


def test_a_surviving_mutant_fails_the_check(tmp_path: Path) -> None:
    """Control: a mutant that changes nothing survives, and the check says so."""
    folder = doctored(tmp_path, "runs.toml", "M_MISMATCH_LATE", "M_IDLE")
    done = check(folder, "mismatch checked after the lease")
    assert done.returncode == 1
    assert "SURVIVED" in done.stdout


def test_a_search_without_progress_fails_the_check(tmp_path: Path) -> None:
    """Control: a heartbeat that never stops is reported where everything is to be finished in the end."""
    folder = doctored(tmp_path, "rules.pml", "#define IDLE 0", "#define M_BEATS_FOR_EVER\n#define IDLE 0")
    done = check(folder, "progress, a handler that hangs: finished")
    assert done.returncode == 1
    assert "VIOLATED: acceptance cycle" in done.stdout


def test_a_missing_checker_is_named() -> None:
    """Without spin and gcc the check says what to install, and fails."""
    command = [sys.executable, str(SPEC / "check")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": ""}, timeout=SECONDS_MAX)
    assert done.returncode == 2
    assert "apt-get install spin gcc" in done.stderr


@pytest.mark.parametrize("kind", RUNS)
def test_the_page_has_the_results(kind: str) -> None:
    """The tables of spec/README.md name every run of these tests, and every mutant with the promise that it breaks."""
    right = {"clean": r"\| holds \| tests \|$", "mutant": r"\| (P\d.*|finished|answered) \| [\d,]+ \|$"}
    page = (SPEC / "README.md").read_text()
    for run in RUNS[kind]:
        if kind != "clean" or run["name"] in CLEAN:
            row = re.search(rf"^\| {re.escape(run['name'])} \|.*$", page, flags=re.MULTILINE)
            assert row is not None, run["name"]
            assert re.search(right.get(kind, r"\| reached \|$"), row.group()), row.group()


def test_the_page_is_made_by_the_run(tmp_path: Path) -> None:
    """`check --write` puts what it ran into the page: the row, the promise that breaks, the drawn trace."""
    name = "abandon on a second attempt frees"
    folder = doctored(tmp_path, "README.md", "<!-- made: trace -->\n", "<!-- made: trace -->\nOUTDATED\n")
    page = folder / "README.md"
    page.write_text(re.sub(rf"^\| {name} \|.*$", f"| {name} | OUTDATED |", page.read_text(), flags=re.MULTILINE))
    assert check(folder, "--write", name).returncode == 0
    text = page.read_text()
    assert re.search(rf"^\| {name} \| C10: .* \| P10 \| [\d,]+ \|$", text, flags=re.MULTILINE)
    assert "HAS ITS EFFECT" in text
    assert "P10 is broken" in text
    assert "OUTDATED" not in text
    assert "## Bounds" in text
