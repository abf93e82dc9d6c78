"""``notwice migrate`` and the steps that it carries out."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from notwice import Guard, Operation, UnsupportedRecord
from notwice.cli import main
from notwice.stores.migrations import ABSENT, Migration, Version, pending, refuse_newer, script, version_of

STEPS = [
    Migration(1, "the records", reader_min=1, statements=("CREATE TABLE a (\n  x int\n)",)),
    Migration(2, "a column that older processes don't need", reader_min=1, statements=("ALTER TABLE a ADD y int",)),
    Migration(3, "another meaning", reader_min=3, statements=("UPDATE a SET x = 0", "ALTER TABLE a DROP y")),
]


def test_pending_steps() -> None:
    """The steps that are still to be done are those above the version that is there."""
    assert pending(STEPS, ABSENT) == STEPS
    assert pending(STEPS, Version(2, 1)) == STEPS[2:]
    assert pending(STEPS, Version(3, 3)) == []
    assert version_of(STEPS) == 3


def test_neighbours_run_side_by_side() -> None:
    """P14: a release works on tables of its neighbour if the step allows it, and refuses others first."""
    refuse_newer(STEPS[:1], Version(2, 1), "the table")
    refuse_newer(STEPS, Version(3, 3), "the table")
    for known in (STEPS[:1], STEPS[:2]):
        with pytest.raises(UnsupportedRecord, match="newer release"):
            refuse_newer(known, Version(3, 3), "the table")


def test_script() -> None:
    """Steps are printed as SQL that can be run as it is."""
    text = script(STEPS)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(text)
        assert [name for _, name, *_ in connection.execute("PRAGMA table_info(a)")] == ["x"]
    assert text.startswith("-- 1: the records\nCREATE TABLE a (\n")


def test_dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed makes a store that this release opens, and nothing else happens."""
    path = tmp_path / "made.db"
    assert main(["migrate", "--store", f"sqlite:///{path}", "--dry-run"]) == 0
    assert not path.exists()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(capsys.readouterr().out)
    with Guard.open(f"sqlite:///{path}") as guard:
        assert isinstance(guard.begin("s", "k"), Operation)


def test_migrating_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first run says what it did, a second one that nothing is left to do."""
    url = f"sqlite:///{tmp_path}/made.db"
    said = []
    for _ in range(2):
        assert main(["migrate", "--store", url]) == 0
        said.append(capsys.readouterr().err)
    assert [text.partition(":")[0] for text in said] == ["done", "nothing to do"]


def test_a_store_without_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """An engine without tables is named as such."""
    assert main(["migrate", "--store", "redis://127.0.0.1:1"]) == 2
    assert "no tables" in capsys.readouterr().err
