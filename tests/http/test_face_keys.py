"""Both faces: which requests are guarded, under which key, and for whom."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from notwice.http import SHARED
from tests.http.harness import KEY, Serve, problem, says


class Waiting:
    """Something to wait for that does not complain when nobody does."""

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_other_methods_pass_through(serve: Serve, method: str) -> None:
    """C37: A method that is not guarded runs each time, key or no key; OPTIONS is never refused for a missing key."""
    face = serve(says(), required=True)
    for headers in ([], [KEY]):
        assert face.request(method=method, headers=headers).status == 200
    assert face.handler.count == 2
    assert face.records() == []


@pytest.mark.parametrize("method", ["post", "patch", "Patch"])
def test_a_method_is_guarded_however_it_is_spelled(serve: Serve, method: str) -> None:
    """C01: Browsers send "patch" as a script writes it, and some frameworks take it for PATCH: it runs once, too."""
    face = serve(says(201))
    assert [face.request(method=method).replayed for _ in range(2)] == [None, "true"]
    assert face.handler.count == 1


def test_without_a_key_each_request_runs(serve: Serve) -> None:
    """C26, T17: Two requests without a key are two requests, even if they are equal; nothing is recorded."""
    face = serve(says(201))
    assert [face.request(headers=[]).status for _ in range(2)] == [201, 201]
    assert face.handler.count == 2
    assert face.records() == []
    assert face.handler.runs[0].operation is None


def test_a_required_key_is_asked_for(serve: Serve) -> None:
    """Where a key is required, a request without one is refused and does not run."""
    face = serve(says(), required=True)
    document = problem(face.request(headers=[]), 400, "key_missing")
    assert document["safe_new_key"] is True
    assert face.handler.count == 0


def test_required_may_be_a_function_of_the_request(serve: Serve) -> None:
    """A function says for which requests a key is required."""
    face = serve(says(), required=lambda request: request.path.startswith("/pay"))
    assert face.request("/pay", headers=[]).status == 400
    assert face.request("/other", headers=[]).status == 200


@pytest.mark.parametrize("value", ["", "   ", '""', "a b", "k" * 256, '"k', "k\x00", "\xe9", "a,b"])
@pytest.mark.parametrize("required", [True, False])
def test_a_bad_key_is_refused(serve: Serve, value: str, required: bool) -> None:
    """C26, C27: An empty, malformed or too long key is refused, required or not; it is never "no key"."""
    face = serve(says(), required=required)
    problem(face.request(headers=[("Idempotency-Key", value)]), 400, "key_invalid")
    assert face.handler.count == 0
    assert face.records() == []


def test_several_lines_of_the_header(serve: Serve) -> None:
    """Equal values in several lines are one key; two different ones are refused."""
    face = serve(says(201))
    assert face.request(headers=[KEY, ("idempotency-key", '"k-1"')]).status == 201
    assert face.request(headers=[KEY]).replayed == "true"
    problem(face.request(headers=[KEY, ("Idempotency-Key", "other")]), 400, "key_invalid")
    assert face.handler.count == 1


def test_quoted_and_bare_are_one_key(serve: Serve) -> None:
    """``"k"`` and ``k`` name the same operation."""
    face = serve(says(201))
    face.request(headers=[("Idempotency-Key", "k")])
    assert face.request(headers=[("Idempotency-Key", '"k"')]).replayed == "true"


def test_strict_refuses_bare_keys(serve: Serve) -> None:
    """With ``strict`` only the quoted form is taken."""
    face = serve(says(201), strict=True)
    problem(face.request(headers=[("Idempotency-Key", "k")]), 400, "key_invalid")
    assert face.request(headers=[("Idempotency-Key", '"k"')]).status == 201


def test_the_header_has_the_name_that_was_chosen(serve: Serve) -> None:
    """Another header's name takes the place of Idempotency-Key, which then means nothing."""
    face = serve(says(201), header="X-Request-Key")
    face.request(headers=[("X-Request-Key", "k")])
    assert face.request(headers=[("X-Request-Key", "k")]).replayed == "true"
    assert face.request(headers=[KEY]).replayed is None


@pytest.mark.parametrize(
    "principal", [lambda _: None, lambda _: "", lambda _: " ", lambda request: request.headers["x-nobody"]]
)
def test_without_a_principal_nothing_runs(serve: Serve, principal: Any) -> None:
    """C21, T06: A caller who is not known, or whose header is missing, is refused; there is no bucket for all."""
    face = serve(says(), principal=principal)
    refused = face.request()
    problem(refused, 401, "principal_missing")
    assert refused.header("www-authenticate") is None
    assert face.handler.count == 0


def test_a_refused_caller_may_be_told_how_to_become_known(serve: Serve) -> None:
    """RFC 9110, section 11.6.1: with ``challenge`` a 401 says what it asks for."""
    face = serve(says(), principal=lambda _: None, challenge='Bearer realm="shop"')
    assert face.request().header("www-authenticate") == 'Bearer realm="shop"'


def test_a_principal_must_be_text(serve: Serve) -> None:
    """A principal that is no text is a fault of the program, told as such; nothing runs."""
    face = serve(says(), principal=lambda _: 7)
    with pytest.raises(TypeError, match="principal gave a value of type int"):
        face.request()
    assert face.handler.count == 0


@pytest.mark.parametrize("within", ["", "shop"])
@pytest.mark.parametrize("name", ["a\x00b", "a\x85b", "a" * 2000, "a" * 255 + ":", "\ud800"])
def test_a_principal_that_can_name_nobody_is_not_known(serve: Serve, name: str, within: str) -> None:
    """C21: a text that no account has is refused alike in every namespace of a guard, and no key is blamed.

    So is a look-up. The name is not told; nothing runs.
    """
    face = serve(says(), principal=lambda _: name, challenge="Bearer", status_path="/status")
    if within:
        face.app._guard = face.guard.within(within)
    for refused in (face.request(), face.request("/status?idempotency_key=k", method="GET", headers=[])):
        told = problem(refused, 401, "principal_missing")
        assert "can't be an account's" in told["detail"]
        assert "key" not in told["detail"]
        assert "aaa" not in str(told)
        assert refused.header("www-authenticate") == "Bearer"
    assert face.handler.count == 0


@pytest.mark.parametrize("given", [None, "", " ", (), ("charge", None), ("charge", ""), ("charge", 0.5), b"charge"])
def test_a_scope_that_names_nothing_is_a_fault_of_the_program(serve: Serve, given: Any) -> None:
    """C23: the client, whose key is sound, is not told to send another one; the server says what the function gave.

    So does a look-up. Nothing runs.
    """
    face = serve(says(), scope=lambda _: given, status_path="/status")
    with pytest.raises(TypeError, match=re.escape(f"scope gave {given!r}, which no operation can be named by: ")):
        face.request()
    with pytest.raises(TypeError, match="scope gave"):
        face.request("/status?idempotency_key=k", method="GET", headers=[])
    assert face.handler.count == 0


def test_a_scope_of_texts_that_can_not_be_came_with_the_request(serve: Serve) -> None:
    """C23: where a scope holds what a client sent, one that is too long, or has control characters, is its mistake."""
    for text in ("x" * 2000, "a\x00b"):
        face = serve(says(), scope=lambda _, text=text: ("order", text))
        problem(face.request(), 400, "key_invalid")
        assert face.handler.count == 0


@pytest.mark.parametrize("name", ["required", "scope", "fingerprint"])
def test_a_function_that_gives_something_to_wait_for_is_refused(serve: Serve, name: str) -> None:
    """What has to be awaited is true whatever it would say, and names nothing: the program is told; nothing runs."""
    waiting = Waiting()
    options: Any = {name: lambda *_: waiting}
    face = serve(says(), **options)
    with pytest.raises(TypeError, match=name):
        face.request(headers=[] if name == "required" else [KEY])
    assert face.handler.count == 0


def test_keys_belong_to_their_principal(serve: Serve) -> None:
    """C21, P11, T06: The same key and body of two accounts are two operations, and neither sees the other's answer."""
    face = serve(says(201, b'"one"'), says(201, b'"two"'), principal=lambda request: request.headers["x-user"])
    first = face.request(headers=[KEY, ("X-User", "one")])
    second = face.request(headers=[KEY, ("X-User", "two")])
    assert (first.body, second.body, face.handler.count) == (b'"one"', b'"two"', 2)
    assert face.request(headers=[KEY, ("X-User", "one")]).body == b'"one"'
    assert face.request(headers=[KEY, ("X-User", "two")]).body == b'"two"'


def test_shared_makes_all_callers_one(serve: Serve) -> None:
    """``principal=SHARED`` says on purpose that all callers are one."""
    face = serve(says(201), principal=SHARED)
    face.request(headers=[KEY, ("X-User", "one")])
    assert face.request(headers=[KEY, ("X-User", "two")]).replayed == "true"
