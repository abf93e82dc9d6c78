"""Both faces: handlers that end their operation themselves, and then answer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from notwice import AsyncGuard, Guard, Operation, Policy, Result, ResultKind, current_operation
from notwice.http import SHARED, asgi, wsgi
from notwice.policy import rerun
from notwice.stores.memory import MemoryStore
from tests.http.harness import (
    KEY,
    Answered,
    Face,
    InLoop,
    Says,
    Serve,
    asgi_request,
    finish,
    problem,
    says,
    wsgi_request,
)

JSON = ("content-type", "application/json")
WHOLE = Result(ResultKind.HTTP, b'{"id":7}', 201, (JSON, ("location", "/payments/7")))


def ending(face: Face, move: Callable[[Any], Any], answer: Says) -> Says:
    """Let the handler of `face` make a last move by itself, and then answer."""

    def handler(seen: Any) -> Says:
        finish(face, move(seen.operation))
        return answer

    face.handler.script = [handler]
    return answer


def seen_by(answer: Answered) -> tuple[int, list[tuple[str, str]], bytes]:
    """What a client gets of an answer, but for what marks a replay."""
    marks = ("idempotency-replayed", "access-control-expose-headers")
    return answer.status, sorted(line for line in answer.headers if line[0] not in marks), answer.body


@pytest.mark.parametrize(
    ("move", "status", "body"),
    [
        (lambda op: op.complete({"v": 1}), 200, b'{"v":1}'),
        (lambda op: op.complete(WHOLE), 201, b'{"id":7}'),
        (lambda op: op.fail(Result(ResultKind.HTTP, b"no", 402, (JSON,))), 402, b"no"),
    ],
)
def test_the_first_caller_gets_what_duplicates_get(
    serve: Serve, move: Callable[[Any], Any], status: int, body: bytes
) -> None:
    """P2: a handler that finished its operation and then gives another answer: the first caller gets the one that is
    kept, not marked as a replay, and the observer is told of the other.
    """
    face = serve(says(201))
    ending(face, move, says(202, b'{"v": 2}', [("Location", "/other"), ("Set-Cookie", "a=b")]))
    first, second = face.request(), face.request()
    assert (first.status, first.body, first.replayed) == (status, body, None)
    assert seen_by(first) == seen_by(second)
    assert (second.replayed, face.handler.count) == ("true", 1)
    assert face.observer.counts["result_lost"] == 1


def test_a_refusal_without_an_answer_is_told_alike(serve: Serve) -> None:
    """P2: an operation that its handler failed with no answer of its own: 500 `recorded_failure` for all, whatever the
    handler then answers.
    """
    face = serve(says(201))
    ending(face, lambda op: op.fail("declined"), says(402, b"declined"))
    first, second = face.request(), face.request()
    problem(first, 500, "recorded_failure")
    assert seen_by(first) == seen_by(second)
    assert (first.replayed, second.replayed) == (None, "true")


def test_the_same_answer_goes_out_as_it_is(serve: Serve) -> None:
    """P2: who finishes with the whole answer and returns the same has it sent on, cookies and all."""
    face = serve(says(201))
    ending(
        face,
        lambda op: op.complete(WHOLE),
        says(201, b'{"id":7}', [("Location", "/payments/7"), ("Set-Cookie", "a=b")]),
    )
    first, second = face.request(), face.request()
    assert (first.status, first.body, first.header("set-cookie")) == (201, b'{"id":7}', "a=b")
    assert (second.status, second.body, second.header("location")) == (201, b'{"id":7}', "/payments/7")
    assert (second.header("set-cookie"), face.observer.counts["result_lost"]) == (None, 0)


def test_what_was_not_kept_is_told_by_the_handler(serve: Serve) -> None:
    """P2: of an operation that was finished without a result nothing could be told: the first caller gets the handler's
    answer, and duplicates the marker `omitted`.
    """
    face = serve(says(201))
    ending(face, lambda op: op.omit("too much"), says(201, b"much"))
    first, second = face.request(), face.request()
    assert (first.status, first.body, second.replayed) == (201, b"much", "omitted")


@pytest.mark.parametrize("value", [Decimal("1.50"), {"paid": Decimal("1.50")}, b"raw", float("inf")])
def test_a_value_without_a_form_is_told_to_the_observer(serve: Serve, value: object) -> None:
    """A value that is kept, and that JSON has no form for, reaches no duplicate, and the log says so."""
    face = serve(says(201))
    ending(face, lambda op: op.complete(value), says(201, b"first"))
    first, second = face.request(), face.request()
    assert (first.status, first.body) == (201, b"first")
    assert (second.status, second.body, second.replayed) == (200, b"", "omitted")
    assert face.observer.counts["result_lost"] == 1


@pytest.mark.parametrize("move", [lambda op: op.suspend("who knows"), lambda op: op.abandon()])
def test_what_is_not_finished_is_told_by_the_handler(serve: Serve, move: Callable[[Any], Any]) -> None:
    """A handler that left its operation open, or gave it back, gives its own answer."""
    face = serve(says(201))
    ending(face, move, says(503, b"later"))
    assert (face.request().body, face.observer.counts["result_lost"]) == (b"later", 0)


def test_an_answer_that_comes_in_parts_is_held_until_it_is_whole(serve: Serve) -> None:
    """P2: after its handler has finished the operation, no part of another answer goes out."""
    face = serve(says(201))
    ending(face, lambda op: op.complete({"v": 1}), says(201, [b"one", b"two"]))
    assert face.request().body == face.request().body == b'{"v":1}'


@pytest.mark.parametrize(("most", "kind"), [(4, "text/plain"), (100, "text/event-stream")])
def test_a_stream_is_not_held(serve: Serve, most: int, kind: str) -> None:
    """P2's limit: what is too large to be kept, and an event stream, goes out as it comes; the observer is told."""
    face = serve(says(201), response_bytes_max=most)
    ending(face, lambda op: op.complete({"v": 1}), says(201, [b"one", b"two", b"three"], [("Content-Type", kind)]))
    assert (face.request().body, face.request().body) == (b"onetwothree", b'{"v":1}')
    assert face.observer.counts["result_lost"] == 1


def test_headers_that_belong_to_one_exchange_are_never_replayed(serve: Serve) -> None:
    """P2: an answer that was made by hand has one length, and no cookie of it reaches another caller."""
    face = serve(says(503))
    made = Result(ResultKind.HTTP, b"ok", 201, (("Content-Length", "2"), ("Set-Cookie", "a=b"), ("Location", "/7")))
    ending(face, lambda op: op.complete(made), says(201, b"ok", [("Content-Type", "text/plain")]))
    for answer in (face.request(), face.request()):
        assert (answer.status, answer.lines("content-length"), answer.header("set-cookie")) == (201, ["2"], None)
        assert answer.header("location") == "/7"


def test_a_handler_whose_operation_was_lost_meanwhile_tells_nothing_of_its_own(serve: Serve) -> None:
    """P5: a heartbeat found that another has the operation: the late owner's answer goes to nobody, for duplicates get
    the other's.
    """
    face = serve(says(201), policy=Policy(recovery=rerun, lease=10, run_max=1))

    def late(seen: Any) -> Says:
        face.clock.advance(20)
        taker = Guard(face.store, clock=face.clock, policy=Policy(recovery=rerun, lease=10)).begin(
            "http", "k-1", namespace="a"
        )
        assert isinstance(taker, Operation)
        with pytest.raises(Exception, match="another"):
            finish(face, seen.operation.confirm())
        taker.complete(Result(ResultKind.HTTP, b"taker", 202, ()))
        return says(201, b"late")

    face.handler.script = [late]
    problem(face.request(), 409, "ownership_lost")
    assert face.request().body == b"taker"


LINES = [*WHOLE.headers, ("set-cookie", "a=b")]
ATOMIC = Policy(atomic=True)


class Books:
    """A file with rows of a handler and the guard's records, and a handler that writes both in one commit."""

    def __init__(self, folder: Path, result: object, *, commits: bool) -> None:
        self.path = folder / "books.db"
        self.url = f"sqlite:///{self.path}?other_tables=allow"
        self.result = result
        self.commits = commits
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE entry (amount INTEGER)")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("INSERT INTO entry VALUES (7)")
            yield connection
            if self.commits:
                connection.commit()

    def count(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM entry").fetchone()[0])


def by_wsgi(books: Books, *, times: int) -> list[Answered]:
    """So many requests, one after another, to a WSGI app that completes on its own transaction."""

    def app(_environ: Any, start_response: Any) -> list[bytes]:
        operation = current_operation()
        assert isinstance(operation, Operation)
        with books.transaction() as connection:
            if books.result is not None:
                operation.complete(books.result, transaction=connection)
        start_response("201 Created", LINES)
        return [WHOLE.body or b""]

    with Guard.open(books.url, policy=ATOMIC) as guard:
        face = wsgi.IdempotencyMiddleware(app, guard=guard, principal=SHARED)
        return [wsgi_request(face, "/pay", [KEY]) for _ in range(times)]


async def by_asgi(books: Books, *, times: int) -> list[Answered]:
    """The same, to an ASGI app."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        with books.transaction() as connection:
            if books.result is not None:
                await scope["notwice.operation"].complete(books.result, transaction=connection)
        lines = [(name.encode(), value.encode()) for name, value in LINES]
        await send({"type": "http.response.start", "status": 201, "headers": lines})
        await send({"type": "http.response.body", "body": WHOLE.body})

    async with AsyncGuard.open(books.url, policy=ATOMIC) as guard:
        face = asgi.IdempotencyMiddleware(app, guard=guard, principal=SHARED)
        return [await asgi_request(face, "/pay", [KEY]) for _ in range(times)]


async def told(face: str, books: Books, *, times: int = 2) -> list[Answered]:
    return await by_asgi(books, times=times) if face == "asgi" else by_wsgi(books, times=times)


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
async def test_a_whole_answer_is_committed_with_the_rows(face: str, tmp_path: Path) -> None:
    """P2: an atomic endpoint that completes with its whole answer, on its own transaction, and returns the same."""
    books = Books(tmp_path, WHOLE, commits=True)
    first, second = await told(face, books)
    assert (first.status, first.body, first.header("location"), first.header("set-cookie")) == (
        *(201, b'{"id":7}', "/payments/7"),
        "a=b",
    )
    assert (second.status, second.body, second.header("location"), second.replayed) == (
        *(201, b'{"id":7}', "/payments/7"),
        "true",
    )
    assert books.count() == 1


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
async def test_what_was_committed_is_what_the_first_caller_gets(face: str, tmp_path: Path) -> None:
    """P2: an atomic endpoint that completes with another answer than it returns: all get the one that was committed."""
    books = Books(tmp_path, {"v": 1}, commits=True)
    first, second = await told(face, books)
    assert (first.status, first.body, first.replayed) == (200, b'{"v":1}', None)
    assert (second.status, second.body, second.replayed) == (200, b'{"v":1}', "true")


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
async def test_an_end_that_was_not_committed_tells_nothing(face: str, tmp_path: Path) -> None:
    """An atomic endpoint whose transaction was not committed: its own answer goes out, and the operation is held."""
    books = Books(tmp_path, {"v": 1}, commits=False)
    first, second = await told(face, books)
    assert (first.status, first.body, books.count()) == (201, b'{"id":7}', 0)
    problem(second, 409, "unresolved")


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
async def test_an_atomic_endpoint_has_to_complete_by_itself(face: str, tmp_path: Path) -> None:
    """An answer can't end an atomic operation, for its rows may be committed apart from it: it is refused with a
    sentence, and held.
    """
    books = Books(tmp_path, None, commits=True)
    with pytest.raises(ValueError, match="complete it together with its rows"):
        await told(face, books, times=1)
    books.result = WHOLE
    [second] = await told(face, books, times=1)
    problem(second, 409, "unresolved")
    assert books.count() == 1


@pytest.mark.parametrize("fields", [{}, {"policy": ATOMIC}])
def test_an_atomic_policy_that_no_endpoint_can_keep_is_refused(fields: Any) -> None:
    """A store that no transaction of a handler's can reach: the middleware is not made, be it the guard's policy or its
    own; one of its own that is not atomic is taken.
    """
    policy = Policy() if fields else ATOMIC
    faces: list[tuple[Any, Any]] = [
        (asgi.IdempotencyMiddleware, AsyncGuard(InLoop(MemoryStore()), policy=policy)),
        (wsgi.IdempotencyMiddleware, Guard(MemoryStore(), policy=policy)),
    ]
    for middleware, guard in faces:
        with pytest.raises(ValueError, match="the policy is atomic"):
            middleware(None, guard=guard, principal=SHARED, **fields)
        middleware(None, guard=guard, principal=SHARED, policy=Policy())
