"""What only the WSGI face does: start_response, write, iteration and close (PEP 3333)."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from notwice import Guard, NotApplied, Policy, current_operation
from notwice.http import SHARED, wsgi_run
from notwice.http.wsgi import IdempotencyMiddleware
from notwice.stores.memory import MemoryStore
from tests.http.harness import KEY, by_account, state_of, wsgi_environ, wsgi_request

PLAIN = [("Content-Type", "text/plain")]


def guarded(app: Any, *, policy: Policy | None = None, **fields: Any) -> tuple[IdempotencyMiddleware, Guard]:
    guard = Guard(MemoryStore(), policy=policy or Policy())
    return IdempotencyMiddleware(app, guard=guard, **{"principal": SHARED, **fields}), guard


def states(guard: Guard) -> list[tuple[str, Any]]:
    return [state_of(view) for view in guard.operations()]


def never() -> Iterator[bytes]:
    raise NotApplied


def half_way() -> None:
    raise RuntimeError("half-way")


class Server:
    """A server's side: what it was given, and in what order."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.body = b""

    def start_response(self, status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
        if exc_info and self.body:
            raise exc_info[1]
        self.started.append((status, dict(headers)))
        return self.write

    def write(self, chunk: bytes) -> None:
        assert self.started
        self.body += chunk


def serve(app: Any, *, hang_up_after: int | None = None, environ: Any = ()) -> Server:
    """Serve one request as a server does; it may stop after so many chunks, for a client that hung up."""
    server = Server()
    chunks = app({**wsgi_environ("/pay", [KEY], b""), **dict(environ)}, server.start_response)
    try:
        for count, chunk in enumerate(chunks, start=1):
            if chunk:
                server.write(chunk)
            if count == hang_up_after:
                break
    finally:
        if hasattr(chunks, "close"):
            chunks.close()
    return server


class Closing:
    """An answer whose close is noted."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = iter(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks

    def close(self) -> None:
        self.closed += 1


def test_what_is_not_guarded_is_untouched() -> None:
    """T01, T16: The app gets the server's own environment and start_response, and its answer is the app's own
    object.
    """
    got: list[Any] = []
    answer = Closing([b"x"])

    def app(environ: Any, start_response: Any) -> Closing:
        got.extend([environ, start_response])
        return answer

    middleware, _ = guarded(app)
    for environ in (wsgi_environ("/pay", [], b""), wsgi_environ("/pay", [KEY], b"", method="GET")):
        got.clear()
        server = Server()
        start_response = server.start_response
        assert middleware(environ, start_response) is answer
        assert [id(thing) for thing in got] == [id(environ), id(start_response)]


def test_an_app_may_write() -> None:
    """What an app hands to ``write`` comes before what it returns, and is kept with it."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("201 Created", PLAIN)
        write(b"a")
        write(b"b")
        return [b"c"]

    middleware, guard = guarded(app)
    assert serve(middleware).body == b"abc"
    assert serve(middleware).body == b"abc"
    assert states(guard) == [("completed", b"abc")]


def test_an_app_may_write_much() -> None:
    """What is too much to keep is written at once, in its order, and the body is omitted."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        write = start_response("200 OK", PLAIN)
        for part in (b"a" * 6, b"b" * 6, b"c" * 6):
            write(part)
        return [b"d"]

    middleware, guard = guarded(app, response_bytes_max=10)
    assert serve(middleware).body == b"a" * 6 + b"b" * 6 + b"c" * 6 + b"d"
    assert states(guard) == [("completed", None)]


class ClientGone(ConnectionResetError):
    """A server's own kind of it."""


@pytest.mark.parametrize("policy", [Policy(not_applied_errors=(ClientGone,)), Policy(final_errors=(OSError,))])
def test_what_the_server_could_not_write_is_no_word_of_the_app(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: a client that is gone frees no key and fails nothing, also where the policy lists such errors."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", PLAIN)(b"a" * 20)
        raise AssertionError

    def gone(server: Server, chunk: bytes) -> None:
        raise ClientGone

    monkeypatch.setattr(Server, "write", gone)
    middleware, guard = guarded(app, policy=policy, response_bytes_max=10)
    with pytest.raises(ConnectionResetError):
        serve(middleware)
    assert states(guard) == [("accepted", None)]
    assert len(list(guard.operations(unresolved=True))) == 1


def test_an_app_may_start_late() -> None:
    """An app that calls start_response at its first chunk, and gives empty chunks before it, is served as well."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", PLAIN)
        yield b""
        yield b"a"
        yield b""
        yield b"b"

    middleware, guard = guarded(app)
    assert serve(middleware).body == b"ab"
    assert states(guard) == [("completed", b"ab")]


def test_an_error_page_takes_the_place_of_an_answer() -> None:
    """Before anything went out, start_response with ``exc_info`` replaces status, headers and what was written."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", PLAIN)(b"half")
        try:
            half_way()
        except RuntimeError:
            start_response("500 Internal Server Error", PLAIN, sys.exc_info())
        return [b"sorry"]

    middleware, guard = guarded(app)
    server = serve(middleware)
    assert (server.started[-1][0][:3], server.body) == ("500", b"sorry")
    assert states(guard) == [("accepted", b"sorry")]


def test_an_error_page_after_the_fact_raises() -> None:
    """After something went out, start_response with ``exc_info`` raises it: the answer is broken, the outcome
    unknown.
    """

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", PLAIN)
        yield b"half"
        try:
            half_way()
        except RuntimeError:
            start_response("500 Internal Server Error", PLAIN, sys.exc_info())
        yield b"sorry"

    middleware, guard = guarded(app)
    with pytest.raises(RuntimeError, match="half-way"):
        serve(middleware)
    assert states(guard) == [("accepted", None)]


def test_start_response_twice_is_a_fault() -> None:
    """A second start_response without ``exc_info`` is the app's fault, as with any server."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", PLAIN)
        start_response("200 OK", PLAIN)
        return []

    with pytest.raises(AssertionError, match="twice"):
        serve(guarded(app)[0])


@pytest.mark.parametrize("fails", [True, False])
def test_the_apps_answer_is_closed_once(fails: bool) -> None:
    """The app's iterable is closed once, whatever happens, and after the operation is over (C50)."""
    seen: list[Any] = []

    def parts() -> Iterator[bytes]:
        yield b"a"
        if fails:
            raise RuntimeError("half-way")

    class Noting(Closing):
        def close(self) -> None:
            super().close()
            seen.append(states(guard)[0][0])

    answer = Noting(parts())

    def app(environ: Any, start_response: Any) -> Closing:
        start_response("200 OK", PLAIN)
        return answer

    middleware, guard = guarded(app)
    if fails:
        with pytest.raises(RuntimeError):
            serve(middleware)
    else:
        serve(middleware)
    assert answer.closed == 1
    assert seen == ["in_progress" if fails else "completed"]
    assert states(guard) == [("accepted", None) if fails else ("completed", b"a")]


def test_a_failing_close_undoes_nothing() -> None:
    """T24: What an app does when its answer is closed may fail; the operation stays completed."""

    class Failing(Closing):
        def close(self) -> None:
            raise RuntimeError("the mail server is down")

    def app(environ: Any, start_response: Any) -> Closing:
        start_response("200 OK", PLAIN)
        return Failing([b"a"])

    middleware, guard = guarded(app)
    with pytest.raises(RuntimeError, match="mail"):
        serve(middleware)
    assert states(guard) == [("completed", b"a")]


@pytest.mark.parametrize("declared", [True, False])
def test_the_result_is_stored_before_the_last_byte(declared: bool) -> None:
    """P9: When the last byte, or the end of an answer of unknown length, goes out, the record is finished."""
    length = [("Content-Length", "4")] if declared else []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [*PLAIN, *length])
        return [b"ab", b"cd"]

    middleware, guard = guarded(app)
    server = Server()
    chunks = middleware(wsgi_environ("/pay", [KEY], b""), server.start_response)
    seen = [(chunk, states(guard)[0][0]) for chunk in chunks]
    assert seen == [(b"ab", "in_progress"), (b"cd", "completed" if declared else "in_progress")]
    assert states(guard) == [("completed", b"abcd")]


def test_a_client_that_hangs_up_stops_nothing() -> None:
    """T07, C34: When the server closes the answer early, the rest is read for the retry."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", PLAIN)
        return [b"a", b"b", b"c"]

    middleware, guard = guarded(app)
    assert serve(middleware, hang_up_after=1).body == b"a"
    assert states(guard) == [("completed", b"abc")]
    assert serve(middleware).body == b"abc"


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain"])
def test_the_rest_is_read_within_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C34: An event stream is not read on, nor an answer beyond the limit: closed and suspended, without an answer."""
    given: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(10_000):
            given.append(number)
            yield b"12345"

    endless = Closing(parts())

    def app(environ: Any, start_response: Any) -> Closing:
        start_response("200 OK", [("Content-Type", kind)])
        return endless

    middleware, guard = guarded(app, response_bytes_max=20)
    serve(middleware, hang_up_after=1)
    assert len(given) <= 5
    assert endless.closed == 1
    assert states(guard) == [("accepted", None)]


def test_the_rest_is_read_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads on for a gone client only so long; then the outcome counts as unknown."""
    monkeypatch.setattr(wsgi_run, "DRAIN_SECONDS_MAX", -1.0)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", PLAIN)
        return [b"a", b"b"]

    middleware, guard = guarded(app)
    serve(middleware, hang_up_after=1)
    assert states(guard) == [("accepted", None)]


def test_not_applied_after_the_start() -> None:
    """C11: `NotApplied` from a lazy app that sent nothing yet is a 503; after a part of the answer it frees the
    key alone.
    """

    def early(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", PLAIN)
        yield from never()

    def late(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", PLAIN)
        yield b"half"
        raise NotApplied

    middleware, _ = guarded(early)
    assert serve(middleware).started[-1][0].startswith("503")
    middleware, guard = guarded(late)
    with pytest.raises(NotApplied):
        serve(middleware)
    assert [view.record.released for view in guard.operations()] == ["as_new"]  # type: ignore[union-attr]  # a readable record


def test_an_app_without_an_answer() -> None:
    """C07: An app that never calls start_response is suspended without an answer."""
    middleware, guard = guarded(lambda environ, start_response: [])
    serve(middleware)
    assert states(guard) == [("accepted", None)]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_worker_that_is_stopped_leaves_an_unknown_outcome(error: type[BaseException]) -> None:
    """C07: A worker that is stopped inside of the handler leaves the operation suspended."""

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise error

    middleware, guard = guarded(app)
    with pytest.raises(error):
        serve(middleware)
    assert states(guard) == [("accepted", None)]


# --- the request ------------------------------------------------------------------------------------------------------


def echo(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", PLAIN)
    assert environ["wsgi.input_terminated"] is True
    return [environ["wsgi.input"].read()]


def test_a_chunked_request() -> None:
    """A body whose end the server knows needs no length; the app reads it whole, and sees its length."""
    middleware, _ = guarded(echo)
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True, "wsgi.input": io.BytesIO(b"abc" * 50_000)}
    assert serve(middleware, environ=chunked).body == b"abc" * 50_000


def test_a_request_whose_end_nobody_knows() -> None:
    """C20: A chunked body that the server can't decode is refused: it would be taken for an empty one."""
    middleware, guard = guarded(echo)
    server = serve(middleware, environ={"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"})
    assert server.started[-1][0].startswith("413")
    assert b"Content-Length" in server.body
    assert states(guard) == []
    environ = wsgi_environ("/pay", [KEY], b"")
    del environ["CONTENT_LENGTH"]
    assert wsgi_request(lambda _, start: middleware(environ, start), "/", []).body == b""


@pytest.mark.parametrize("length", ["x", "-1", "+1", "9" * 25])
def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    """T05: What a request holds is not known then, and it does not run as if it held nothing."""
    middleware, guard = guarded(echo)
    server = serve(middleware, environ={"CONTENT_LENGTH": length, "wsgi.input": io.BytesIO(b"x")})
    assert server.started[-1][0].startswith("413")
    assert states(guard) == []


def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    """T05: A client that waits for the answer before it sends its body is not kept waiting."""

    class Unread(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise AssertionError

    server = serve(guarded(echo)[0], environ={"CONTENT_LENGTH": str(11 * 1024**2), "wsgi.input": Unread()})
    assert server.started[-1][0].startswith("413")


@pytest.mark.parametrize("fails", [True, False])
def test_a_client_that_hangs_up_before_its_request_is_whole_runs_nothing(fails: bool) -> None:
    """A request that never became whole is not run, and claims nothing."""

    class Cut(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if fails and self.tell():
                raise ConnectionResetError
            return super().read(size)

    middleware, guard = guarded(echo)
    server = serve(middleware, environ={"CONTENT_LENGTH": "9", "wsgi.input": Cut(b"half")})
    assert server.started[-1][0].startswith("400")
    assert states(guard) == []


def test_what_would_bypass_the_capture_is_not_offered() -> None:
    """C34: The file wrapper and the raw socket of the server are taken out of a guarded request's environment."""
    seen: list[set[str]] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(set(environ))
        return echo(environ, start_response)

    environ = {"gunicorn.socket": 1, "werkzeug.socket": 1}
    serve(guarded(app)[0], environ=environ)
    assert not seen[0] & {"wsgi.file_wrapper", *environ}


@pytest.mark.parametrize(
    ("environ", "raw"),
    [
        ({"RAW_URI": "/a%2Fb?x=1"}, "/a%2Fb"),
        ({"REQUEST_URI": "/a%2Fb"}, "/a%2Fb"),
        ({"RAW_URI": "http://host/a"}, "/app/a%20b%C3%A4"),
        ({}, "/app/a%20b%C3%A4"),
    ],
)
def test_the_path_as_it_was_sent(environ: dict[str, str], raw: str) -> None:
    """C23: The raw path is the server's, else the decoded one quoted again; the path is read as UTF-8."""
    seen: list[Any] = []

    def scope(request: Any) -> str:
        seen.append(request)
        return "http"

    path = {"SCRIPT_NAME": "/app", "PATH_INFO": "/a b\xc3\xa4"}
    serve(guarded(echo, scope=scope)[0], environ={**path, **environ})
    assert (seen[0].raw_path, seen[0].path) == (raw, "/app/a bä")


# --- threads ----------------------------------------------------------------------------------------------------------


def test_threads_at_once_run_once() -> None:
    """C01, T09, P1, P4: Of sixteen threads with one request one runs, the others are told so; wrong bodies are
    refused.
    """
    entered, go = threading.Event(), threading.Event()
    runs: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(current_operation())
        entered.set()
        go.wait(10)
        start_response("201 Created", PLAIN)
        return [b"done"]

    middleware, _ = guarded(app, principal=by_account)
    with ThreadPoolExecutor(16) as pool:
        first = pool.submit(wsgi_request, middleware, "/pay", [KEY], body=b"100")
        assert entered.wait(10)
        same = [pool.submit(wsgi_request, middleware, "/pay", [KEY], body=b"100") for _ in range(10)]
        wrong = [pool.submit(wsgi_request, middleware, "/pay", [KEY], body=b"900") for _ in range(5)]
        assert {answer.result().status for answer in same} == {409}
        assert {answer.result().status for answer in wrong} == {422}
        go.set()
        assert first.result().body == b"done"
    assert wsgi_request(middleware, "/pay", [KEY], body=b"100").replayed == "true"
    assert len(runs) == 1
    with pytest.raises(LookupError):
        current_operation()


def test_waiters_get_the_answer() -> None:
    """C03, C37: With ``wait``, a duplicate gets the replay when the first is done."""
    entered, go = threading.Event(), threading.Event()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        entered.set()
        go.wait(10)
        start_response("201 Created", PLAIN)
        return [b"done"]

    middleware, _ = guarded(app, policy=Policy(wait=10))
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(wsgi_request, middleware, "/pay", [KEY])
        assert entered.wait(10)
        waiters = [pool.submit(wsgi_request, middleware, "/pay", [KEY]) for _ in range(3)]
        go.set()
        assert first.result().replayed is None
        assert {(answer.result().body, answer.result().replayed) for answer in waiters} == {(b"done", "true")}
