"""``notwice recover``: a worker as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard, Policy, rerun
from notwice.cli import main
from notwice.cli.recover import stopping

APP = """
from notwice import AsyncGuard, Guard, Policy, reconcile, Applied

plain = Guard.open("sqlite:///app.db")
looping = AsyncGuard.open("sqlite:///app.db")
bare = Guard.open("sqlite:///app.db")
nothing = 3

@plain.recovers("pay:{order}")
def pay(operation, order):
    if order == "bad":
        raise ValueError("no such order")
    return operation.step("pay", lambda: f"paid {order}")

@looping.recovers("pay:{order}")
async def pay_in_a_loop(operation, order):
    async def one():
        return f"paid {order}"
    return await operation.step("pay", one)
"""


LOGGING = """
import logging

@plain.recovers("{any}")
def log(operation, any):
    pass

logging.getLogger("shop").info("my own")
logging.getLogger("httpx").info("HTTP Request: GET https://h/s3cret")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(APP)
    return tmp_path


def leave(folder: Path, *orders: str, namespace: str = "") -> None:
    with Guard.open(f"sqlite:///{folder}/app.db", policy=Policy(recovery=rerun)) as guard:
        for order in orders:
            guard.begin(("pay", order), "k", namespace=namespace).suspend()  # type: ignore[union-attr]  # it is ours


def results(folder: Path) -> dict[str, object]:
    with Guard.open(f"sqlite:///{folder}/app.db", policy=Policy(recovery=rerun)) as guard:
        views = list(guard.operations(all_namespaces=True))
        return {
            view.record.scope: guard.begin(view.record.scope, "k", namespace=view.record.namespace).result  # type: ignore[union-attr]  # it is finished
            for view in views
        }


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "notwice", "recover", *words],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("name", ["plain", "looping"])
def test_one_round(folder: Path, name: str) -> None:
    """`--once` finishes what can be finished in all namespaces, says so, and ends with 0."""
    leave(folder, "ord_1", "ord_2")
    leave(folder, "ord_3", namespace="b")
    said, errors = (process := command(folder, "--app", f"shop.app:{name}", "--once")).communicate(timeout=60)
    assert (process.returncode, said) == (0, "3 finished\n"), errors
    assert results(folder) == {f"pay:ord_{number}": f"paid ord_{number}" for number in (1, 2, 3)}


def test_a_round_that_leaves_something_says_so(folder: Path) -> None:
    """P7: what failed or is held is counted, and the exit status is 1, for whoever watches."""
    leave(folder, "ord_1", "bad")
    with Guard.open(f"sqlite:///{folder}/app.db") as guard:
        guard.begin(("pay", "held"), "k").suspend()  # type: ignore[union-attr]  # it is ours
    words = ("--app", "shop.app:plain", "--once", "--namespace", "")
    said, errors = (process := command(folder, *words)).communicate(timeout=60)
    assert (process.returncode, said) == (1, "1 finished, 1 failed, 1 held\n"), errors


@pytest.mark.parametrize("name", ["plain", "looping"])
def test_it_goes_on_until_it_is_told_to_stop(folder: Path, name: str) -> None:
    """Without `--once` it makes round after round, tells those in which anything was, and ends with 0 by SIGTERM."""
    leave(folder, "ord_1")
    process = command(folder, "--app", f"shop.app:{name}", "--every", "0.05")
    assert process.stdout is not None
    assert process.stdout.readline() == "1 finished\n"
    leave(folder, "ord_2")
    assert process.stdout.readline() == "1 finished\n"
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert len(results(folder)) == 2


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("shop", "say module:name"),
        ("shop.app:", "say module:name"),
        ("shops.app:plain", "there is no module shops"),
        ("shop.apps:plain", "there is no module shop.apps"),
        ("shop.app:plan", "has no plan"),
        ("shop.app:nothing", "is a int and no guard"),
        ("shop.app:bare", "has no handlers"),
    ],
)
def test_what_is_no_guard_with_handlers_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], app: str, sentence: str
) -> None:
    """A wrong `--app` is told with a sentence, and the exit status is 2."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for module in ("shop", "shop.app"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main(["recover", "--app", app, "--once"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import not_installed", "ModuleNotFoundError: No module named 'not_installed' ("),
        ("x = 1\nx.y", "AttributeError: 'int' object has no attribute 'y' ("),
        ("raise ValueError", "can't be imported: ValueError ("),
        ("def", "SyntaxError: "),
    ],
)
def test_a_module_that_fails_is_told_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    """What a module raises is told with its place, and neither as a traceback nor as a guard that is missing."""
    (folder / "shop" / "broken.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for module in ("shop", "shop.broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main(["recover", "--app", "shop.broken:guard", "--once"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("--app: the module shop.broken can't be imported: ")
    assert sentence in told
    assert "broken.py, line " in told


def test_a_store_that_is_not_there(folder: Path) -> None:
    """With `--once` a store that does not answer is exit status 3."""
    text = APP.replace("sqlite:///app.db", "sqlite:////nowhere/at/all.db")
    (folder / "shop" / "app.py").write_text(text)
    _, errors = (process := command(folder, "--app", "shop.app:plain", "--once")).communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in errors


def test_a_signal_stops_it_even_while_it_begins_to_wait() -> None:
    """A signal that comes while the event's lock is held by the thread that handles it is not waited for by itself."""
    stop: Any = threading.Event()
    ended = threading.Event()

    def signalled() -> None:
        with stop._cond:  # as in the middle of stop.wait()
            stopping(stop)()
        assert stop.wait(20)
        ended.set()

    threading.Thread(target=signalled, daemon=True).start()
    assert ended.wait(20)


def test_the_addresses_of_lookups_are_not_logged(folder: Path) -> None:
    """P15: an address may hold the caller's key; the client that looks up at it would log each one."""
    leave(folder, "1")
    (folder / "shop" / "app.py").write_text(APP + LOGGING)
    worker = command(folder, "--app", "shop.app:plain", "--once")
    _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, told
    assert "my own" in told
    assert "s3cret" not in told
