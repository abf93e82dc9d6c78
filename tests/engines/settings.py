"""Tables that are made, missing or newer, and settings that break promises: what is the same for every engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from notwice import Guard, Operation, StoreUnavailable
from notwice.cli import main
from notwice.stores.findings import Finding, UnsafeSettingsWarning

COMMANDS = [["ls"], ["stats"], ["show", "idem_1"], ["purge"]]


def begins(url: str) -> bool:
    """Whether a guard on a store grants a key that nobody has used there."""
    with Guard.open(url) as guard:
        return isinstance(guard.begin("s", "k", request=1), Operation)


def assert_found(
    judged: Callable[[Any], Sequence[Finding]], facts: Mapping[str, Any], expected: tuple[str, str]
) -> None:
    """One setting is found in the facts, by its name and severity, with what it means and what to do."""
    (finding,) = judged(facts)
    assert (finding.name, finding.severity) == expected
    assert finding.meaning
    assert finding.remedy


def assert_heeded(url: Callable[..., str], name: str) -> None:
    """An unsafe setting is warned of once when a store is opened, refused on request, and can be ignored."""
    with pytest.warns(UnsafeSettingsWarning, match=name) as told:
        assert begins(url(safe="warn"))
    assert len(told) == 1
    with pytest.raises(StoreUnavailable, match=f"safe=require.*{name}"):
        begins(url(safe="require"))
    assert begins(url(safe="ignore"))


class Names(Protocol):
    """How tables are called."""

    @property
    def records(self) -> str: ...

    @property
    def versions(self) -> str: ...


@dataclass(frozen=True)
class Database:
    """A server with tables.

    Attributes:
        url: makes the URL of a store that nobody has used yet.
        execute: runs statements.
        names: how the tables of a store are called, by its URL.
        clerk: changes a URL to that of a user who may read and write tables, and make none.
    """

    url: Callable[[], str]
    execute: Callable[..., None]
    names: Callable[[str], Names]
    clerk: Callable[[str], str]


class TableCases:
    """What holds of tables, whoever made them."""

    @pytest.fixture
    def database(self) -> Database:
        raise NotImplementedError("give the class a fixture `database`")

    def test_a_user_who_may_make_no_tables(self, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
        """Without the right to make tables the error says what to do; with the printed SQL carried out, it works."""
        url = database.url()
        with pytest.raises(StoreUnavailable, match="migrate --dry-run"):
            begins(database.clerk(url))
        assert main(["migrate", "--store", url, "--dry-run"]) == 0
        lines = capsys.readouterr().out.splitlines(keepends=True)
        script = "".join(line for line in lines if not line.startswith("--"))
        database.execute(*(statement for statement in script.split(";\n") if statement.strip()))
        assert begins(database.clerk(url))
        assert main(["migrate", "--store", url]) == 0
        assert "nothing to do" in capsys.readouterr().err

    @pytest.mark.parametrize(("number", "reader_min", "works"), [(2, 1, True), (2, 2, False)])
    def test_tables_of_a_newer_release(self, database: Database, number: int, reader_min: int, works: bool) -> None:
        """P14: tables of the next release are worked on if its step allows that, else refused; nothing is done then."""
        url = database.url()
        assert begins(url)
        database.execute(f"INSERT INTO {database.names(url).versions} VALUES ({number}, {reader_min})")
        if works:
            assert not begins(url)
        else:
            with pytest.raises(StoreUnavailable, match="newer release"):
                begins(url)
            assert main(["migrate", "--store", url]) == 1

    def test_tables_that_are_gone(self, database: Database) -> None:
        """Tables that somebody drops don't come back by themselves: what was in them would count as never begun."""
        url = database.url()
        with Guard.open(url) as guard:
            guard.begin("s", "k")
            names = database.names(url)
            database.execute(f"DROP TABLE {names.records}, {names.versions}")
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="gone"):
                    guard.begin("s", "other")

    @pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
    def test_looking_makes_no_tables(
        self, database: Database, capsys: pytest.CaptureFixture[str], command: list[str]
    ) -> None:
        """C52: what only looks, or works on what is there, makes no tables: where there are none, it says so."""
        url = database.url()
        assert main([*command, "--store", url]) == 3
        assert "no store was made here yet. `notwice migrate` makes it" in capsys.readouterr().err
        with pytest.raises(StoreUnavailable, match="no store was made here yet"):
            begins(f"{url}&tables=expect")
        assert main(["migrate", "--store", url, "--dry-run"]) == 0
        assert "CREATE TABLE" in capsys.readouterr().out
        assert begins(url)
        assert main(["ls", "--store", url]) == 0
