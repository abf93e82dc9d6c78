"""Stored requests are sent again: by the middleware to its app, and by the gateway to its upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from notwice import AsyncGuard, Policy, RecordView, State, rerun
from notwice.core import REQUEST_BYTES_MAX
from notwice.errors import UnsupportedRecord
from notwice.http import SHARED
from notwice.http.asgi import IdempotencyMiddleware
from notwice.http.exchange import restored
from notwice.recovery import Round
from notwice.server.options import SettingsError, read
from notwice.server.settings import Settings
from notwice.stores.memory import MemoryStore
from notwice.testing import VirtualClock
from tests.server import processes
from tests.server.processes import Raw, ask, begun, keyed, until

KEEPING = Policy(recovery=rerun, store_request=True)


class Shop:
    """An application behind the middleware. `answers` are what it gives, one a request: a status, or an exception."""

    def __init__(self, *answers: int | Exception, policy: Policy = KEEPING, **options: Any) -> None:
        self.clock = VirtualClock()
        self.guard = AsyncGuard(MemoryStore(self.clock), policy=policy, clock=self.clock)
        self.answers = list(answers)
        self.seen: list[tuple[Mapping[str, Any], bytes]] = []
        self.middleware = IdempotencyMiddleware(self, guard=self.guard, principal=SHARED, **options)
        self.guard.recovers("http", needs_request=True)(self.middleware.rerun)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.seen.append(({name: scope[name] for name in SAME}, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        await send({"type": "http.response.start", "status": answer, "headers": [(b"x-made", b"1")]})
        await send({"type": "http.response.body", "body": b"made", "more_body": False})

    async def ask(self, body: bytes = b"{}", headers: Mapping[str, str] | None = None) -> int | None:
        """Send a request; gives its status, ``None`` if the server would have had to give one."""
        scope = {
            "type": "http",
            "method": "POST",
            "scheme": "https",
            "path": "/pay/\N{EURO SIGN}/rewritten",
            "raw_path": b"/pay/%E2%82%AC",
            "query_string": b"q=1&q=2",
            "root_path": "/shop",
            "client": ("203.0.113.9", 4711),
            "headers": [(name.encode(), value.encode()) for name, value in {**HEADERS, **(headers or {})}.items()],
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self.middleware(scope, receive, send)
        except OSError:
            return None
        return int(sent[0]["status"])

    async def record(self) -> RecordView:
        view = await self.guard.lookup("http", "k-1")
        assert view is not None
        return view


SAME = ("method", "scheme", "path", "raw_path", "root_path", "query_string", "headers")
HEADERS = {"idempotency-key": '"k-1"', "content-type": "application/json", "x-account": "a1", "accept": "a, b"}
SECRETS = {
    "authorization": "Bearer s3cret",
    "cookie": "s3cret",
    "proxy-authorization": "s3cret",
    "x-api-key": "s3cret",
    "x-csrf-token": "s3cret",
    "x-session-id": "s3cret",
    "dpop": "s3cret",
    "x-otp": "s3cret",
    "x-sign": "s3cret",
}


# -- the middleware ---------------------------------------------------------------------------------------------------


async def test_a_stored_request_reaches_the_app_as_it_came() -> None:
    """T08: what was open is given to the app again, byte for byte, and its answer is what the retry gets."""
    shop = Shop(ConnectionError("gone"), 201)
    assert await shop.ask(b'{"amount": 5}') is None
    assert await shop.guard.recover() == Round(finished=1)
    assert shop.seen[0] == shop.seen[1]
    assert shop.seen[1][1] == b'{"amount": 5}'
    assert await shop.ask(b'{"amount": 5}') == 201
    assert len(shop.seen) == 2
    assert (await shop.record()).record.request is None


async def test_credentials_are_not_stored_unless_they_are_named() -> None:
    """P15: headers that look like credentials are neither in the record nor sent again; one that is named is both."""
    for named in ((), ("X-API-Key",)):
        shop = Shop(OSError("gone"), 200, stored_headers=named)
        await shop.ask(headers=SECRETS)
        stored = (await shop.record()).record.request or b""
        assert stored.count(b"s3cret") == len(named)
        assert await shop.guard.recover() == Round(finished=1)
        names = {name.decode() for name, _ in shop.seen[1][0]["headers"]}
        assert names == {*HEADERS, *(name.lower() for name in named)}


@pytest.mark.parametrize(
    ("answer", "found", "state"),
    [
        (200, Round(finished=1), State.COMPLETED),
        (402, Round(finished=1), State.FAILED),
        (500, Round(failed=1), State.ACCEPTED),
        (429, Round(failed=1), State.ACCEPTED),
        (TimeoutError("slow"), Round(failed=1), State.ACCEPTED),
    ],
)
async def test_the_answer_ends_the_operation_as_it_always_does(
    answer: int | Exception, found: Round, state: State
) -> None:
    """The policy of the edge says what the answer means, whoever sent the request."""
    shop = Shop(OSError("gone"), answer)
    await shop.ask()
    assert await shop.guard.recover() == found
    assert (await shop.record()).state is state


@pytest.mark.parametrize("secrets", [{}, SECRETS])
@pytest.mark.parametrize("answer", [200, 204, 302, 400, 404, 422])
async def test_without_its_credentials_a_refusal_proves_nothing(answer: int, secrets: dict[str, str]) -> None:
    """T08: what was sent again without its credentials is finished by a 2xx only.

    "Not allowed", "not found" and "sign in there" may be about what was left out: kept as the answer, they would tell
    the caller to try again under another key, though the first time may have taken effect.
    """
    shop = Shop(OSError("gone"), answer)
    await shop.ask(headers=secrets)
    found = await shop.guard.recover()
    record = (await shop.record()).record
    if not secrets or answer < 300:
        assert found == Round(finished=1)
        return
    assert (found, record.state, record.result) == (Round(failed=1), State.ACCEPTED, None)
    assert f"the answer was {answer}" in record.error
    assert "authorization, cookie" in record.error
    assert "s3cret" not in record.error


async def test_an_app_that_listens_for_the_end_is_told_of_it() -> None:
    """After its answer an app is told that nobody listens any more, as by a server; before it, it is told nothing."""
    shop = Shop(OSError("gone"))
    await shop.ask()
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        listening = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/event-stream")]})
        await asyncio.sleep(0)
        told.append(str(listening.done()))
        await send({"type": "http.response.body", "body": b"made", "more_body": False})
        told.append((await listening)["type"])

    shop.middleware.app = app
    assert await shop.guard.recover() == Round(finished=1)
    assert told == ["False", "http.disconnect"]


async def test_without_the_policy_nothing_is_stored_and_nothing_sent() -> None:
    """P15: a request is kept only where the policy says so, and what keeps none uses up no attempt."""
    shop = Shop(OSError("gone"), policy=Policy(recovery=rerun))
    await shop.ask()
    for _ in range(9):
        assert await shop.guard.recover() == Round(unhandled=1)
    assert ((await shop.record()).record.request, (await shop.record()).record.attempt) == (None, 1)


@pytest.mark.parametrize(("size", "kept"), [(REQUEST_BYTES_MAX - 3000, True), (REQUEST_BYTES_MAX, False)])
async def test_a_request_that_is_too_large_is_guarded_all_the_same(size: int, kept: bool) -> None:
    """T05: a large request is guarded and not stored; its own retry runs it again."""
    shop = Shop(OSError("gone"), 200)
    await shop.ask(bytes(size))
    assert ((await shop.record()).record.request is not None) is kept
    assert await shop.guard.recover() == (Round(finished=1) if kept else Round(unhandled=1))
    assert await shop.ask(bytes(size)) == 200


@pytest.mark.parametrize("stored", [None, 3, {}, {"form": 2}, {"form": 1, "path": 5}])
def test_what_is_no_stored_request_is_refused(stored: object) -> None:
    """P14: a request of a newer release, or anything else, is refused and not guessed at."""
    with pytest.raises(UnsupportedRecord):
        restored(stored)


# -- the gateway ------------------------------------------------------------------------------------------------------

OPTIONS = ("--recovery", "rerun", "--store-requests", "--recover-every", "0.1s", "--lease", "1s", "--status-path", "/-")


def state(port: int, key: str) -> Any:
    return ask(port, "GET", f"/-?idempotency_key={key}", headers={"X-Account-Id": "a1"}).document["state"]


def test_a_gateway_that_was_killed_sends_the_request_again(tmp_path: Path) -> None:
    """T08, C07: killed in mid-request and started again, it gets the answer, and the retry is given that."""
    with processes.upstream(tmp_path) as service:
        with processes.gateway(tmp_path, service.port, *OPTIONS) as gateway:
            raw = Raw(gateway.port)
            raw.say(keyed("POST /slow", "k1"))
            assert until(lambda: "POST /slow" in begun(tmp_path))
            gateway.kill()
            raw.close()
        with processes.gateway(tmp_path, service.port, *OPTIONS) as gateway:
            assert until(lambda: begun(tmp_path).count("POST /slow") == 2)
            ask(gateway.port, "GET", "/go")
            assert until(lambda: state(gateway.port, "k1") == "completed")
            late = ask(gateway.port, "POST", "/slow", key="k1")
            assert (late.status, late.body, late.header("idempotency-replayed")) == (201, b"slow", "true")
            gateway.terminate()
            assert gateway.wait() == 0
    assert begun(tmp_path).count("POST /slow") == 2


def test_the_upstream_sees_the_same_request_with_the_same_key(tmp_path: Path) -> None:
    """P15: the upstream can de-duplicate by the caller's key; it gets body and headers, but no credentials."""
    headers = {"Authorization": "Bearer s3cret", "X-Order": "7", "Content-Type": "application/json"}
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, *OPTIONS) as gateway:
        assert ask(gateway.port, "POST", "/flaky?a=1", b"[1]", key="k2", headers=headers).status == 502
        assert b"s3cret" not in (tmp_path / "notwice.db").read_bytes() + (tmp_path / "notwice.db-wal").read_bytes()
        assert until(lambda: state(gateway.port, "k2") == "completed")
        echo = ask(gateway.port, "POST", "/flaky?a=1", b"[1]", key="k2", headers=headers)
    assert (echo.header("idempotency-replayed"), begun(tmp_path)) == ("true", ["POST /flaky?a=1"] * 2)
    sent = {name.lower(): value for name, value in echo.document["headers"]}
    assert (echo.document["line"], echo.document["body"]) == ("POST /flaky?a=1 HTTP/1.1", "[1]")
    assert (sent["idempotency-key"], sent["x-account-id"], sent["x-order"]) == ("k2", "a1", "7")
    assert (sent["x-forwarded-for"], "authorization" in sent) == ("127.0.0.1", False)
    assert "s3cret" not in (tmp_path / "gateway.log").read_text()


def test_an_outage_uses_up_no_attempts(tmp_path: Path) -> None:
    """While the upstream accepts no connection nothing is tried; once it is back, the request is sent again."""
    port = processes.free_port()
    with processes.gateway(tmp_path, port, *OPTIONS, "--attempts-max", "2") as gateway:
        with processes.upstream(tmp_path, port=port):
            assert ask(gateway.port, "POST", "/die/1", key="k3").status == 502
        assert {ask(gateway.port, "GET", "/x").status for _ in range(100)} == {502}  # some rounds of it
        with processes.upstream(tmp_path, port=port):
            assert until(lambda: begun(tmp_path).count("POST /die/1") == 2)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"store_requests": True}, "only with --recovery rerun"),
        ({"stored_headers": "Authorization"}, "without --store-requests"),
        ({"store_requests": True, "recovery": "rerun", "hash_keys": True}, "give keys that seal"),
    ],
)
def test_options_that_do_not_fit_together(flags: dict[str, object], sentence: str) -> None:
    """A combination that would do nothing, or would store what it is to hide, is refused with a sentence."""
    with pytest.raises(SettingsError, match=sentence):
        read(Settings, {"upstream": "http://127.0.0.1:1", "principal": "shared", **flags}, {})
