"""Both faces: sizes, pieces and kinds of bodies."""

from __future__ import annotations

import pytest

from tests.http.harness import KEY, Says, Serve, problem, says


@pytest.mark.parametrize("declared", [True, False])
def test_a_request_over_the_limit_is_refused_before_anything_runs(serve: Serve, declared: bool) -> None:
    """T05: A body over ``request_bytes_max`` is refused, never let through without a guard; one byte less is
    guarded.
    """
    face = serve(says(), request_bytes_max=100)
    length = [("Content-Length", "101")] if declared else []
    problem(face.request(body=b"x" * 101, headers=[KEY, *length]), 413, "request_too_large")
    assert face.handler.count == 0
    assert face.records() == []
    assert face.request(body=b"x" * 100).status == 200


def test_an_answer_over_the_limit_is_kept_without_its_body(serve: Serve) -> None:
    """T05, C34: A body over ``response_bytes_max`` goes to the client whole; the replay has status, headers and
    the mark.
    """
    face = serve(says(201, [b"x" * 60, b"y" * 60], [("Location", "/7")]), response_bytes_max=100)
    first, second = face.request(), face.request()
    assert first.body == b"x" * 60 + b"y" * 60
    assert (second.status, second.body, second.replayed) == (201, b"", "omitted")
    assert (second.header("location"), second.header("content-length")) == ("/7", "0")
    assert face.handler.count == 1


@pytest.mark.parametrize("parts", [[], [b""], [b"a"], [b"a", b"b", b"c"], [b"a", b"", b"c", b""], [b"", b"", b""]])
@pytest.mark.parametrize("declared", [True, False])
def test_an_answer_in_pieces_is_replayed_whole(serve: Serve, parts: list[bytes], declared: bool) -> None:
    """C34, T02: However an answer is cut into chunks, empty ones included, it is kept and replayed whole."""
    length = [("content-length", str(len(b"".join(parts))))] if declared else []
    face = serve(Says(200, [("content-type", "text/plain"), *length], parts))
    first, second = face.request(), face.request()
    assert first.body == second.body == b"".join(parts)
    assert (second.replayed, face.handler.count) == ("true", 1)


def test_bytes_are_replayed_as_they_were(serve: Serve) -> None:
    """T23: A binary body comes back byte for byte, neither empty nor decoded."""
    body = bytes(range(256)) * 4
    face = serve(says(200, body, [("content-type", "application/octet-stream")]))
    assert [face.request().body for _ in range(2)] == [body, body]


def test_event_streams_are_kept_too(serve: Serve) -> None:
    """C34: An event stream that came to its end is replayed."""
    face = serve(Says(200, [("content-type", "text/event-stream")], [b"data: 1\n\n", b"data: 2\n\n"]))
    assert [face.request().body for _ in range(2)] == [b"data: 1\n\ndata: 2\n\n"] * 2
    assert face.handler.count == 1


@pytest.mark.parametrize(("declared", "body"), [(10, b"short"), (2, b"too long")])
def test_an_answer_of_a_false_length_is_no_answer(serve: Serve, declared: int, body: bytes) -> None:
    """An answer with other than its declared bytes breaks at the server: its operation is unresolved, without
    an answer.
    """
    face = serve(Says(200, [("content-length", str(declared))], [body]))
    face.request()
    problem(face.request(), 409, "unresolved")
