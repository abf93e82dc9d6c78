"""Both faces: what the handler's answer, or its exception, makes of the operation."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import NotApplied, Policy, State
from notwice.policy import rerun
from tests.http.harness import Says, Serve, problem, says


@pytest.mark.parametrize("status", [200, 201, 202, 204, 205, 301, 303, 304, 400, 402, 404, 409, 410, 422, 499])
def test_a_final_answer_is_replayed(serve: Serve, status: int) -> None:
    """C32, T04, T20, P2: 2xx, 3xx and a definite 4xx are replayed with equal status and bytes; the handler is
    not called.
    """
    body = b"" if status in (204, 304) else b'{"id": 7}'
    face = serve(says(status, body, [("Location", "/payments/7")]), says(500))
    first, second = face.request(), face.request()
    assert (first.status, first.body, first.replayed) == (status, body, None)
    assert (second.status, second.body, second.replayed) == (status, body, "true")
    assert second.header("location") == "/payments/7"
    assert second.header("content-length") == (None if status in (204, 304) else str(len(body)))
    assert face.handler.count == 1
    assert face.records()[0].state is (State.COMPLETED if status < 400 else State.FAILED)


@pytest.mark.parametrize("status", [401, 403, 425, 429])
def test_a_denied_request_does_not_burn_the_key(serve: Serve, status: int) -> None:
    """C38: 401, 403, 425 and 429 prove that nothing happened: the key is free, also for another request."""
    face = serve(says(status, b"no", [("Retry-After", "7")]), says(201, b"done"))
    first = face.request(body=b"one")
    assert (first.status, first.header("retry-after")) == (status, "7")
    second = face.request(body=b"another")
    assert (second.status, second.body, second.replayed) == (201, b"done", None)
    assert face.handler.count == 2


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_an_unknown_outcome_is_held_with_its_answer(serve: Serve, status: int) -> None:
    """C38, P10: 408 and 5xx say nothing of the effect: under ``hold`` the answer is replayed, and listed as
    unresolved.
    """
    face = serve(says(status, b"oops"), says(201))
    first, second = face.request(), face.request()
    assert (first.status, second.status, second.body, second.replayed) == (status, status, b"oops", "true")
    assert face.handler.count == 1
    [view] = face.records()
    assert (view.state, view.unresolved) == (State.ACCEPTED, True)


def test_an_unknown_outcome_is_run_again_under_rerun(serve: Serve) -> None:
    """C38: Under ``rerun`` a 5xx runs again, with the same downstream key."""
    downstream: list[str] = []

    def fails(seen: Any) -> Says:
        downstream.append(seen.operation.downstream_key())
        return says(503 if len(downstream) == 1 else 201)

    face = serve(fails, policy=Policy(recovery=rerun))
    assert [face.request().status for _ in range(3)] == [503, 201, 201]
    assert face.handler.count == 2
    assert len(set(downstream)) == 1
    assert face.handler.runs[1].operation.recovered


def test_statuses_can_be_given_another_meaning(serve: Serve) -> None:
    """C38, C39: Each row of the table is an option: a status, or its class."""
    statuses = {409: "abandoned", "5xx": "failed", 403: "failed", 202: "unknown"}
    for status, runs in [(409, 2), (500, 1), (403, 1), (202, 1), (401, 2)]:
        face = serve(says(status), statuses=statuses)
        face.request()
        face.request()
        assert face.handler.count == runs, status


def test_a_refusal_that_is_the_outcome_is_kept(serve: Serve) -> None:
    """C39, T25: A 409 of the handler is its answer: the retry gets it again, although the slot is free by now."""
    face = serve(says(409, b"taken"), says(201))
    assert [face.request().status for _ in range(2)] == [409, 409]
    assert face.handler.count == 1


@pytest.mark.parametrize(
    ("status", "outcome", "state", "runs"),
    [
        (200, "not-applied", State.ACCEPTED, 2),
        (500, "not-applied", State.ACCEPTED, 2),
        (200, "unknown", State.ACCEPTED, 1),
        (404, "unknown", State.ACCEPTED, 1),
        (500, "final", State.FAILED, 1),
        (429, "final", State.FAILED, 1),
        (202, "final", State.COMPLETED, 1),
        (200, "FINAL ", State.COMPLETED, 1),
        (200, "not applied", State.ACCEPTED, 1),
    ],
)
def test_the_handler_may_say_what_its_answer_means(
    serve: Serve, status: int, outcome: str, state: State, runs: int
) -> None:
    """C39: ``Idempotency-Outcome`` overrides the status and is not sent on; a word that is none of the three is
    unknown.
    """
    face = serve(says(status, b"x", [("Idempotency-Outcome", outcome)]))
    first = face.request()
    assert (first.status, first.header("idempotency-outcome")) == (status, None)
    assert face.records()[0].state is state
    assert face.request().header("idempotency-outcome") is None
    assert face.handler.count == runs


def test_a_handler_that_raises_leaves_an_unknown_outcome(serve: Serve) -> None:
    """C10, T07: An exception frees nothing: the retry is refused as unresolved, and the handler's exception got out."""
    face = serve(RuntimeError("half-way"), says(201))
    with pytest.raises(RuntimeError, match="half-way"):
        face.request()
    document = problem(face.request(), 409, "unresolved")
    assert (document["safe_new_key"], document["state"]) == (False, "accepted")
    assert face.handler.count == 1
    assert face.records()[0].unresolved


def test_not_applied_is_a_503_and_frees_the_key(serve: Serve) -> None:
    """C11: A handler that says that nothing happened: 503 with Retry-After, the next delivery runs, the third
    is a replay.
    """
    face = serve(NotApplied("queue is full"), says(201))
    first = face.request()
    document = problem(first, 503, "not_applied")
    assert (document["safe_new_key"], first.header("idempotency-outcome")) == (False, "not-applied")
    assert int(first.header("retry-after") or 0) >= 1
    assert [face.request().replayed for _ in range(2)] == [None, "true"]
    assert face.handler.count == 2


def test_exception_types_can_be_answers(serve: Serve) -> None:
    """``final_errors`` are the operation's failure, told alike to the first caller and to the next; others are
    freed.
    """
    face = serve(LookupError("secret"), policy=Policy(final_errors=(LookupError,)))
    first, second = face.request(), face.request()
    problem(first, 500, "recorded_failure")
    assert (first.body, second.body, second.replayed, face.handler.count) == (first.body, first.body, "true", 1)
    assert b"secret" not in first.body
    freed = serve(OSError(), says(201), policy=Policy(not_applied_errors=(OSError,)))
    assert [freed.request().status for _ in range(2)] == [503, 201]
