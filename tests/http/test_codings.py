"""Content codings: a replay decodes to equal bytes for any client."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notwice.http.exchange.codings import DECODED_BYTES_MAX, accepts, for_client, offered
from notwice.http.exchange.headers import exposed, values, with_vary
from tests.http.harness import KEY, Serve, says

BODY = b'{"payment": 7}' * 40
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)
ENCODED = {
    "gzip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "raw deflate": RAW.compress(BODY) + RAW.flush(),
    "gzip, gzip": gzip.compress(gzip.compress(BODY)),
    "two members": gzip.compress(BODY[:100]) + gzip.compress(BODY[100:]),
}
CODING = {"raw deflate": "deflate", "two members": "gzip"}


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("accept", [[], ["identity"], ["br"], ["gzip;q=0, deflate;q=0"]])
def test_a_client_that_does_not_take_the_coding_gets_the_plain_body(name: str, accept: list[str]) -> None:
    """C33: What the standard library can decode is decoded, and the answer says that it varies."""
    headers, body = for_client((("content-encoding", CODING.get(name, name)),), ENCODED[name], accept)
    assert (headers, body) == ((("vary", "Accept-Encoding"),), BODY)


@pytest.mark.parametrize("accept", [["gzip"], ["br, gzip;q=0.5"], ["*"], ["x-gzip"], ["identity;q=0", "GZIP"]])
def test_a_client_that_takes_the_coding_gets_the_bytes_as_they_are(accept: list[str]) -> None:
    """C33: The kept bytes and their Content-Encoding go to whoever takes it."""
    kept = (("content-encoding", "gzip"), ("vary", "Accept-Encoding"))
    assert for_client(kept, ENCODED["gzip"], accept) == (kept, ENCODED["gzip"])


@pytest.mark.parametrize(
    ("coding", "body"),
    [("br", b"xyz"), ("gzip", b"not gzip"), ("gzip", ENCODED["gzip"][:-9])],
    ids=["unknown", "not what it says", "cut short"],
)
def test_what_can_not_be_decoded_goes_out_as_it_is(coding: str, body: bytes) -> None:
    """C33: A coding of the app's own choice, or a damaged body, is given as the first client got it."""
    assert for_client((("content-encoding", coding),), body, []) == ((("content-encoding", coding),), body)


def test_a_body_that_grows_without_bound_is_not_decoded() -> None:
    """A small body that stands for an immense one is given as it is."""
    bomb = gzip.compress(bytes(DECODED_BYTES_MAX + 1), 1)
    assert for_client((("content-encoding", "gzip"),), bomb, [])[1] == bomb


@pytest.mark.parametrize(
    ("accept", "shown"),
    [
        ([], None),
        (["gzip, deflate, br, zstd"], "gzip, deflate"),
        (["br;q=1.0, gzip;q=0.8, *;q=0.1"], "gzip;q=0.8"),
        (["br"], "identity"),
        (["*"], "gzip"),
        (["br", "gzip"], "gzip"),
        (["identity;q=0, br"], "identity;q=0"),
        (["GZIP"], "GZIP"),
        ([""], "identity"),
    ],
)
def test_what_the_app_is_offered(accept: list[str], shown: str | None) -> None:
    """C33: Only codings that can be decoded again are offered to the app of a guarded request."""
    assert offered(accept) == shown


def test_the_handler_is_shown_what_it_is_offered(serve: Serve) -> None:
    """C33: The handler of a guarded request sees no coding that could not be decoded again; of others it sees all."""
    face = serve(says())
    for key in ([KEY], []):
        face.request(headers=[*key, ("Accept-Encoding", "br, gzip;q=0.5"), ("Accept-Language", "br")])
    guarded, unguarded = (run.headers for run in face.handler.runs)
    assert (guarded["accept-encoding"], guarded["accept-language"]) == ("gzip;q=0.5", "br")
    assert unguarded["accept-encoding"] == "br, gzip;q=0.5"


@given(st.lists(st.text(st.characters(max_codepoint=255), max_size=40), max_size=4), st.sampled_from(["gzip", "br"]))
def test_any_accept_encoding_is_read(lines: list[str], coding: str) -> None:
    """Whatever stands in Accept-Encoding, it is read without an error, and what is offered can be decoded."""
    accepts(lines, coding)
    shown = offered(lines) or "identity"
    names = {part.partition(";")[0].strip().lower() for part in shown.split(",")}
    assert names <= {"gzip", "x-gzip", "deflate", "identity"}


@pytest.mark.parametrize("first", [[("Accept-Encoding", "gzip")], []])
@pytest.mark.parametrize("retry", [[("Accept-Encoding", "gzip")], [("Accept-Encoding", "br")], []])
def test_first_and_retry_decode_to_equal_bytes(
    serve: Serve, first: list[tuple[str, str]], retry: list[tuple[str, str]]
) -> None:
    """C33: With the guard outside of a compressor, whatever the first client and the retry accept."""

    def compresses(seen: object) -> object:
        if "gzip" in seen.headers.get("accept-encoding", ""):  # type: ignore[attr-defined]  # a Seen
            return says(406, ENCODED["gzip"], [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")])
        return says(406, BODY, [("Vary", "Accept-Encoding")])

    face = serve(compresses)
    for headers in (first, retry):
        answer = face.request(headers=[KEY, *headers])
        coded = answer.header("content-encoding") == "gzip"
        assert answer.header("content-length") == str(len(answer.body))
        assert (gzip.decompress(answer.body) if coded else answer.body) == BODY
        assert not coded or ("Accept-Encoding", "gzip") in headers
        assert answer.header("vary") == "Accept-Encoding"
    assert face.handler.count == 1


def test_an_omitted_body_has_no_coding(serve: Serve) -> None:
    """The replay of a body that was not kept is empty, and not said to be compressed."""
    face = serve(says(200, b"x" * 11, [("Content-Encoding", "gzip"), ("ETag", '"1"')]), response_bytes_max=10)
    face.request()
    answer = face.request()
    assert (answer.body, answer.header("content-encoding"), answer.header("etag")) == (b"", None, '"1"')


@pytest.mark.parametrize(
    ("before", "after"), [((), "A"), ((("vary", "B, a"),), "B, a"), ((("Vary", "B"),), "B, A"), ((("vary", "*"),), "*")]
)
def test_vary_is_added_to(before: tuple[tuple[str, str], ...], after: str) -> None:
    """A name is added to Vary once."""
    assert values(with_vary(before, "A"), "vary") == [after]


@pytest.mark.parametrize(
    ("before", "after"),
    [([], "X, Y"), (["y"], "y, X"), (["A", "B"], "A, B, X, Y"), (["*"], "*, X, Y"), (["x,Y"], "x,Y")],
)
def test_exposed_headers_are_added_to(before: list[str], after: str) -> None:
    """Names are added to what the app exposes, each once."""
    headers = tuple(("access-control-expose-headers", value) for value in before)
    assert values(exposed(headers, ["X", "Y"]), "access-control-expose-headers") == [after]
