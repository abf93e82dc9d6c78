"""The work of a client on guarded operations: each key has its policy, each run its effect at a provider."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from notwice import (
    Guard,
    InProgress,
    Mismatch,
    NotApplied,
    NotwiceError,
    Operation,
    Policy,
    Replay,
    StoreUnavailable,
    current_operation,
    reconcile,
    rerun,
)
from notwice.codec import encode_value
from notwice.model import RecordView
from notwice.policy import NOT_APPLIED, Applied
from notwice.policy import Verdict as Found
from notwice.stores.port import Store
from notwice.testing import history
from notwice.testing.history import (
    Answer,
    Answered,
    Asked,
    Effect,
    Event,
    Held,
    Move,
    MoveAnswered,
    MoveAsked,
    Name,
    Outcome,
    Produced,
    Reconciled,
    Started,
    Verdict,
    answer_of,
    kept_of,
)

LEASE_MS: Final = 200
WINDOW_NS: Final = 50_000_000
KEYS_PER_WINDOW: Final = 6
SCOPE: Final = "refund"
STORE_TIMEOUT_S: Final = 20
ANSWER_WITHIN_MS: Final = 120_000  # a loaded machine is slow; whoever waits for ever is found all the same


# How often, of all calls or runs.
OTHER_REQUESTS: Final = 0.03
BY_HAND: Final = 0.3
ABANDONED: Final = 0.25
HEARTBEATS: Final = 0.5
NOT_APPLIED_ERRORS: Final = 0.03
SLOW: Final = 0.2
SLOW_S: Final = 0.02
TIMEOUTS: Final = 0.08
LATER: Final = (0, 0, 0, 1, 12, 30)  # windows; about half of the calls are for operations of a while ago


class Provider:
    """Where effects happen: a folder with a file for each downstream key. A line in it is an effect, as an event."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def charge(self, effect: Effect) -> None:
        """Cause the effect, however often it is asked for."""
        descriptor = os.open(self._folder / effect.downstream_key, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            history.append(descriptor, effect)
        finally:
            os.close(descriptor)

    def effects(self, downstream_key: str) -> list[Effect]:
        """What happened under a key."""
        path = self._folder / downstream_key
        events = history.values_of(path.read_text().splitlines()) if path.exists() else []
        return [event for event in events if isinstance(event, Effect)]

    def all_effects(self) -> Iterator[Effect]:
        """All that happened."""
        for path in self._folder.iterdir():
            yield from self.effects(path.name)


class Client:
    """One client process: it makes calls and writes down what it sees of them."""

    def __init__(self, store: Store, log: int, folder: Path, *, process: str) -> None:
        self._log = log
        self._process = process
        self._provider = Provider(folder / "provider")
        self._guard = Guard(store)
        self._calls = 0
        self._call = ""
        self._outcome = Outcome.CANCELLED
        recoveries = (Policy().recovery, rerun, reconcile(self._ask))
        self._policies = [self._policy(recovery) for recovery in recoveries]

    @staticmethod
    def _policy(recovery: Any) -> Policy:  # noqa: ANN401 - the policy checks it
        return Policy(
            recovery=recovery,
            lease=LEASE_MS / 1000,
            attempts_max=None,
            rerun_within=None,
            store_timeout=STORE_TIMEOUT_S,
        )

    def policy_of(self, key: str) -> Policy:
        """The policy of a key, the same in every process."""
        return self._policies[hashlib.sha256(key.encode()).digest()[0] % len(self._policies)]

    def visit(self, key: str, chance: random.Random) -> Outcome:
        """Make one call, and say what came of it."""
        self._calls += 1
        self._call = f"{self._process}.{self._calls}"
        policy = self.policy_of(key)
        request = "another" if chance.random() < OTHER_REQUESTS else "refund"
        self._note(
            Asked(
                at_ns=time.monotonic_ns(),
                call=self._call,
                caller=self._process,
                process=self._process,
                name=Name("", SCOPE, key),
                request=request,
                terms=policy.terms,
                answer_within_ms=ANSWER_WITHIN_MS,
            )
        )
        visit = self._by_hand if chance.random() < BY_HAND else self._at_once
        with self._told() as tell:
            visit(key, request, policy=policy, chance=chance, tell=tell)
        return self._outcome

    def _note(self, event: Event) -> None:
        history.append(self._log, event)

    @contextmanager
    def _told(self) -> Generator[Callable[..., None], None, None]:
        """What the caller is told in the end is written down, whichever way it comes."""

        def tell(outcome: Outcome, **more: Any) -> None:  # noqa: ANN401 - the fields of an answer
            self._outcome = outcome
            self._note(Answered(at_ns=time.monotonic_ns(), call=self._call, outcome=outcome, **more))

        try:
            yield tell
        except NotApplied:
            tell(Outcome.RAISED, code="not_applied")
        except StoreUnavailable as error:
            tell(Outcome.REFUSED, code=error.code)
        except NotwiceError as error:
            outcome = {"in_progress": Outcome.IN_PROGRESS, "unresolved": Outcome.UNRESOLVED}.get(error.code)
            outcome = outcome or (Outcome.MISMATCH if error.code == "key_reused" else Outcome.RAISED)
            tell(outcome, code=error.code, retry_after=error.retry_after)
        except TimeoutError:
            tell(Outcome.RAISED, code="timeout")

    def _at_once(
        self, key: str, request: str, *, policy: Policy, chance: random.Random, tell: Callable[..., None]
    ) -> None:
        done = self._guard.call(
            lambda: self._handle(self._current(), chance), scope=SCOPE, key=key, request=request, policy=policy
        )
        outcome = Outcome.REPLAY if done.replayed else Outcome.DONE
        tell(outcome, answer=Answer(encode_value(done.result)), marked=done.replayed)

    @staticmethod
    def _current() -> Operation:
        operation = current_operation()
        assert isinstance(operation, Operation)  # the guard has this face
        return operation

    def _by_hand(
        self, key: str, request: str, *, policy: Policy, chance: random.Random, tell: Callable[..., None]
    ) -> None:
        match self._guard.begin(SCOPE, key, request=request, policy=policy):
            case Operation() as operation:
                tell(Outcome.OWNED, attempt=operation.attempt)
                self._own(operation, chance)
            case Replay(stored=stored) as replay:
                tell(Outcome.REPLAY, answer=answer_of(stored, failed=replay.failed), marked=True)
            case InProgress(retry_after=seconds):
                tell(Outcome.IN_PROGRESS, retry_after=seconds)
            case Mismatch():
                tell(Outcome.MISMATCH)
            case _:
                tell(Outcome.UNRESOLVED)

    def _own(self, operation: Operation, chance: random.Random) -> None:
        if chance.random() < ABANDONED:
            self._move(Move.ABANDON, operation.abandon)
            return
        if chance.random() < HEARTBEATS:
            self._move(Move.HEARTBEAT, operation.heartbeat)
        try:
            value = self._handle(operation, chance)
        except NotApplied:
            self._move(Move.ABANDON, operation.abandon)
            return
        except TimeoutError:
            self._move(Move.SUSPEND, lambda: operation.suspend("no answer in time"))
            return
        self._move(Move.COMPLETE, lambda: operation.complete(value))

    def _move(self, move: Move, make: Callable[[], object]) -> None:
        self._note(MoveAsked(at_ns=time.monotonic_ns(), call=self._call, move=move))
        code = ""
        try:
            make()
        except NotwiceError as error:
            code = error.code
        self._note(MoveAnswered(at_ns=time.monotonic_ns(), call=self._call, move=move, code=code))

    def _handle(self, operation: Operation, chance: random.Random) -> str:
        """The handler: it may be slow, raise before its effect, or after it."""
        attempt = operation.attempt
        self._note(Started(at_ns=time.monotonic_ns(), call=self._call, attempt=attempt))
        if chance.random() < NOT_APPLIED_ERRORS:
            self._note(Produced(at_ns=time.monotonic_ns(), call=self._call, error="NotApplied", proves=True))
            raise NotApplied
        if chance.random() < SLOW:
            time.sleep(chance.uniform(0, SLOW_S))
        downstream_key, receipt = operation.downstream_key(), f"{operation.key} {self._call}"
        self._provider.charge(
            Effect(at_ns=time.monotonic_ns(), call=self._call, effect=receipt, downstream_key=downstream_key)
        )
        if chance.random() < TIMEOUTS:
            self._note(Produced(at_ns=time.monotonic_ns(), call=self._call, error="TimeoutError"))
            raise TimeoutError
        self._note(Produced(at_ns=time.monotonic_ns(), call=self._call, answer=Answer(encode_value(receipt))))
        return receipt

    def _ask(self, operation: Operation) -> Applied | Found:
        """The reconcile function: the provider knows."""
        effects = self._provider.effects(operation.downstream_key())
        verdict = Verdict.APPLIED if effects else Verdict.NOT_APPLIED
        self._note(Reconciled(at_ns=time.monotonic_ns(), call=self._call, verdict=verdict))
        if not effects:
            return NOT_APPLIED
        receipt = effects[0].effect
        self._note(Produced(at_ns=time.monotonic_ns(), call=self._call, answer=Answer(encode_value(receipt))))
        return Applied(receipt)


def work(client: Client, *, chance: random.Random, count: Callable[[int], None]) -> None:
    """Go on until killed: calls for the keys that everybody is at now, and for some of a while ago."""
    while True:
        window = time.monotonic_ns() // WINDOW_NS - chance.choice(LATER)
        client.visit(f"{window}-{chance.randrange(KEYS_PER_WINDOW)}", chance)
        count(1)


def settle(client: Client, keys: Iterable[str], *, chance: random.Random) -> None:
    """Ask for each key until it is settled, for the end of the history."""
    waiting = list(keys)
    while waiting:
        open_still = {Outcome.IN_PROGRESS, Outcome.RAISED, Outcome.REFUSED, Outcome.OWNED}
        waiting = [key for key in waiting if client.visit(key, chance) in open_still]
        if waiting:
            time.sleep(LEASE_MS / 1000)


def held(views: Iterable[RecordView], at_ns: int) -> Iterable[Held]:
    """What the store holds, as a history has it."""
    for view in views:
        record = view.record
        name = Name(record.namespace, record.scope, record.key)
        yield Held(at_ns=at_ns, name=name, kept=kept_of(view))
