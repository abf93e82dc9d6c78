"""``notwice import`` and ``export``, and what the command line does with a JSON file of the older API cache."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from notwice import Guard, Operation, Policy, Replay, cli
from notwice.cli import transfer
from notwice.errors import StoreUnavailable
from notwice.model import Get, Query, Record, RecordView, Reply
from notwice.stores import open_store
from notwice.stores.memory import MemoryStore
from notwice.testing import VirtualClock
from notwice.testing.conformance.records import finished, full_record, insert, new_record
from tests.stores.older_cache import entry, put


class Said(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("NOTWICE_STORE", raising=False)

    def said(*words: str) -> Said:
        capsys.readouterr()
        return Said(cli.main(words), *capsys.readouterr())

    return said


@pytest.fixture
def cache(tmp_path: Path) -> str:
    """A document of the older cache: one entry of each kind."""
    path = tmp_path / "cache.json"
    put(path, refund__k1=entry(), refund__k2=entry("in_progress"), a__b__c=entry(), s__bad=[1])
    return f"file://{path}"


def kept(url: str) -> dict[str, tuple[Record, int]]:
    """All that a store holds, by key, with the times of the writes."""
    with closing(open_store(url)) as store:
        items = store.scan(Query(limit=1_000)).items
        return {item.record.key: (item.record, item.written_ms) for item in items if isinstance(item, RecordView)}


def test_there_and_back(run: Run, tmp_path: Path) -> None:
    """A hand-over in either direction: records come out as they went in, with their times."""
    first, file, last = (f"sqlite:///{tmp_path}/1.db", f"file://{tmp_path}/cache.json", f"sqlite:///{tmp_path}/2.db")
    with Guard.open(first) as guard:
        guard.run(lambda: {"paid": 1}, scope="payout:1", key="k1")
        guard.begin("payout:2", "k2", policy=Policy(lease=0.001))
        guard.run(lambda: 1, scope="payout:3", key="k3", namespace="tenant-7")
    before = kept(first)
    assert run("export", "--store", first, "--to", file).out.startswith("3 carried, 0 were there already")
    assert run("import", "--store", last, "--from", file).status == 0
    assert kept(file) == kept(last) == kept(first) == before
    with Guard.open(last) as guard:
        assert guard.run(lambda: {"paid": 2}, scope="payout:1", key="k1") == {"paid": 1}
        (view,) = guard.operations(unresolved=True)
        assert isinstance(view, RecordView)
        assert view.record.key == "k2"


def test_what_is_not_carried_is_said(run: Run, cache: str, tmp_path: Path) -> None:
    """What could not be carried is counted with its reason, and the exit status tells of it."""
    said = run("import", "--store", f"sqlite:///{tmp_path}/new.db", "--from", cache)
    assert (said.status, said.out) == (1, "2 carried, 0 were there already, 0 expired and stay behind\n")
    damaged, nameless = said.err.splitlines()
    assert damaged == "not carried: 1 (can't be read)"
    assert nameless.startswith("not carried: 1 (the name does not tell the scope from the key: say --scope for each ")


def test_scopes_are_named(run: Run, cache: str, tmp_path: Path) -> None:
    """An entry of the older cache whose name does not tell its scope is carried once that is named."""
    target = f"sqlite:///{tmp_path}/new.db"
    assert run("import", "--store", target, "--from", cache, "--scope", "a:b", "--scope", "x").out.startswith("3 ")
    with Guard.open(target) as guard:
        assert isinstance(guard.begin("a:b", "c"), Replay)
        assert isinstance(guard.begin("a", "b:c"), Operation)
    other = f"sqlite:///{tmp_path}/other.db"
    assert run("import", "--store", other, "--from", cache, "--scope", "a:b", "--scope", "a").out.startswith("2 ")


def test_it_can_be_done_again(run: Run, cache: str, tmp_path: Path) -> None:
    """Nothing is overwritten: what is there already counts as carried, and another record in its place does not."""
    words = ("import", "--store", f"sqlite:///{tmp_path}/new.db", "--from", cache, "--scope", "a")
    assert run(*words).out.startswith("3 carried, 0 were there")
    assert run(*words).out.startswith("0 carried, 3 were there")
    with Guard.open(words[2]) as guard:
        view = guard.lookup("refund", "k2")
        assert view is not None
        guard.resolve(view, "done", who="ana", why="looked it up")
    again = run(*words)
    assert again.out.startswith("0 carried, 2 were there")
    assert "not carried: 1 (another record has that place)" in again.err
    with Guard.open(words[2]) as guard:
        assert isinstance(guard.begin("refund", "k2"), Replay)


def test_one_namespace(run: Run, tmp_path: Path) -> None:
    """With a namespace, only its records are carried."""
    source, target = f"sqlite:///{tmp_path}/1.db", f"sqlite:///{tmp_path}/2.db"
    with Guard.open(source) as guard:
        for namespace in ("", "t1", "t2"):
            guard.run(lambda: 1, scope="s", key=f"k{namespace}", namespace=namespace)
    run("export", "--store", source, "--to", target, "--namespace", "t1")
    assert list(kept(target)) == ["kt1"]


def test_names_that_one_document_can_not_hold(run: Run, tmp_path: Path) -> None:
    """P11: of two records whose scope and key are one text, a JSON file holds one, and the other one is told of."""
    source = f"sqlite:///{tmp_path}/1.db"
    with Guard.open(source) as guard:
        for namespace in ("t1", "t2"):
            guard.run(lambda: 1, scope="s", key="k", namespace=namespace)
    said = run("export", "--store", source, "--to", f"file://{tmp_path}/cache.json")
    assert (said.status, said.out.split(",")[0]) == (1, "1 carried")
    assert "not carried: 1 (another record has that place)" in said.err


def test_expired_and_running_records(capsys: pytest.CaptureFixture[str]) -> None:
    """P1, P6: expired records stay behind; owners that may still be at work are told of."""
    clock = VirtualClock()
    source, target = MemoryStore(clock), MemoryStore(clock)
    for record in (full_record(), new_record("running"), finished("old", retention_ms=1)):
        insert(source, record)
    clock.advance(1)
    report = transfer.carry(source, target, namespace=None, scopes=())
    assert (report.carried, report.expired, report.running) == (2, 1, 1)
    assert report.tell() == 0
    assert "1 are in progress: see that no owner works on in the old store" in capsys.readouterr().err
    clock.advance(400)
    (running,) = target.scan(Query(operation="idem_running")).items
    assert isinstance(running, RecordView)
    assert running.lapsed


def test_more_than_a_page() -> None:
    """All records are carried, however many."""
    source, target = MemoryStore(), MemoryStore()
    source.load([RecordView(finished(str(number), created_ms=1 + number // 7), 2, 3, 4) for number in range(257)])
    late = transfer.carry(source, target, namespace=None, scopes=())
    assert late.expired == 257
    source.load([RecordView(new_record(str(number + 1_000), created_ms=5), 2, 3, 4) for number in range(257)])
    assert transfer.carry(source, target, namespace=None, scopes=()).carried == 257


class Picky(MemoryStore):
    """A store that refuses a record, or all of them."""

    down = False

    def load(self, views: Sequence[RecordView]) -> Sequence[bool]:
        if self.down or any(view.record.key == "large" for view in views):
            raise StoreUnavailable("it is too large")
        return super().load(views)


def test_one_that_can_not_be_kept() -> None:
    """A record that the other store refuses does not keep the others; if all are refused, it is not about them."""
    source, target = MemoryStore(), Picky()
    for name in ("a", "large", "b"):
        insert(source, new_record(name))
    report = transfer.carry(source, target, namespace=None, scopes=())
    assert (report.carried, dict(report.left)) == (2, {"refused by the other store: it is too large": 1})
    target.down = True
    with pytest.raises(StoreUnavailable):
        transfer.carry(source, target, namespace=None, scopes=())


class Closed:
    """A store that takes in no records."""

    def apply(self, ops: Sequence[object]) -> Sequence[Reply]:
        raise NotImplementedError

    scan = purge = close = apply


def test_a_store_that_takes_none_in() -> None:
    """A store of somebody else's may be unable to take records in, and it is said so."""
    with pytest.raises(NotImplementedError, match="takes in no records"):
        transfer.carry(MemoryStore(), Closed(), namespace=None, scopes=())  # type: ignore[arg-type]  # as little of a store as is needed


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["import", "--store", "sqlite:///{0}/a.db"], 2, "--from"),
        (["import", "--store", "sqlite:///{0}/a.db", "--from", "sqlite:///{0}/absent.db"], 3, "There is no store at"),
        (["import", "--store", "sqlite:///{0}/a.db", "--from", "file://{0}/absent.json"], 3, "There is no store at"),
        (["import", "--store", "memory://", "--from", "file://{0}/cache.json"], 2, "lives in the process"),
        (["export", "--store", "file://{0}/cache.json", "--to", "file://{0}/cache.txt"], 2, "ends in .json"),
        (["export", "--to", "memory://"], 2, "Which store?"),
        (["export", "--store", "file://{0}/cache.json", "--to", "nowhere"], 2, "named by a URL"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_what_can_not_be_done(words: list[str], status: int, sentence: str, run: Run, tmp_path: Path) -> None:
    """A command that can't be carried out says why."""
    said = run(*(word.format(tmp_path) for word in words))
    assert said.status == status
    assert sentence in said.err


@pytest.fixture
def opened(cache: str) -> Iterator[Guard]:
    """A guard of a program that has the file open."""
    with Guard.open(cache) as guard:
        yield guard


def test_ls_and_show_while_a_program_has_it_open(opened: Guard, cache: str, run: Run) -> None:
    """C52: the command line looks at a JSON file without getting in anybody's way, and P15 shows no key."""
    opened.begin("payout:1", "secret-key", policy=Policy(lease=300))
    said = run("ls", "--store", cache, "--json")
    found = [json.loads(line) for line in said.out.splitlines()]
    assert {(each["scope"], each["state"], each["unresolved"]) for each in found} == {
        ("", "completed", False),
        ("refund", "completed", False),
        ("refund", "accepted", True),
        ("payout:1", "in_progress", False),
    }
    assert "secret-key" not in said.out
    assert "a:b:c" not in said.out
    shown = run("show", "--store", f"{cache}?namespace=", "--scope", "a:b", "--key", "c", "--json")
    assert json.loads(shown.out)["scope"] == "a:b"
    assert opened.run(lambda: 1, scope="s", key="still-open") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["purge"],
        ["release", "--scope", "refund", "--key", "k2", "--why", "so"],
        ["resolve", "--scope", "refund", "--key", "k2", "--why", "so", "--completed", "--result", "1"],
    ],
    ids=lambda words: words[0],
)
def test_the_rest_is_refused(words: list[str], cache: str, run: Run) -> None:
    """The command line changes nothing in a JSON file, and says what to do instead."""
    path = Path(cache.removeprefix("file://"))
    before = path.read_bytes()
    said = run(words[0], "--store", cache, *words[1:])
    assert said.status == 1
    assert said.err.startswith("Of a JSON file, the command line can only `ls`, `stats` and `show` operations. ")
    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_an_import_takes_the_lock(opened: Guard, run: Run, cache: str, tmp_path: Path) -> None:
    """P1: records are not carried into a file that a program has open, but may be carried out of it."""
    source = tmp_path / "source.json"
    put(source, s__k=entry())
    said = run("import", "--store", f"{cache}?timeout=0.01", "--from", f"file://{source}")
    assert said.status == 3
    assert "one process at a time" in said.err
    assert run("export", "--store", cache, "--to", f"sqlite:///{tmp_path}/new.db", "--scope", "a").out.startswith("3 ")
    assert opened.lookup("s", "k") is None


def test_a_file_is_carried_by_its_names(run: Run, cache: str, tmp_path: Path) -> None:
    """From one JSON file to another, entries of the older cache go where their names can be told."""
    target = f"file://{tmp_path}/copy.json"
    assert run("export", "--store", cache, "--to", target, "--scope", "a").status == 1
    with closing(open_store(target)) as store:
        (reply,) = store.apply([Get("", kept(f"{cache}?access=read")["k1"][0].id)])
        assert isinstance(reply.record, Record)
        assert reply.record.created_ms == 1_700_000_000_000
