"""Both faces: what happens when the store, or the ownership, is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from notwice import Guard, Operation, Policy
from notwice.errors import ContentionError, UnsupportedRecord
from notwice.model import Result, ResultKind
from notwice.policy import rerun
from notwice.stores.memory import MemoryStore
from tests.http.harness import AsgiFace, Says, Serve, problem, says


def nothing() -> None:
    """Neither off nor slow."""


class Switch:
    """A store that can be switched off, or slowed down."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.off = False
        self.on_apply: Callable[[], None] = nothing

    def apply(self, ops: Any) -> Any:
        if self.off:
            raise OSError
        self.on_apply()
        return self.inner.apply(ops)

    def scan(self, query: Any) -> Any:
        return self.inner.scan(query)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)  # type: ignore[no-any-return]  # any store

    def close(self) -> None:
        self.inner.close()


class Broken:
    """A store that fails as told."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def apply(self, ops: Any) -> Any:
        raise self.error

    def scan(self, query: Any) -> Any:
        raise self.error

    def purge(self, limit: int) -> int:
        raise self.error

    def close(self) -> None:
        pass


def test_without_a_store_nothing_runs(serve: Serve) -> None:
    """C12, P8: The store fails: 503 with Retry-After, and the handler is not called."""
    face = serve(says(), store=Broken(OSError("disk at /var/secret is gone")))
    answer = face.request()
    document = problem(answer, 503, "store_unavailable")
    assert int(answer.header("retry-after") or 0) >= 1
    assert (document["safe_new_key"], answer.header("idempotency-outcome")) == (False, "not-applied")
    assert b"secret" not in answer.body
    assert face.handler.count == 0


def test_a_slow_store_is_waited_for_within_its_time_out(serve: Serve) -> None:
    """C12, P8: A store that takes longer than ``store_timeout``: 503, and nothing runs, though it answered in
    the end.
    """
    store = Switch(MemoryStore())
    face = serve(says(), store=store, policy=Policy(store_timeout=2))
    store.on_apply = lambda: face.clock.advance(3)
    problem(face.request(), 503, "store_unavailable")
    store.on_apply = nothing
    assert face.handler.count == 0
    face.clock.advance(60)
    assert face.request().status == 200


def test_proceed_runs_unguarded_and_says_so(serve: Serve) -> None:
    """C12, P8: Only with ``store_failure="proceed"`` does it run without a store, and the answer is marked."""
    face = serve(says(201), store=Broken(OSError()), policy=Policy(store_failure="proceed"))
    answer = face.request()
    assert (answer.status, answer.header("idempotency-guarded")) == (201, "false")
    assert answer.header("access-control-expose-headers") == "Idempotency-Guarded"
    assert face.handler.count == 1


def test_a_guarded_answer_is_not_marked(serve: Serve) -> None:
    """The mark of an unguarded answer stands on no other."""
    assert serve(says(201)).request().header("idempotency-guarded") is None


@pytest.mark.parametrize(
    ("error", "code"), [(ContentionError("secret"), "contention"), (UnsupportedRecord("secret"), "unsupported_record")]
)
def test_other_trouble_of_the_store(serve: Serve, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str) -> None:
    """Contention and a record that can't be read: 503 with their codes and Retry-After, nothing runs."""
    face = serve(says())

    def begin(*_: Any, **__: Any) -> Any:
        raise error

    async def begin_async(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(face.guard, "begin", begin_async if isinstance(face, AsgiFace) else begin)
    answer = face.request()
    assert "secret" not in str(problem(answer, 503, code))
    assert int(answer.header("retry-after") or 0) >= 1
    assert face.handler.count == 0


@pytest.mark.parametrize("status", [201, 404, 500])
def test_an_answer_that_can_not_be_stored_reaches_its_caller(serve: Serve, status: int) -> None:
    """P9, T12: The store is gone when the effect is done: the caller gets the answer, and the write is repeated
    behind it.
    """
    store = Switch(MemoryStore())

    def goes(_: Any) -> Says:
        store.off = True
        return says(status, b"done")

    face = serve(goes, store=store)
    first = face.request()
    assert (first.status, first.body) == (status, b"done")
    assert face.request().status == 503
    store.off = False
    face.clock.advance(60)
    second = face.request()
    assert (second.status, second.body, second.replayed) == (status, b"done", "true")
    assert face.handler.count == 1


SHORT = Policy(recovery=rerun, lease=10, run_max=1)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_loser_of_a_complete_gets_what_a_duplicate_would_get(serve: Serve, parts: int) -> None:
    """P5: Another owner took the operation over and finished it: the late owner's client gets the stored answer.

    If a part of the late answer is out already, it goes on; the record stays the taker's.
    """

    def late(_: Any) -> Says:
        face.clock.advance(20)
        taker = Guard(face.store, clock=face.clock, policy=SHORT).begin("http", "k-1", namespace="a")
        assert isinstance(taker, Operation)
        taker.complete(Result(ResultKind.HTTP, b"taker", 202, ()))
        return says(201, [b"late"] * parts)

    face = serve(late, policy=SHORT)
    answer = face.request()
    assert (answer.status, answer.body) == ((202, b"taker") if parts == 1 else (201, b"latelate"))
    assert face.request().body == b"taker"
    assert face.handler.count == 1


@pytest.mark.parametrize("released", [True, False])
def test_the_loser_of_an_open_operation_is_refused(serve: Serve, released: bool) -> None:
    """P5: The taker is still at work, or gave up: the late owner's client is told so, and nothing of its own is
    stored.
    """

    def late(_: Any) -> Says:
        face.clock.advance(20)
        taker = Guard(face.store, clock=face.clock, policy=SHORT).begin("http", "k-1", namespace="a")
        assert isinstance(taker, Operation)
        if released:
            taker.suspend("gone")
        return says(201, b"late")

    face = serve(late, policy=SHORT)
    problem(face.request(), 409, "unresolved" if released else "in_progress")
    assert face.records()[0].record.result is None


def test_a_full_namespace(serve: Serve) -> None:
    """An account with as many unresolved operations as its policy allows: 429 `unresolved_full`, and no run;
    its duplicates are answered, and so is every other account.
    """
    face = serve(says(500), policy=Policy(unresolved_max=1))
    assert face.request().status == 500
    answer = face.request(headers=[("Idempotency-Key", "k-2")])
    document = problem(answer, 429, "unresolved_full")
    assert (answer.header("retry-after"), answer.header("idempotency-outcome")) == ("30", "not-applied")
    assert document["safe_new_key"] is True
    assert (face.request().status, face.handler.count) == (500, 1)
    other = [("Idempotency-Key", "k-2"), ("X-Account", "b")]
    assert face.request(headers=other).status == 500
    assert face.handler.count == 2
