"""The command line on many operations: filters, pages, counts, and moves of a storm's whole harvest."""

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard, Policy, Privacy, Result, ResultKind, StoreUnavailable, cli, new_key, rerun
from notwice.cli.stats import GROUPS_MAX, OTHERS, Stats, first_part
from notwice.cli.table import Table
from notwice.cli.terminal import Screen, fitted, screen_of, width_of
from notwice.model import Unreadable
from notwice.privacy import KEYS_VARIABLE
from tests.unit.test_cli import Said

LAPSING = Policy(lease=0.001)
REDO = Policy(lease=0.001, recovery=rerun, attempts_max=1)


class Storm:
    """A store that a storm went over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.guard: Any = Guard.open(self.url)

    def leave(self, key: str, *, scope: str = "refund:1", policy: Policy = LAPSING, **place: Any) -> str:
        """Leave one unresolved."""
        operation = self.guard.begin(scope, key, policy=policy, **place)
        operation.suspend("OSError: no answer")
        return operation.operation  # type: ignore[no-any-return]  # either face's

    def answer(self, key: str, status: int, **place: Any) -> None:
        """Leave one held with its answer."""
        operation = self.guard.begin("http", key, policy=LAPSING, **place)
        operation.suspend(answer=Result(ResultKind.HTTP, b"{}", status))

    def states(self) -> list[str]:
        return [str(view.state) + str(view.record.released) for view in self.guard.operations(all_namespaces=True)]


@pytest.fixture
def storm() -> Iterator[Storm]:
    """In memory if there is such a file system: this is about replies, not about the disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        made = Storm(Path(folder) / "notwice.db")
        yield made
        made.guard.close()


Run = Callable[..., Said]


@pytest.fixture
def run(storm: Storm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NOTWICE_STORE", storm.url)
    monkeypatch.setenv("LOGNAME", "olga")

    def said(*words: str) -> Said:
        capsys.readouterr()
        return Said(cli.main(words), *capsys.readouterr())

    return said


def listed(run: Run, *words: str) -> list[str]:
    """The scopes that `ls` gives."""
    return [json.loads(line)["scope"] for line in run("ls", "--json", *words).out.splitlines()]


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_what_waits_for_a_person_is_told_apart(storm: Storm, run: Run) -> None:
    """P7: --held gives those that nothing but a person finishes: held ones, and re-runs whose attempts are used up."""
    storm.leave("a", scope="held")
    storm.leave("b", scope="goes on", policy=Policy(recovery=rerun))
    storm.leave("c", scope="used up", policy=REDO)
    storm.guard.begin("done", "d").complete(1)
    assert sorted(listed(run, "--unresolved")) == ["goes on", "held", "used up"]
    assert sorted(listed(run, "--held")) == ["held", "used up"]
    held, used_up = sorted(run("ls", "--held").out.splitlines()[1:], key=lambda line: "used up" in line)
    assert "accepted, unresolved, held" in held
    assert "held  hold  " in held
    assert "rerun 1 of 1, used up" in used_up


def test_states_and_answers(storm: Storm, run: Run) -> None:
    """C52: several states at once; what a storm of one status left behind."""
    storm.answer("a", 500)
    storm.answer("b", 503)
    storm.guard.begin("done", "d").complete(1)
    storm.guard.begin("no", "e").fail(2)
    storm.leave("c")
    assert sorted(listed(run, "--state", "completed", "--state", "failed")) == ["done", "no"]
    assert listed(run, "--answer", "503") == ["http"]
    assert listed(run, "--answer", "5xx", "--unresolved") == ["http", "http"]
    assert listed(run, "--answer", "4xx") == []
    assert run("ls", "--answer", "5x").status == 2


@pytest.mark.parametrize("filters", [(), ("--answer", "5xx")], ids=["all", "filtered"])
def test_a_list_goes_on_where_it_ended(storm: Storm, run: Run, filters: tuple[str, ...]) -> None:
    """Page by page nothing is left out and nothing comes twice; the last page tells no cursor."""
    for number in range(7):
        storm.answer(f"k{number}", 500)
        storm.leave(f"l{number}")
    seen: list[str] = []
    words: tuple[str, ...] = ()
    for _ in range(20):
        said = run("ls", "--json", "--limit", "3", *filters, *words)
        seen += [json.loads(line)["operation"] for line in said.out.splitlines()]
        if "--after" not in said.err:
            break
        words = ("--after", said.err.split()[-1])
    everything = [json.loads(line)["operation"] for line in run("ls", "--json", *filters).out.splitlines()]
    assert seen == everything
    assert len(seen) == (7 if filters else 14)
    assert run("ls", "--after", "nonsense").status == 2


def test_a_long_list_is_told_page_by_page(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a page of a scan is one list with one row of headings."""
    monkeypatch.setattr("notwice.cli.selection.PAGE", 20)
    for number in range(50):
        storm.guard.begin("s", f"k{number}").complete(1)
    lines = run("ls").out.splitlines()
    assert len(lines) == 51
    assert [line.startswith("OPERATION") for line in lines].count(True) == 1


# --- terminals --------------------------------------------------------------------------------------------------------


class Tty(io.StringIO):
    """Text that goes to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals(environment: dict[str, str], colours: bool) -> None:
    """Only a terminal has colours, and not with NO_COLOR; a pipe has neither colours nor a width."""
    assert screen_of(Tty(), environment).colours is colours
    assert screen_of(Tty(), environment).width is not None
    assert screen_of(io.StringIO(), environment) == Screen(None, False)


def test_no_colour_in_a_pipe(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is piped holds no escape; on a terminal the state is coloured, and with NO_COLOR it is not."""
    storm.leave("a")
    assert "\x1b" not in run("ls").out
    monkeypatch.setattr("notwice.cli.commands.here", lambda: Screen(200, True))
    assert "\x1b[31maccepted, unresolved, held" in run("ls").out
    monkeypatch.setattr("notwice.cli.commands.here", lambda: screen_of(Tty(), {"NO_COLOR": "1"}))
    assert "\x1b" not in run("ls").out


def test_a_table_fits_its_terminal() -> None:
    """Names are cut where a row would be wider than the terminal, the longest first, and never the id."""
    row = ("idem_" + "0" * 32, "tenant-with-a-long-name", "refund:" + "9" * 60, "completed", "hold, attempt 1", "1 day")
    headings = ("OPERATION", "NAMESPACE", "SCOPE", "STATE", "RECOVERY", "LAST WRITTEN")
    wide, narrow, tiny = (
        list(Table(headings, Screen(width, True), cut=(2, 1, 4), coloured=3).lines([row])) for width in (None, 120, 20)
    )
    assert "9" * 60 in wide[1]
    plain = narrow[1].replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert max(map(width_of, (narrow[0], plain))) <= 120
    assert row[0] in plain
    assert "…" in plain
    assert row[1][:12] in plain
    assert row[0] in tiny[1]


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("日本", 4), ("\u00e9", 1), ("e\u0301", 1), ("", 0)])
def test_how_wide_a_text_is(text: str, width: int) -> None:
    """Wide characters take two cells, an accent that follows its letter none."""
    assert width_of(text) == width
    assert width_of(fitted(text, 9)) == 9
    assert width_of(fitted(text * 9, 5)) == 5


def test_columns_grow_from_page_to_page() -> None:
    """A later page may be wider, and is never narrower: columns stay where they were."""
    table = Table(("A", "B"), Screen(), cut=(), coloured=1)
    first, second = list(table.lines([("x", "1")])), list(table.lines([("xxxx", "1"), ("x", "1")]))
    assert first == ["A  B", "x  1"]
    assert second == ["xxxx  1", "x     1"]


def test_what_is_released_and_not_retried_is_found(storm: Storm, run: Run) -> None:
    """C52: a freed operation that nobody retries is in no list of unresolved ones; it has one of its own."""
    for key in ("k1", "k2"):
        storm.guard.release(_left(storm, key), who="ana", why="no trace")
    storm.leave("k3", scope="open")
    assert listed(run, "--unresolved") == ["open"]
    assert listed(run, "--released") == listed(run, "--released", "--state", "accepted") == ["refund:1", "refund:1"]
    assert listed(run, "--released", "--state", "completed") == []
    storm.guard.run(lambda: 1, scope="refund:1", key="k1")
    assert listed(run, "--released") == ["refund:1"]
    for other in ("--held", "--unresolved"):
        assert run("ls", "--released", other).status == 2


# --- stats ------------------------------------------------------------------------------------------------------------


def test_stats_count_by_state_namespace_and_scope(storm: Storm, run: Run) -> None:
    """C52: how many stand where, which namespace and which kind of scope has the unresolved ones, and the oldest."""
    oldest = storm.leave("a", scope="refund:1")
    storm.leave("b", scope="refund:2", namespace="tenant-7", policy=Policy(recovery=rerun))
    storm.guard.release(storm.guard.lookup("refund:1", "r") or _left(storm, "r"), who="ana", why="no trace")
    storm.guard.begin("payout:1", "c").complete(1)
    storm.guard.begin("payout:2", "d").fail(1)
    running = storm.guard.begin("payout:3", "e")
    found = json.loads(run("stats", "--json").out)
    assert {name: found[name] for name in ("operations", "unresolved", "held", "released", "in_progress")} == {
        "operations": 6,
        "unresolved": 2,
        "held": 1,
        "released": 1,
        "in_progress": 1,
    }
    assert (found["completed"], found["failed"], found["unreadable"]) == (1, 1, 0)
    assert found["oldest_unresolved"]["operation"] == oldest
    assert found["scopes"]["refund"]["unresolved"] == 2
    assert found["namespaces"]["tenant-7"]["operations"] == 1
    text = run("stats").out
    headings, *rows = [line.split() for line in text.splitlines() if line.startswith(("SCOPE", "refund", "payout"))]
    assert headings == ["SCOPE", "ALL", "UNRESOLVED", "HELD", "RELEASED", "IN", "PROGRESS", "COMPLETED", "FAILED"]
    assert rows == [["refund", "3", "2", "1", "1", "0", "0", "0"], ["payout", "3", "0", "0", "0", "1", "1", "1"]]
    assert f"The oldest unresolved one was begun under a second ago: {oldest} refund:1" in text
    assert "2  unresolved" in text
    assert text.index("refund ") < text.index("payout ")
    assert run("stats", "--top", "1").out.count("and 1 more") == 2
    quick = json.loads(run("stats", "--json", "--unresolved").out)
    assert (quick["operations"], quick["unresolved"]) == (2, 2)
    assert json.loads(run("stats", "--json", "--namespace", "tenant-7", "--scope-prefix", "ref").out)["operations"] == 1
    running.complete(1)


def _left(storm: Storm, key: str) -> Any:
    storm.leave(key)
    return storm.guard.lookup("refund:1", key)


def test_stats_of_an_empty_store(run: Run) -> None:
    """Nothing is a count, too."""
    said = run("stats")
    assert (said.status, said.err) == (0, "")
    assert "0  operations" in said.out
    assert "0  unresolved" in said.out


def test_stats_are_bounded() -> None:
    """However many names there are, so many are counted apart; what can't be read is counted as that."""
    stats = Stats()
    for number in range(GROUPS_MAX + 10):
        stats.add(Unreadable(str(number), "idem_1", "damaged"))
    assert len(stats.namespaces) == GROUPS_MAX + 1
    assert stats.namespaces[OTHERS]["unreadable"] == 10
    assert stats.all["unreadable"] == GROUPS_MAX + 10


@pytest.mark.parametrize(
    ("scope", "part"),
    [("refund:ord_1", "refund"), ("http", "http"), (r"a\:b:c", r"a\:b"), ("", ""), (r"a\\:b", r"a\\")],
)
def test_the_first_part_of_a_scope(scope: str, part: str) -> None:
    """A scope is counted by what stands before its first separator; an escaped one is none."""
    assert first_part(scope) == part


# --- many at once -----------------------------------------------------------------------------------------------------

WHY = ("--why", "the provider says so")
VALUE, RESPONSE = ("--result", "1"), ("--status", "201")
PAUSED = "Owners may still act if they are only paused.\n"


def test_a_dry_run_changes_nothing(storm: Storm, run: Run) -> None:
    """C52: --dry-run lists what fits and leaves it as it is, of many and of one."""
    first = storm.leave("a")
    storm.leave("b")
    for words in (("release",), ("resolve", "--completed", "--result", "1")):
        said = run(*words, "--unresolved", "--dry-run", *WHY)
        assert (said.status, said.err) == (0, "2 fit. Nothing changed.\n")
        assert first in said.out
        single = run(*words, first, "--dry-run", *WHY)
        assert (single.status, single.out) == (0, f"{first} is accepted, unresolved, held. Nothing changed.\n")
    assert storm.states() == ["accepted", "accepted"]


def test_many_are_released(storm: Storm, run: Run) -> None:
    """T25: a storm's whole harvest is freed by one command; who and why stay in each record."""
    for number in range(230):
        storm.leave(f"k{number}")
    said = run("release", "--held", "--yes", *WHY)
    assert (said.status, said.err) == (0, f"230 of 230 released\n{PAUSED}")
    assert set(storm.states()) == {"acceptedoperator"}
    (note,) = storm.guard.lookup("refund:1", "k7").record.audit
    assert (note.who, note.action, note.why) == ("olga", "released", "the provider says so")
    assert storm.guard.run(lambda: 5, scope="refund:1", key="k7") == 5


def test_many_are_resolved(storm: Storm, run: Run) -> None:
    """T25: all that fit get one answer; what does not fit stays as it is."""
    for number in range(3):
        storm.answer(f"k{number}", 500, namespace=f"t{number}")
    storm.leave("other", scope="mail:1")
    words = ("resolve", "--unresolved", "--scope-prefix", "http", "--failed", "--status", "402", "--yes", "--json")
    said = run(*words, *WHY)
    assert said.status == 0
    assert [json.loads(line)["became"] for line in said.out.splitlines()] == ["moved"] * 3
    assert storm.guard.within("t1").begin("http", "k1").stored.status == 402
    assert storm.guard.lookup("mail:1", "other").unresolved


def test_filters_of_many(storm: Storm, run: Run) -> None:
    """Only what fits all filters is moved, at most --limit of it, and the rest is said to be there."""
    for number in range(5):
        storm.answer(f"k{number}", 503 if number else 500)
    storm.leave("x")
    assert run("release", "--unresolved", "--older-than", "1h", "--yes", *WHY).status == 1
    assert run("release", "--unresolved", "--namespace", "none", "--yes", *WHY).err == "no operations\n"
    said = run("release", "--unresolved", "--answer", "503", "--limit", "3", "--yes", *WHY)
    assert said.err == f"3 of 3 released; there are more than --limit 3\n{PAUSED}"
    assert storm.states().count("acceptedoperator") == 3
    assert run("release", "--unresolved", "--answer", "503", "--yes", *WHY).err == f"1 of 1 released\n{PAUSED}"


def test_what_changed_meanwhile_is_left_alone(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """C52: each is moved by the etag that was seen: one that somebody else moved is left, and said to be."""
    for key in ("a", "b", "c"):
        storm.leave(key, policy=REDO if key == "b" else LAPSING)
    release = Guard.release
    views = {key: storm.guard.lookup("refund:1", key) for key in ("b", "c")}

    def meddled(self: Guard, view: Any, **options: Any) -> Any:
        if view.operation == views["b"].operation:
            storm.guard.resolve(views["b"], 1, who="ana", why="in the ledger")
        if view.operation == views["c"].operation:
            release(storm.guard, views["c"], who="bob", why="no trace")
        return release(self, view, **options)

    monkeypatch.setattr(Guard, "release", meddled)
    said = run("release", "--unresolved", "--yes", "--json", *WHY)
    assert said.status == 1
    assert [json.loads(line)["became"] for line in said.out.splitlines()] == ["moved", *["changed meanwhile"] * 2]
    assert said.err == f"1 of 3 released\n{PAUSED}2 left alone: changed meanwhile\n"
    assert storm.guard.lookup("refund:1", "b").state == "completed"
    assert storm.guard.lookup("refund:1", "c").record.audit[-1].who == "bob"


def test_a_store_that_goes_away(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: three failures in a row end it, with what is not known and what was not tried; it can be given again."""
    for number in range(9):
        storm.leave(f"k{number}")
    release, calls = Guard.release, iter(range(100))

    def failing(self: Guard, view: Any, **options: Any) -> Any:
        if next(calls) < 4:
            return release(self, view, **options)
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(Guard, "release", failing)
    said = run("release", "--unresolved", "--yes", *WHY)
    assert said.status == 3
    assert said.err.splitlines() == [
        "4 of 9 released",
        PAUSED.strip(),
        "3 left alone: not known: the store did not answer",
        "2 were not tried: the disk is gone",
    ]
    monkeypatch.setattr(Guard, "release", release)
    assert run("release", "--unresolved", "--yes", *WHY).err == f"5 of 5 released\n{PAUSED}"


def test_an_interrupt_ends_it_with_a_report(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses Ctrl-C is told what was done and what was not."""
    for number in range(3):
        storm.leave(f"k{number}")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Guard, "release", interrupted)
    said = run("release", "--unresolved", "--yes", *WHY)
    assert said.status == 3
    assert "0 of 3 released" in said.err
    assert "2 were not tried: interrupted" in said.err


def test_a_functions_operations_get_no_http_answer(storm: Storm, run: Run) -> None:
    """Of many, those that an answer does not fit are left alone."""
    storm.answer("a", 500)
    storm.leave("b", scope="http", request={"amount": 1})
    said = run("resolve", "--unresolved", "--completed", "--status", "200", "--yes", *WHY)
    assert said.status == 1
    assert said.err.startswith("1 of 2 resolved\n1 left alone: This operation is a guarded function's")


@pytest.mark.parametrize(
    "words",
    [
        ("--unresolved", "idem_1"),
        ("--unresolved", "--key", "k", "--scope", "s"),
        ("--held", "--force"),
        ("--held", "--etag", "00"),
        ("idem_1", "--yes"),
        ("idem_1", "--older-than", "1h"),
        ("idem_1", "--answer", "500"),
        ("idem_1", "--scope-prefix", "s"),
        ("idem_1", "--json"),
    ],
    ids=" ".join,
)
def test_one_or_many(storm: Storm, run: Run, words: tuple[str, ...]) -> None:
    """What names one operation does not go with what names many; nothing changes."""
    storm.leave("a")
    said = run("release", *words, *WHY)
    assert said.status == 2
    assert storm.states() == ["accepted"]


def test_without_a_terminal_many_need_a_yes(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script must say --yes; a person at a terminal is asked, and anything but yes changes nothing."""
    storm.leave("a")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    said = run("release", "--unresolved", *WHY)
    assert said.status == 2
    assert "1 operations fit. Say --yes to release them, or --dry-run to see them." in said.err
    for answer, status in (("n\n", 1), ("\n", 1), ("yes\n", 0)):
        monkeypatch.setattr(sys, "stdin", Tty(answer))
        said = run("release", "--unresolved", *WHY)
        assert said.status == status
        assert "1 operations fit, of 1 kinds: refund (1)" in said.err
    assert storm.states() == ["acceptedoperator"]


# --- what is sealed ---------------------------------------------------------------------------------------------------


def test_sealed_records(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """P15: without the key they are listed and counted, and nothing private is shown or moved; with it all works."""
    key = new_key("2027-01")
    sealed: Any = Guard.open(storm.url, privacy=Privacy(keys=[key]))
    operation = sealed.begin("refund:1", "k", policy=LAPSING)
    operation.checkpoint("charge", "4111")
    operation.suspend("OSError: 4111")
    name = operation.operation
    assert listed(run, "--held") == ["refund:1"]
    assert json.loads(run("stats", "--json").out)["held"] == 1
    shown = run("show", name, "--reveal")
    assert shown.status == 0
    assert "it is sealed with the key '2027-01'" in shown.out
    assert "4111" not in shown.out
    assert "4111" not in run("ls", "--json", "--reveal").out
    assert {"steps done:     (sealed)", "error:          (sealed)"} <= set(shown.out.splitlines())
    told = json.loads(run("show", name, "--json", "--reveal").out)
    assert "sealed" in told
    assert [told[part] for part in ("steps", "error", "answer", "progress")] == [None] * 4
    for words in (("release", name), *(("resolve", name, "--completed", *of) for of in (VALUE, RESPONSE))):
        said = run(*words, *WHY)
        assert said.status == 1
        assert "2027-01" in said.err
    for words in (("release",), ("resolve", "--completed", *VALUE), ("resolve", "--completed", *RESPONSE)):
        assert "refused: unsupported_record" in run(*words, "--unresolved", "--yes", *WHY).err
    monkeypatch.setenv(KEYS_VARIABLE, key)
    assert "OSError: 4111" in run("show", name).out
    assert run("resolve", name, "--completed", "--result", '"paid"', *WHY).status == 0
    assert sealed.run(lambda: pytest.fail("it ran"), scope="refund:1", key="k") == "paid"
    assert b"paid" not in storm.path.read_bytes()
    sealed.close()
    monkeypatch.setenv(KEYS_VARIABLE, "nonsense")
    assert run("ls").status == 2


def test_sealed_records_are_carried_as_they_lie(storm: Storm, run: Run, tmp_path: Path) -> None:
    """P15: `export` and `import` need no key: what is sealed stays sealed, and opens in the other store."""
    privacy = Privacy(keys=[new_key("2027-01")])
    with Guard.open(storm.url, privacy=privacy) as sealed:
        sealed.run(lambda: "4111", scope="s", key="k")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert run("export", "--to", other).status == 0
    assert b"4111" not in (tmp_path / "other.db").read_bytes()
    with Guard.open(other, privacy=privacy) as carried:
        assert carried.run(lambda: pytest.fail("it ran"), scope="s", key="k") == "4111"


def test_a_key_is_made(run: Run) -> None:
    """`notwice key` prints a key that works, another one each time, and refuses a name that can't be one."""
    keys = [run("key", "2027-01").out.strip() for _ in range(2)]
    assert keys[0] != keys[1]
    assert Privacy(keys=keys[:1]).first is not None
    assert run("key", "a b").status == 2


def test_hashed_keys_are_said_to_be(storm: Storm, run: Run) -> None:
    """Where the key is not kept, `show --reveal` says so instead of showing something else in its place."""
    hashed: Any = Guard.open(storm.url, privacy=Privacy(hash_keys=True))
    name = hashed.begin("refund:1", "k-secret").operation
    assert "(not kept: keys are hashed)" in run("show", name, "--reveal").out
    assert json.loads(run("show", name, "--reveal", "--json").out)["key"] is None
    assert run("show", "--scope", "refund:1", "--key", "k-secret").status == 0
    hashed.close()


def test_a_redactor_on_the_command_line(storm: Storm, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """P15: members of these names are never shown, of values, of JSON bodies and of steps; other bodies not at all."""
    operation = storm.guard.begin("s", "json")
    operation.checkpoint("charge", {"card_number": "4111", "brand": "visa"})
    operation.complete(Result(ResultKind.HTTP, b'{"card": {"number": "4111"}, "id": 7}', 201))
    storm.guard.begin("s", "value").complete({"cardNumber": "4111", "id": 8})
    storm.guard.begin("s", "text").complete(Result(ResultKind.HTTP, b"card 4111", 200))
    redact = ("--reveal", "--redact", "card,card-number")
    for words in (("ls", "--json"), ("show", "--scope", "s", "--key", "json")):
        said = run(*words, *redact)
        assert "4111" not in said.out
        assert "7" in said.out
    assert "visa" in run("show", "--scope", "s", "--key", "json", *redact).out
    assert "[redacted]" in run("show", "--scope", "s", "--key", "text", *redact).out
    monkeypatch.setenv("NOTWICE_REDACT", "card card_number")
    assert "4111" not in run("show", "--scope", "s", "--key", "json", "--reveal").out
    monkeypatch.delenv("NOTWICE_REDACT")
    assert "4111" in run("show", "--scope", "s", "--key", "json", "--reveal").out


# --- looking makes nothing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "stats", "show", "resolve", "release", "purge"])
def test_looking_makes_no_tables(run: Run, tmp_path: Path, command: str) -> None:
    """A file without tables stays as it is, and is said to hold no store yet; so is one that is not there."""
    words = {"ls": [], "stats": [], "purge": [], "show": ["idem_1"]}.get(command, ["idem_1", *WHY])
    words = [*words, *(["--completed", "--result", "1"] if command == "resolve" else [])]
    empty = tmp_path / "empty.db"
    empty.touch()
    said = run(command, "--store", f"sqlite:///{empty}", *words)
    assert said.status == 3
    assert "no store was made here yet. `notwice migrate` makes it" in said.err
    assert empty.read_bytes() == b""
    assert run(command, "--store", f"sqlite:///{tmp_path / 'none.db'}", *words).status == 3
    assert not (tmp_path / "none.db").exists()


def test_the_option_of_the_url(tmp_path: Path) -> None:
    """``tables=expect`` makes neither a file nor tables; where they are it works as ever."""
    path = tmp_path / "notwice.db"
    with pytest.raises(StoreUnavailable, match="no store was made here yet"):
        Guard.open(f"sqlite:///{path}?tables=expect")
    assert not path.exists()
    Guard.open(f"sqlite:///{path}").close()
    with Guard.open(f"sqlite:///{path}?tables=expect") as guard:
        assert guard.run(lambda: 1, scope="s", key="k") == 1


def test_it_is_quiet_at_a_real_terminal(storm: Storm) -> None:
    """As a program, piped, with a terminal's variables set: no escapes, whatever COLUMNS says nothing is cut."""
    storm.leave("a", scope="refund:" + "9" * 80)
    command = [sys.executable, "-m", "notwice", "ls"]
    environment = {**os.environ, "NOTWICE_STORE": storm.url, "COLUMNS": "40", "TERM": "xterm-256color"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "9" * 80 in found.stdout
    assert "\x1b" not in found.stdout
