"""The examples run as their first lines say."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.test_readme import node_folder
from tests.sources import ROOT

EXAMPLES = ROOT / "examples"
ASK = """
import json, sys
from flask_app import app, guard

client = app.test_client()
for key, body in json.load(sys.stdin):
    answer = client.post("/refunds", json=body, headers={"X-Account-Id": "shop-7", "Idempotency-Key": key})
    print(json.dumps([answer.status_code, answer.headers.get("Idempotency-Replayed"), answer.get_json()]))
guard.close()
"""
KILLED_IN_MID_REFUND = """
import os, signal, sys
import refund_script

def pay_and_die(amount, key, pay_back=refund_script.pay_back):
    pay_back(amount, key)
    os.kill(os.getpid(), signal.SIGKILL)

refund_script.pay_back = pay_and_die
refund_script.main(sys.argv[1])
"""
REFUND: Mapping[str, object] = {"order": "ord_1", "amount": 5}


def python(folder: Path, *words: str, asked: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in a folder of its own, with the examples to import."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    return subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=folder,
        env=environment,
        input=asked,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_flask_app(tmp_path: Path) -> None:
    """A refund is paid once, its retry is replayed, and one that a closed bank refused runs when it is open again."""
    first = python(tmp_path, "-c", ASK, asked=json.dumps([["k-1", REFUND], ["k-1", REFUND]]))
    assert [json.loads(line)[:2] for line in first.stdout.splitlines()] == [[201, None], [201, "true"]], first.stderr
    closed = tmp_path / "bank-is-closed"
    closed.touch()
    refused = python(tmp_path, "-c", ASK, asked=json.dumps([["k-2", REFUND]]))
    assert json.loads(refused.stdout) == [503, None, {"error": "the bank is closed"}], refused.stderr
    closed.unlink()
    again = python(tmp_path, "-c", ASK, asked=json.dumps([["k-2", REFUND]]))
    assert json.loads(again.stdout)[:2] == [201, None], again.stderr
    assert len((tmp_path / "ledger.txt").read_text().splitlines()) == 2


def test_refund_script(tmp_path: Path) -> None:
    """P7: killed after money has moved and started again, it asks the provider and pays nothing a second time."""
    (tmp_path / "refunds.csv").write_text("ord_1,5\nord_2,7\n")
    killed = python(tmp_path, "-c", KILLED_IN_MID_REFUND, "refunds.csv")
    assert killed.returncode < 0
    at_once = python(tmp_path, str(EXAMPLES / "refund_script.py"), "refunds.csv")
    assert at_once.stdout.splitlines() == ["ord_1: another run is at it", "ord_2: paid 7"], at_once.stderr
    age_the_records(tmp_path / "refunds.db")
    later = python(tmp_path, str(EXAMPLES / "refund_script.py"), "refunds.csv")
    assert later.stdout.splitlines() == ["ord_1: paid 5, as before", "ord_2: paid 7, as before"], later.stderr
    booked = json.loads((tmp_path / "provider.json").read_text())
    assert sorted(booked.values()) == [5, 7]


def age_the_records(path: Path) -> None:
    """Let every lease be over, as after a restart of the host."""
    with closing(sqlite3.connect(path)) as file, file:
        file.create_function("crc32", 1, lambda _: 0)
        file.execute("UPDATE notwice_record SET boot_id = 'another boot'")


def test_every_example_says_how_it_is_run() -> None:
    """The first lines of each example hold its command, and the README or a page names it."""
    pages = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for example in EXAMPLES.iterdir():
        if example.suffix in (".py", ".js"):
            head = "".join(example.read_text().splitlines(keepends=True)[:3])
            assert re.search(rf"(uvicorn|flask|node|python) .*{example.stem}", head), example.name
            assert f"examples/{example.name}" in pages, example.name


def test_javascript_example_is_well_formed() -> None:
    """Node can read the service; that it charges is shown by the README's path."""
    folder = node_folder()
    if folder is None:
        pytest.skip("node is not installed")
    check = [str(folder / "node"), "--check", str(EXAMPLES / "payments.js")]
    assert subprocess.run(check, timeout=30, check=False).returncode == 0
