"""Callers and services that bend HTTP: what they can't get past the gateway, and what it makes of it."""

import json
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from notwice.server import forwarding
from notwice.server.inbound import HEAD_BYTES_MAX
from tests.server.processes import Answer, Process, Raw, ask, begun

LAST = "Connection: close"


def say(gateway: Process, *lines: str, body: str = "") -> bytes:
    """Send one request with these header lines, and give all that comes back until the connection ends."""
    raw = Raw(gateway.port)
    raw.say("\r\n".join(["POST /echo HTTP/1.1", "Host: h", *lines, "", body]).encode("latin-1"))
    try:
        return raw.rest()
    except ConnectionResetError:
        return b""
    finally:
        raw.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def echoed(answer: bytes) -> dict[str, list[str]]:
    """The headers that the service was sent."""
    found: dict[str, list[str]] = {}
    for name, value in json.loads(answer.partition(b"\r\n\r\n")[2])["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def raw_answer(gateway: Process, *lines: str, key: str, body: str = "") -> Answer:
    """Have the service answer a guarded request with these bytes."""
    answer = "\r\n".join([*lines, "", body]).encode("latin-1")
    return ask(gateway.port, "POST", f"/raw?{answer.hex()}", key=key)


@pytest.mark.parametrize(
    ("one", "other"), [("\u00e0", "\u00c5"), ("caf\u00e0", "caf\u00c5"), ("\u65e0", "\u65c5"), ("a1", "A1")]
)
def test_accounts_whose_names_look_alike_in_bytes_do_not_meet(gateway: Process, one: str, other: str) -> None:
    """P11: names in UTF-8 that differ only in a byte which some take for a blank are two accounts."""
    key = f"Idempotency-Key: alike-{one.encode().hex()}"
    for name in (one, other):
        account = "X-Account-Id: " + name.encode().decode("latin-1")
        answer = say(gateway, key, account, "Content-Length: 0", LAST)
        assert status(answer) == 200
        assert b"idempotency-replayed" not in answer


@pytest.mark.parametrize("value", ["a1\xa0", "\x85a1", "\xe9"])
def test_an_account_that_is_no_text_is_nobody(gateway: Process, value: str) -> None:
    """P11: bytes that are no UTF-8 name no account, and least of all one that they are like."""
    answer = say(gateway, "Idempotency-Key: no-text", f"X-Account-Id: {value}", "Content-Length: 0", LAST)
    assert status(answer) == 401


def test_nobody_says_in_a_trailer_who_he_is(gateway: Process, folder: Path) -> None:
    """P11: trailers are no headers: neither an account nor a key is taken from them, and none of them goes on."""
    body = "1\r\nx\r\n0\r\nX-Account-Id: a2\r\n\r\n"
    answer = say(gateway, "Idempotency-Key: trailer", "Transfer-Encoding: chunked", LAST, body=body)
    assert status(answer) == 401
    body = "1\r\nx\r\n0\r\nIdempotency-Key: trailer\r\nX-Admin: 1\r\n\r\n"
    answer = say(gateway, "X-Account-Id: a1", "Transfer-Encoding: chunked", LAST, body=body)
    assert not echoed(answer).keys() & {"idempotency-key", "x-admin"}


def test_connection_takes_nothing_away_from_a_request(gateway: Process) -> None:
    """A caller who names them in Connection can't strip the length, the account, the key, a proxy's word of him, or any
    credential, whatever header a service takes it from.
    """
    named = "Connection: close, content-length, x-account-id, idempotency-key, x-forwarded-for, authorization, x-mine"
    lines = ("X-Account-Id: a1", "Idempotency-Key: strip", "X-Forwarded-For: 9.9.9.9", "Authorization: Bearer t")
    answer = say(gateway, named, *lines, "X-Mine: 1", "Content-Length: 2", body="ab")
    sent = echoed(answer)
    assert sent["x-account-id"] == ["a1"]
    assert sent["idempotency-key"] == ["strip"]
    assert sent["x-forwarded-for"] == ["9.9.9.9, 127.0.0.1"]
    assert sent["authorization"] == ["Bearer t"]
    assert sent["x-mine"] == ["1"]
    assert "connection" not in sent
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == "ab"


def test_a_request_for_two_hosts_is_refused(gateway: Process) -> None:
    """Who knows which of them whoever stands before the gateway has looked at."""
    answer = say(gateway, "Host: other", "Idempotency-Key: hosts", "X-Account-Id: a1", "Content-Length: 0", LAST)
    assert status(answer) == 400
    assert b"request_malformed" in answer


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        (["X-Long: " + "a" * 16 * HEAD_BYTES_MAX], ""),
        (["Transfer-Encoding: chunked"], "1;x=" + "a" * 16 * HEAD_BYTES_MAX),
        (["Transfer-Encoding: chunked"], "1\r\nx\r\n0\r\nX: " + "a" * 16 * HEAD_BYTES_MAX),
    ],
    ids=["head", "extension", "trailer"],
)
def test_what_grows_without_an_end_is_cut_off(gateway: Process, folder: Path, lines: list[str], body: str) -> None:
    """Memory is bounded for heads, for the extensions of a chunk and for trailers, too; nothing runs."""
    before = begun(folder)
    raw = Raw(gateway.port)
    account = ["Idempotency-Key: endless", "X-Account-Id: a1"]
    text = "\r\n".join(["POST /echo HTTP/1.1", "Host: h", *account, *lines, *(["", body] if body else [])])
    try:
        raw.say(text.encode())
        assert raw.rest()[:12] in (b"", b"HTTP/1.1 400")
    except (ConnectionResetError, BrokenPipeError):
        pass
    raw.close()
    assert begun(folder) == before


def test_a_large_head_passes(gateway: Process) -> None:
    """Cookies and tokens of some size are nothing unusual, and may come in pieces."""
    answer = say(gateway, "Cookie: " + "a" * (HEAD_BYTES_MAX - 1024), "Content-Length: 0", LAST)
    assert status(answer) == 200


def test_what_can_not_be_read_gets_no_answer_that_belongs_to_another_request(gateway: Process) -> None:
    """The caller of a running request must not take a refusal of the bytes after it for its answer."""
    lines = ("Idempotency-Key: rest", "X-Account-Id: a1", "Content-Length: 3")
    assert say(gateway, *lines, body="abc and more than it said") == b""
    answer = _until_finished(gateway, *lines, LAST, body="abc")
    assert status(answer) == 200
    assert b"idempotency-replayed: true" in answer


def _until_finished(gateway: Process, *lines: str, body: str) -> bytes:
    pause = threading.Event()
    for _ in range(100):
        answer = say(gateway, *lines, body=body)
        if status(answer) != HTTPStatus.CONFLICT:
            return answer
        pause.wait(0.02)
    raise AssertionError("the request has not ended")


@pytest.mark.parametrize("code", ["204 No Content", "304 Not Modified"])
def test_the_length_of_a_body_that_does_not_come_breaks_nothing(gateway: Process, code: str) -> None:
    """A 304 may tell the length of what it stands for; the connection stays usable after it."""
    answer = f"HTTP/1.1 {code}\r\nContent-Length: 12\r\nETag: x\r\nConnection: close\r\n\r\n".encode()
    raw = Raw(gateway.port)
    for _ in range(2):
        raw.say(f"GET /raw?{answer.hex()} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        head = raw.hear(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {code[:3]} ".encode())
        assert b"etag: x" in head
        assert b"content-length" not in head
    raw.close()


def test_a_control_character_in_an_answer_costs_nobody_the_answer(gateway: Process) -> None:
    """P2: it becomes a blank (RFC 9110, section 5.5), for the first caller and for each duplicate."""
    lines = ("HTTP/1.1 201 Created", "Location: /a\x01b", "X-Note: \x7f\tc", "Content-Length: 2")
    first, again = (raw_answer(gateway, *lines, key="control", body="ok") for _ in range(2))
    assert (first.status, first.header("location"), first.body) == (201, "/a b", b"ok")
    assert (again.status, again.header("location"), again.body) == (201, "/a b", b"ok")
    assert again.header("idempotency-replayed") == "true"


def test_each_control_character_but_the_tab_is_blanked() -> None:
    """What the server refuses to send is what is blanked; every other byte goes through."""
    every = bytes(range(256))
    ((_, value),) = forwarding.response_headers([(b"x", every)], 200)
    assert value == bytes(32 if (byte < 32 and byte != 9) or byte == 127 else byte for byte in every)


def test_two_words_about_one_outcome_free_no_key(gateway: Process, folder: Path) -> None:
    """P10: an answer that says both that it is final and that nothing happened proves nothing."""
    words: Any = ("HTTP/1.1 500 E", "Idempotency-Outcome: final", "Idempotency-Outcome: not-applied")
    for _ in range(2):
        assert raw_answer(gateway, *words, "Content-Length: 1", key="words", body="x").status == 500
    assert sum(line.startswith("POST /raw") and b"final".hex() in line for line in begun(folder)) == 1
