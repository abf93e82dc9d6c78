"""Both faces: what the handler's answer, or its exception, makes of the operation."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import NotApplied, Policy, State
from notwice.observe import LogObserver
from notwice.policy import rerun
from notwice.problems import Problem
from tests.http.harness import Says, Serve, finish, problem, says


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


def test_a_replay_of_what_is_held_says_so(serve: Serve) -> None:
    """C38: a held answer's replay is marked as of unknown outcome, and no longer says when to come again: a retry
    runs nothing. The first answer goes out as the handler gave it.
    """
    face = serve(says(503, b"busy", [("Retry-After", "3")]))
    first, second = face.request(), face.request()
    assert (first.header("retry-after"), first.header("idempotency-outcome")) == ("3", None)
    assert (second.header("retry-after"), second.header("idempotency-outcome")) == (None, "unknown")
    assert second.header("access-control-expose-headers") == "Idempotency-Replayed, Idempotency-Outcome"
    finished = serve(says(404, b"no", [("Retry-After", "3")]))
    finished.request()
    replay = finished.request()
    assert (replay.header("retry-after"), replay.header("idempotency-outcome")) == ("3", None)


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
    [view] = face.records()
    assert view.state is state
    assert face.request().header("idempotency-outcome") == ("unknown" if view.unresolved else None)
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


def takes_a_key(seen: Any) -> Says:
    """Give the next system its key, and then say that nothing happened."""
    seen.operation.downstream_key("refund")
    raise NotApplied


def test_not_applied_is_not_promised_where_the_key_is_not_free(serve: Serve, caplog: Any) -> None:
    """P10: a handler that took a downstream key before it says that nothing happened frees nothing: the first caller is
    told that the outcome is unknown, as each duplicate is, and the log says why.
    """
    face = serve(takes_a_key, says(201))
    face.guard._runtime.observer = LogObserver()
    first, second = face.request(), face.request()
    for answer in (first, second):
        document = problem(answer, 409, "unresolved")
        assert (answer.header("idempotency-outcome"), answer.header("retry-after")) == ("unknown", None)
        assert (document["safe_new_key"], document["state"]) == (False, "accepted")
    assert face.handler.count == 1
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "a downstream key or a checkpoint was taken before" in warned[0]


def test_a_later_attempt_does_not_promise_for_an_earlier_one(serve: Serve) -> None:
    """P10: what attempt 2 knows says nothing about attempt 1; under ``rerun`` the caller is told to come again."""
    face = serve(says(503), NotApplied(), says(201), policy=Policy(recovery=rerun))
    assert face.request().status == 503
    again = face.request()
    problem(again, 409, "unresolved")
    assert (again.header("idempotency-outcome"), again.header("retry-after")) == ("unknown", "1")
    assert face.observer.counts["not_freed"] == 1
    face.clock.advance(3)
    assert face.request().status == 201


def test_an_answer_that_could_not_free_its_key_says_so(serve: Serve) -> None:
    """P10: a 429 after a downstream key was taken goes out as it is, marked as of unknown outcome, so that an outer
    guard does not free its own key by it.
    """

    def limited(seen: Any) -> Says:
        seen.operation.downstream_key("refund")
        return says(429, b"later", [("Idempotency-Outcome", "not-applied")])

    face = serve(limited)
    first = face.request()
    assert (first.status, first.body, first.header("idempotency-outcome")) == (429, b"later", "unknown")
    assert first.header("access-control-expose-headers") == "Idempotency-Outcome"
    problem(face.request(), 409, "unresolved")


def test_what_a_handler_ended_is_told_even_if_it_raises_not_applied(serve: Serve) -> None:
    """An operation that is completed by its handler stays so: the caller gets that answer, not a promise."""
    face = serve(NotApplied())

    def ends(seen: Any) -> Says:
        finish(face, seen.operation.complete({"id": 7}))
        raise NotApplied

    face.handler.script = [ends]
    first, second = face.request(), face.request()
    assert (first.status, first.body) == (second.status, second.body) == (200, b'{"id":7}')


class Closed(NotApplied):
    """Says in words of its own that nothing happened."""

    def problem(self) -> Problem:
        headers = (("content-type", "application/problem+json"), ("idempotency-outcome", "not-applied"))
        return Problem(502, headers, b'{"code":"closed"}')


def test_a_type_of_not_applied_may_have_its_own_answer(serve: Serve) -> None:
    """An exception that says that nothing happened may bring the refusal that the caller gets."""
    face = serve(Closed(), says(201))
    first = face.request()
    assert (first.status, first.body, first.header("idempotency-outcome")) == (502, b'{"code":"closed"}', "not-applied")
    assert face.request().status == 201


def test_exception_types_can_be_answers(serve: Serve) -> None:
    """``final_errors`` are the operation's failure, told alike to the first caller and to the next; others are
    freed.
    """
    face = serve(LookupError("secret"), policy=Policy(final_errors=(LookupError,)))
    first, second = face.request(), face.request()
    problem(first, 500, "recorded_failure")
    assert (first.body, second.body, second.replayed, face.handler.count) == (first.body, first.body, "true", 1)
    assert b"secret" not in first.body
    freed = serve(ConnectionRefusedError(), says(201), policy=Policy(not_applied_errors=(ConnectionRefusedError,)))
    assert [freed.request().status for _ in range(2)] == [503, 201]
