"""Both faces: bodies that are not whole, that have no length, or that find no room."""

from __future__ import annotations

import errno
import io
import tempfile
from typing import Any

import pytest

from notwice.http.spool import MEMORY_BYTES_MAX
from tests.http.harness import KEY, AsgiFace, Handler, Serve, problem, says


@pytest.mark.parametrize("said", ["9", "4000"])
def test_a_body_that_is_shorter_than_it_was_said_to_be_runs_nothing(serve: Serve, said: str) -> None:
    """A request that never became whole is not run, claims nothing, and is told so; the whole one runs."""
    face = serve(says())
    length = ("Content-Length", said)
    problem(face.request(body=b"half", headers=[KEY, length]), 400, "request_incomplete")
    assert (face.handler.count, face.records()) == (0, [])
    assert face.request(body=b"half and half").status == 200


def test_a_body_of_the_length_that_was_said_runs(serve: Serve) -> None:
    """Said once, or not at all, a right length changes nothing."""
    face = serve(says())
    assert face.request(body=b"whole", headers=[KEY, ("Content-Length", "5")]).status == 200
    assert face.request(body=b"whole").replayed == "true"
    assert face.handler.count == 1


@pytest.mark.parametrize("said", ["-1", "abc", "1e3", "5, 6", "9" * 30, "\xb2"])
def test_a_length_that_is_none_runs_nothing(serve: Serve, said: str) -> None:
    """Nobody can tell whether such a body is whole."""
    face = serve(says())
    problem(face.request(body=b"whole", headers=[KEY, ("Content-Length", said)]), 413, "request_too_large")
    assert (face.handler.count, face.records()) == (0, [])


def asgi_face(*script: Any) -> AsgiFace:
    return AsgiFace(Handler(list(script)))


@pytest.mark.parametrize("length", [(), ("Content-Length", "9")])
def test_a_body_in_chunks_ends_where_they_end(length: tuple[str, str] | tuple[()]) -> None:
    """RFC 9112, section 6.3: beside a transfer coding no length counts."""
    face = asgi_face(says())
    lines = [KEY, ("Transfer-Encoding", "chunked"), *([length] if length else [])]
    assert face.request(body=b"half", headers=lines).status == 200
    face.close()


@pytest.mark.parametrize(("said", "status"), [(["5", "5"], 200), (["9", "9"], 400), (["5, 5"], 200), (["5", "9"], 413)])
def test_a_length_may_be_said_twice(said: list[str], status: int) -> None:
    """RFC 9110, section 8.6: equal lengths are one, and of different ones nobody knows which is right."""
    face = asgi_face(says())
    lengths = [("Content-Length", value) for value in said]
    assert face.request(body=b"whole", headers=[KEY, *lengths]).status == status
    face.close()


def test_a_body_that_a_server_lost_with_an_offer_runs_nothing() -> None:
    """A server whose parser ends a message at its head where it offers another protocol gives an empty body."""
    face = asgi_face(says())
    chunked = ("Transfer-Encoding", "chunked")
    offer = [KEY, chunked, ("Connection", "Upgrade"), ("Upgrade", "h2c")]
    problem(face.request(headers=offer), 400, "request_incomplete")
    assert face.records() == []
    assert face.request(headers=offer, body=b"whole").status == 200
    assert face.request(headers=[("Idempotency-Key", "k-2"), chunked]).status == 200
    face.close()


def test_what_is_not_guarded_is_not_looked_at(serve: Serve) -> None:
    """Without a key a false length is the application's business, as it was without the middleware."""
    face = serve(says())
    assert face.request(body=b"half", headers=[("Content-Length", "9")]).status == 200


class FullDisk(io.BytesIO):
    """A file that has no room for more than is in memory."""

    def __init__(self, fails_at: str) -> None:
        super().__init__()
        self.fails_at = fails_at
        self.written = 0

    def write(self, data: Any, /) -> int:
        self.written += len(data)
        if self.fails_at == "write" and self.written > MEMORY_BYTES_MAX:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)

    def seek(self, *place: int) -> int:
        if self.fails_at == "flush" and self.written > MEMORY_BYTES_MAX:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().seek(*place)

    def close(self) -> None:
        super().close()
        if self.written > MEMORY_BYTES_MAX:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("fails_at", ["write", "flush"])
def test_a_body_that_finds_no_room_is_refused_for_the_moment(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """A full disk runs nothing and keeps nothing: 503 with a time to come again."""
    face = serve(says())
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "SpooledTemporaryFile", lambda _: FullDisk(fails_at))
        answer = face.request(body=b"x" * (MEMORY_BYTES_MAX + 9))
    problem(answer, 503, "spool_unavailable")
    assert int(answer.header("retry-after") or 0) >= 1
    assert answer.header("idempotency-outcome") == "not-applied"
    assert (face.handler.count, face.records()) == (0, [])
    assert face.request(body=b"x" * (MEMORY_BYTES_MAX + 9)).status == 200
