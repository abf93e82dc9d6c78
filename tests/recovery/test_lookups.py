"""Lookups: what a provider on the network says of an effect, and what none of its answers may be taken for."""

from __future__ import annotations

import builtins
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from notwice import NOT_APPLIED, UNKNOWN, Applied, AsyncGuard, Policy, Replay, Unresolved, reconcile
from notwice.lookups import ANSWER_BYTES_MAX, AsyncRestLookup, LookupFailed, RestLookup
from notwice.recovery import Round
from notwice.stores.memory import MemoryStore
from tests.recovery import provider as providers
from tests.recovery.provider import Provider, say
from tests.server.processes import free_port
from tests.unit.worlds import KEY, SCOPE, World


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    with providers.running() as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider) -> Provider:
    shared.effects.clear()
    shared.asked.clear()
    shared.answer = lambda _: False
    return shared


def settings(provider: Provider, **changes: Any) -> dict[str, Any]:
    return {
        "url": provider.url + "/refunds?reference={downstream_key}",
        "matches": {"reference": "{downstream_key}"},
        "items": "data",
        "more": "has_more",
        "state": "status",
        "applied": ["succeeded"],
        "not_applied": ["failed", "canceled"],
        "timeout": 5,
        **changes,
    }


async def asked(provider: Provider, **changes: Any) -> Any:
    """What both faces say, which must be the same; the reason of a `LookupFailed`."""
    operation = World().own()
    told: list[Any] = []
    for lookup in (RestLookup, AsyncRestLookup):
        try:
            found: Any = lookup(**settings(provider, **changes))(operation)
            told.append(await found if hasattr(found, "__await__") else found)
        except LookupFailed as error:
            told.append(str(error))
    assert told[0] == told[1]
    return told[0]


def reference(name: str = "") -> str:
    return World().own().downstream_key(name)


def effect(status: str = "succeeded", **changes: Any) -> dict[str, Any]:
    return {"id": "re_1", "reference": reference(), "status": status, **changes}


# -- plain answers ----------------------------------------------------------------------------------------------------


async def test_an_effect_that_is_there_has_happened(provider: Provider) -> None:
    """P7: found under the downstream key and in a state that says so, the effect completes the operation."""
    provider.effects.append(effect())
    assert await asked(provider) == Applied(effect())
    assert await asked(provider, result=lambda found: found["id"]) == Applied("re_1")
    method, path, headers, _ = provider.asked[0]
    assert (method, path) == ("GET", f"/refunds?reference={reference()}")
    assert {name.lower(): value for name, value in headers.items()}["accept"] == "application/json"


async def test_a_failed_effect_has_not_happened(provider: Provider) -> None:
    """A state that is declared as final and without effect lets the operation run again."""
    provider.effects.append(effect("failed"))
    assert await asked(provider) is NOT_APPLIED
    provider.effects.append(effect("succeeded"))
    assert await asked(provider) == Applied(effect())


async def test_the_key_of_a_step(provider: Provider) -> None:
    """A lookup by the name of a step finds what that step did."""
    provider.effects.append(effect(reference=reference("refund")))
    assert isinstance(await asked(provider, name="refund"), Applied)


async def test_one_effect_under_its_own_address(provider: Provider) -> None:
    """Without a list the answer is the effect itself; its 404 is unknown, unless the setting says otherwise."""
    single = {"items": None, "more": None, "url": provider.url + "/refunds/{operation}"}
    provider.answer = lambda request: say(request, 200, effect())
    assert await asked(provider, **single) == Applied(effect())
    for status in (404, 410):
        provider.answer = lambda request, status=status: say(request, status, {})  # type: ignore[misc]  # bound now
        assert "no proof" in await asked(provider, **single)
        assert await asked(provider, **single, absent=NOT_APPLIED) is NOT_APPLIED


async def test_metadata_headers_and_a_search_by_post(provider: Provider) -> None:
    """Templates reach into metadata and into a document that is posted; headers may be made for each call."""
    world = World().own()
    provider.answer = lambda request: say(request, 200, [{"meta": [{"op": world.operation}]}])
    found = await asked(
        provider,
        url=provider.url + "/search",
        body={"query": {"and": ["{operation}", 3, None]}, "limit": 2},
        headers=lambda: {"authorization": "Bearer t"},
        items="",
        matches={"meta.0.op": "{operation}"},
        more=None,
        state=None,
        applied=(),
        not_applied=(),
    )
    assert found == Applied({"meta": [{"op": world.operation}]})
    method, _, headers, body = provider.asked[-1]
    assert (method, headers["authorization"]) == ("POST", "Bearer t")
    assert json.loads(body) == {"query": {"and": [world.operation, 3, None]}, "limit": 2}


async def test_what_stands_in_an_address_is_escaped(provider: Provider) -> None:
    """A scope or a key can't add to the query or leave the path."""
    operation = World().guard.begin("a/b?c=d&e", "k&x=1/../2")
    RestLookup(**settings(provider, url=provider.url + "/x/{scope}?k={key}", absent=NOT_APPLIED))(operation)
    assert provider.asked[-1][1] == "/x/a%2Fb%3Fc%3Dd%26e?k=k%26x%3D1%2F..%2F2"


@pytest.mark.parametrize("key", [".", ".."])
async def test_a_key_that_is_a_dot_is_looked_for_nowhere(provider: Provider, key: str) -> None:
    """A client of HTTP would take it out of the address, and "not found" would be said of something else."""
    operation = World().guard.begin(SCOPE, key)
    with pytest.raises(LookupFailed, match="a dot is no name"):
        RestLookup(**settings(provider, url=provider.url + "/x/{key}", absent=NOT_APPLIED))(operation)
    assert provider.asked == []


# -- what says nothing ------------------------------------------------------------------------------------------------

KEY_OF_IT = reference().encode()
BOMB = gzip.compress(b" " * (64 * ANSWER_BYTES_MAX))

LIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "an error": (lambda request: say(request, 500, {"data": [effect()]}), "status 500"),
    "busy": (lambda request: say(request, 503, b""), "status 503"),
    "refused": (lambda request: say(request, 401, {"data": []}), "status 401"),
    "too many": (lambda request: say(request, 429, {"data": []}), "status 429"),
    "another address": (lambda request: say(request, 302, {"data": []}, location="/refunds"), "status 302"),
    "not found of a list": (lambda request: say(request, 404, {"data": []}), "status 404"),
    "created": (lambda request: say(request, 201, {"data": []}), "status 201"),
    "nothing": (lambda request: say(request, 200, b""), "no JSON"),
    "a page": (lambda request: say(request, 200, b"<html>maintenance</html>"), "no JSON"),
    "half": (lambda request: say(request, 200, b'{"data": ['), "no JSON"),
    "deep": (lambda request: say(request, 200, b"[" * 100_000), "no JSON"),
    "no list": (lambda request: say(request, 200, {"data": {"id": 1}}), "no list"),
    "no object": (lambda request: say(request, 200, [1]), "no list"),
    "null": (lambda request: say(request, 200, None), "no list"),
    "a list of nothing": (lambda request: say(request, 200, {"data": [None, 3, "x"]}), "none of this one"),
    "everything": (lambda request: say(request, 200, {"data": [effect(reference="other")]}), "none of this one"),
    "twice": (lambda request: say(request, 200, {"data": [effect(), effect()]}), "2 effects"),
    "under way": (lambda request: say(request, 200, {"data": [effect("pending")]}), "'pending'"),
    "no state": (lambda request: say(request, 200, {"data": [{"reference": reference()}]}), "None"),
    "more": (lambda request: say(request, 200, {"data": [], "has_more": True}), "none of this one"),
    "failed and more": (lambda request: say(request, 200, {"data": [effect("failed")], "has_more": 1}), "'failed'"),
    "half failed": (lambda request: say(request, 200, {"data": [effect("failed"), effect("new")]}), "'new'"),
    "two states": (
        lambda request: say(
            request, 200, b'{"data": [{"reference": "%b", "status": "failed", "status": "succeeded"}]}' % KEY_OF_IT
        ),
        "two members of one name",
    ),
    "two lists": (lambda request: say(request, 200, b'{"data": [1], "data": []}'), "two members of one name"),
    "no number": (lambda request: say(request, 200, b'{"data": [], "x": NaN}'), "no JSON"),
    "another type": (
        lambda request: say(request, 200, {"data": [effect(reference=[reference()])]}),
        "none of this one",
    ),
    "compressed": (
        lambda request: say(request, 200, zlib.compress(b'{"data": []}'), **{"content-encoding": "deflate"}),
        "compressed by deflate",
    ),
    "a bomb": (
        lambda request: say(request, 200, BOMB, **{"content-encoding": "gzip"}),
        "compressed by gzip",
    ),
    "endless": (lambda request: say(request, 200, b" " * (ANSWER_BYTES_MAX + 1)), "longer than"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_answers_that_say_nothing_certain(provider: Provider, lie: str) -> None:
    """T08: whatever is no plain answer is unknown, even where absence is declared to be proof."""
    provider.answer, reason = LIES[lie]
    assert reason in await asked(provider, absent=NOT_APPLIED)


async def test_nothing_found_is_no_proof(provider: Provider) -> None:
    """An empty list is unknown, unless the setting says that it is proof."""
    assert "no proof" in await asked(provider)
    assert await asked(provider, absent=NOT_APPLIED) is NOT_APPLIED


async def test_a_provider_that_is_dead_slow_or_breaks_off(provider: Provider) -> None:
    """No connection, no answer in time, an answer that drips, one that ends early: unknown."""

    def hangs(request: Any) -> bool:
        return provider.closing.wait(30)

    def drips(request: Any) -> bool:
        request.send_response(200)
        request.end_headers()
        while not provider.closing.wait(0.02):
            request.wfile.write(b" ")
        return True

    def drips_headers(request: Any) -> bool:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while not provider.closing.wait(0.02):
            request.wfile.write(b"a")
        return True

    def ends_early(request: Any) -> bool:
        request.send_response(200)
        request.send_header("content-length", "100")
        request.end_headers()
        return True

    assert "ConnectError" in await asked(provider, url=f"http://127.0.0.1:{free_port()}/{{key}}")
    provider.answer = ends_early
    assert "RemoteProtocolError" in await asked(provider)
    operation = World().own()
    for answer in (hangs, drips, drips_headers):
        provider.answer = answer
        with pytest.raises(LookupFailed, match="did not answer"):
            RestLookup(**settings(provider, timeout=0.2))(operation)
        with pytest.raises(LookupFailed, match="did not answer"):
            await AsyncRestLookup(**settings(provider, timeout=0.2))(operation)


# -- with a guard -----------------------------------------------------------------------------------------------------


def test_the_pause_and_the_settling_are_the_guards(provider: Provider) -> None:
    """P7: unknown is not asked again for 30 s; not applied runs only once every owner was silent for `settle`."""
    policy = Policy(recovery=reconcile(RestLookup(**settings(provider, absent=NOT_APPLIED))), settle=600)
    world = World()
    world.own(policy=policy).suspend("the line broke")
    provider.answer = lambda request: say(request, 503, b"")
    for _ in range(3):
        assert isinstance(world.begin(policy=policy), Unresolved)
    assert len(provider.asked) == 1
    assert "status 503" in world.view().record.error
    provider.answer = lambda _: False
    for _ in range(3):
        world.clock.advance(30)
        assert isinstance(world.begin(policy=policy), Unresolved)
    assert "earlier owner" in world.view().record.error
    world.clock.advance(600)
    assert world.run(world.effect, policy=policy) == "done"
    assert world.effects == ["done"]


def test_a_provider_that_deduplicates_lets_it_run_at_once(provider: Provider) -> None:
    """With `deduplicated` "not applied" runs it without waiting."""
    lookup = RestLookup(**settings(provider, absent=NOT_APPLIED))
    policy = Policy(recovery=reconcile(lookup, deduplicated=True))
    world = World()
    world.own(policy=policy).suspend()
    assert world.run(world.effect, policy=policy) == "done"


def test_a_worker_finds_out_what_happened(provider: Provider) -> None:
    """T08: killed after the refund and before its record, the operation is completed by what the provider says."""
    policy = Policy(recovery=reconcile(RestLookup(**settings(provider, result=lambda found: found["id"]))))
    world = World()
    world.crashed(policy=policy)
    provider.effects.append(effect())
    assert world.guard.recover({SCOPE: world.effect}, policy=policy) == Round(finished=1)
    assert world.begin(policy=policy).result == "re_1"
    assert world.effects == []


async def test_a_loop_asks_without_being_blocked(provider: Provider) -> None:
    """The face for event loops answers an `AsyncGuard` in the same way."""
    policy = Policy(recovery=reconcile(AsyncRestLookup(**settings(provider))))
    guard = AsyncGuard(MemoryStore(), policy=policy)
    begun: Any = await guard.begin(SCOPE, KEY)
    await begun.suspend()
    provider.effects.append(effect())
    found = await guard.begin(SCOPE, KEY)
    assert isinstance(found, Replay)
    assert found.result == effect()


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"url": "api.example.com"}, "begin with https"),
        ({"url": "https://h/{nonsense}"}, "names nothing"),
        ({"url": "https://h/{key!r}"}, "names nothing"),
        ({"url": "https://h/{"}, "malformed"),
        ({"matches": {}}, "matches is empty"),
        ({"matches": {"a": "{order}"}}, "names nothing"),
        ({"matches": {"type": "refund", "tenant": "{namespace}"}}, "says nothing of the one operation"),
        ({"body": {"a": ["{x}"]}}, "names nothing"),
        ({"state": None}, "are states"),
        ({"applied": []}, "needs applied"),
        ({"applied": "succeeded"}, "give a list"),
        ({"absent": None}, "must be UNKNOWN"),
        ({"timeout": 0}, "more than zero"),
        ({"urls": ""}, "did you mean 'url'"),
    ],
)
def test_settings_that_would_fail_after_a_crash_fail_before(
    provider: Provider, changes: dict[str, Any], sentence: str
) -> None:
    """A mistake in the settings is told when they are made."""
    with pytest.raises((TypeError, ValueError), match=sentence):
        RestLookup(**settings(provider, **changes))


def test_the_extra_is_named_where_it_is_missing(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without httpx the error says what to install."""
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "httpx":
            raise ModuleNotFoundError(name=name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"notwice\[lookups\]"):
        RestLookup(**settings(provider))


def test_secrets_are_not_shown(provider: Provider) -> None:
    """P15: the text of a lookup does not hold the headers that it sends."""
    assert "s3cret" not in repr(RestLookup(**settings(provider, headers={"authorization": "s3cret"})))
    assert RestLookup(**settings(provider)).absent is UNKNOWN
