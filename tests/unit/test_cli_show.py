"""``notwice show``: what it tells of an operation when it is asked to."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest

from notwice import Guard, NotCompleted, Operation, Policy, UnsupportedRecord, cli


@dataclasses.dataclass(frozen=True)
class Receipt:
    """A value of a program's own."""

    charge: str


class Shown:
    """One operation in a store, and what the command says of it."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = f"sqlite:///{path}"
        self._capsys = capsys
        self.guard = Guard.open(self._url)
        found = self.guard.begin("refund:1", "k1")
        assert isinstance(found, Operation)
        self.operation = found

    def say(self, *words: str) -> str:
        assert cli.main(["show", self.operation.operation, "--store", self._url, *words]) == 0
        return self._capsys.readouterr().out


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Shown]:
    made = Shown(tmp_path / "notwice.db", capsys)
    yield made
    made.guard.close()


def test_downstream_keys_are_told_by_the_names_that_the_handler_gives_them(shown: Shown) -> None:
    """C52: the provider can be asked by the key that it was called with; none is guessed, for handlers name theirs."""
    named, plain = shown.operation.downstream_key("refund"), shown.operation.downstream_key()
    shown.operation.suspend("lost")
    lines = shown.say("--downstream", "refund", "--downstream", "").splitlines()
    assert any(line.startswith(f"downstream key: {named}  refund (the name of no step that is done") for line in lines)
    assert f"downstream key: {plain}  (without a name)" in lines
    told = json.loads(shown.say("--json", "--downstream", "refund", "--downstream", ""))
    assert told["downstream_keys"] == {"refund": named, "": plain}
    assert json.loads(shown.say("--json"))["downstream_keys"] == {}
    assert "nw_" not in shown.say()


def test_a_name_that_no_step_has_is_told(shown: Shown) -> None:
    """C52: every name gives a key, so one that may be misspelt is said to be known from no step; a known one is not."""
    shown.operation.step("refund", lambda: None)
    shown.operation.suspend("lost")
    known, misspelt = (shown.say("--downstream", name) for name in ("refund", "refnud"))
    assert ("make sure" in known, "make sure" in misspelt) == (False, True)


def test_an_atomic_operation_is_told_as_one_that_runs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C09: what is unfinished did nothing and runs again whatever its policy; once that is no proof, it is held."""
    url = f"sqlite:///{tmp_path / 'notwice.db'}"
    with Guard.open(url, policy=Policy(atomic=True)) as guard:
        with suppress(ZeroDivisionError), guard.begin("pay", "1") as operation:  # type: ignore[union-attr]  # it is ours
            operation.attempt / 0
        with suppress(NotCompleted), guard.begin("pay", "2"):  # type: ignore[union-attr]  # as above
            pass
    said: list[str] = []
    for key in "12":
        assert cli.main(["show", "--scope", "pay", "--key", key, "--store", url]) == 0
        said.append(capsys.readouterr().out)
    assert "recovery:       atomic, attempt 1" in said[0].splitlines()
    assert "the next retry runs it" in said[0]
    assert "recovery:       hold, attempt 1" in said[1].splitlines()
    assert cli.main(["ls", "--store", url, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(item["atomic"], item["held"]) for item in found] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"id": "re_1", "\u00e9": [1, 2.5, None]}, '{"id": "re_1", "\u00e9": [1, 2.5, null]}'),
        ("paid", '"paid"'),
        ((1, 2), "(1, 2)"),
        ({1: 2}, "{1: 2}"),
        ({"amount": Decimal("1.20")}, "{'amount': Decimal('1.20')}"),
        (ValueError("card declined"), '["builtins.ValueError", "card declined"]'),
    ],
)
def test_a_functions_value_is_told_as_it_was_returned(shown: Shown, value: object, text: str) -> None:
    """C52: a stored value is shown as JSON if it is that, else as Python writes it."""
    shown.operation.complete(value)
    assert f"body:           {text}" in shown.say("--reveal").splitlines()
    assert json.loads(shown.say("--reveal", "--json"))["answer"]["body"] == text


def test_nothing_is_imported_to_tell_a_value(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of a class that is in another program is told by its bytes."""
    shown.operation.complete(Receipt("ch_1"))
    monkeypatch.delattr(sys.modules[__name__], "Receipt")
    said = shown.say("--reveal")
    assert "ch_1" in said
    assert "Receipt" in said


def test_a_damaged_entry_of_a_json_file_is_never_called_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P12: what the guard refuses is shown as unreadable, told of in lists and counted, though nobody knows whose."""
    path = tmp_path / "cache.json"
    path.write_text('{"entries": {"refund:1:k1": {"status": "no number"}}}')
    store = ("--store", f"file://{path}")

    def say(*words: str) -> tuple[int, str, str]:
        return cli.main([*words, *store]), *capsys.readouterr()

    with Guard.open(store[1]) as guard, pytest.raises(UnsupportedRecord):
        guard.begin("refund:1", "k1")
    status, _, told = say("show", "--scope", "refund:1", "--key", "k1")
    assert (status, "can't be read" in told, "absent" in told) == (1, True, False)
    assert "absent" in say("show", "--scope", "refund:1", "--key", "k2")[2]
    status, out, told = say("ls")
    assert (status, out, told.startswith("1 entry can't be read")) == (0, "", True)
    assert say("ls", "--held")[0] == 1
    counted = json.loads(say("stats", "--json")[1])
    assert (counted["unreadable"], counted["operations"]) == (1, 1)
