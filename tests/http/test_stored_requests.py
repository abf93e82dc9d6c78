"""A request as a record keeps it: what an application is given again, and that it always fits into the record."""

from __future__ import annotations

from typing import Any

import pytest

from notwice.codec import decode_value, encode_value
from notwice.errors import UnsupportedRecord
from notwice.http.exchange import RequestHeaders, RequestView, restored
from notwice.http.exchange import stored as requests
from notwice.http.exchange.stored import StoredRequest, storable


def asked(headers: tuple[tuple[str, str], ...] = (), path: str = "/pay", query: str = "", **scope: Any) -> RequestView:
    return RequestView("POST", path, path, query, RequestHeaders(headers), scope)


def again(request: RequestView, body: bytes = b"") -> StoredRequest:
    """The request as it comes out of its record."""
    return restored(decode_value(encode_value(storable(request, body, kept=frozenset()))))


def test_an_application_is_given_the_same_scope() -> None:
    """ASGI 3.0: each name that a server gives, with its value; what nobody has told is left at what ASGI says."""
    request = RequestView(
        "PUT",
        "/caf\u00e9",
        "/caf%C3%A9",
        "a=%20",
        RequestHeaders((("x", "1"), ("X", "2"), ("Authorization", "secret"))),
        {"scheme": "https", "root_path": "/shop", "client": ("10.0.0.7", 4711)},
    )
    assert again(request, b"body") == StoredRequest(
        {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "PUT",
            "scheme": "https",
            "path": "/caf\u00e9",
            "raw_path": b"/caf%C3%A9",
            "query_string": b"a=%20",
            "root_path": "/shop",
            "headers": [(b"x", b"1"), (b"x", b"2")],
            "client": ("10.0.0.7", 0),
            "server": None,
        },
        b"body",
        ("authorization",),
    )
    bare = again(asked()).scope
    assert (bare["scheme"], bare["root_path"], bare["client"]) == ("http", "", None)


def shapes(size: int) -> dict[str, tuple[RequestView, bytes]]:
    """Requests of about so many bytes, each by another of its parts."""
    many = tuple((f"x-{number}", "y") for number in range(size // 16))
    return {
        "body": (asked(), b"x" * size),
        "path": (asked(path="/" + "\u00e9" * (size // 4)), b""),
        "query": (asked(query="\u00e9" * (size // 2)), b""),
        "root": (asked(root_path="\u00e9" * (size // 2)), b""),
        "value": (asked((("x", "\u00e9" * (size // 2)),)), b""),
        "name": (asked((("\u00e9" * (size // 2), "x"),)), b""),
        "many": (asked(many), b""),
        "left out": (asked(tuple((f"key-{number}", "y") for number in range(size // 16))), b""),
        "long and left out": (asked((("key-" + "\u00e9" * (size // 2), "y"),)), b""),
    }


@pytest.mark.parametrize("shape", list(shapes(0)))
def test_what_is_kept_fits_whatever_makes_it_large(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C43: a request is kept as long as it fits, and one that does not fit is left out, not cut or refused.

    Its size is told before it is encoded, so it must never be told as less than it is.
    """
    monkeypatch.setattr(requests, "REQUEST_BYTES_MAX", 8000)
    sizes = [
        (size, found)
        for size in range(0, 10_000, 250)
        for request, body in [shapes(size)[shape]]
        for found in [storable(request, body, kept=frozenset())]
    ]
    kept = [(size, len(encode_value(found))) for size, found in sizes if found is not None]
    assert max(encoded for _, encoded in kept) <= 8000
    assert max(size for size, _ in kept) >= 2000
    assert sizes[-1][1] is None


def test_what_is_no_stored_request_is_told_with_what_to_do() -> None:
    """P14: an older release that meets what a newer one has stored leaves it to that one."""
    sound: Any = storable(asked(client=("10.0.0.7", 1)), b"", kept=frozenset())
    assert restored(sound).scope["client"] == ("10.0.0.7", 0)
    for other in ({"form": 2}, {**sound, "form": 2}, {**sound, "client": 7}, {**sound, "left_out": [7]}):
        with pytest.raises(UnsupportedRecord, match="no HTTP request of this release; upgrade this process"):
            restored(other)
