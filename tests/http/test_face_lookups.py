"""Both faces: look-ups, dialects and guards around guards."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from notwice import Guard, Policy
from notwice.http import SHARED, Dialect, HttpPolicy
from notwice.model import Result, ResultKind
from tests.http.harness import KEY, Face, Says, Serve, finish, problem, says


def looked_up(face: Face, key: str = "k-1", **more: Any) -> dict[str, Any]:
    answer = face.request(f"/status?idempotency_key={key}", headers=(), method="GET", **more)
    assert answer.status == 200
    assert answer.header("cache-control") == "no-store"
    return json.loads(answer.body)  # type: ignore[no-any-return]  # a document


def test_the_status_can_be_looked_up(serve: Serve) -> None:
    """P12: A look-up tells the state, the times and the first answer, and of an unknown key that it is not found."""
    face = serve(says(201, b'{"id": 7}'), status_path="/status")
    assert looked_up(face) == {"idempotency_key": "k-1", "state": "not_found"}
    face.request()
    document = looked_up(face)
    assert document["state"] == "completed"
    assert (document["original_status"], document["result"]) == (201, {"id": 7})
    assert document["created_at"].endswith("Z")
    assert document["updated_at"] >= document["created_at"]
    assert face.handler.count == 1


def test_the_status_of_what_failed_or_is_open(serve: Serve) -> None:
    """P12: A failed operation tells its error; an unresolved one says so, with its answer, if one was kept."""
    script = [
        says(404, b"gone", [("content-type", "text/plain")]),
        says(500, b'"oops"'),
        says(202, b"1"),
        LookupError(),
    ]
    face = serve(*script, status_path="/status", statuses={202: "unknown"})
    face.request()
    document = looked_up(face)
    assert (document["state"], document["original_status"], document["error"]) == ("failed", 404, "gone")
    face.request(headers=[("Idempotency-Key", "k-2")])
    document = looked_up(face, "k-2")
    assert (document["state"], document["unresolved"], document["lapsed"]) == ("accepted", True, False)
    assert (document["original_status"], document["error"]) == (500, "oops")
    face.request(headers=[("Idempotency-Key", "k-3")])
    document = looked_up(face, "k-3")
    assert (document["unresolved"], document["original_status"], document["result"]) == (True, 202, 1)
    with pytest.raises(LookupError):
        face.request(headers=[("Idempotency-Key", "k-4")])
    document = looked_up(face, "k-4")
    assert document["unresolved"]
    assert document.keys().isdisjoint({"original_status", "result", "error"})


def test_the_status_of_what_a_killed_process_left(serve: Serve) -> None:
    """P7, P12: an owner that went silent is told from one at work: it lapses, and its operation is unresolved."""
    face = serve(says(201), status_path="/status")
    guard = Guard(face.store, clock=face.clock, policy=Policy(lease=10, run_max=0.001))
    guard.begin("http", "k-1", namespace="a")
    told = [looked_up(face)]
    face.clock.advance(11)
    told.append(looked_up(face))
    assert [(document["state"], document["unresolved"], document["lapsed"]) for document in told] == [
        ("in_progress", False, False),
        ("in_progress", True, True),
    ]


def test_what_is_free_again_is_not_found(serve: Serve) -> None:
    """P12: A key that was freed, or whose record's time is over, is as if it had never been used."""
    face = serve(says(429), says(201), status_path="/status", policy=Policy(retention=60))
    face.request()
    assert looked_up(face)["state"] == "not_found"
    face.request()
    assert looked_up(face)["state"] == "completed"
    face.clock.advance(61)
    assert looked_up(face)["state"] == "not_found"


def test_a_look_up_has_a_principal_and_a_key(serve: Serve) -> None:
    """C21: A look-up without principal is refused, and one account does not find another's key."""
    face = serve(says(201), status_path="/status", principal=lambda request: request.headers.get("x-user"))
    face.request(headers=[KEY, ("X-User", "one")])
    path = "/status?idempotency_key=k-1"
    problem(face.request(path, headers=(), method="GET"), 401, "principal_missing")
    found = [json.loads(face.request(path, [("X-User", user)], method="GET").body)["state"] for user in ("one", "two")]
    assert found == ["completed", "not_found"]
    for query, code in [("", "key_missing"), ("?idempotency_key=", "key_invalid")]:
        problem(face.request(f"/status{query}", [("X-User", "one")], method="GET"), 400, code)


def test_a_look_up_asks_before_it_gives_a_stored_answer(serve: Serve) -> None:
    """C22: ``authorize_replay`` holds for look-ups, too; without a stored answer there is nothing to ask for."""
    face = serve(says(201), status_path="/status", authorize_replay=lambda _: False)
    assert looked_up(face)["state"] == "not_found"
    face.request()
    problem(face.request("/status?idempotency_key=k-1", (), method="GET"), 403, "replay_forbidden")
    held = serve(says(503, b"oops"), status_path="/status", authorize_replay=lambda _: False)
    held.request()
    problem(held.request("/status?idempotency_key=k-1", (), method="GET"), 403, "replay_forbidden")


def test_without_status_path_there_is_no_look_up(serve: Serve) -> None:
    """The path of the look-up is the app's own unless it is given away."""
    face = serve(says(200, b"app"))
    assert face.request("/status?idempotency_key=k-1", (), method="GET").body == b"app"


def test_stripes_dialect(serve: Serve) -> None:
    """``dialect="stripe"``: Stripe's marker, its status for a reused key, and error objects in its shape."""
    face = serve(says(201), dialect="stripe", required=True)
    face.request(body=b"one")
    assert face.request(body=b"one").header("idempotent-replayed") == "true"
    reused = face.request(body=b"two")
    error = json.loads(reused.body)["error"]
    assert (reused.status, error["type"]) == (400, "idempotency_error")
    assert reused.header("content-type") == "application/json"
    assert reused.header("content-length") == str(len(reused.body))
    missing = face.request(headers=[])
    assert (missing.status, json.loads(missing.body)["error"]["type"]) == (400, "invalid_request_error")


def test_codes_statuses_and_names_are_options(serve: Serve) -> None:
    """Codes, statuses, the marker and the names of headers can be chosen."""
    dialect = Dialect(
        codes={"key_reused": "mismatch"},
        statuses={"key_reused": 409},
        replayed_header="X-Replayed",
        replayed_mark="yes",
        outcome_header="X-Outcome",
    )
    face = serve(says(200, headers=[("X-Outcome", "final")]), dialect=dialect)
    assert face.request(body=b"one").header("x-outcome") is None
    assert face.request(body=b"one").header("x-replayed") == "yes"
    answer = face.request(body=b"two")
    document = json.loads(answer.body)
    assert (answer.status, document["status"], document["code"]) == (409, 409, "mismatch")
    assert answer.header("x-outcome") == "not-applied"


def test_refusals_say_what_became_of_the_effect(serve: Serve) -> None:
    """A refusal carries Idempotency-Outcome, so that an outer guard does not keep it: unknown, or not applied."""
    face = serve(RuntimeError(), required=True)
    with pytest.raises(RuntimeError):
        face.request()
    assert face.request().header("idempotency-outcome") == "unknown"
    assert face.request(body=b"other").header("idempotency-outcome") == "not-applied"
    assert face.request(headers=[]).header("idempotency-outcome") == "not-applied"


def test_two_guards_on_one_scope_are_an_error_at_once(serve: Serve) -> None:
    """A second guard on the same scope and namespace within one request is refused before the handler runs."""
    face = serve(says(201))
    inner = type(face.app)(face.app.app, guard=face.guard, http_policy=face.app._policy)  # type: ignore[arg-type]  # of the same face
    face.app.app = inner
    with pytest.raises(RuntimeError, match="two guards on the scope 'http'"):
        face.request()
    assert face.handler.count == 0


def test_two_guards_on_two_scopes_work_together(serve: Serve) -> None:
    """An outer and an inner guard with other scopes each keep their record."""
    face = serve(says(201))
    policy = HttpPolicy(principal=SHARED, scope="inner")
    face.app.app = type(face.app)(face.app.app, guard=face.guard, http_policy=policy)  # type: ignore[arg-type]  # of the same face
    assert face.request().status == 201
    assert face.request().replayed == "true"
    assert {view.record.scope for view in face.records()} == {"http", "inner"}
    assert face.handler.count == 1


def test_a_bound_guard_keeps_its_accounts_to_itself(serve: Serve) -> None:
    """P11: Accounts of a guard that is bound to a namespace live inside of it."""
    face = serve(says(201))
    face.app._guard = face.guard.within("shop")
    face.request()
    assert [view.record.namespace for view in face.records()] == ["shop:a"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("shop", "alice"), ("", "shop:alice")),
        (("shop", "alice:1"), ("shop:alice", "1")),
        (("", "shop:alice"), ("", "shop\\:alice")),
        (("shop", "alice"), ("shop", ":alice")),
        (("shop:alice", "1"), ("", "shop:alice:1")),
    ],
)
def test_no_account_is_another_one_of_another_namespace(
    serve: Serve, one: tuple[str, str], other: tuple[str, str]
) -> None:
    """P11: An account whose name looks like a namespace and an account has keys of its own."""
    face = serve(says(201, b'"one"'), says(201, b'"two"'), principal=lambda request: request.headers["x-user"])
    found = []
    for within, account in (one, other):
        face.app._guard = face.guard.within(within) if within else face.guard
        answer = face.request(headers=[KEY, ("x-user", account)])
        found.append((answer.body, answer.replayed))
    assert found == [(b'"one"', None), (b'"two"', None)]
    assert len({view.record.namespace for view in face.records()}) == 2


def test_a_handler_may_end_its_operation_itself(serve: Serve) -> None:
    """What a handler ended stays as it ended it; its value is told as JSON, to its own caller, too."""
    face = serve(says(201))

    def ends(seen: Any) -> Says:
        finish(face, seen.operation.complete({"id": 7}))
        return says(202, b"ok")

    face.handler.script = [ends]
    for mark in (None, "true"):
        told = face.request()
        assert (told.status, json.loads(told.body), told.replayed) == (200, {"id": 7}, mark)


@pytest.mark.parametrize(
    ("resolved", "status", "body", "mark"),
    [
        ({"result": {"id": 7}}, 200, b'{"id":7}', "true"),
        ({"result": None}, 200, b"null", "true"),
        ({"result": Decimal("1.50")}, 200, b"", "omitted"),
        ({"result": Result(ResultKind.HTTP, b"ok", 201, (("location", "/7"),))}, 201, b"ok", "true"),
        ({"failed": "card declined"}, 500, b"recorded_failure", "true"),
        ({"failed": Result(ResultKind.HTTP, b"declined", 402, ())}, 402, b"declined", "true"),
    ],
)
def test_what_an_operator_resolved_is_replayed(
    serve: Serve, resolved: dict[str, Any], status: int, body: bytes, mark: str
) -> None:
    """A value that an operator resolved with is given as JSON, a response as it is, a refusal never as a success."""
    face = serve(says(503), status_path="/status")
    face.request()
    resolve = Guard(face.store, clock=face.clock).resolve
    resolve(face.records()[0], who="ada", why="the ledger says so", **resolved)
    answer = face.request()
    assert (answer.status, answer.replayed) == (status, mark)
    assert body in answer.body
    document = looked_up(face)
    assert document["original_status"] == status
    assert ("error" in document) is ("failed" in resolved)
    assert face.handler.count == 1
