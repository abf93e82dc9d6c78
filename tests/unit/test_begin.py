"""The rules of begin, one by one, over the reference store."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from notwice import (
    NOT_APPLIED,
    UNKNOWN,
    Applied,
    ContentionError,
    Fingerprint,
    InProgress,
    Mismatch,
    NotwiceError,
    Operation,
    OperationInProgress,
    OperationUnresolved,
    OwnershipLost,
    Policy,
    Replay,
    Result,
    ResultKind,
    State,
    Unresolved,
    UnsupportedRecord,
    hold,
    reconcile,
    rerun,
)
from notwice.model import Get, Op, Reply, Swap, Unreadable
from tests.unit.worlds import KEY, SCOPE, World

ANSWER = Result(ResultKind.HTTP, b"sorry", 500)


def test_the_first_begin_owns_the_operation() -> None:
    """P1: with nothing stored a begin writes the record and owns the operation."""
    world = World()
    operation = world.own()
    assert (operation.attempt, operation.recovered, world.view().state) == (1, False, State.IN_PROGRESS)


def test_a_duplicate_of_a_running_operation_does_not_run() -> None:
    """P4: while the owner is at work a duplicate is told so, with a time to wait, and the record stays as it is."""
    world = World()
    world.own()
    before = world.view().record
    duplicate = world.begin()
    assert isinstance(duplicate, InProgress)
    assert duplicate.retry_after >= 1
    assert world.view().record == before


def test_a_duplicate_waits_as_long_as_the_operation_has_run() -> None:
    """P4: Retry-After is the time that the operation has run so far, from 1 to 30 seconds."""
    world = World()
    world.own()
    seen = []
    for seconds in (0, 7, 100):
        world.clock.advance(seconds)
        seen.append(world.begin().retry_after)
    assert seen == [1, 7, 30]


def test_a_duplicate_of_a_finished_operation_is_given_the_first_answer() -> None:
    """P2: completed and failed operations are replayed, and the record stays as it is."""
    for end in ("complete", "fail"):
        world = World()
        getattr(world.own(), end)({"id": "re_1"})
        before = world.view().record
        replay = world.begin()
        assert isinstance(replay, Replay)
        assert (replay.result, replay.failed) == ({"id": "re_1"}, end == "fail")
        assert world.view().record == before


@pytest.mark.parametrize("state", ["running", "lapsed", "suspended", "released", "completed", "failed"])
def test_another_request_is_refused_in_every_state(state: str) -> None:
    """P3, C18, C19: another fingerprint never runs and never changes the record, whatever the record's state."""
    world = World(recovery=rerun)
    operation = world.own()
    if state == "lapsed":
        world.crash(operation)
    elif state == "suspended":
        operation.suspend()
    elif state == "released":
        operation.suspend()
        world.guard.release(world.view(), who="ann", why="checked")
    elif state in {"completed", "failed"}:
        getattr(operation, state.removesuffix("d").removesuffix("e") if state == "failed" else "complete")(1)
    before = world.view().record
    assert isinstance(world.begin(request=2), Mismatch)
    assert world.view().record == before


def test_a_request_that_was_not_given_is_compared_with_nothing() -> None:
    """An absent fingerprint equals any: a status query by the key alone finds its operation."""
    world = World()
    world.own().complete(1)
    assert isinstance(world.guard.begin(SCOPE, KEY), Replay)


class Recipes:
    """A request whose fingerprint can be made by two recipes."""

    current = Fingerprint("new", b"n")

    def __init__(self, old: bytes) -> None:
        self.old = old

    def by(self, recipe: str) -> Fingerprint | None:
        return Fingerprint("old", self.old) if recipe == "old" else None


def test_a_fingerprint_is_compared_by_the_recipe_that_made_the_stored_one() -> None:
    """P3, P14: after an upgrade of the recipe, records of the older one still tell equal from different requests."""
    world = World()
    world.guard.begin(SCOPE, KEY, fingerprint=Fingerprint("old", b"x")).complete(1)
    assert isinstance(world.guard.begin(SCOPE, KEY, fingerprint=Recipes(b"x")), Replay)
    assert isinstance(world.guard.begin(SCOPE, KEY, fingerprint=Recipes(b"y")), Mismatch)


@pytest.mark.parametrize(
    "parts", [("r", "6162"), ("r", None), ("r", bytearray(b"x")), (5, b"x"), (None, b"x")], ids=repr
)
def test_a_fingerprint_that_could_not_be_stored_is_refused(parts: Any) -> None:
    """P3: a ready fingerprint of other types is an error before the store is asked, not a store that failed."""
    world = World()
    with pytest.raises(TypeError) as caught:
        world.guard.begin(SCOPE, KEY, fingerprint=Fingerprint(*parts))
    assert str(caught.value) == ("a Fingerprint has the name of its recipe as text, and a digest of bytes. Nothing ran")
    assert world.guard.lookup(SCOPE, KEY) is None


def test_a_fingerprint_of_an_unknown_recipe_is_refused() -> None:
    """P14: what can't be compared is not guessed: the begin is refused, and nothing changes."""
    world = World()
    world.guard.begin(SCOPE, KEY, fingerprint=Fingerprint("newer", b"x")).complete(1)
    with pytest.raises(UnsupportedRecord, match="newer"):
        world.guard.begin(SCOPE, KEY, fingerprint=Recipes(b"x"))
    assert world.view().state is State.COMPLETED


def test_an_expired_record_is_replaced() -> None:
    """C41, C42: within its retention a record replays, after it the key is a new operation, swept or not."""
    world = World(retention=1)
    world.own().complete("first")
    world.clock.advance(0.9)
    assert isinstance(world.begin(), Replay)
    world.clock.advance(0.2)
    operation = world.own(request=2)
    assert operation.attempt == 1
    assert world.view().record.created_ms == world.clock.wall_ms()


def test_an_open_record_never_expires() -> None:
    """P6, C41: a handler that outlives the retention keeps its record; so does what it leaves unresolved."""
    world = World(retention=1)
    operation = world.own()
    world.clock.advance(1000)
    assert isinstance(world.begin(), InProgress)
    operation.suspend()
    world.clock.advance(10**6)
    assert world.guard.purge() == 0
    assert isinstance(world.begin(), Unresolved)


class Shows:
    """A store whose record can't be read."""

    def apply(self, ops: list[Op]) -> list[Reply]:
        return [Reply(won=False, record=Unreadable("", "id", "format 9 is newer than this release")) for _ in ops]


def test_a_record_that_can_not_be_read_is_refused() -> None:
    """P14: an older release that meets a newer record refuses; it never takes it for absent."""
    world = World()
    world.guard._runtime.store = Shows()
    with pytest.raises(UnsupportedRecord, match="newer"):
        world.begin()


def test_hold_is_the_default_and_changes_nothing() -> None:
    """P5, P7: after a crash the operation is unresolved and visible; nobody takes it over, and its owner may finish."""
    world = World()
    operation = world.crashed()
    before = world.view().record
    assert isinstance(world.begin(), Unresolved)
    assert [view.operation for view in world.guard.operations(unresolved=True)] == [operation.operation]
    assert world.view().record == before
    operation.complete("late")
    assert world.begin().result == "late"


def test_a_lease_is_over_after_exactly_its_time() -> None:
    """P5: one millisecond before its end a lease protects its owner, at its end it does not."""
    world = World(recovery=rerun, lease=300)
    operation = world.own()
    world.guard._runtime.heart.remove(operation._hold)
    world.clock.advance(299.999)
    assert isinstance(world.begin(), InProgress)
    world.clock.advance(0.001)
    assert isinstance(world.begin(), Operation)


def test_hold_gives_the_kept_answer() -> None:
    """A suspended operation whose answer was sent replays that answer, and stays unresolved."""
    world = World()
    world.own().suspend("500", answer=ANSWER)
    replay = world.begin()
    assert isinstance(replay, Replay)
    assert replay.stored == ANSWER
    assert world.view().unresolved


def test_rerun_takes_over_from_the_recovery_point() -> None:
    """P5, P7: under rerun a lapsed operation is claimed again, with its progress, and its old owner is fenced off."""
    world = World(recovery=rerun)
    old = world.own()
    old.checkpoint("charge", {"id": "ch_1"})
    world.crash(old)
    new = world.own()
    assert (new.attempt, new.recovered, new.recovery_point) == (2, True, "charge")
    assert new.progress == {"charge": {"id": "ch_1"}}
    for move in (old.complete, old.abandon, old.heartbeat, old.suspend):
        with pytest.raises(OwnershipLost):
            move()
    assert old.lost
    new.complete("taker's")
    assert world.begin().result == "taker's"


def test_reruns_pause_longer_each_time_and_end() -> None:
    """P7: the first re-run comes at once, later ones after 2, 4 and 8 seconds, and five attempts are the end."""
    world, pauses = World(recovery=rerun), []
    while True:
        outcome = world.begin()
        if isinstance(outcome, InProgress):
            pauses.append(outcome.retry_after)
            world.clock.advance(outcome.retry_after)
        elif isinstance(outcome, Operation):
            outcome.suspend("again")
        else:
            break
    assert isinstance(outcome, Unresolved)
    assert pauses == [2, 4, 8]
    assert world.view().record.attempt == 5


def test_who_waits_for_a_rerun_is_not_told_that_somebody_is_at_work() -> None:
    """P4: a pause is told as one, with its seconds, by the error and at HTTP; a running operation as running."""
    world = World(recovery=rerun)
    first = world.own()
    assert "is running elsewhere" in str(refused(world, OperationInProgress))
    first.suspend()
    world.own().suspend()
    assert "pauses for 2 s" in str(refused(world, OperationInProgress))
    assert b"tried again after a pause" in world.begin().problem().body


def test_who_waits_for_a_look_up_is_not_told_to_make_one() -> None:
    """P7: a person is sent for only where nobody is going to ask what became of the effect."""
    world = World(recovery=reconcile(lambda _: UNKNOWN))
    world.crashed()
    error = refused(world, OperationUnresolved)
    assert "asked again in 30 s" in str(error)
    assert "resolve" not in str(error)
    assert b"asked again after a pause" in world.begin().problem().body
    world = World(recovery=hold)
    world.crashed()
    assert "Find out what happened, then resolve or release it" in str(refused(world, OperationUnresolved))
    assert b"asked again" not in world.begin().problem().body


def refused(world: World, kind: type[NotwiceError]) -> NotwiceError:
    with pytest.raises(kind) as told:
        world.guard.run(lambda: pytest.fail("it ran"), scope=SCOPE, key=KEY, request=1)
    return told.value


def test_rerun_ends_before_the_next_system_forgets_the_key() -> None:
    """P7: past rerun_within of the first claim an operation is held, whatever attempts are left."""
    world = World(recovery=rerun, attempts_max=None, rerun_within=3600)
    world.own().suspend()
    world.clock.advance(3599)
    world.own().suspend()
    world.clock.advance(3)
    assert isinstance(world.begin(), Unresolved)


def test_a_later_caller_can_only_be_stricter() -> None:
    """P7: the policy stored with the first claim decides; a later caller can only be stricter."""
    world = World(recovery=hold)
    world.crashed()
    assert isinstance(world.begin(policy=Policy(recovery=rerun)), Unresolved)
    world = World(recovery=rerun)
    world.crashed()
    assert isinstance(world.begin(policy=Policy(recovery=hold)), Unresolved)
    assert isinstance(world.begin(policy=Policy(recovery=rerun, attempts_max=1)), Unresolved)
    assert isinstance(world.begin(), Operation)


def test_reconcile_without_a_function_is_hold() -> None:
    """A caller that can't ask what became of the effect holds the operation."""
    world = World(recovery=reconcile(lambda _: Applied(1)))
    world.crashed()
    assert isinstance(world.begin(policy=Policy(recovery=rerun)), Unresolved)


def test_reconcile_completes_with_what_it_finds() -> None:
    """P7: where the provider knows the effect, its result completes the operation and every duplicate gets it."""
    world = World(recovery=reconcile(lambda operation: Applied({"found": operation.attempt})))
    world.crashed()
    assert world.begin().result == {"found": 2}
    assert world.begin().result == {"found": 2}
    assert world.view().state is State.COMPLETED


def test_reconcile_that_does_not_know_waits_half_a_minute() -> None:
    """P7: "unknown", an exception and nonsense leave it accepted, and the function is not asked again for 30 s."""

    def raises(_: Operation) -> object:
        raise OSError("the provider is down")

    for answer in (lambda _: UNKNOWN, raises, lambda _: None, lambda _: "yes"):
        asked: list[int] = []

        def function(operation: Operation, answer: object = answer, asked: list[int] = asked) -> object:
            asked.append(operation.attempt)
            return answer(operation)  # type: ignore[operator]  # one of the functions above

        world = World(recovery=reconcile(function))
        world.crashed()
        for seconds, left in ((0, 30), (10, 20), (19.999, 1)):
            world.clock.advance(seconds)
            outcome = world.begin()
            assert isinstance(outcome, Unresolved)
            assert outcome.retry_after == left
        assert asked == [2]
        world.clock.advance(0.001)
        assert isinstance(world.begin(), Unresolved)
        assert asked == [2, 3]


def test_not_applied_runs_only_after_every_owner_has_settled() -> None:
    """P7: without de-duplication, "not applied" runs it once all earlier owners were silent for a whole settle time."""
    world = World(recovery=reconcile(lambda _: NOT_APPLIED), lease=300, settle=600)
    world.crashed()  # silent for 300 s
    assert isinstance(world.begin(), Unresolved)
    world.clock.advance(299)
    assert isinstance(world.begin(), Unresolved)
    world.clock.advance(30)
    assert isinstance(world.begin(), Operation)


def test_a_reboot_says_that_the_owner_is_gone_and_not_since_when() -> None:
    """P7: what an owner has sent may be on its way still when its host is started anew: silence counts from then on."""
    world = World(recovery=reconcile(lambda _: NOT_APPLIED), lease=300, settle=300)
    world.own()
    world.clock.reboot()
    assert isinstance(world.begin(), Unresolved)
    world.clock.advance(299)
    assert isinstance(world.begin(), Unresolved)
    world.clock.advance(30)
    assert isinstance(world.begin(), Operation)


def test_asking_is_no_sign_of_life_of_a_handler() -> None:
    """P7: asking again and again does not put off the time at which the earlier owners have settled."""
    world, asked = World(recovery=reconcile(lambda _: NOT_APPLIED), settle=900), 0
    world.crashed()
    while not isinstance(world.begin(), Operation):
        asked += 1
        world.clock.advance(30)
    assert 300 + 30 * asked == 900


def test_not_applied_runs_at_once_where_the_provider_de_duplicates() -> None:
    """P7: deduplicated=True needs no settling, but only if the stored policy said so, too."""
    sure, unsure = (reconcile(lambda _: NOT_APPLIED, deduplicated=flag) for flag in (True, False))
    world = World(recovery=sure)
    world.own().suspend()
    assert isinstance(world.begin(), Operation)
    world = World(recovery=unsure)
    world.own().suspend()
    assert isinstance(world.begin(policy=Policy(recovery=sure)), Unresolved)


def test_who_asks_holds_the_lease() -> None:
    """P1: while the function is asked, a duplicate sees the operation in progress, however long it takes."""
    seen: list[object] = []

    def function(_: Operation) -> object:
        world.clock.advance(1000)
        seen.append(world.begin())
        return Applied(1)

    world = World(recovery=reconcile(function))
    world.crashed()
    assert isinstance(world.begin(), Replay)
    assert [type(outcome) for outcome in seen] == [InProgress]


def test_who_was_overtaken_while_asking_gets_what_a_duplicate_gets() -> None:
    """P5: an answer that comes after another owner took over changes nothing; the caller is told of that owner."""

    def function(operation: Operation) -> object:
        world.crash(operation)
        assert isinstance(world.begin(policy=Policy(recovery=rival)), Operation)
        return Applied(1)

    rival = reconcile(lambda _: NOT_APPLIED, deduplicated=True)
    world = World(recovery=reconcile(function, deduplicated=True))
    world.crashed()
    assert isinstance(world.begin(), InProgress)


def test_a_released_operation_runs_again_once() -> None:
    """P10: an operator's release frees the operation for the same request; the claim takes the mark off again."""
    world = World()
    world.crashed()
    world.guard.release(world.view(), who="ann", why="the provider has no such refund")
    operation = world.own()
    assert operation.attempt == 2
    world.crash(operation)
    assert isinstance(world.begin(), Unresolved)


def test_a_release_starts_the_limits_of_rerun_anew() -> None:
    """P7: after an operator's release, attempts_max and rerun_within count from the next claim on."""
    world = World(recovery=rerun, attempts_max=2, rerun_within=3600)
    world.own().suspend()
    world.own().suspend()
    world.clock.advance(7200)
    assert isinstance(world.begin(), Unresolved)
    world.guard.release(world.view(), who="ann", why="checked")
    world.own().suspend()
    assert world.own().attempt == 4


def test_eight_lost_swaps_are_contention() -> None:
    """A begin that loses eight swaps in a row gives up with an error that says so; nothing ran."""
    world = World(recovery=rerun)
    world.crashed()
    reads = 0

    def rival(ops: list[Op]) -> None:
        nonlocal reads
        reads += 1
        if isinstance(ops[0], Swap):
            [reply] = world.memory.apply([Get(ops[0].record.namespace, ops[0].record.id)])
            record = reply.record
            assert record is not None
            assert not isinstance(record, Unreadable)
            world.memory.apply([Swap(record._replace(etag=reads.to_bytes(16), state=State.ACCEPTED), record.etag)])

    world.faults(*[rival] * 20)
    with pytest.raises(ContentionError):
        world.begin()
    assert reads == 8


def test_only_one_of_many_takes_over() -> None:
    """P1, C42: sixteen threads on one stale record, a hundred times: one owner each time."""
    world = World(recovery=rerun)
    for number in range(100):
        stale = world.guard.begin(SCOPE, str(number))
        world.crash(stale)
        owners: list[Operation] = []
        barrier = threading.Barrier(16)

        def contend(
            key: str = str(number), owners: list[Operation] = owners, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            outcome = world.guard.begin(SCOPE, key)
            if isinstance(outcome, Operation):
                owners.append(outcome)

        threads = [threading.Thread(target=contend) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(owners) == 1


def test_a_policy_travels_with_its_claim() -> None:
    """C25: two operations on one store keep their own leases and retentions, however they interleave."""
    world = World()
    short, long = Policy(retention=60, lease=10), Policy(retention=3600, lease=100)
    first, second = world.guard.begin("a", "1", policy=short), world.guard.begin("b", "1", policy=long)
    third = world.guard.begin("a", "2", policy=short)
    for operation in (first, second, third):
        operation.complete(1)
    world.clock.advance(61)
    assert world.guard.purge() == 2
    assert isinstance(world.guard.begin("b", "1"), Replay)


def test_policies_are_values() -> None:
    """A policy can't be changed behind a guard's back."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().lease = 1  # type: ignore[misc]  # that is the point


def test_an_unfinished_atomic_operation_runs_again() -> None:
    """P7: its end was to be committed with the handler's rows and was not, so nothing happened; no policy is asked."""
    world = World(atomic=True, recovery=hold)
    world.crashed()
    assert world.own().attempt == 2
    assert isinstance(world.begin(), InProgress)
