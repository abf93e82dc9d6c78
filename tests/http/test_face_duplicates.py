"""Both faces: what a duplicate is told, and what is taken for one."""

from __future__ import annotations

from typing import Any

import pytest

from notwice import Policy
from notwice.http import SHARED, HttpPolicy
from notwice.policy import rerun
from tests.http.harness import KEY, Serve, problem, says


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/pay", [("content-type", "application/json")], b'{"amount": 9000}'),
        ("/refund", [("content-type", "application/json")], b'{"amount": 100}'),
        ("/pay/", [("content-type", "application/json")], b'{"amount": 100}'),
        ("/pay?currency=eur", [("content-type", "application/json")], b'{"amount": 100}'),
        ("/pay", [("content-type", "text/plain")], b'{"amount": 100}'),
        ("/pay", [], b'{"amount": 100}'),
    ],
)
def test_a_key_of_another_request_is_refused(serve: Serve, path: str, headers: Any, body: bytes) -> None:
    """C18, C20, C23, P3: Another amount, path, query or media type under a used key is told so; the record is
    unchanged.
    """
    face = serve(says(201, b"first"))
    json_type = ("content-type", "application/json")
    face.request("/pay", [KEY, json_type], b'{"amount": 100}')
    answer = face.request(path, [KEY, *headers], body)
    document = problem(answer, 422, "key_reused")
    assert (document["safe_new_key"], answer.header("retry-after")) == (True, None)
    assert face.request("/pay", [KEY, json_type], b'{"amount": 100}').body == b"first"
    assert face.handler.count == 1


def test_another_method_is_another_request(serve: Serve) -> None:
    """C23: POST and PATCH under one key are two requests."""
    face = serve(says(201))
    face.request(method="POST")
    problem(face.request(method="PATCH"), 422, "key_reused")


def test_equal_json_is_the_same_request(serve: Serve) -> None:
    """C17: Spacing and the order of members make no other request; with ``canonical_json=False`` bytes are compared."""
    one, other = b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}'
    headers = [KEY, ("content-type", "application/json; charset=utf-8")]
    face = serve(says(201))
    face.request(headers=headers, body=one)
    assert face.request(headers=headers, body=other).replayed == "true"
    by_bytes = serve(says(201), canonical_json=False)
    by_bytes.request(headers=headers, body=one)
    problem(by_bytes.request(headers=headers, body=other), 422, "key_reused")


def test_equal_forms_are_the_same_request(serve: Serve) -> None:
    """C20: The boundary of a multipart form makes no other request."""

    def form(boundary: str) -> tuple[Any, bytes]:
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n7\r\n--{boundary}--\r\n'
        return [KEY, ("content-type", f"multipart/form-data; boundary={boundary}")], body.encode()

    face = serve(says(201))
    for boundary, replayed in [("one", None), ("another", "true")]:
        headers, body = form(boundary)
        assert face.request(headers=headers, body=body).replayed == replayed


def test_a_form_of_two_boundaries_is_another_request_under_another_one(serve: Serve) -> None:
    """P3: Some applications read the parts of the first boundary of a Content-Type, and some those of the last."""
    body = b"".join(b"--%b\r\n\r\n%b\r\n--%b--\r\n" % (each, each, each) for each in (b"A", b"B1", b"B2"))
    face = serve(says(201))
    for boundary in ("B1", "B2"):
        headers = [KEY, ("content-type", f"multipart/form-data; boundary=A; boundary={boundary}")]
        answer = face.request(headers=headers, body=body)
    problem(answer, 422, "key_reused")
    assert face.handler.count == 1


def test_a_function_may_choose_what_is_compared(serve: Serve) -> None:
    """``fingerprint`` gives the bytes to compare, from the request and its body; anything but bytes is a fault."""
    face = serve(says(201), fingerprint=lambda request, body: request.path.encode() + body[:3])
    face.request(body=b"abc1")
    assert face.request(body=b"abc2").replayed == "true"
    problem(face.request(body=b"xyz"), 422, "key_reused")
    wrong = serve(says(201), fingerprint=lambda request, body: "text")
    with pytest.raises(TypeError, match="fingerprint gave a value of type str"):
        wrong.request()
    assert wrong.handler.count == 0


def test_scopes_keep_operations_apart(serve: Serve) -> None:
    """C23: With the path in the scope, one key on two paths names two operations; parts do not run into one another."""
    face = serve(says(201), scope=lambda request: ("http", request.path))
    assert [face.request(path).replayed for path in ("/items/1", "/items/2", "/items/1")] == [None, None, "true"]
    assert {view.record.scope for view in face.records()} == {"http:/items/1", "http:/items/2"}


def test_a_policy_may_depend_on_the_request(serve: Serve) -> None:
    """``policy`` may be a function of the request; its terms are in the record."""
    chosen = {"/again": Policy(recovery=rerun), "/once": Policy()}
    face = serve(says(500))
    options = HttpPolicy(principal=SHARED, policy=lambda request: chosen[request.path])
    face.app = type(face.app)(face.app.app, guard=face.guard, http_policy=options)  # type: ignore[arg-type]  # of the same face
    for path, runs in (("/again", 2), ("/once", 3)):
        headers = [("Idempotency-Key", path)]
        face.request(path, headers)
        face.request(path, headers)
        assert face.handler.count == runs


def test_a_replay_is_authorised_first(serve: Serve) -> None:
    """C22: After a grant is revoked the stored answer is not given and is kept; once restored it is replayed."""
    granted = [True]
    face = serve(says(201, b"secret"), authorize_replay=lambda _: granted[0])
    face.request()
    granted[0] = False
    refused = face.request()
    problem(refused, 403, "replay_forbidden")
    assert b"secret" not in refused.body
    granted[0] = True
    assert face.request().body == b"secret"
    assert face.handler.count == 1


def test_the_handler_sees_its_operation_and_the_whole_request(serve: Serve) -> None:
    """The operation stands in the scope and is the current one; the body is there as it was sent, however large
    (C20).
    """
    body = bytes(range(256)) * 12_000
    face = serve(lambda seen: says(200, seen.operation.operation.encode()), request_bytes_max=len(body))
    answer = face.request(body=body, headers=[KEY, ("Content-Length", str(len(body)))])
    [run] = face.handler.runs
    assert run.body == body
    assert answer.body.startswith(b"idem_")
    assert face.records()[0].operation == answer.body.decode()
