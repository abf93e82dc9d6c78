"""Both faces: which headers come back with a replay."""

from __future__ import annotations

import pytest

from notwice import Policy
from tests.http.harness import Answered, Says, Serve, says


def test_kept_headers(serve: Serve) -> None:
    """C31, T10: Location and Link come back, in order; cookies, dates, limits and request ids are in no replay
    or record.
    """
    lines = [
        ("Location", "/payments/7"),
        ("Link", "</a>; rel=next"),
        ("Set-Cookie", "session=secret"),
        ("Link", "</b>; rel=last"),
        ("Set-Cookie", "csrf=secret"),
        ("Date", "Mon, 01 Jan 2024 00:00:00 GMT"),
        ("X-Request-Id", "r-1"),
        ("X-RateLimit-Remaining", "3"),
        ("RateLimit", "secret"),
        ("WWW-Authenticate", "Basic"),
        ("ETag", '"v1"'),
    ]
    face = serve(says(201, headers=lines))
    first, second = face.request(), face.request()
    assert first.lines("set-cookie") == ["session=secret", "csrf=secret"]
    assert second.lines("link") == ["</a>; rel=next", "</b>; rel=last"]
    assert (second.header("location"), second.header("etag")) == ("/payments/7", '"v1"')
    names = {name.lower() for name, _ in second.headers}
    assert not names & {"set-cookie", "date", "x-request-id", "x-ratelimit-remaining", "ratelimit", "www-authenticate"}
    assert "secret" not in repr(face.records())


def test_kept_headers_are_an_option(serve: Serve) -> None:
    """C31: Other headers are kept if they are named; the type always is."""
    face = serve(says(201, headers=[("X-Invoice", "7"), ("Location", "/7")]), kept_headers=["X-Invoice"])
    face.request()
    second = face.request()
    assert (second.header("x-invoice"), second.header("location")) == ("7", None)
    assert second.header("content-type") == "application/json"


def test_marks_are_exposed_to_browsers(serve: Serve) -> None:
    """C37: The marker and Retry-After can be read by scripts of other origins, beside what the app exposes."""
    face = serve(says(201, headers=[("Access-Control-Expose-Headers", "X-Total, idempotency-replayed")]))
    face.request()
    assert face.request().header("access-control-expose-headers") == "X-Total, idempotency-replayed"
    held = serve(says(402, headers=[("Retry-After", "3")]))
    held.request()
    replay = held.request()
    assert (replay.header("retry-after"), replay.replayed) == ("3", "true")
    assert replay.header("access-control-expose-headers") == "Idempotency-Replayed, Retry-After"


def test_what_is_counted(serve: Serve) -> None:
    """C37, C32: One run and two replays are counted as such, a replayed refusal among them."""
    face = serve(says(404))
    assert [face.request().replayed for _ in range(3)] == [None, "true", "true"]
    assert (face.observer.counts["claimed"], face.observer.counts["replayed"]) == (1, 2)


def test_a_head_request_has_no_body(serve: Serve) -> None:
    """C34: A guarded HEAD keeps and replays no body, whatever length it declares."""
    face = serve(Says(200, [("content-length", "9")], []), methods=["HEAD"])
    for replayed in (None, "true"):
        answer = face.request(method="HEAD")
        assert (answer.status, answer.body, answer.replayed) == (200, b"", replayed)


NAME = "Idempotency-Retention"


def retention_of(answer: Answered) -> str | None:
    exposed_headers = answer.header("access-control-expose-headers") or ""
    value = answer.header(NAME)
    assert (NAME in exposed_headers) is (value is not None)
    return value


@pytest.mark.parametrize("status", [200, 303, 402])
def test_retention_is_advertised(serve: Serve, status: int) -> None:
    """C41: by option, an answer that is kept says for how long; a replay says how much of that is left."""
    face = serve(says(status), policy=Policy(retention=3600), retention_header=NAME)
    assert retention_of(face.request()) == "3600"
    face.clock.advance(600)
    replay = face.request()
    assert (replay.replayed, retention_of(replay)) == ("true", "3000")
    face.clock.advance(3001)
    assert retention_of(face.request()) == "3600"
    assert face.handler.count == 2


@pytest.mark.parametrize("status", [429, 500])
def test_retention_of_what_is_not_kept(serve: Serve, status: int) -> None:
    """C41: what is freed, or held until it is known, has no such time; nor has a refusal, or what is kept for ever."""
    face = serve(says(status), policy=Policy(retention=3600), retention_header=NAME)
    for _ in range(2):
        assert retention_of(face.request()) is None
    kept = serve(says(201), policy=Policy(retention=None), retention_header=NAME)
    for _ in range(2):
        assert retention_of(kept.request()) is None
    other = serve(says(201), retention_header=NAME)
    other.request()
    assert retention_of(other.request(body=b"another")) is None


def test_retention_is_told_only_where_that_is_asked_for(serve: Serve) -> None:
    """Without the option no answer of the app's gets such a header; with it, the app's own of that name is replaced."""
    plain = serve(says(201, headers=((NAME, "7"),)))
    assert plain.request().header(NAME) == "7"
    asked = serve(says(201, headers=((NAME, "7"),)), policy=Policy(retention=60), retention_header=NAME)
    assert asked.request().lines(NAME) == ["60"]
