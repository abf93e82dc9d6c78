"""The money guard and the API cache, rule by rule, under their presets. The page on older guards names these tests."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from notwice import Guard, InProgress, Mismatch, NotApplied, Operation, Policy, RecordView, Replay, Unresolved
from notwice.errors import ContentionError, UnsupportedRecord
from notwice.fingerprint import BODY_SHA256
from notwice.http import SHARED, HttpPolicy
from notwice.http.wsgi import IdempotencyMiddleware
from notwice.model import Fingerprint, Get, Op, State, Swap, Unreadable
from notwice.stores.jsonfile import JsonFileStore
from notwice.testing import VirtualClock
from tests.http.harness import Answered, wsgi_request
from tests.stores.older_cache import ANSWER, entries_in, entry, put
from tests.unit.worlds import KEY, SCOPE, World

FIVE_MINUTES_S = 300
YEARS_S = 10 * 365 * 86_400


# --- the money guard --------------------------------------------------------------------------------------------------


@pytest.fixture
def money() -> World:
    """A guard under the preset of the money guard."""
    world = World()
    world.guard = Guard(world.store, policy=Policy.money_guard(), clock=world.clock, observer=world.notebook)
    return world


def test_money_one_record_under_a_deterministic_id(money: World) -> None:
    """The id is made of scope and key by a digest, and every begin of the two finds the same record."""
    expected = "idem_" + sha256(f"{SCOPE}\0{KEY}".encode()).hexdigest()[:32]
    assert money.own().operation == expected
    assert money.begin().view.record.id == expected
    assert [view.record.id for view in money.guard.operations()] == [expected]


def test_money_the_order_of_begin(money: World) -> None:
    """Another request is told so first, whatever the state; a finished one is replayed, a live one is in flight."""
    operation = money.own({"amount": 1})
    assert isinstance(money.begin({"amount": 2}), Mismatch)
    assert isinstance(money.begin({"amount": 1}), InProgress)
    money.clock.advance(FIVE_MINUTES_S)
    assert isinstance(money.begin({"amount": 2}), Mismatch)
    operation.complete("done")
    assert isinstance(money.begin({"amount": 2}), Mismatch)
    assert isinstance(money.begin({"amount": 1}), Replay)


def test_money_a_swap_that_loses_reads_again_eight_times(money: World) -> None:
    """Who loses every compare-and-swap gives up after eight reads, with an error that says so; nothing ran."""
    money.crashed()
    reads = 0

    def rival(ops: list[Op]) -> None:
        nonlocal reads
        reads += 1
        [op] = ops
        if isinstance(op, Swap):
            [reply] = money.memory.apply([Get(op.record.namespace, op.record.id)])
            found = reply.record
            assert found is not None
            assert not isinstance(found, Unreadable)
            money.memory.apply([Swap(found._replace(etag=reads.to_bytes(16), state=State.ACCEPTED), found.etag)])

    money.faults(*[rival] * 20)
    with pytest.raises(ContentionError):
        money.begin()
    assert reads == 8


def test_money_in_flight_is_told_to_the_caller(money: World) -> None:
    """A duplicate of a live operation does not run: it is told so, and when to come again."""
    money.own()
    found = money.begin()
    assert isinstance(found, InProgress)
    assert found.retry_after >= 1


def test_money_stale_after_exactly_five_minutes(money: World) -> None:
    """Stale is from five minutes of silence on, to the millisecond; then a duplicate re-claims it."""
    operation = money.own()
    money.guard._runtime.heart.remove(operation._hold)
    money.clock.advance(FIVE_MINUTES_S - 0.001)
    assert isinstance(money.begin(), InProgress)
    money.clock.advance(0.001)
    taker = money.begin()
    assert isinstance(taker, Operation)
    assert (taker.attempt, taker.recovered) == (2, True)


def test_money_an_owner_that_is_alive_is_never_stale(money: World) -> None:
    """On purpose: an owner's heartbeat renews its lease, so a slow one is not robbed."""
    operation = money.own()
    money.clock.advance(3 * FIVE_MINUTES_S)
    assert isinstance(money.begin(), InProgress)
    operation.complete("done")
    assert isinstance(money.begin(), Replay)


def test_money_a_late_owner_changes_nothing(money: World) -> None:
    """On purpose: an owner whose guard was re-claimed can neither complete nor free it."""
    late = money.crashed()
    taker = money.own()
    with pytest.raises(Exception, match="another owner"):
        late.complete("late")
    taker.complete("taker's")
    assert money.begin().result == "taker's"


def test_money_the_recovery_point_is_kept(money: World) -> None:
    """What was checkpointed is there for whoever re-claims: the point, and its data."""
    operation = money.own()
    operation.checkpoint("charged", {"charge": "ch_1"})
    money.crash(operation)
    taker = money.own()
    assert taker.recovery_point == "charged"
    assert taker.progress == {"charged": {"charge": "ch_1"}}


def test_money_complete_ends_it(money: World) -> None:
    """A completed guard is replayed to everybody, and never re-claimed."""
    money.own().complete({"refund": "re_1"})
    money.clock.advance(YEARS_S)
    found = money.begin()
    assert isinstance(found, Replay)
    assert found.result == {"refund": "re_1"}


def test_money_what_is_recoverable_is_listed(money: World) -> None:
    """Stale guards, and they alone, are listed as unresolved."""
    money.crashed()
    live = money.guard.begin(SCOPE, "live")
    done = money.guard.begin(SCOPE, "done")
    done.complete(None)
    assert [view.record.key for view in money.guard.operations(unresolved=True)] == [KEY]
    assert money.view().unresolved
    assert not live.view.unresolved


def test_money_a_look_up_of_answered_ones(money: World) -> None:
    """A look-up tells an answered guard from an open one, and that there is none."""
    assert money.guard.lookup(SCOPE, KEY) is None
    operation = money.own()
    assert not money.view().answered
    operation.complete("done")
    assert money.view().answered
    assert money.view().result is not None


def test_money_a_list_per_tenant(money: World) -> None:
    """A tenant's list shows its own guards, though another has the same scope and key."""
    for tenant in ("a", "b"):
        money.kept.append(money.guard.within(tenant).begin(SCOPE, KEY))
        [view] = money.guard.within(tenant).operations()
        assert view.record.namespace == tenant
    assert list(money.guard.operations()) == []


def test_money_the_clock_is_a_seam(money: World) -> None:
    """Guard and store read the clock that they were given: ten years pass in no time."""
    before = money.clock.wall_ms()
    money.own()
    money.clock.advance(YEARS_S)
    assert money.clock.wall_ms() - before == YEARS_S * 1000
    assert money.view().record.created_ms == before


def test_money_nothing_ever_expires(money: World) -> None:
    """After ten years a finished guard replays, an open one is re-claimed, and a purge finds nothing to take."""
    money.own().complete("done")
    stale = money.guard.begin(SCOPE, "stale")
    money.crash(stale)
    money.clock.advance(YEARS_S)
    assert money.guard.purge() == 0
    assert isinstance(money.begin(), Replay)
    assert isinstance(money.guard.begin(SCOPE, "stale"), Operation)


def test_money_attempts_have_no_end(money: World) -> None:
    """A guard that went stale a hundred times is re-claimed once more, whenever that is."""
    for attempt in range(1, 101):
        operation = money.own()
        assert operation.attempt == attempt
        money.crash(operation)


# --- the API cache ----------------------------------------------------------------------------------------------------


class Cache:
    """An app behind the guard on the API cache's file, under its presets."""

    def __init__(self, path: Path, clock: VirtualClock, **options: Any) -> None:
        self.path = path
        self.clock = clock
        self.options = options
        self.answers: list[tuple[int, bytes] | Exception] = [(201, ANSWER)]
        self.runs = 0
        self.open()

    def open(self) -> None:
        """Open the file, as a process does that starts."""
        store = JsonFileStore(self.path, clock=self.clock, **self.options)
        self.guard = Guard(store, policy=Policy.api_cache(), clock=self.clock)
        self.app = IdempotencyMiddleware(
            self.handle, guard=self.guard, http_policy=HttpPolicy.api_cache(principal=SHARED, status_path="/status")
        )

    def restart(self) -> None:
        """End this process, and start another one."""
        self.guard.close()
        self.open()

    def handle(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        self.runs += 1
        answer = self.answers[min(self.runs, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        start(f"{answer[0]} Status", [("Content-Type", "application/json")])
        return [answer[1]]

    def post(self, key: str = "k1", body: bytes = b'{"amount": 1}') -> Answered:
        return wsgi_request(self.app, "/pay", [("Idempotency-Key", key)], body=body)

    def status(self, key: str = "k1") -> dict[str, Any]:
        answer = wsgi_request(self.app, f"/status?idempotency_key={key}", [], method="GET")
        document: dict[str, Any] = json.loads(answer.body)
        return document

    def left_open(self, key: str = "k1", body: bytes = b"1") -> None:
        """Leave an operation in the middle, and restart."""
        fingerprint = Fingerprint(BODY_SHA256, sha256(body).digest())
        operation = self.guard.begin("http", key, fingerprint=fingerprint)
        assert isinstance(operation, Operation)
        self.restart()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    opened = Cache(tmp_path / "folder" / "cache.json", VirtualClock())
    yield opened
    opened.guard.close()


def test_cache_starts_and_replays(cache: Cache) -> None:
    """The first request of a key starts, and the same request gets its status and its bytes again."""
    first, second = cache.post(), cache.post()
    assert (first.status, first.body) == (second.status, second.body) == (201, ANSWER)
    assert second.replayed == "true"
    assert cache.runs == 1


def test_cache_in_flight_and_mismatch(cache: Cache) -> None:
    """A second request while the first is at work is told so; with another body it is a mismatch, and first of all."""
    inner: list[int] = []

    def handle(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        inner.extend(
            wsgi_request(cache.app, "/pay", [("Idempotency-Key", "k1")], body=body).status for body in (b"1", b"2")
        )
        start("200 OK", [])
        return [b""]

    cache.app = IdempotencyMiddleware(handle, guard=cache.guard, http_policy=HttpPolicy.api_cache(principal=SHARED))
    assert cache.post(body=b"1").status == 200
    assert inner == [409, 422]


def test_cache_mismatch_in_every_state(cache: Cache) -> None:
    """Another body is a mismatch, too, where a restart left the first one open, and where it is finished."""
    cache.left_open("k1", b"1")
    assert [cache.post("k1", b"2").status, cache.post("k1", b"1").status] == [422, 409]
    cache.post("k2", b"1")
    assert [cache.post("k2", b"2").status, cache.post("k2", b"1").status] == [422, 201]


def test_cache_what_a_restart_left_is_open(cache: Cache) -> None:
    """What was at work when the process ended is visible as unresolved, and not run again; a look-up says so."""
    cache.left_open()
    document = cache.status()
    assert (document["state"], document["lapsed"], document["unresolved"]) == ("in_progress", True, True)
    assert isinstance(cache.guard.begin("http", "k1"), Unresolved)
    assert cache.runs == 0


def test_cache_what_it_left_itself_is_accepted(tmp_path: Path) -> None:
    """What the older cache had at work when it stopped is accepted, and not run again."""
    put(tmp_path / "cache.json", http__k1=entry("in_progress", status=0, body_base64=""))
    cache = Cache(tmp_path / "cache.json", VirtualClock())
    assert cache.status()["state"] == "accepted"
    assert isinstance(cache.guard.begin("http", "k1"), Unresolved)
    cache.guard.close()


@pytest.mark.parametrize(
    ("status", "state"), [(200, "completed"), (204, "completed"), (302, "failed"), (404, "failed"), (500, "failed")]
)
def test_cache_what_a_status_means(status: int, state: str, cache: Cache) -> None:
    """2xx is completed; every other answer but 429 is failed, and replays, too."""
    cache.answers = [(status, b"")]
    assert cache.post().status == status
    assert cache.status()["state"] == state
    assert cache.post().replayed == "true"
    assert cache.runs == 1


def test_cache_abandons_429(cache: Cache) -> None:
    """An answer of 429 frees the key, for any request."""
    cache.answers = [(429, b""), (201, ANSWER)]
    assert [cache.post().status, cache.post(body=b"other").status] == [429, 201]


def test_cache_abandons_what_was_not_applied(cache: Cache) -> None:
    """A handler that says that nothing happened frees the key, and nothing else but that does."""
    cache.answers = [NotApplied("queue full"), (201, ANSWER)]
    assert [cache.post().status, cache.post().status] == [503, 201]
    cache.answers = [RuntimeError("oops")]
    with pytest.raises(RuntimeError):
        cache.post("k2")
    assert cache.status("k2")["unresolved"]


def test_cache_prunes_only_what_is_finished(cache: Cache) -> None:
    """After a day finished entries leave, be they completed or failed; open ones never do."""
    cache.answers = [(201, ANSWER), (404, b"")]
    cache.post("done")
    cache.post("refused")
    cache.left_open("open")
    cache.clock.advance(86_400)
    assert cache.guard.purge() == 0
    cache.clock.advance(0.001)
    assert cache.guard.purge() == 2
    assert list(entries_in(cache.path)) == ["http:open"]


def test_cache_the_cap(tmp_path: Path) -> None:
    """The oldest finished entry makes room; while all are open there are more than the cap allows."""
    cache = Cache(tmp_path / "cache.json", VirtualClock(), records_max=2)
    for key in ("a", "b", "c"):
        cache.post(key)
        cache.clock.advance(1)
    assert list(entries_in(cache.path)) == ["http:b", "http:c"]
    opened = [cache.guard.begin("http", key) for key in ("d", "e", "f")]
    assert all(isinstance(found, Operation) for found in opened)
    assert list(entries_in(cache.path)) == ["http:d", "http:e", "http:f"]
    cache.guard.close()


@pytest.mark.parametrize("none", [0, -1])
def test_cache_no_ttl_and_no_cap(none: int, tmp_path: Path) -> None:
    """A retention and a cap of 0 or less are none."""
    put(tmp_path / "cache.json", **{f"http__{number}": entry() for number in range(5)})
    cache = Cache(tmp_path / "cache.json", VirtualClock(), records_max=none, retention=none)
    cache.clock.advance(YEARS_S)
    assert cache.guard.purge() == 0
    assert len(entries_in(cache.path)) == 5
    cache.guard.close()


def test_cache_look_up(cache: Cache) -> None:
    """A look-up by key tells the state, and the answer of what is finished."""
    assert cache.status() == {"idempotency_key": "k1", "state": "not_found"}
    cache.post()
    document = cache.status()
    assert (document["state"], document["original_status"]) == ("completed", 201)
    assert document["result"] == json.loads(ANSWER)


def test_cache_hashes_the_raw_body(cache: Cache) -> None:
    """What is compared is the SHA-256 of the body and nothing else: other blanks are another request."""
    cache.post(body=b'{"a": 1}')
    assert entries_in(cache.path)["http:k1"]["req_hash_hex"] == sha256(b'{"a": 1}').hexdigest()
    assert cache.post(body=b'{"a":1}').status == 422


def test_cache_the_file_and_its_permissions(cache: Cache) -> None:
    """One JSON document, for its user alone, in a folder for its user alone; the answer is there in base64."""
    cache.post()
    modes = [cache.path.stat().st_mode & 0o777, cache.path.parent.stat().st_mode & 0o777]
    assert modes == [0o600, 0o700]
    found = entries_in(cache.path)["http:k1"]
    assert (found["state"], found["status"]) == ("completed", 201)
    assert base64.b64decode(found["body_base64"]) == ANSWER


def test_cache_loads_with_tolerance(tmp_path: Path) -> None:
    """An unknown state reads as completed; an entry that makes no sense hurts no other one, and is kept."""
    path = tmp_path / "cache.json"
    put(path, http__odd=entry("resolved"), http__broken={"status": "many"}, http__open=entry("in_progress"))
    cache = Cache(path, VirtualClock())
    assert cache.status("odd")["state"] == "completed"
    assert cache.status("open")["state"] == "accepted"
    assert cache.post("broken").status == 503
    with pytest.raises(UnsupportedRecord):
        cache.guard.begin("http", "broken")
    assert entries_in(path)["http:broken"] == {"status": "many"}
    cache.guard.close()


def test_cache_views_are_records(cache: Cache) -> None:
    """What the file holds is listed like the records of every other store."""
    cache.post()
    [view] = cache.guard.operations()
    assert isinstance(view, RecordView)
    assert (view.record.scope, view.record.key, str(view.state)) == ("http", "k1", "completed")
