"""Real servers and frameworks, both faces: what a client sees, and what becomes of it when the client hangs up."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.apps.shared import LARGE_BYTES, PARTS
from tests.http.servers import ASGI, PROCESSES, WSGI, Running, hang_up

EVERY = pytest.mark.parametrize("server", [*ASGI, *WSGI], indirect=True)
JSON = ("Content-Type", "application/json")
WAIT = ("X-Wait", "15")
WHOLE = b"".join(PARTS)

_numbers = itertools.count()


@pytest.fixture
def order() -> str:
    """A name that no other test uses: of the order, and of its key."""
    return f"order-{next(_numbers)}"


@EVERY
def test_equal_requests_get_equal_answers(server: Running, order: str) -> None:
    """C32, C31, T04, T20: Over a real connection, kept open, the retry gets status, bytes and Location of the first."""
    connection = server.connection()
    for status in (200, 201, 202, 204, 303, 400, 409):
        name = f"{order}-{status}"
        first, second = (server.request(f"/answer/{status}?order={name}", name, connection=connection) for _ in "12")
        assert (first.status, first.body) == (second.status, second.body) == (status, b"" if status == 204 else b"body")
        assert (first.replayed, second.replayed, server.runs(name)) == (None, "true", 1)
        assert first.header("location") == second.header("location") == "/7"
        assert first.lines("set-cookie")
        assert not second.lines("set-cookie")
        assert len(second.lines("date")) == 1
        assert second.header("content-length") in ([None, "0"] if status == 204 else ["4"])  # wsgiref adds its own
    connection.close()


@EVERY
def test_twelve_at_once_run_once(server: Running, order: str) -> None:
    """C01, T22, P1: Of equal requests on twelve connections one runs; no other status than its own and 409 is seen."""
    body = json.dumps({"order": order}).encode()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: server.request("/pay", order, headers=[JSON], body=body), range(12)))
    assert {answer.status for answer in answers} <= {201, 409}
    assert [answer.replayed for answer in answers if answer.status == 201].count(None) == 1
    assert server.runs(order) == 1
    assert json.loads(server.request("/pay", order, headers=[JSON, WAIT], body=body).body)["run"] == 1


@EVERY
def test_duplicates_of_a_running_request(server: Running, order: str) -> None:
    """C03, C19, P3, P4: While the first runs: 409 and Retry-After, another body 422 at once, and a waiter gets
    the replay.
    """
    server.gate(order)
    path = f"/slow?order={order}"
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.request, path, order)
        server.wait_until_entered(order)
        waiter = pool.submit(server.request, path, order, headers=[WAIT])
        same, other = server.request(path, order), server.request(path, order, body=b"another")
        server.let_go(order)
        assert (first.result().body, first.result().replayed) == (b"done", None)
        assert (waiter.result().body, waiter.result().replayed) == (b"done", "true")
    assert (same.status, json.loads(same.body)["code"]) == (409, "in_progress")
    assert int(same.header("retry-after") or 0) >= 1
    assert (other.status, other.header("retry-after")) == (422, None)
    assert server.runs(order) == 1


STREAMED: dict[str, Callable[[str], str]] = {
    "stream": lambda order: f"/stream?order={order}",
    "events": lambda order: f"/events?count=5&order={order}",
    "file": lambda order: f"/file?size=300032&order={order}",
}


@EVERY
@pytest.mark.parametrize("kind", STREAMED)
def test_streams_events_and_files_are_replayed(server: Running, order: str, kind: str) -> None:
    """C34, T01, T02: Streams, event streams and files come whole, guarded or not, and their replays are equal."""
    path = STREAMED[kind](order)
    plain = server.request(path, method="GET")
    first, second = (server.request(path, order) for _ in "12")
    assert plain.body == first.body == second.body
    assert len(plain.body) == {"stream": len(WHOLE), "events": 45, "file": 300032}[kind]
    assert (plain.status, first.status, second.status) == (200, 200, 200)
    assert (first.replayed, second.replayed, server.runs(order)) == (None, "true", 2)
    assert first.header("content-type") == second.header("content-type")


@EVERY
def test_a_large_file_is_kept_without_its_body(server: Running, order: str) -> None:
    """C34, T05: A file over the limit reaches its client whole; the retry gets status and headers, and is not run."""
    path = f"/file?size={LARGE_BYTES}&order={order}"
    first, second = (server.request(path, order) for _ in "12")
    assert (len(first.body), second.body, second.replayed) == (LARGE_BYTES, b"", "omitted")
    assert (second.status, second.header("content-length"), server.runs(order)) == (200, "0", 1)


@EVERY
def test_a_large_upload_reaches_the_handler(server: Running, order: str) -> None:
    """C20: Three MiB, spooled to disk, reach the handler whole; the same bytes are the same request, others are not."""
    body = bytes(range(256)) * 12_288
    path = f"/upload?order={order}"
    first, second = (server.request(path, order, body=body) for _ in "12")
    assert json.loads(first.body) == json.loads(second.body) == {"size": len(body), "run": 1}
    assert second.replayed == "true"
    assert server.request(path, order, body=body[:-1] + b"x").status == 422


@EVERY
def test_a_chunked_upload(server: Running, order: str) -> None:
    """C20: A body in chunks is read whole; a server that can't decode chunks has them refused instead of lost."""
    path = f"/upload?order={order}"
    if "wsgiref" in server.folder.name:
        with server.raw(path, order, length=None, body=b"1\r\na\r\n0\r\n\r\n") as client:
            assert b" 413 " in client.recv(65536)
        assert server.runs(order) == 0
        return
    answer = server.request(path, order, body=iter([b"a" * 70_000, b"b" * 70_000]))
    assert json.loads(answer.body) == {"size": 140_000, "run": 1}
    assert server.request(path, order, body=b"a" * 70_000 + b"b" * 70_000).replayed == "true"


@EVERY
def test_a_request_that_is_too_large_is_refused_unread(server: Running, order: str) -> None:
    """T05: A declared length over the limit is refused before the body comes, and before anything runs."""
    client = server.raw(f"/upload?order={order}", order, length=11 * 1024 * 1024)
    assert b" 413 " in client.recv(65536)
    client.close()
    assert server.runs(order) == 0


@EVERY
def test_the_status_can_be_looked_up(server: Running, order: str) -> None:
    """P12: The status of a key, before and after."""
    path = f"/status?idempotency_key={order}"
    assert json.loads(server.request(path, method="GET").body)["state"] == "not_found"
    server.request(f"/answer/201?order={order}", order)
    assert json.loads(server.request(path, method="GET").body)["original_status"] == 201


# --- hang-ups ---------------------------------------------------------------------------------------------------------


@EVERY
def test_a_client_that_hangs_up_while_the_handler_runs(server: Running, order: str) -> None:
    """T07, C07: The handler goes on, runs once, and the retry gets its answer."""
    server.gate(order)
    client = server.raw(f"/slow?order={order}", order)
    server.wait_until_entered(order)
    hang_up(client)
    server.let_go(order)
    answer = server.request(f"/slow?order={order}", order, headers=[WAIT])
    assert (answer.status, answer.body, server.runs(order)) == (200, b"done", 1)


@EVERY
def test_a_client_that_hangs_up_in_the_middle_of_an_answer(server: Running, order: str) -> None:
    """T01, T07, C34: The rest of the answer is taken without its client, and the retry gets it whole."""
    server.gate(order)
    path = f"/stream?order={order}&gate=1"
    client = server.raw(path, order)
    server.wait_until_entered(order)
    hang_up(client)
    server.let_go(order)
    answer = server.request(path, order, headers=[WAIT])
    assert (answer.status, answer.body, server.runs(order)) == (200, WHOLE, 1)


@EVERY
def test_a_client_that_hangs_up_on_an_event_stream(server: Running, order: str) -> None:
    """C34: An endless event stream ends when its client is gone; its outcome is unknown, and it is not run again."""
    path = f"/events?order={order}"
    client = server.raw(path, order)
    assert client.recv(65536)
    hang_up(client)
    answer = server.request(path, order, headers=[WAIT])
    assert (answer.status, json.loads(answer.body)["code"], server.runs(order)) == (409, "unresolved", 1)


@EVERY
def test_a_client_that_hangs_up_before_its_request_is_whole(server: Running, order: str) -> None:
    """Half a request runs nothing; the whole one runs, as the first."""
    path = f"/upload?order={order}"
    hang_up(server.raw(path, order, length=100, body=b"half"))
    answer = server.request(path, order, headers=[WAIT], body=b"whole")
    assert (answer.status, answer.replayed, server.runs(order)) == (200, None, 1)


# --- several processes ------------------------------------------------------------------------------------------------

SEVERAL = pytest.mark.parametrize("server", PROCESSES, indirect=True)


@SEVERAL
def test_processes_share_their_keys(server: Running) -> None:
    """C01, C02, C32, P1: Three workers, forked after the guard was made, over one SQLite file: each key runs once."""
    names = [f"order-{next(_numbers)}" for _ in range(20)]

    def pay(name: str) -> int:
        body = json.dumps({"order": name}).encode()
        return server.request("/pay", name, headers=[JSON, WAIT], body=body).status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(pay, names * 4)) == {201}
    assert [server.runs(name) for name in names] == [1] * len(names)


@SEVERAL
def test_a_killed_worker_leaves_an_unresolved_operation(server: Running, order: str) -> None:
    """C07, T08, P7: A worker is killed inside of the handler: once its lease is over the retry is told, and
    nothing runs.
    """
    server.gate(order)
    path, lease = f"/slow?order={order}", ("X-Lease", "0.3")
    client = server.raw(path, order, headers=[lease])
    os.kill(server.wait_until_entered(order), signal.SIGKILL)
    answer = server.request(path, order, headers=[lease, WAIT])
    assert (answer.status, json.loads(answer.body)["code"]) == (409, "unresolved")
    assert server.runs(order) == 1
    client.close()
    assert server.request(f"/answer/201?order={order}-2", f"{order}-2").status == 201


# --- ASGI only --------------------------------------------------------------------------------------------------------

ASYNC = pytest.mark.parametrize("server", ASGI, indirect=True)


@ASYNC
def test_background_work_runs_once(server: Running, order: str) -> None:
    """C50, T24: Background work runs once, after the first answer; its failure undoes nothing, and no replay
    runs it.
    """
    server.gate(order)
    path = f"/background?order={order}"
    answers = [server.request(path, order)]
    server.wait_until_entered(order)
    answers += [server.request(path, order) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(202, b"done")] * 3
    assert [answer.replayed for answer in answers] == [None, "true", "true"]
    assert server.runs(f"{order}-background") == 1


@ASYNC
def test_middleware_inside_of_the_guard(server: Running, order: str) -> None:
    """T02: An inner ``@app.middleware("http")``, which sends every answer in chunks, changes nothing but its header."""
    body = json.dumps({"order": order}).encode()
    first, second = (server.request("/pay", order, headers=[JSON], body=body) for _ in "12")
    assert first.body == second.body
    assert json.loads(first.body) == {"run": 1, "state": "yes"}
    assert first.header("x-inner") == second.header("x-inner") == "seen"


@ASYNC
def test_websockets_are_untouched(server: Running) -> None:
    """C50: A websocket works through the middleware, whatever its handshake's headers say."""
    client = connect_websocket(server)
    client.sendall(b"\x81\x82\x00\x00\x00\x00hi")
    received = b""
    while len(received) < 9:
        received += client.recv(4096)
    assert received[:9] == b"\x81\x07echo hi"
    client.close()


def connect_websocket(server: Running) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    client.sendall(
        b"GET /socket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nIdempotency-Key: k\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += client.recv(1)
    assert head.startswith(b"HTTP/1.1 101")
    return client
