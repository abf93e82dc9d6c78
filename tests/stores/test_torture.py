"""Client processes that are killed and stopped while they share one SQLite file; the seeded bugs are the controls."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from notwice.testing.torture import Plan, Report, torture
from tests.sources import ROOT
from tests.stores import seeded

OPERATIONS = int(os.environ.get("NOTWICE_TORTURE_OPERATIONS", "60000"))
FAULTS = OPERATIONS // 100
SECONDS_MAX = max(600, OPERATIONS / 50)
ROUNDS_MAX = 12  # a round finds any of the bugs at least every other time
IN_MEMORY = Path("/dev/shm")

RECORDS = {
    "no fence": seeded.NoFence,
    "take-over by read-then-write": seeded.ReadThenWrite,
    "completed is overwritten": seeded.OverwritesFinished,
    "etag not renewed": seeded.KeepsTheEtag,
    "purge deletes an unresolved record": seeded.PurgesOpenRecords,
    "winner decided by affected rows": seeded.WinnerByAffectedRows,
    "body cut at a size limit": seeded.CutsBodies,
    "claim acknowledged before the commit": seeded.AcknowledgesBeforeTheCommit,
    "batch acknowledged before its commit": seeded.AcknowledgesABatchBeforeItsCommit,
}
PAYMENTS = {
    "no fence": (seeded.NoFence, {"broken fence", "double effect", "wrong replay"}),
    "early take-over": (seeded.EndsLeasesEarly, {"early take-over"}),
    "fingerprint not compared": (seeded.ForgetsFingerprints, {"foreign replay", "foreign run"}),
    "the same etag for two sends": (seeded.the_same_etags, {"broken fence", "double effect", "wrong replay"}),
    "an abandon on a second attempt frees": (seeded.abandons_all, {"freed key", "double effect"}),
    "winner decided by affected rows": (seeded.WinnerByAffectedRows, {"broken fence", "double effect"}),
}


def run(plan: Plan, folder: Path) -> Report:
    report = torture(plan, folder)
    print(f"seed {plan.seed}: {report}")
    return report


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_what_clients_see_of_records_is_linearizable(folder: Path) -> None:
    """P1, P5, P16: 8 processes, killed and stopped: each record's history is explained by one order of events."""
    store = f"sqlite:///{folder}/records.db?timeout=60"
    seed = random.randrange(2**32)
    plan = Plan(store=store, operations=OPERATIONS, faults=FAULTS, seed=seed, seconds_max=SECONDS_MAX)
    report = run(plan, folder / "run")
    assert report.violations == ()
    assert report.operations >= OPERATIONS
    assert report.faults["killed"] + report.faults["paused"] >= FAULTS
    assert report.errors == {}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX)
def test_guarded_operations_keep_all_promises(folder: Path) -> None:
    """P1 to P7, P10: the same with guards under hold, rerun and reconcile; the auditor finds nothing, all settles."""
    store = f"sqlite:///{folder}/records.db?timeout=60"
    calls = OPERATIONS // 12
    seed = random.randrange(2**32)
    faults = calls // 30
    plan = Plan(store=store, work="payments", operations=calls, faults=faults, seed=seed, seconds_max=SECONDS_MAX)
    report = run(plan, folder / "run")
    assert report.violations == ()
    assert report.operations >= calls


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_a_store_with_a_bug_is_caught(name: str, folder: Path) -> None:
    """The control: a store with one bug gives histories that no order of events explains."""
    store = f"tests.stores.seeded:{RECORDS[name].__name__}"
    for seed in range(ROUNDS_MAX):
        plan = Plan(store=store, operations=800, faults=24, seed=seed)
        if run(plan, folder / str(seed)).violations:
            return
    pytest.fail(f"{name} was not caught in {ROUNDS_MAX} rounds")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAYMENTS)
def test_a_guard_with_a_bug_is_caught(name: str, folder: Path) -> None:
    """The control: with one bug in the store or in the guard, the auditor finds what it leads to."""
    made, kinds = PAYMENTS[name]
    for seed in range(ROUNDS_MAX):
        plan = Plan(store=f"tests.stores.seeded:{made.__name__}", work="payments", operations=500, faults=30, seed=seed)
        found = {each.partition(" of (")[0] for each in run(plan, folder / str(seed)).violations}
        if found & kinds:
            return
    pytest.fail(f"{name} was not caught in {ROUNDS_MAX} rounds")


def test_a_run_that_fails_says_why(folder: Path) -> None:
    """A store that can't be opened, or a client that ends by itself, is an error with its reason, and no verdict."""
    with pytest.raises(RuntimeError, match="there is no store sqlight"):
        torture(Plan(store="sqlight:///x.db", operations=1, faults=0), folder / "run")


def test_the_command_says_what_was_seen_and_fails_with_it(folder: Path) -> None:
    """``python -m notwice.testing.torture`` prints seed and counts, keeps its logs on request, and ends with 1 or 0."""
    plan = ["--operations", "300", "--faults", "5", "--seed", "1", "--folder"]
    command = [sys.executable, "-m", "notwice.testing.torture"]
    sound = [*command, f"sqlite:///{folder}/sound.db", *plan, str(folder / "sound")]
    broken = [*command, "tests.stores.seeded:NoFence", *plan, str(folder / "broken")]
    for words, code in ((sound, 0), (broken, 1)):
        ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
        assert ran.returncode == code, ran.stdout + ran.stderr
        assert ran.stdout.startswith("seed 1: ")
    assert list((folder / "sound").glob("client-*.log"))
