"""The exchange's refusals of a key word for word, and when an answer may be cut short."""

from __future__ import annotations

import pytest

from notwice.errors import InvalidKey
from notwice.http.exchange.capture import Capture
from notwice.http.exchange.codings import offered
from notwice.http.exchange.keys import read_key, read_query_key
from notwice.http.exchange.settings import SHARED, HttpPolicy

EMPTY = "The idempotency key is empty. Send one of 1 to 255 characters."
LONG = "The idempotency key is longer than 255 characters."
TWO = "The request has two different idempotency keys. Send one."
MALFORMED = "The idempotency key is malformed. Send printable ASCII characters,"


@pytest.mark.parametrize(
    ("lines", "strict", "sentence"),
    [
        ([""], False, EMPTY),
        ([" \t "], False, EMPTY),
        (['""'], False, EMPTY),
        (['"  "'], True, EMPTY),
        (["a" * 256], False, LONG),
        (["a" * 5000], False, LONG),
        (["a", "b"], False, TWO),
        (["a, b"], False, TWO),
        (["a b"], False, f"{MALFORMED} bare, or in quotation marks if it holds a blank or a comma."),
        (["a,"], False, f"{MALFORMED} bare, or in quotation marks if it holds a blank or a comma."),
        (["a"], True, f"{MALFORMED} in quotation marks (RFC 9651)."),
        (['"a" "b"'], True, f"{MALFORMED} in quotation marks (RFC 9651)."),
    ],
)
def test_what_is_wrong_with_a_key(lines: list[str], strict: bool, sentence: str) -> None:
    """C28: a client is told what is wrong with its key, and what to send."""
    with pytest.raises(InvalidKey) as caught:
        read_key(lines, strict=strict)
    assert str(caught.value) == sentence


def test_what_is_wrong_with_a_key_in_a_query() -> None:
    """C28: the same is told of a parameter."""
    for texts, sentence in (
        ([""], EMPTY),
        (["a" * 256], LONG),
        (["a", "b"], TWO),
        (["\u00e9"], "The idempotency key holds a character that is not printable ASCII."),
    ):
        with pytest.raises(InvalidKey) as caught:
            read_query_key(texts)
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("accept", "shown"),
    [
        (["*, gzip"], "gzip"),
        (["gzip, *;q=0.5"], "gzip"),
        (["*;q=0.5, X-GZIP;q=0.1"], "X-GZIP;q=0.1"),
        (["*;q=0.5"], "gzip;q=0.5"),
        (["br"], "identity"),
    ],
)
def test_a_star_offers_gzip_once(accept: list[str], shown: str) -> None:
    """C33: a star stands for gzip where that is not named itself."""
    assert offered(accept) == shown


@pytest.mark.parametrize(
    ("kind", "breakable"),
    [("text/event-stream", True), (" Text/Event-Stream; charset=utf-8", True), ("text/plain", False), ("", False)],
)
def test_an_event_stream_may_be_cut_short(kind: str, breakable: bool) -> None:
    """C34: who stops listening to events has not broken the answer; the body of anything else is to arrive whole."""
    capture = Capture(HttpPolicy(principal=SHARED), "POST")
    capture.start(200, [("content-type", kind), ("x-kind", "text/event-stream")])
    assert capture.breakable is breakable
