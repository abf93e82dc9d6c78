"""Stores by URL: what each URL opens, and what is said about those that open nothing."""

import asyncio
import errno
import os
from functools import partial
from pathlib import Path

import pytest

from notwice import AsyncGuard, Guard
from notwice.errors import StoreUnavailable
from notwice.model import Insert, Query
from notwice.stores import migrate, open_async_store, open_store
from notwice.stores.batching import AsyncBatching, Batching
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.stores.sqlite import SqliteStore
from notwice.testing.conformance.records import insert, new_record


def test_memory() -> None:
    """A URL opens a store in memory, with its options."""
    store = open_store("memory://?records_max=1&when_full=refuse")
    insert(store, new_record())
    with pytest.raises(StoreUnavailable, match="records_max"):
        store.apply([Insert(new_record("b"))])
    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(open_async_store("MEMORY://"), AsyncMemoryStore)


@pytest.mark.parametrize("name", ["records.db", "folder name/ü?#%.db"])
def test_sqlite(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path may be relative or absolute, and hold any character if it is escaped; its commits are shared."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    quoted = name.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    with_options = open_store(f"sqlite:///{quoted}?timeout=0.5&network=allow")
    insert(with_options, new_record())
    assert isinstance(with_options, Batching)
    assert isinstance(with_options._store, SqliteStore)
    assert with_options._store._timeout == 0.5
    os.chdir("/")
    absolute = open_store(f"sqlite:///{tmp_path}/{quoted}")
    assert len(absolute.scan(Query()).items) == 1
    absolute.close()
    with_options.close()
    assert [file.name for file in (tmp_path / name).parent.iterdir() if file.is_file()] == [Path(name).name]


def test_json_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is absolute after three slashes, relative after a dot; the options reach the store."""
    monkeypatch.chdir(tmp_path)
    options = "records_max=1&retention=60&namespace=t&timeout=0.5&network=allow"
    store = open_store(f"file://./folder%20name/cache.json?{options}")
    insert(store, new_record())
    with pytest.raises(StoreUnavailable, match="one process at a time"):
        open_async_store(f"file://{tmp_path}/folder name/cache.json?timeout=0.01")
    store.close()
    assert {file.name for file in tmp_path.rglob("*")} == {"folder name", "cache.json", "cache.json.lock"}
    for_loops = open_async_store(f"file:///{tmp_path}/folder name/cache.json")
    assert not for_loops.blocking.apply([Insert(new_record())])[0].won
    asyncio.run(for_loops.close())


async def test_sqlite_for_loops(tmp_path: Path) -> None:
    """The same URL opens the same file for event loops; the blocking face is the same store."""
    store = open_async_store(f"sqlite:///{tmp_path}/records.db")
    assert isinstance(store, AsyncBatching)
    assert (await store.apply([Insert(new_record())]))[0].won
    assert not store.blocking.apply([Insert(new_record())])[0].won
    await store.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("records.db", r"named by a URL"),
        ("", r"named by a URL"),
        ("sqlite:records.db", r"named by a URL"),
        ("sqlit:///records.db", r"no store sqlit://.* Did you mean 'sqlite'\?"),
        ("carrier-pigeon://", r"known ones are .*memory://.*sqlite://"),
        ("sqlite://records.db", r"three slashes"),
        ("sqlite:///", r"name a file"),
        ("sqlite:///:memory:", r"memory://"),
        ("sqlite:///a.db?timeuot=2", r"no option 'timeuot'; did you mean 'timeout'\?"),
        ("sqlite:///a.db?timeout=soon", r"option timeout can't be used: it is a number"),
        ("sqlite:///a.db?timeout=1&timeout=2", r"given twice"),
        ("sqlite:///a.db?timeout=0", r"timeout must be"),
        ("sqlite:///a.db?network=yes", r"refuse, allow"),
        ("sqlite:///a.db#b", r"%23"),
        ("file://cache.json", r"three slashes and an absolute path"),
        ("file://host/cache.json", r"three slashes and an absolute path"),
        ("file:///", r"ends in .json"),
        ("file://./cache.db", r"ends in .json"),
        ("file://./cache.json?record_max=1", r"did you mean 'records_max'\?"),
        ("file://./cache.json?retention=day", r"option retention can't be used: it is a number"),
        ("file://./cache.json?timeout=0", r"timeout must be"),
        ("file://./cache.json?access=append", r"write, read"),
        ("memory://name", r"has no name"),
        ("memory://?records_max=many", r"option records_max can't be used: it is a whole number"),
        ("memory://?records_max=0", r"at least 1"),
        ("memory://?colour=red", r"it has records_max, when_full"),
    ],
)
def test_what_cannot_be_opened(url: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that can't be used is refused with a sentence that says what to write, and makes no file."""
    monkeypatch.chdir(tmp_path)
    for open_url in (open_store, open_async_store):
        with pytest.raises(ValueError, match=sentence):
            open_url(url)
    assert list(tmp_path.iterdir()) == []


def test_no_password_is_shown() -> None:
    """P15: the refusal of a URL does not repeat it, for it may hold a password."""
    with pytest.raises(ValueError, match="no store") as refused:
        open_store("postgres-ish://me:hunter2@host/db?sslmode=require")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", [None, b"memory://", Path("payments.db")])
def test_what_is_no_text_is_no_url(url: object) -> None:
    """T21: both faces say what a store is named by."""
    for opened in (Guard.open, AsyncGuard.open):
        with pytest.raises(TypeError, match="named by a URL, a text like sqlite:"):
            opened(url)  # type: ignore[arg-type]  # that is what is tried


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOENT, "its folder is not there; make that first, or name another one"),
        (errno.ENOTDIR, "its folder is not there; make that first, or name another one"),
        (errno.EACCES, "it can't be made; look at the permissions of its folder"),
        (errno.EROFS, "it can't be made; look at the permissions of its folder"),
        (errno.ENOSPC, "the disk is full"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_file_that_can_not_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    """T21: what the system says is told in words, with its path, by the guard and by `migrate`."""

    def fails(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("notwice.stores.sqlite.connection.os.open", fails)
    url = f"sqlite:///{tmp_path}/new.db"
    for opened in (Guard.open, partial(migrate, dry_run=False)):
        with pytest.raises(StoreUnavailable) as told:
            opened(url)
        assert str(told.value).startswith(f"{tmp_path}/new.db: {sentence} (")
        assert "Errno" not in str(told.value)
