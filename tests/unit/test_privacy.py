"""What a guard lets its store keep, and what it lets be seen: keys that seal, hashed keys, redaction, logs."""

import asyncio
import dataclasses
import logging
import subprocess
import sys
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from notwice import (
    AsyncGuard,
    Event,
    Failure,
    Guard,
    LogObserver,
    NotApplied,
    NotwiceError,
    Observers,
    OwnershipLost,
    Policy,
    Privacy,
    Result,
    ResultKind,
    UnsupportedRecord,
    current_operation,
    new_key,
    redacting,
    rerun,
)
from notwice.identity import downstream_key, operation_id
from notwice.policy import reconcile
from notwice.privacy import KEYS_FILE_VARIABLE, KEYS_VARIABLE, keys_in, keys_of_environment
from notwice.redaction import REDACTED
from notwice.stores.memory import AsyncMemoryStore, MemoryStore
from notwice.testing import VirtualClock
from tests.stores.apart import Opener
from tests.unit.worlds import Notebook

MARK = "4111-secret-9"
AGAIN = Policy(recovery=rerun)

# --- keys that seal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["no-name"], "key 1 that seals has no name"),
        ([":c2VjcmV0"], "a key that seals is named"),
        (["a b:c2VjcmV0"], "a key that seals is named"),
        (["k:c2VjcmV0"], "must be 32 bytes in base64"),
        (["k:?"], "must be 32 bytes in base64"),
        ([new_key("k"), new_key("k")], "two keys that seal have the name 'k'"),
    ],
)
def test_bad_keys(keys: list[str], sentence: str) -> None:
    """A key that can't be used is refused with a sentence that says which, and that holds no secret (P15)."""
    with pytest.raises(ValueError, match=sentence) as caught:
        Privacy(keys=keys)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"keys": new_key("k")}, TypeError),
        ({"key": [new_key("k")]}, TypeError),
        ({"compress_above_bytes": -1}, ValueError),
        ({"compress_above_bytes": True}, ValueError),
        ({"hash_keys": "yes"}, TypeError),
        ({"redact": "card"}, TypeError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    """Whatever is no option, or no value of one, is refused."""
    with pytest.raises(error):
        Privacy(**options)


def test_where_keys_come_from(tmp_path: Path) -> None:
    """Keys come from a variable or from a file, not from both; the first one writes."""
    one, two = new_key("one"), new_key("two")
    file = tmp_path / "keys"
    file.write_text(f"{one}\n{two}\n")
    for environment in ({KEYS_VARIABLE: f"{one},{two}"}, {KEYS_FILE_VARIABLE: str(file)}):
        privacy = Privacy.from_environment(environment, hash_keys=True)
        assert list(privacy.ciphers) == ["one", "two"]
        assert privacy.first is privacy.ciphers["one"]
        assert privacy.hash_keys
    assert keys_in("  a:b\n\n c:d ,", "the text") == ("a:b", "c:d")
    with pytest.raises(ValueError, match="not by both"):
        Privacy.from_environment({KEYS_VARIABLE: one, KEYS_FILE_VARIABLE: str(file)})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("absent", "binary", "."):
        with pytest.raises(ValueError, match=f"{KEYS_FILE_VARIABLE} names .*, which can't be read: "):
            Privacy.from_environment({KEYS_FILE_VARIABLE: str(tmp_path / name)})


def test_a_forgotten_secret_leaves_nothing_in_the_open(tmp_path: Path) -> None:
    """P15: who asks for the environment's keys gets some: a variable that is not set, or is empty, is told.

    So is one that holds none, or names a file without any. A guard that is to seal nothing is given no privacy.
    """
    file = tmp_path / "keys"
    file.write_text("\n")
    neither = f"neither {KEYS_VARIABLE} nor {KEYS_FILE_VARIABLE} gives a key .* leave privacy out"
    for environment, sentence in (
        ({}, neither),
        ({KEYS_VARIABLE: "", KEYS_FILE_VARIABLE: ""}, neither),
        ({KEYS_VARIABLE: " ,"}, f"{KEYS_VARIABLE} holds no key that seals; write name:secret"),
        ({KEYS_FILE_VARIABLE: str(file)}, f"the file {file}, which {KEYS_FILE_VARIABLE} names, holds no key"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Privacy.from_environment(environment, hash_keys=True)


def test_what_only_looks_may_do_so_without_keys() -> None:
    """The command line takes the keys that are there: none where nothing is set, and never half of what is."""
    assert keys_of_environment({}) == keys_of_environment({KEYS_VARIABLE: ""}) == ()
    with pytest.raises(ValueError, match="holds no key that seals"):
        keys_of_environment({KEYS_VARIABLE: ","})


def test_secrets_are_not_shown() -> None:
    """P15: neither an option's repr nor a cipher's shows a secret."""
    key = new_key("k")
    secret = key.partition(":")[2]
    privacy = Privacy(keys=[key])
    assert secret not in f"{privacy!r} {privacy} {privacy.first!r} {privacy.ciphers!r}"


def test_without_the_extra() -> None:
    """Without its library the package imports, and keys that seal name the extra to install."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import notwice\n"
        "notwice.Privacy(hash_keys=True, compress_above_bytes=1)\n"
        "try: notwice.Privacy(keys=[notwice.new_key('k')])\n"
        "except ImportError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install '.[privacy]' in a clone" in found.stdout
    assert "pip install 'notwice[privacy]' where a release is published" in found.stdout


# --- keys that are not stored -----------------------------------------------------------------------------------------

HASHED = Privacy(hash_keys=True)


class Shop:
    """One store, and guards on it with and without hashed keys."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)
        self.sent: list[str] = []

    def guard(self, privacy: Privacy | None, **policy: Any) -> Any:
        return Guard(self.store, policy=Policy(recovery=rerun, **policy), privacy=privacy, clock=self.clock)

    def charge(self, guard: Any) -> Any:
        return guard.call(self._charge, scope="charge", key=MARK, request={"amount": 1})

    def _charge(self) -> str:
        self.sent.append(current_operation().downstream_key("charge"))
        if len(self.sent) == 1:
            raise OSError
        return "ch_1"


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_hashed_key_is_not_stored(shop: Shop) -> None:
    """P15: the record holds the operation id in the place of the key; duplicates and look-ups find it as ever."""
    guard = shop.guard(HASHED)
    operation = guard.begin("charge", MARK, request={"amount": 1})
    assert operation.key == operation.operation == operation_id("charge", MARK)
    operation.complete(1)
    assert MARK not in str(list(map(tuple, (item.record for item in guard.operations()))))
    assert guard.lookup("charge", MARK).record.key == operation.operation
    assert guard.call(lambda: 2, scope="charge", key=MARK, request={"amount": 1}).replayed
    assert type(guard.begin("charge", MARK, request={"amount": 2})).__name__ == "Mismatch"


def test_the_downstream_key_can_be_derived_from_the_record(shop: Shop) -> None:
    """A worker that has nothing but the record derives the downstream key that the first attempt used."""
    with pytest.raises(OSError):  # noqa: PT011 - the handler's own
        shop.charge(shop.guard(HASHED))
    (view,) = shop.guard(None).operations()
    record = view.record
    named = {"namespace": record.namespace, "scope": record.scope, "key": record.key}
    assert shop.sent == [downstream_key(**named, generation=record.generation, name="charge")]


@pytest.mark.parametrize("before", [HASHED, None], ids=["hashed", "raw"])
@pytest.mark.parametrize("after", [HASHED, None], ids=["hashed", "raw"])
def test_a_changed_option_doubles_no_effect(shop: Shop, before: Privacy | None, after: Privacy | None) -> None:
    """C45: what was begun with the option on, or off, is found, re-run and replayed with it off, or on.

    The next system sees one key over all attempts.
    """
    with pytest.raises(OSError):  # noqa: PT011 - the handler's own
        shop.charge(shop.guard(before))
    assert not shop.charge(shop.guard(after)).replayed
    assert shop.charge(shop.guard(before)).replayed
    assert shop.charge(shop.guard(after)).result == "ch_1"
    assert len(shop.sent) == 2
    assert len(set(shop.sent)) == 1
    assert len(list(shop.guard(None).operations())) == 1


def test_a_changed_option_on_a_json_file(tmp_path: Path) -> None:
    """The JSON file names its entries by the key: with an option that changed meanwhile they are found all the same."""
    opener = Opener(tmp_path / "cache.json", VirtualClock())
    for first, then in ((HASHED, None), (None, HASHED)):
        key = f"{MARK}-{first is None}"
        with Guard(opener(), privacy=first) as guard:
            assert guard.run(lambda: 1, scope="s", key=key) == 1
        with Guard(opener(), privacy=then) as guard:
            assert guard.call(lambda: pytest.fail("ran again"), scope="s", key=key).replayed
    assert f"{MARK}-False" not in (tmp_path / "cache.json").read_text()


def test_the_loser_of_a_hashed_operation_finds_the_winner(shop: Shop) -> None:
    """P5: an owner that lost its operation gets what a duplicate would get, though it knows no key to look up."""
    guard, other = shop.guard(HASHED), shop.guard(HASHED)

    def slow() -> str:
        guard._runtime.heart.remove(current_operation()._hold)
        shop.clock.advance(301)
        other.run(lambda: "taker", scope="charge", key=MARK)
        return "late"

    assert guard.call(slow, scope="charge", key=MARK).result == "taker"


def test_an_operator_finds_a_hashed_key(shop: Shop) -> None:
    """C52: a person who has the key finds the operation, and so does one who has the id from a log."""
    guard = shop.guard(HASHED)
    guard.begin("charge", MARK).suspend("lost")
    (view,) = guard.operations(operation=operation_id("charge", MARK))
    assert guard.resolve(view, 1, who="ana", why="in the ledger").record.key == view.operation


# --- redaction --------------------------------------------------------------------------------------------------------


class Card(NamedTuple):
    """A named tuple with a secret."""

    number: str
    brand: str


@dataclasses.dataclass
class Order:
    """A dataclass with a secret inside."""

    id: int
    card: Card
    total: Decimal


class Colour(Enum):
    """A scalar."""

    RED = "red"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"cardNumber": MARK, "id": 1}, {"cardNumber": REDACTED, "id": 1}),
        ({"CARD-NUMBER": {"deep": MARK}}, {"CARD-NUMBER": REDACTED}),
        ([{"a": [{"card_number": MARK, "b": "kept"}]}], [{"a": [{"card_number": REDACTED, "b": "kept"}]}]),
        (Order(1, Card(MARK, "visa"), Decimal(5)), {"id": 1, "card": REDACTED, "total": Decimal(5)}),
        ({"x": Card(MARK, "visa")}, {"x": {"number": REDACTED, "brand": "visa"}}),
        (MARK, REDACTED),
        (MARK.encode(), REDACTED),
        ({"raw": MARK.encode()}, {"raw": REDACTED}),
        ({1: MARK}, REDACTED),
        ({"c": Colour.RED, "n": None, "t": True}, {"c": Colour.RED, "n": None, "t": True}),
        (None, None),
        (Result(ResultKind.HTTP, MARK.encode(), 201), {"kind": "http", "status": 201, "body": REDACTED}),
        ({"o": object()}, {"o": REDACTED}),
        (Failure("E", MARK), {"kind": "E", "message": REDACTED}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_redacted(value: object, shown: object) -> None:
    """Named fields are replaced at any depth and in any spelling, and so is what has no name that says what it is."""
    assert redacting("card_number", "number", "card", "message")(value) == shown


def test_a_value_that_holds_itself() -> None:
    """What has no end is cut off."""
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert REDACTED in str(redacting("x")(loop))
    with pytest.raises(ValueError, match="at least one field"):
        redacting("", "_")


class Watcher:
    """Keeps the values that it is told of."""

    def __init__(self) -> None:
        self.values: list[object] = []

    def on_event(self, event: Event) -> None:
        if event.value is not None:
            self.values.append(event.value)


def lose(guard: Any, clock: VirtualClock, store: MemoryStore, value: object) -> None:
    """Have a handler's value lost to another owner, which is when an observer is told of it."""

    def slow() -> object:
        guard._runtime.heart.remove(current_operation()._hold)
        clock.advance(301)
        Guard(store, clock=clock, policy=Policy(recovery=rerun)).run(lambda: "taker", scope="s", key="k")
        return value

    assert guard.run(slow, scope="s", key="k", policy=Policy(recovery=rerun)) == "taker"


@pytest.mark.parametrize("redact", [redacting("card"), lambda _: 1 / 0], ids=["redacts", "fails"])
def test_observers_are_told_what_is_left(redact: Any) -> None:
    """P15: an observer is given what the redactor leaves of a handler's value, and nothing of it if that fails."""
    clock = VirtualClock()
    store, watcher = MemoryStore(clock), Watcher()
    guard = Guard(store, clock=clock, observer=watcher, privacy=Privacy(redact=redact))
    lose(guard, clock, store, {"card": MARK, "id": 1})
    assert len(watcher.values) == 1
    assert MARK not in str(watcher.values)


# --- what a log may show ----------------------------------------------------------------------------------------------


class Unstorable:
    """A value that can't be stored, and whose repr tells all."""

    def __repr__(self) -> str:
        return MARK


class Everything:
    """Uses a guard in every way with the mark in keys, requests, results, steps and errors; keeps what it was given."""

    def __init__(self, guard: Any, clock: VirtualClock) -> None:
        self.guard = guard
        self.clock = clock
        self.seen: list[str] = []
        self.request = {"card": MARK}

    def look(self, found: object) -> None:
        self.seen += [repr(found), str(found)]

    def begin(self, key: str, **options: Any) -> Any:
        options.setdefault("request", self.request)
        found = self.guard.begin("s", f"{MARK}-{key}", **options)
        self.look(found)
        if hasattr(found, "view"):
            self.look(found.view)
            self.look(found.view.record)
            self.look(found.view.record.result)
        if hasattr(found, "problem"):
            self.look(found.problem())
        return found

    def fails(self, call: Any) -> None:
        with pytest.raises(NotwiceError) as caught:
            call()
        self.look(caught.value)
        self.look(caught.value.problem())

    def ends(self) -> None:
        self.begin("completed").complete({"card": MARK})
        self.begin("completed")
        self.begin("completed", request="other")
        self.begin("failed").fail(Result(ResultKind.HTTP, MARK.encode(), 402, (("location", MARK),)))
        self.begin("failed")
        self.begin("abandoned").abandon()
        self.begin("suspended").suspend(ValueError(MARK), answer=Result(ResultKind.VALUE, b'j"4111-secret-9"'))
        self.begin("suspended")
        running = self.begin("running")
        running.checkpoint("charge", MARK)
        running.downstream_key(MARK)
        self.begin("running")
        self.fails(lambda: self.guard.run(Unstorable, scope="s", key=f"{MARK}-running", request=self.request))
        self.guard.run(Unstorable, scope="s", key=f"{MARK}-unstorable")
        self.fails(lambda: self.guard.run(Unstorable, scope="s", key=f"{MARK}-unstorable"))
        self.fails(lambda: self.guard.run(str, scope="s", key=f"{MARK}-suspended", request=1))

    def errors(self) -> None:
        asking = Policy(recovery=reconcile(lambda _: (_ for _ in ()).throw(ValueError(MARK))))

        def raises() -> None:
            raise ValueError(MARK)

        def gives_up() -> None:
            raise NotApplied(MARK)

        with pytest.raises(ValueError, match=MARK):
            self.guard.run(raises, scope="s", key=f"{MARK}-asked", policy=asking)
        self.begin("asked", request=None, policy=asking)
        with pytest.raises(NotApplied):
            self.guard.run(gives_up, scope="s", key=f"{MARK}-given-up")
        for key in ("\n" + MARK, MARK * 50, "  ", None, object()):
            self.fails(lambda key=key: self.guard.begin("s", key))
        self.fails(lambda: self.guard.begin("s\n" + MARK, "k"))
        self.fails(lambda: self.guard.begin(("s", object()), MARK))
        self.fails(lambda: self.guard.begin("s", MARK, request=object()))
        self.fails(lambda: self.guard.begin("s", MARK).complete(object()))

    def steps(self) -> None:
        """Steps, one of which fails, and a worker that comes to grief over what they leave."""

        def raises() -> None:
            raise ValueError(MARK)

        operation = self.begin("stepped", policy=Policy(recovery=rerun, store_request=True))
        operation.step(MARK, lambda: {"card": MARK})
        with pytest.raises(ValueError, match=MARK), operation:
            operation.step("failing", raises)
        self.clock.advance(400)
        self.look(self.guard.recover({"s": lambda *_, **__: raises()}))
        self.look(self.guard.recover({"other": print}))

    def operators(self) -> None:
        for view in self.guard.operations():
            self.look(view)
        view = self.guard.lookup("s", f"{MARK}-suspended", namespace=None)
        self.look(self.guard.release(view, who="ana", why="looked"))
        self.fails(lambda: self.guard.resolve(view, MARK, who="ana", why="looked"))
        self.fails(lambda: self.guard.resolve(self.guard.lookup("s", f"{MARK}-completed"), MARK, who="a", why="b"))
        with pytest.raises(TypeError) as caught:
            self.guard.resolve({"key": MARK}, 1, who="ana", why="looked")
        self.look(caught.value)


@pytest.mark.parametrize("privacy", [None, Privacy(keys=[new_key("k")], hash_keys=True)], ids=["open", "sealed"])
def test_nothing_private_is_logged(privacy: Privacy | None, caplog: pytest.LogCaptureFixture) -> None:
    """P15: a mark stands in every key, request, result, step and error. No log line, however talkative, no text of an
    error of ours and no repr of what a guard gives holds it.
    """
    caplog.set_level(logging.DEBUG)
    clock = VirtualClock()
    store, notebook = MemoryStore(clock), Notebook()
    guard = Guard(store, clock=clock, observer=Observers(LogObserver(), notebook), privacy=privacy)
    use = Everything(guard, clock)
    use.ends()
    use.errors()
    use.steps()
    use.operators()
    lose(guard, clock, store, {"card": MARK})
    told = {event.name for event in notebook.events}
    assert told >= {"completed", "failed", "suspended", "abandoned", "result_omitted", "result_lost", "mismatch"}
    assert told >= {"reconcile_unknown", "unresolved", "in_progress", "released", "replayed", "reclaimed"}
    everything = [*use.seen, *map(repr, notebook.events), *(record.getMessage() for record in caplog.records)]
    assert len(caplog.records) > 25
    assert [text for text in everything if MARK in text] == []


def test_the_search_finds_a_mark(caplog: pytest.LogCaptureFixture) -> None:
    """The control of the test above: a log line with a key in it is found."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("notwice").debug("begun with %s", MARK)
    assert [record for record in caplog.records if MARK in record.getMessage()]


async def test_the_async_face_logs_nothing_private(caplog: pytest.LogCaptureFixture) -> None:
    """P15: an `AsyncGuard` tells no more than a `Guard`."""
    caplog.set_level(logging.DEBUG)
    guard = AsyncGuard(AsyncMemoryStore(MemoryStore()), observer=LogObserver())

    async def handler() -> Any:
        return Unstorable()

    async def raises() -> None:
        raise ValueError(MARK)

    await guard.run(handler, scope="s", key=MARK, request={"card": MARK})
    with pytest.raises(NotwiceError) as caught:
        await guard.run(handler, scope="s", key=MARK, request={"card": MARK})
    with pytest.raises(ValueError, match=MARK):
        await guard.run(raises, scope="s", key=f"{MARK}2")
    await asyncio.sleep(0)
    assert MARK not in caplog.text + str(caught.value) + repr(caught.value)


def test_a_guard_without_keys_refuses_what_is_sealed() -> None:
    """A sealed record is never taken for absent: begin, look-up and an operator's move refuse it, and it stays."""
    store = MemoryStore()
    sealed: Any = Guard(store, privacy=Privacy(keys=[new_key("2027-01")]))
    sealed.begin("s", "k").suspend(ValueError(MARK))
    (view,) = sealed.operations()
    plain: Any = Guard(store)
    calls: list[Any] = [
        lambda: plain.run(lambda: pytest.fail("it ran"), scope="s", key="k"),
        lambda: plain.lookup("s", "k"),
        lambda: plain.release(view, who="ana", why="why"),
    ]
    for call in calls:
        with pytest.raises(UnsupportedRecord, match="2027-01"):
            call()
    assert sealed.lookup("s", "k").record == view.record


def test_an_owner_whose_taker_seals_with_another_key_has_lost_its_operation() -> None:
    """P5: that the taker's record can't be opened here does not hide that it is the taker's."""
    clock, told = VirtualClock(), Notebook()
    store, keys = MemoryStore(clock), [new_key("old"), new_key("new")]
    late: Any = Guard(store, clock=clock, policy=AGAIN, observer=told, privacy=Privacy(keys=keys[:1]))
    operation = late.begin("s", "k")
    late._runtime.heart.remove(operation._hold)
    clock.advance(400)
    taker: Any = Guard(store, clock=clock, policy=AGAIN, privacy=Privacy(keys=keys[::-1]))
    taker.begin("s", "k").complete("the taker's")
    with pytest.raises(OwnershipLost):
        operation.complete("late")
    assert (operation.lost, told.events[-1].name) == (True, "ownership_lost")
