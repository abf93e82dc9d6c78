"""What only the ASGI face does: messages, hang-ups, cancellation, tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from notwice import AsyncGuard, Policy, current_operation
from notwice.http import SHARED
from notwice.http.asgi import IdempotencyMiddleware
from notwice.model import Query
from notwice.stores.memory import MemoryStore
from tests.http.harness import KEY, Answered, InLoop, asgi_request, state_of

PLAIN = [(b"content-type", b"text/plain")]
EVENTS = [(b"content-type", b"text/event-stream")]


def guarded(app: Any, *, policy: Policy | None = None, **fields: Any) -> tuple[IdempotencyMiddleware, AsyncGuard]:
    guard = AsyncGuard(InLoop(MemoryStore()), policy=policy or Policy())
    return IdempotencyMiddleware(app, guard=guard, **{"principal": SHARED, **fields}), guard


def http(method: str = "POST", headers: Any = (KEY,), **more: Any) -> dict[str, Any]:
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": method, "path": "/pay", "query_string": b"", "headers": lines, **more}


class Client:
    """A client's side of one connection: what it sends, what it got, and when it hangs up."""

    def __init__(self, *messages: Any) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        for message in messages or ({"type": "http.request", "body": b"", "more_body": False},):
            self.incoming.put_nowait(message)
        self.sent: list[Any] = []
        self.gone = False
        self.on_send: Callable[[Any], None] = lambda _: None

    async def receive(self) -> Any:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        if self.gone:
            raise ConnectionResetError
        self.sent.append(message)
        self.on_send(message)

    def hang_up(self) -> None:
        self.gone = True
        self.incoming.put_nowait({"type": "http.disconnect"})

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def start(send: Any, status: int = 200, headers: Any = PLAIN) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def chunk(send: Any, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def states(guard: AsyncGuard) -> list[tuple[str, Any]]:
    return [state_of(view) async for view in guard.operations()]


async def until_over(guard: AsyncGuard) -> None:
    """Let other tasks run until no operation is in progress."""
    for _ in range(1000):
        if "in_progress" not in dict(await states(guard)):
            return
        await asyncio.sleep(0)
    raise AssertionError("still in progress")


# --- what passes through ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "lifespan"},
        {"type": "websocket", "path": "/pay", "headers": [(b"idempotency-key", b"k")]},
        http("GET"),
        http("OPTIONS"),
        http("POST", headers=[("Origin", "https://a.example")]),
        http("HEAD"),
    ],
    ids=lambda scope: scope["type"] + scope.get("method", ""),
)
async def test_what_is_not_guarded_is_untouched(scope: dict[str, Any]) -> None:
    """T01, T16, C50: The app gets the very scope, receive and send of the server, for lifespan and websockets, too."""
    got: list[Any] = []

    async def app(*given: Any) -> None:
        got.extend(given)

    middleware, _ = guarded(app)
    client = Client()
    receive, send = client.receive, client.send
    await middleware(scope, receive, send)
    assert [id(thing) for thing in got] == [id(scope), id(receive), id(send)]


async def test_a_key_is_looked_for_only_where_it_counts() -> None:
    """T16: The principal and all else is asked only for a guarded request."""

    def principal(_: Any) -> str:
        raise AssertionError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await chunk(send, b"x")

    middleware, _ = guarded(app, principal=principal)
    assert (await asgi_request(middleware, "/pay", [KEY], method="GET")).body == b"x"
    assert (await asgi_request(middleware, "/pay", [])).body == b"x"


# --- at the same time -------------------------------------------------------------------------------------------------


class Slow:
    """A handler that waits to be let go, and counts its runs."""

    def __init__(self, body: bytes = b"done") -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.count = 0
        self.body = body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.count += 1
        self.entered.set()
        await self.go.wait()
        await start(send)
        await chunk(send, self.body)


async def test_fifty_at_once_run_once() -> None:
    """C01, T09, T22, P1, P4: Of fifty equal requests one runs; the others are told that it runs, and later get
    its answer.
    """
    slow = Slow()
    middleware, _ = guarded(slow)
    tasks = [asyncio.create_task(asgi_request(middleware, "/pay", [KEY])) for _ in range(50)]
    await slow.entered.wait()
    others, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    slow.go.set()
    answers = [await task for task in tasks]
    assert sorted(answer.status for answer in answers) == [200] + [409] * 49
    refused = next(answer for answer in answers if answer.status == 409)
    assert b'"in_progress"' in refused.body
    assert 1 <= int(refused.header("retry-after") or 0) <= 30
    assert len(others) >= 1
    assert (await asgi_request(middleware, "/pay", [KEY])).replayed == "true"
    assert slow.count == 1


async def test_waiters_get_the_answer() -> None:
    """C03, C37: With ``wait``, a duplicate gets the replay when the first is done, marked as one."""
    slow = Slow()
    middleware, _ = guarded(slow, policy=Policy(wait=5))
    first = asyncio.create_task(asgi_request(middleware, "/pay", [KEY]))
    await slow.entered.wait()
    waiters = [asyncio.create_task(asgi_request(middleware, "/pay", [KEY])) for _ in range(3)]
    await asyncio.sleep(0)
    slow.go.set()
    assert (await first).replayed is None
    assert [(answer.body, answer.replayed) for answer in await asyncio.gather(*waiters)] == [(b"done", "true")] * 3
    assert slow.count == 1


async def test_a_wait_is_bounded() -> None:
    """C03: When the wait is over the duplicate is told that the first still runs."""
    slow = Slow()
    middleware, _ = guarded(slow, policy=Policy(wait=0.05))
    first = asyncio.create_task(asgi_request(middleware, "/pay", [KEY]))
    await slow.entered.wait()
    assert (await asgi_request(middleware, "/pay", [KEY])).status == 409
    slow.go.set()
    await first


async def test_another_request_is_refused_while_the_first_runs() -> None:
    """C18, C19, P3: A wrong body under a key that is running is told so at once, without Retry-After and
    without waiting.
    """
    slow = Slow()
    middleware, _ = guarded(slow, policy=Policy(wait=60))
    first = asyncio.create_task(asgi_request(middleware, "/pay", [KEY], body=b"100"))
    await slow.entered.wait()
    answer = await asgi_request(middleware, "/pay", [KEY], body=b"9000")
    assert (answer.status, answer.header("retry-after")) == (422, None)
    slow.go.set()
    assert (await first).body == b"done"


async def test_functions_may_be_coroutines() -> None:
    """The principal and the question before a replay may wait."""

    async def principal(request: Any) -> str | None:
        await asyncio.sleep(0)
        return request.headers.get("x-account")  # type: ignore[no-any-return]  # any request

    async def authorize(_: Any) -> bool:
        await asyncio.sleep(0)
        return False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await chunk(send, b"x")

    middleware, _ = guarded(app, principal=principal, authorize_replay=authorize)
    assert (await asgi_request(middleware, "/pay", [KEY])).status == 200
    assert (await asgi_request(middleware, "/pay", [KEY])).status == 403
    assert (await asgi_request(middleware, "/pay", [KEY], account=None)).status == 401


# --- the answer on its way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
async def test_the_result_is_stored_before_the_last_byte(declared: bool) -> None:
    """P9: When the last byte, or the end of an answer of unknown length, goes to the client, the record is finished."""
    seen: list[tuple[bytes, bool, str]] = []
    store = MemoryStore()
    guard = AsyncGuard(InLoop(store))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, headers=[*PLAIN, *([(b"content-length", b"4")] if declared else [])])
        await chunk(send, b"ab", more=True)
        await chunk(send, b"cd", more=True)
        await chunk(send, b"")

    def note(message: Any) -> None:
        if message["type"] == "http.response.body":
            [view] = store.scan(Query()).items
            assert not isinstance(view, str)
            seen.append((message["body"], message["more_body"], str(view.record.state)))  # type: ignore[union-attr]  # a readable record

    client = Client()
    client.on_send = note
    await IdempotencyMiddleware(app, guard=guard, principal=SHARED)(http(), client.receive, client.send)
    if declared:
        assert seen == [(b"ab", True, "in_progress"), (b"cd", False, "completed")]
    else:
        assert seen == [(b"ab", True, "in_progress"), (b"cd", True, "in_progress"), (b"", False, "completed")]


async def test_an_event_stream_is_not_held_back() -> None:
    """C34: The start and each event of a stream go out at once, and the app is told when its client hangs up."""
    client = Client()
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send, headers=EVENTS)
        assert len(client.sent) == 1
        await chunk(send, b"data: 1\n\n", more=True)
        assert client.body == b"data: 1\n\n"
        client.hang_up()
        told.append((await receive())["type"])

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert told == ["http.disconnect"]
    assert await states(guard) == [("accepted", None)]


@pytest.mark.parametrize("declared", [{}, {"final_errors": (OSError,)}])
async def test_a_broken_event_stream_is_suspended(declared: Any) -> None:
    """C34, C07: A stream whose client is gone stops at the next event; its outcome is unknown, without an answer.

    P10: That its client is gone is not the handler's word, whatever its policy lists.
    """
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, headers=EVENTS)
        client.hang_up()
        for _ in range(1000):
            await chunk(send, b"data: 1\n\n", more=True)
        raise AssertionError("a stream without a client went on")

    middleware, guard = guarded(app, policy=Policy(**declared))
    with pytest.raises(ConnectionResetError):
        await middleware(http(), client.receive, client.send)
    assert await states(guard) == [("accepted", None)]
    retry = Client()
    await middleware(http(), retry.receive, retry.send)
    assert b'"unresolved"' in retry.body


async def test_a_stream_that_is_ended_for_a_gone_client_is_not_whole() -> None:
    """T02: An inner middleware ends the answer in good order after its app was told of the hang-up: that is a
    broken one.
    """
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send, headers=EVENTS)
        client.incoming.put_nowait({"type": "http.disconnect"})
        assert (await receive())["type"] == "http.disconnect"
        await chunk(send, b"")

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert await states(guard) == [("accepted", None)]


async def test_an_answer_goes_on_without_its_client() -> None:
    """T01, T07: A client that hangs up in the middle of an answer stops nothing: the retry gets it whole."""
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        waiting = asyncio.create_task(receive())
        await start(send)
        await chunk(send, b"ab", more=True)
        client.hang_up()
        await chunk(send, b"cd", more=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        await chunk(send, b"ef")
        assert (await waiting)["type"] == "http.disconnect"

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert await states(guard) == [("completed", b"abcdef")]


async def test_a_large_answer_may_be_cut_short() -> None:
    """C34: Past ``response_bytes_max`` the app is told of a hang-up as without the guard; the operation is
    suspended.
    """
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await start(send)
        await chunk(send, b"x" * 11, more=True)
        client.hang_up()
        assert (await receive())["type"] == "http.disconnect"

    middleware, guard = guarded(app, response_bytes_max=10)
    await middleware(http(), client.receive, client.send)
    assert await states(guard) == [("accepted", None)]


async def test_a_client_that_hangs_up_before_its_request_is_whole_runs_nothing() -> None:
    """A request that never became whole is not run, and claims nothing."""
    client = Client({"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert (client.sent, await states(guard)) == ([], [])


async def test_a_cancelled_request_goes_on() -> None:
    """T07, C07: Whoever cancels the request cancels neither handler nor answer: the retry gets it."""
    slow = Slow()
    middleware, guard = guarded(slow)
    request = asyncio.create_task(asgi_request(middleware, "/pay", [KEY]))
    await slow.entered.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert (await asgi_request(middleware, "/pay", [KEY])).status == 409
    slow.go.set()
    await until_over(guard)
    assert (await asgi_request(middleware, "/pay", [KEY])).body == b"done"
    assert slow.count == 1


async def test_a_cancelled_event_stream_ends() -> None:
    """C07: A stream whose request was cancelled is told that its client is gone, and is suspended."""
    entered, go = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, headers=EVENTS)
        entered.set()
        await go.wait()
        with pytest.raises(ConnectionResetError):
            await chunk(send, b"data: 1\n\n", more=True)
        await receive()
        told.append((await receive())["type"])

    middleware, guard = guarded(app)
    client = Client()
    request = asyncio.create_task(middleware(http(), client.receive, client.send))
    await entered.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    go.set()
    await until_over(guard)
    assert await states(guard) == [("accepted", None)]
    assert told == ["http.disconnect"]


def test_a_loop_that_ends_leaves_the_operation_suspended() -> None:
    """C07, T07: When the loop is shut down under a running handler, its outcome is unknown, and so it is recorded."""
    slow = Slow()
    middleware, guard = guarded(slow)

    async def give_up() -> None:
        request = asyncio.create_task(asgi_request(middleware, "/pay", [KEY]))
        await slow.entered.wait()
        request.cancel()

    asyncio.run(give_up())
    assert asyncio.run(states(guard)) == [("accepted", None)]


@pytest.mark.parametrize("fails", [True, False])
async def test_background_work_runs_once_after_the_answer(fails: bool) -> None:
    """C50, T24: Background work runs once, after the answer is stored and sent; its failure undoes nothing."""
    done: list[Any] = []
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, 201)
        for part in (b"a", b"b", b"c"):
            await chunk(send, part, more=True)
        await chunk(send, b"")
        done.append((client.body, await states(guard)))
        if fails:
            raise RuntimeError("the mail server is down")

    middleware, guard = guarded(app)
    if fails:
        with pytest.raises(RuntimeError, match="mail"):
            await middleware(http(), client.receive, client.send)
    else:
        await middleware(http(), client.receive, client.send)
    assert done == [(b"abc", [("completed", b"abc")])]
    assert [message["type"] for message in client.sent].count("http.response.start") == 1
    replay = await asgi_request(middleware, "/pay", [KEY])
    assert (replay.status, replay.body, replay.replayed, len(done)) == (201, b"abc", "true", 1)


@pytest.mark.parametrize("parts", [0, 1, 2])
async def test_an_app_that_does_not_end_its_answer(parts: int) -> None:
    """C07: An app that returns without a whole answer is suspended without one; what it sent goes out."""
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if parts:
            await start(send)
        for _ in range(parts - 1):
            await chunk(send, b"x", more=True)

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert len(client.sent) == parts
    assert await states(guard) == [("accepted", None)]


@pytest.mark.parametrize(
    ("outcome", "state"), [(b"not-applied", "accepted"), (b"final", "completed"), (b"unknown", "accepted")]
)
async def test_a_broken_answer_may_have_said_what_it_means(outcome: bytes, state: str) -> None:
    """``Idempotency-Outcome`` holds for an answer that breaks off: it is freed, finished without its body, or
    unknown.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, headers=[(b"idempotency-outcome", outcome)])
        await chunk(send, b"x", more=True)
        raise RuntimeError("broken")

    middleware, guard = guarded(app)
    client = Client()
    with pytest.raises(RuntimeError, match="broken"):
        await middleware(http(), client.receive, client.send)
    assert await states(guard) == [(state, None)]
    [view] = [view async for view in guard.operations()]
    assert view.unresolved is (outcome == b"unknown")  # type: ignore[union-attr]  # a readable record


async def test_what_comes_after_the_end_is_the_servers_to_judge() -> None:
    """An app that goes on after the end of its answer changes nothing that is kept; the server is shown its fault."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await chunk(send, b"x")
        await chunk(send, b"y")
        await start(send)

    middleware, guard = guarded(app)
    client = Client()
    await middleware(http(), client.receive, client.send)
    assert [message["type"].rpartition(".")[2] for message in client.sent] == ["start", "body", "body", "start"]
    assert await states(guard) == [("completed", b"x")]


async def test_what_would_bypass_the_capture_is_not_offered() -> None:
    """C34: Extensions by which an answer could go past the guard are taken out; others stay, and the server's
    scope, too.
    """
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await start(send)
        await chunk(send, b"x")

    bypasses = ["http.response.pathsend", "http.response.zerocopysend", "http.response.trailers", "http.response.push"]
    offered: dict[str, Any] = {name: {} for name in [*bypasses, "http.response.early_hint", "tls"]}
    scope = http(extensions=offered)
    client = Client()
    await guarded(app)[0](scope, client.receive, client.send)
    assert list(scopes[0]["extensions"]) == ["tls"]
    assert scope["extensions"] is offered
    assert "notwice.operation" not in scope


async def test_an_unknown_way_to_answer_is_no_whole_answer() -> None:
    """C34: An app that answers by a message that it was not offered is suspended without an answer."""
    client = Client()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        await send({"type": "http.response.pathsend", "path": "/etc/hostname"})

    middleware, guard = guarded(app)
    await middleware(http(), client.receive, client.send)
    assert await states(guard) == [("accepted", None)]


async def test_a_large_request_is_given_in_pieces() -> None:
    """C20: A body above the limit of memory is spooled, and the app reads it in pieces that make up the whole."""
    sizes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        whole = b""
        while True:
            message = await receive()
            sizes.append(len(message["body"]))
            whole += message["body"]
            if not message["more_body"]:
                break
        await start(send)
        await chunk(send, whole)

    body = bytes(range(256)) * 8192
    middleware, _ = guarded(app, response_bytes_max=len(body))
    answer: Answered = await asgi_request(middleware, "/pay", [KEY], body=body)
    assert answer.body == body
    assert max(sizes) <= 65536
    assert (await asgi_request(middleware, "/pay", [KEY], body=body)).body == body


async def test_the_operation_is_found_in_the_handler_and_nowhere_else() -> None:
    """`current_operation` is the operation of the scope, in tasks and threads that the handler starts, and ends
    with it.
    """
    found: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["notwice.operation"])
        found.append(current_operation())
        found.append(await asyncio.create_task(asyncio.to_thread(current_operation)))
        await start(send)
        await chunk(send, b"x")

    middleware, _ = guarded(app)
    await asgi_request(middleware, "/pay", [KEY])
    assert len(set(map(id, found))) == 1
    assert found[0].operation.startswith("idem_")
    with pytest.raises(LookupError):
        current_operation()
