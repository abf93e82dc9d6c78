"""The command line on a store: what it shows, what it changes, and what it never does."""

import contextlib
import importlib
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from notwice import Guard, Operation, Policy, Replay, Result, ResultKind, __version__, cli
from notwice.fingerprint import fingerprint_value
from notwice.identity import join_scope
from notwice.model import Fingerprint, RecordView, State

LAPSING = Policy(lease=0.001)
NOTHING = Policy(retention=0.001)
ANSWER = Result(ResultKind.HTTP, b'{"card": "4242"}', 201, (("content-type", "application/json"),))
_OPERATIONS_PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
CONTROL = "\x1b]0;owned\x07\x1b[2J\u202e"


class Said(NamedTuple):
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str


class Store:
    """A store with operations in all states, made by a guard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.guard = Guard.open(self.url)

    def begin(self, key: str, *, scope: str = "refund:1", namespace: str = "", policy: Policy = LAPSING) -> Operation:
        found = self.guard.begin(scope, key, policy=policy, namespace=namespace, request={"amount": 1})
        assert isinstance(found, Operation)
        return found

    def look(self, key: str, *, scope: str = "refund:1", namespace: str = "") -> RecordView:
        found = self.guard.lookup(scope, key, namespace=namespace)
        assert found is not None
        return found

    def suspended(self, key: str = "k1", **place: Any) -> str:
        operation = self.begin(key, **place)
        operation.suspend("the process was killed", answer=ANSWER)
        return operation.operation

    def completed(self, key: str = "k1", **place: Any) -> str:
        operation = self.begin(key, **place)
        operation.complete(ANSWER)
        return operation.operation


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path / "notwice.db")
    yield made
    made.guard.close()


Run = Callable[..., Said]


@pytest.fixture
def run(store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NOTWICE_STORE", store.url)
    monkeypatch.setenv("LOGNAME", "olga")

    def said(*words: str) -> Said:
        capsys.readouterr()
        return Said(cli.main(words), *capsys.readouterr())

    return said


def test_ls_shows_each_operation_with_its_state_and_age(store: Store, run: Run) -> None:
    """C52: what is open is found: in a table, oldest first, with ages in words."""
    done, lost = store.completed("k1"), store.suspended("k2", namespace="tenant-7")
    lines = run("ls").out.splitlines()
    assert lines[0].split() == ["OPERATION", "NAMESPACE", "SCOPE", "STATE", "RECOVERY", "LAST", "WRITTEN"]
    assert lines[1].split() == [done, "refund:1", "completed", "hold", "under", "a", "second", "ago"]
    assert lines[2].split()[:6] == [lost, "tenant-7", "refund:1", "accepted,", "unresolved,", "held"]


def test_ls_finds_by_state_scope_namespace_age_and_number(store: Store, run: Run) -> None:
    """C52: each filter leaves only what it says."""
    done, lost = store.completed("k1"), store.suspended("k2", scope="charge:1", namespace="t")
    live = store.begin("k3", scope="charge:2", policy=Policy())

    def found(*words: str) -> list[str]:
        return [json.loads(line)["operation"] for line in run("ls", "--json", *words).out.splitlines()]

    assert found() == [done, lost, live.operation]
    assert found("--unresolved") == [lost]
    assert found("--state", "completed") == [done]
    assert found("--scope-prefix", "charge:") == [lost, live.operation]
    assert found("--namespace", "t") == [lost]
    assert found("--namespace", "") == [done, live.operation]
    assert found("--limit", "1") == [done]
    assert found("--older-than", "1m") == []
    live.complete(None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lss"], "there is no command lss; did you mean ls?"),
        (["xyzzy"], "there is no command xyzzy\n"),
        (["ls", "--scope", "refund:"], "there is no option --scope; did you mean --scope-prefix?"),
        (["ls", "--store", "sqlite:///absent.db?timout=3"], "did you mean 'timeout'?"),
        (["ls", "--store", "file://./absent.json?acces=read"], "did you mean 'access'?"),
    ],
)
def test_what_was_misspelt_is_named(run: Run, words: list[str], told: str) -> None:
    """T21: a command, an option and an option of a URL are answered with what may have been meant."""
    said = run(*words)
    assert (said.status, said.out) == (2, "")
    assert told in said.err


def test_the_release_is_said(run: Run) -> None:
    """Both ways of asking for it are answered."""
    assert run("--version") == run("version") == (0, f"{__version__}\n", "")


def test_nothing_found_is_said_and_has_a_status_of_its_own(run: Run) -> None:
    """An empty list is status 1, so that a script can tell."""
    assert run("ls") == (1, "", "no operations\n")
    assert run("ls", "--json") == (1, "", "")
    absent = run("show", "idem_" + "0" * 32)
    assert (absent.status, "absent" in absent.err) == (1, True)


def test_ls_shows_what_it_can_not_read_as_that(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """P14: a record of a newer release is listed as unreadable, and no move touches it."""
    operation = store.suspended()
    damage(store.path)
    assert "unreadable" in run("ls").out
    assert json.loads(run("ls", "--json").out)["unreadable"]
    refused = run("release", operation, "--why", "it did not happen")
    assert (refused.status, "can't be read" in refused.err) == (1, True)
    assert "under 'What can't be read'" in refused.err


def test_a_damaged_record_is_ended_as_the_page_says(store: Store, run: Run, tmp_path: Path) -> None:
    """P10: no command touches it, an export names it; taken out by the database's own tool, the key is free again."""
    operation = store.suspended()
    with contextlib.closing(sqlite3.connect(store.path)) as database, database:
        database.execute("UPDATE notwice_record SET record = CAST(record || x'00' AS BLOB)")
    said = run("export", "--to", f"sqlite:///{tmp_path}/other.db")
    assert (said.status, said.err) == (1, f"not carried: 1 (can't be read): {operation}\n")
    for words in (("show",), ("release", "--why", "gone"), ("release", "--why", "gone", "--force")):
        refused = run(words[0], operation, *words[1:])
        assert (refused.status, "under 'What can't be read'" in refused.err) == (1, True)
    (line,) = [line for line in _OPERATIONS_PAGE.read_text().splitlines() if line.startswith("sqlite3 ")]
    statement = line.split('"')[1].replace("idem_…", operation)
    with contextlib.closing(sqlite3.connect(store.path)) as database, database:
        assert database.execute(statement).rowcount == 1
    assert store.guard.run(lambda: "again", scope="refund:1", key="k1", request={"amount": 1}) == "again"


def damage(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update notwice_record set record = x'ffff'")


def test_show_tells_all_but_the_key_and_the_bodies(store: Store, run: Run) -> None:
    """C52, P15: keys, bodies and steps' results are shown only when they are asked for."""
    operation = store.begin("secret-key")
    operation.checkpoint("charged", {"card": "4242"})
    operation.suspend("the upstream was lost", answer=ANSWER)
    shown = run("show", operation.operation).out
    for word in ("accepted, unresolved", "refund:1", "charged", "the upstream was lost", "HTTP 201, 16 bytes", "hold"):
        assert word in shown
    assert "nw_" not in shown
    assert "4242" not in shown
    assert "secret-key" not in shown
    revealed = run("show", operation.operation, "--reveal").out
    assert "secret-key" in revealed
    assert "body:           " + '{"card": "4242"}' in revealed
    assert "step:           charged: " + '{"card": "4242"}' in revealed

    document = run("show", operation.operation, "--json").out
    assert "4242" not in document
    assert "secret-key" not in document
    assert json.loads(document)["answer"] == {"kind": "http", "omitted": False, "body_bytes": 16, "status": 201}
    whole = json.loads(run("show", operation.operation, "--json", "--reveal").out)
    assert (whole["key"], whole["progress"]) == ("secret-key", {"charged": '{"card": "4242"}'})
    assert "secret-key" not in run("ls").out + run("ls", "--json").out


def test_an_operation_is_named_by_its_id_or_by_scope_and_key(store: Store, run: Run) -> None:
    """C52, C08: whoever has the caller's key finds the record; half a name is a usage error."""
    operation = store.completed("k1", scope="refund:1")
    assert operation in run("show", "--scope", "refund:1", "--key", "k1").out
    assert run("show", "--scope", "refund:1").status == 2
    assert run("show").status == 2
    assert run("show", operation, "--key", "k1").status == 2
    assert run("show", "--scope", "refund:1", "--key", "").status == 2


def test_a_colon_within_a_part_is_told_of_before_absent_means_never(store: Store, run: Run) -> None:
    """C52: a scope of a tuple has its own colons escaped; who types it as it looks is told how it is written."""
    scope = join_scope(("order", "E:1"))
    operation = store.begin("m5", scope=scope)
    operation.suspend("lost")
    for command in (("show",), ("release", "--why", "x"), ("resolve", "--completed", "--result", "1", "--why", "x")):
        absent = run(*command, "--scope", "order:E:1", "--key", "m5")
        assert absent.status == 1
        assert "is absent, as it is named here. A colon within a part of a scope or a key is written \\:" in absent.err
        assert "`notwice ls --scope-prefix order` shows what is there." in absent.err
    assert scope == "order:E\\:1"
    assert scope in run("ls", "--scope-prefix", "order").out
    assert run("show", "--scope", scope, "--key", "m5").status == 0
    assert "colon" in run("show", "--scope", "order", "--key", "m:5").err
    assert "colon" not in run("show", "--scope", "order", "--key", "m5").err + run("show", "idem_0").err


@pytest.mark.parametrize("account", ["user:7", "CORP\\alice"])
def test_a_separator_within_an_account_is_told_of_where_its_namespace_has_nothing(
    store: Store, run: Run, account: str
) -> None:
    """P11, C52: an account's own separators are escaped in its namespace; who types them as they are is told so."""
    namespace = join_scope((account,))
    operation = store.suspended("k1", namespace=namespace)
    for command in (("ls",), ("show", operation)):
        absent = run(*command, "--namespace", account)
        assert absent.status == 1
        assert (
            "A colon within an account's name is written \\: in it, and a backslash \\\\: `notwice stats`" in absent.err
        )
        assert run(*command, "--namespace", namespace).status == 0
    assert namespace in run("stats").out
    assert run("ls", "--namespace", "user").err == "no operations\n"


@pytest.mark.parametrize("command", ["ls", "stats", "doctor"])
def test_a_url_with_the_wrong_slashes_is_told_what_the_guard_tells(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """T21: who leaves out a slash is told that, and not that nothing is at a path that was not meant."""
    for url, sentence in (("sqlite://var/x.db", "three slashes"), ("file://var/x.json", "three slashes")):
        with pytest.raises(ValueError, match=sentence) as refused:
            Guard.open(url)
        assert cli.main([command, "--store", url]) == 2
        assert capsys.readouterr().err == f"{refused.value}\n"


def test_two_namespaces_with_one_operation_are_told_apart(store: Store, run: Run) -> None:
    """P11: ids of two namespaces may be equal; then a person must say which is meant."""
    operation = store.suspended("k1", namespace="a")
    store.suspended("k1", namespace="b")
    asked = run("release", operation, "--why", "x")
    assert (asked.status, "a, b" in asked.err, "--namespace" in asked.err) == (2, True, True)
    assert run("release", operation, "--why", "x", "--namespace", "b").status == 0
    assert [store.look("k1", namespace=name).unresolved for name in ("a", "b")] == [True, False]


def test_resolve_gives_duplicates_the_answer_that_a_person_found(store: Store, run: Run, tmp_path: Path) -> None:
    """T25: an operation of unknown outcome is finished with an answer, and the next duplicate gets it."""
    first = store.suspended("k1")
    body = tmp_path / "body"
    body.write_bytes(b"\x00\xff")
    words = ("--completed", "--status", "201", "--body", f"@{body}", "--content-type", "image/png", "--why", "seen")
    assert run("resolve", first, *words) == (0, f"{first} is completed\n", "")
    assert store.look("k1").result == Result(ResultKind.HTTP, b"\x00\xff", 201, (("content-type", "image/png"),))

    second = store.suspended("k2")
    assert run("resolve", second, "--completed", "--result", '{"id": 7}', "--why", "seen").status == 0
    replay = store.guard.begin("refund:1", "k2", request={"amount": 1})
    assert isinstance(replay, Replay)
    assert replay.result == {"id": 7}

    third = store.suspended("k3")
    assert run("resolve", third, "--failed", "--status", "402", "--why", "declined").status == 0
    assert (store.look("k3").state, store.look("k3").result) == (State.FAILED, Result(ResultKind.HTTP, b"", 402))


@pytest.mark.parametrize(
    "words",
    [
        (), ("--completed",), ("--completed", "--failed", "--result", "1"), ("--result", "1"),
        ("--completed", "--result", "1", "--status", "200"), ("--completed", "--result", "{"),
        ("--completed", "--status", "99"), ("--completed", "--result", "1", "--body", "x"),
        ("--completed", "--status", "402"), ("--completed", "--status", "500"),
        ("--failed", "--status", "201"), ("--failed", "--status", "303"),
        ("--completed", "--status", "200", "--body", "@no-such-file"), ("--completed", "--result", "[" * 100_000),
        ("--completed", "--status", "200", "--body", "x", "--content-type", "a/b\r\nSet-Cookie: a=b"),
        ("--completed", "--status", "200", "--body", "x", "--content-type", "a/b; c=\u2603"),
        ("--completed", "--result", "NaN"), ("--completed", "--status", "200", "--body", ""),
        ("--completed", "--status", "200", "--body", "{bad"), ("--completed", "--status", "200", "--body", "Infinity"),
        ("--completed", "--status", "200", "--body", "x", "--content-type", "application/problem+json; charset=utf-8"),
    ],
)  # fmt: skip
def test_a_half_said_answer_changes_nothing(store: Store, run: Run, words: tuple[str, ...]) -> None:
    """What duplicates are given must be said whole; else it is a usage error."""
    operation = store.suspended("k1")
    assert run("resolve", operation, *words, "--why", "x").status == 2
    assert store.look("k1").unresolved


@pytest.mark.parametrize(
    ("fingerprint", "kept", "taken"),
    [
        (fingerprint_value({"amount": 1}), None, {"--result"}),
        (None, None, {"--result"}),
        (Fingerprint("http-1", b"1"), None, {"--status"}),
        (Fingerprint("http-bytes-1", b"1"), ANSWER, {"--status"}),
        (Fingerprint("body-sha256", b"1"), None, {"--status"}),
        (Fingerprint("bytes-1", b"1"), None, {"--result", "--status"}),
        (Fingerprint("a recipe of somebody's", b"1"), None, {"--result", "--status"}),
        (None, ANSWER, {"--result", "--status"}),
    ],
)
def test_an_operation_is_resolved_with_what_its_duplicates_can_be_given(
    store: Store, run: Run, fingerprint: Fingerprint | None, kept: Result | None, taken: set[str]
) -> None:
    """A function's duplicates get a value and a request's an HTTP answer, alone and among many.

    Its fingerprint says what it is: that of a value or none is a function's. One of bytes, and a kept HTTP answer of
    what would be a function's, say nothing, and the person is believed.
    """
    for many in (False, True):
        for flag, value, why in (("--status", "201", "Say --result JSON."), ("--result", "7", "Say --status and")):
            key = f"{flag}{many}"
            begun = store.guard.begin("s", key, fingerprint=fingerprint, policy=LAPSING)
            assert isinstance(begun, Operation)
            begun.suspend("lost", answer=kept)
            name = ("--unresolved", "--yes") if many else (begun.operation,)
            said = run("resolve", *name, "--completed", flag, value, "--why", "x")
            assert (said.status, why in said.err) == ((0, False) if flag in taken else (1, True))
            left = store.look(key, scope="s")
            assert left.unresolved == (flag not in taken)
            if left.unresolved:
                store.guard.resolve(left, 1, who="x", why="x")


def test_a_request_is_not_resolved_with_a_broken_document(store: Store, run: Run, tmp_path: Path) -> None:
    """What says that it is JSON is read as JSON before anything is stored, and told where it is none."""
    operation = store.suspended("k1")
    words = ("resolve", operation, "--completed", "--status", "201", "--why", "x")
    broken = run(*words, "--body", '{"id": "re_1",}')
    assert broken.status == 2
    assert broken.err.startswith("--body is to be application/json, and is no JSON: ")
    assert "line 1 column 15 (char 14)" in broken.err
    (tmp_path / "body").write_bytes(b'{"id": "\xff"}')
    binary = run(*words, "--body", f"@{tmp_path / 'body'}")
    assert (binary.status, "position 8" in binary.err) == (2, True)
    assert store.look("k1").unresolved
    assert run(*words, "--body", "{bad json", "--content-type", "text/plain").status == 0
    assert run(*words, "--body", '{"id": "re_1"}', "--force").status == 0


def test_release_lets_the_same_request_run_again_and_warns(store: Store, run: Run) -> None:
    """C52: the next call runs once; the person is told that a paused owner may still act."""
    operation = store.suspended("k1")
    said = run("release", operation, "--why", "the provider has no such charge")
    assert (said.status, "may run again" in said.out) == (0, True)
    assert "may still act" in said.err
    again = store.begin("k1")
    assert again.attempt == 2
    again.complete("once")


def test_release_can_drop_the_steps_and_change_the_downstream_key(store: Store, run: Run) -> None:
    """A person may say that all begins anew, and that the next system is to see a new operation."""
    operation = store.begin("k1")
    before = operation.downstream_key("refund")
    operation.checkpoint("charged", 1)
    operation.suspend("lost")
    assert run("release", operation.operation, "--why", "x", "--from-start", "--new-downstream-key").status == 0
    again = store.begin("k1")
    assert again.recovery_point == ""
    assert again.downstream_key("refund") != before
    again.complete(None)


def test_what_is_running_or_finished_is_released_only_by_force(store: Store, run: Run) -> None:
    """C52: a live lease, and a finished record, need --force, and the refusal says so."""
    live = store.begin("k1", policy=Policy())
    refused = run("release", live.operation, "--why", "x")
    assert (refused.status, "only --force changes it" in refused.err, "force=" in refused.err) == (1, True, False)
    assert not store.look("k1").record.audit
    assert run("release", live.operation, "--why", "x", "--force").status == 0

    done = store.completed("k2")
    assert run("release", done, "--why", "x").status == 1
    assert run("resolve", done, "--failed", "--result", "1", "--why", "x").status == 1
    assert store.look("k2").state is State.COMPLETED
    forced = run("release", done, "--why", "a wrong answer was stored", "--force")
    assert (forced.status, "once more" in forced.err) == (0, True)


def test_a_move_is_refused_if_the_record_is_not_the_one_that_was_shown(store: Store, run: Run) -> None:
    """What a person decides on an old picture is not carried out on a new one."""
    operation = store.suspended("k1")
    etag = json.loads(run("show", operation, "--json").out)["etag"]
    assert run("release", operation, "--why", "x", "--etag", "00").status == 1
    assert run("release", operation, "--why", "x", "--etag", "no hex").status == 2
    assert run("release", operation, "--why", "x", "--etag", etag).status == 0


def test_every_move_leaves_who_when_and_why(store: Store, run: Run) -> None:
    """C52: the audit trail is in the record, and `show` shows it; who defaults to the user of the system."""
    operation = store.suspended("k1")
    run("release", operation, "--why", "no charge at the provider")
    store.begin("k1").suspend("again")
    run("resolve", operation, "--completed", "--result", "1", "--why", "found it", "--who", "pat")
    lines = [line for line in run("show", operation).out.splitlines() if line.startswith("audit:")]
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "olga released: no charge at the provider",
        "pat resolved as completed: found it",
    ]
    assert run("release", operation, "--force").status == 2
    assert run("release", operation, "--force", "--why", " ").status == 2


def test_purge_drops_only_what_is_finished_and_over(store: Store, run: Run) -> None:
    """P6: an unfinished operation is never dropped, however old."""
    for number in range(3):
        store.completed(f"k{number}", policy=NOTHING)
    store.suspended("open", policy=Policy(lease=0.001, retention=0.001))
    assert run("purge", "--limit", "2") == (0, "2 dropped\n", "")
    assert run("purge") == (0, "1 dropped\n", "")
    assert len(list(store.guard.operations())) == 1


def test_looking_makes_no_store(run: Run, tmp_path: Path) -> None:
    """A misspelt path is said to be none; no empty store is made there."""
    nowhere = tmp_path / "other.db"
    for words in (("ls",), ("show", "idem_1"), ("purge",), ("release", "idem_1", "--why", "x")):
        said = run(*words, "--store", f"sqlite:///{nowhere}")
        assert (said.status, "no store" in said.err, nowhere.exists()) == (3, True, False)


def test_a_file_that_is_no_store_is_said_to_be_none(run: Run, tmp_path: Path) -> None:
    """Some other file is neither read as a store nor changed."""
    other = tmp_path / "letter.txt"
    other.write_bytes(b"Dear Sir or Madam, " * 1000)
    said = run("ls", "--store", f"sqlite:///{other}")
    assert said.status == 3
    assert "Traceback" not in said.err
    assert other.read_bytes() == b"Dear Sir or Madam, " * 1000


def test_a_store_that_can_not_be_meant_is_a_usage_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No store, one of another process's memory, and one of an unknown kind are refused with a sentence."""
    assert run("ls", "--store", "memory://").status == 2
    assert run("ls", "--store", "sqlight:///x.db").status == 2
    monkeypatch.delenv("NOTWICE_STORE")
    assert run("ls") == (2, "", "Which store? Say --store URL, like sqlite:///notwice.db, or set NOTWICE_STORE.\n")


def test_nothing_in_a_record_reaches_the_terminal_as_a_command(store: Store, run: Run) -> None:
    """Control characters in what comes from elsewhere are shown escaped, as text and as JSON."""
    operation = store.begin("k1", scope="refund:\u202e1", namespace="a\u200bb")
    operation.suspend(CONTROL)
    run("release", operation.operation, "--why", CONTROL, "--who", CONTROL)
    for words in (("ls",), ("show", operation.operation, "--reveal"), ("ls", "--json", "--reveal")):
        said = run(*words)
        assert all(character.isprintable() or character == "\n" for character in said.out)
    absent = run("show", CONTROL)
    assert all(character.isprintable() or character == "\n" for character in absent.err)


def test_an_unknown_option_gets_a_suggestion(run: Run) -> None:
    """Options are never guessed from their beginnings; a misspelt one is suggested."""
    said = run("ls", "--unresolvd")
    assert said.status == 2
    assert "did you mean --unresolved?" in said.err
    assert run("ls", "--unres").status == 2
    assert run("ls", "more").status == 2
    assert "'in_progress', 'accepted', 'completed', 'failed'" in run("ls", "--state", "foo").err
    assert run("lst").status == 2
    assert run().status == 2


@pytest.mark.parametrize("command", ["", "serve", "ls", "show", "resolve", "release", "purge", "version"])
def test_help_tells_what_each_exit_status_means(run: Run, command: str) -> None:
    """Each command explains itself, with its exit statuses."""
    said = run(*command.split(), "--help")
    assert said.status == 0
    assert "exit status:" in said.out


def test_version(run: Run) -> None:
    """The release is the installed one."""
    assert run("version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Where the parts of an extra are not installed, the command says which extra to install."""
    real = importlib.import_module("builtins").__import__

    def absent(name: str, *others: Any, **more: Any) -> Any:
        if (name == "notwice.server" and others[2:3] == (("app",),)) or (
            name == "notwice" and others[2:3] == (("demo",),)
        ):
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *others, **more)

    monkeypatch.setattr("builtins.__import__", absent)
    words = ("--upstream", "http://127.0.0.1:1", "--principal", "shared") if command == "serve" else ()
    said = run(command, *words)
    assert (said.status, said.out) == (2, "")
    assert "pip install '.[server]' in a clone" in said.err
    assert "pip install 'notwice[server]'" in said.err


def test_the_demo_starts_nothing_without_its_extra() -> None:
    """Without what the gateway needs the demo ends at once and says what to install, before it starts a process."""
    main = "import sys; sys.modules['uvicorn'] = None; from notwice.cli import main; sys.exit(main(['demo', '--once']))"
    ran = subprocess.run([sys.executable, "-c", main], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stdout, len(ran.stderr.splitlines())) == (2, "", 1)
    assert "`notwice demo` needs uvicorn" in ran.stderr


def test_it_runs_as_a_program_and_its_reader_may_leave_early(store: Store) -> None:
    """``notwice ls | head -1`` ends quietly."""
    for number in range(200):
        store.completed(f"k{number}", policy=Policy())
    command = [sys.executable, "-m", "notwice", "ls", "--json", "--store", store.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["state"] == "completed"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(20) == 0


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_no_record_stops_a_list_because_of_the_terminal(store: Store, encoding: str) -> None:
    """C52: a scope that the terminal has no characters for is shown escaped, and the others are listed."""
    store.suspended(scope="rechnung:\u2603")
    store.suspended(scope="refund:1")
    command = [sys.executable, "-m", "notwice", "ls", "--store", store.url]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    told = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (told.returncode, told.stderr) == (0, b"")
    assert b"rechnung:\\u2603" in told.stdout
    assert b"refund:1" in told.stdout


@pytest.mark.parametrize("command", [["version"], ["ls", "--json"], ["ls", "--help"]])
def test_a_full_disk_under_the_output_is_told_once(store: Store, command: list[str]) -> None:
    """What could not be said is no success, and no fault of the store; one line says so."""
    store.suspended()
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "notwice", *command]
        environment = {**os.environ, "NOTWICE_STORE": store.url}
        told = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert told.returncode == 4
    assert told.stderr.startswith(b"The output can't be written: No space left on device. What was done in the store")
    assert told.stderr.count(b"\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_nobody_holds_stop_no_command(store: Store, closed: str) -> None:
    """Whoever closed one wants to hear nothing there; nothing is said in its place, and no file gets its number."""
    operation = store.suspended()
    notwice = shlex.join([sys.executable, "-m", "notwice"])
    asked = f"{notwice} show idem_0 {closed}; echo $?; {notwice} ls {closed}; echo $?"
    told = subprocess.run(
        ["sh", "-c", asked], capture_output=True, text=True, env={**os.environ, "NOTWICE_STORE": store.url}, check=False
    )
    first, *shown, last = told.stdout.splitlines()
    assert (first, last) == ("1", "0")
    assert (operation in "".join(shown)) == (" >&-" not in f" {closed}")
    assert "absent" not in told.stdout
    assert told.stderr == ("The operation idem_0 is absent.\n" if closed == ">&-" else "")
    assert store.look("k1").unresolved


def test_an_age_beyond_all_time_is_a_usage_error(run: Run) -> None:
    """An option that means nothing is told in a sentence."""
    found = run("ls", "--older-than", "99999999999999d")
    assert (found.status, "a hundred years" in found.err) == (2, True)
