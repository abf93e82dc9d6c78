"""The demo: its accounting on made-up ledgers, its parts alone, and the whole of it, with a control that must fail."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from notwice.demo import main, picture, report, svg
from notwice.demo.audit import Accounts, Evidence, Standing, account
from notwice.demo.journal import Journal
from notwice.demo.orders import ACCOUNTS, Order, draw_orders
from notwice.demo.picture import Style
from notwice.demo.processes import HOST, Child, DemoError, free_port, is_free
from notwice.demo.reconcile import ask_ledger
from notwice.demo.run import Comparison, Outcome, draw_plan
from notwice.demo.service import Charge
from notwice.demo.sides import bare_side
from notwice.demo.storm import send

ORDERS = [Order("north", "order-1", 100), Order("north", "order-2", 200), Order("south", "order-1", 300)]
LEDGER = [Charge(1, "north", "order-1", 100), Charge(2, "north", "order-2", 200), Charge(3, "south", "order-1", 300)]
RECEIPTS = {order.name: {charge.receipt()} for order, charge in zip(ORDERS, LEDGER, strict=True)}
FINISHED = {order.name: Standing.FINISHED for order in ORDERS}


def accounts(ledger: Sequence[Charge], **other: Any) -> Accounts:
    return account(Evidence(ORDERS, ledger, **{"receipts": RECEIPTS, "standings": FINISHED, **other}))


def comparison(bare: Accounts, guarded: Accounts) -> Comparison:
    plan = draw_plan(1, orders=len(ORDERS), kills=0)
    return Comparison(plan, Outcome(bare, Journal()), Outcome(guarded, Journal()), took_s=1)


# --- the accounting -------------------------------------------------------------------------------------------------


def test_a_ledger_with_each_order_once_is_sound_and_complete() -> None:
    """Three orders, three charges: nothing double, lost or wrong; equal keys of two accounts are two orders."""
    found = accounts(LEDGER)
    assert (found.intended, found.charged, found.times) == (3, 3, (1, 1, 1))
    assert (found.double, found.other_amount, found.lost, found.not_charged, found.pending) == (0, 0, 0, 0, 0)
    assert found.sound
    assert found.complete


def test_each_charge_beyond_the_first_is_double() -> None:
    """An order that was charged three times counts as two double charges, and the side is not sound."""
    found = accounts([*LEDGER, Charge(4, "north", "order-2", 200), Charge(5, "north", "order-2", 200)])
    assert (found.double, found.charged, found.times) == (2, 5, (1, 3, 1))
    assert not found.sound


def test_an_order_that_was_promised_and_not_charged_is_lost() -> None:
    """The client was told success and the ledger has nothing: lost."""
    found = accounts(LEDGER[:2], standings={})
    assert (found.lost, found.not_charged, found.times) == (1, 0, (1, 1, -1))
    assert not found.sound


def test_an_order_whose_record_is_finished_and_that_was_not_charged_is_lost() -> None:
    """No client was told, but every repeat would be answered from the record, so nobody will charge it: lost."""
    found = accounts(LEDGER[:2], receipts={})
    assert found.lost == 1
    assert not found.sound


def test_an_order_that_is_still_open_is_pending_and_not_lost() -> None:
    """The guard says that the outcome is not known yet: sound, but not complete."""
    found = accounts(LEDGER[:2], receipts={}, standings={ORDERS[2].name: Standing.PENDING})
    assert (found.lost, found.pending, found.not_charged) == (0, 1, 0)
    assert found.sound
    assert not found.complete


def test_an_order_that_nobody_was_told_of_is_not_charged() -> None:
    """No charge, no promise, no record: a repeat would charge it; counted apart from the lost ones."""
    found = accounts(LEDGER[:2], receipts={}, standings={})
    assert (found.lost, found.pending, found.not_charged) == (0, 0, 1)
    assert not found.complete


def test_a_charge_of_an_amount_that_nobody_meant_is_no_double_but_wrong() -> None:
    """A reused key that was charged another amount makes the side unsound, and so does a charge of no order at all."""
    for stranger in (Charge(4, "north", "order-1", 1000), Charge(4, "west", "order-1", 100)):
        found = accounts([*LEDGER, stranger])
        assert (found.double, found.other_amount) == (0, 1)
        assert not found.sound


def test_two_different_receipts_for_one_order_are_a_contradiction() -> None:
    """P2: the clients of one order all get the first answer; two different ones make the side unsound."""
    found = accounts(LEDGER, receipts={**RECEIPTS, ORDERS[0].name: {b"one", b"two"}})
    assert found.contradicted == 1
    assert not found.sound


# --- its parts ------------------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_storm_again() -> None:
    """The same seed gives the same orders and kills, another one others."""
    assert draw_plan(7, orders=40, kills=5) == draw_plan(7, orders=40, kills=5)
    assert draw_plan(7, orders=40, kills=5) != draw_plan(8, orders=40, kills=5)


@pytest.mark.parametrize("count", [1, 3, 150])
def test_each_storm_holds_every_trouble(count: int) -> None:
    """Even the smallest storm has an impatient client, twins, a repeat and a reused key; no two orders share a name."""
    orders = draw_orders(count, seed=3)
    assert len({order.name for order in orders}) == count
    assert any(order.patience_ms < 100 for order in orders)
    assert any(order.twins for order in orders)
    assert any(order.repeats for order in orders)
    assert any(order.other_amount for order in orders)
    assert {order.account for order in orders} <= set(ACCOUNTS)


def test_a_charge_that_was_answered_survives_a_kill_and_the_bare_service_charges_twice(tmp_path: Path) -> None:
    """The ledger is a real effect: SIGKILL undoes no row. The service knows of no guard: the same key charges again."""
    side = bare_side(tmp_path / "bare", seed=1)
    try:
        for _ in range(2):
            side.start()
            assert send(ORDERS[0], side.port, amount=100, patience_ms=5000).status == 201
            side.stop()
        side.start()
        found = ask_ledger(side.port, "north", "order-1")
    finally:
        side.stop()
    assert ([charge.amount for charge in found.charges], found.at_work) == ([100, 100], 0)
    assert side.ledger() == found.charges
    assert is_free(side.port)


def test_a_process_that_does_not_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    """A child that dies at once ends the demo with a sentence and what the child said, not with a hang."""
    command = [sys.executable, "-c", "raise SystemExit('no money today')"]
    child = Child("payments service", command, port=free_port(), log=tmp_path / "log")
    with pytest.raises(DemoError, match=r"payments service does not start:\n.*no money today"):
        child.start()


def test_the_pictures_show_a_double_and_a_lost_order() -> None:
    """A terminal without colors shows marks; the SVG is well-formed, and the same numbers give the same bytes."""
    bad = accounts([*LEDGER[:2], Charge(4, "north", "order-2", 200)])
    shown = comparison(bad, accounts(LEDGER))
    drawn = picture.draw(shown, Style(color=False, unicode=False))
    assert "o2!" in drawn
    assert "ooo" in drawn
    assert "\x1b" not in drawn
    assert svg.draw(shown) == svg.draw(comparison(bad, accounts(LEDGER)))
    labels = Counter(node.text for node in ET.fromstring(svg.draw(shown)).iter() if node.tag.endswith("text"))
    assert labels["2"] >= 1
    assert labels["!"] == 1


def test_the_json_object_says_which_side_it_speaks_of() -> None:
    """What is double without the guard is counted apart from what is double with it."""
    bad = accounts([*LEDGER, Charge(4, "north", "order-2", 200)])
    document = report.document(comparison(bad, accounts(LEDGER)))
    assert (document["double_charges"], document["unguarded_double_charges"]) == (0, 1)


@pytest.mark.parametrize("argv", [["--json"], ["--orders", "0"], ["--kills", "-1"], ["--recovery", "guess"]])
def test_wrong_options_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong option ends with status 2 and a sentence, before anything is started."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "notwice demo: error:" in capsys.readouterr().err


# --- the whole ------------------------------------------------------------------------------------------------------


class Demo:
    """Runs the demo as a person would, in a folder of its own that must be empty afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *argv: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "notwice", "demo", *argv]
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def run(self, *argv: str) -> tuple[int, dict[str, Any]]:
        with self.start("--once", "--json", *argv) as process:
            out, err = process.communicate(timeout=120)
        assert out.count("\n") == 1, out + err
        return process.returncode, json.loads(out)

    def leftovers(self) -> list[str]:
        """Files, and processes that were started on them."""
        processes = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                processes.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue  # it ended meanwhile
        return [*map(str, self.folder.iterdir()), *(line for line in processes if str(self.folder) in line)]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_the_guarded_side_charges_each_order_once_through_all_kills(demo: Demo) -> None:
    """P1, P3, P7: service and guard are killed in mid-charge; each order is charged exactly once, none is left open.

    The same storm over the bare service charges orders twice.
    """
    status, found = demo.run("--orders", "24", "--kills", "3", "--seed", "1")
    assert status == 0
    assert found["seed"] == 1
    assert (found["intended"], found["charged"]) == (24, 24)
    assert (found["double_charges"], found["lost"], found["other_amount_charges"], found["unresolved"]) == (0, 0, 0, 0)
    assert found["not_charged"] == found["contradictory_answers"] == 0
    assert found["held"] == found["resolved_by_ledger"] + found["released"] > 0
    assert (found["kills"], found["service_kills"], found["gateway_kills"]) == (3, 2, 2)
    assert found["replays"] > 0
    assert found["mismatches_refused"] > 0
    assert found["unguarded_double_charges"] > 0
    assert demo.leftovers() == []


def test_a_guard_that_runs_again_what_it_does_not_know_is_found_out(demo: Demo) -> None:
    """Control: told to re-run before a service that does not de-duplicate, it charges twice; the status says so."""
    status, found = demo.run("--orders", "24", "--kills", "3", "--seed", "1", "--recovery", "rerun")
    assert status == 1
    assert found["double_charges"] > 0


def test_it_stays_up_to_be_tried_until_it_is_interrupted(demo: Demo) -> None:
    """After the table a charge can be tried by hand, twice; Ctrl-C ends the demo and all that it started."""
    with demo.start("--orders", "4", "--kills", "0") as process:
        assert process.stdout is not None
        address = next(filter(None, (re.search(rf"http://{HOST}:(\d+)/charges", line) for line in process.stdout)))
        order = Order("you", "mine", 1200)
        answers = [send(order, int(address[1]), amount=1200, patience_ms=5000) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert [(answer.status, answer.replayed) for answer in answers] == [(201, False), (201, True)]
    assert answers[0].body == answers[1].body
    assert process.returncode == 0
    assert demo.leftovers() == []


def test_nothing_is_left_of_a_demo_that_is_terminated_in_the_middle(demo: Demo) -> None:
    """SIGTERM after the first kill, in mid-storm: all processes are ended and the folder is gone."""
    with demo.start("--orders", "100", "--kills", "9") as process:
        assert process.stderr is not None
        assert next((line for line in process.stderr if " 1 kills" in line), None)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert demo.leftovers() == []
