"""The guard in front of services that know nothing of it: once per key, whatever dies in the middle."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.server import processes
from tests.server.processes import Answer, Process, Raw, ask, begun, keyed, until

LANGUAGES = ["python", "node"]


def charge(gateway: Process, key: str, path: str = "/charge", body: Any = b'{"amount": 1}') -> Answer:
    return ask(gateway.port, "POST", path, body, key=key, headers={"Content-Type": "application/json"})


def code(answer: Answer) -> str:
    assert answer.header("content-type") == "application/problem+json"
    found: str = answer.document["code"]
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_charge_happens_once_and_each_repetition_gets_its_answer(tmp_path: Path, language: str) -> None:
    """P2, P3, T06: one effect per caller and key; a replay is the first answer: status, kept headers, bytes."""
    with (
        processes.upstream(tmp_path, language=language) as service,
        processes.gateway(tmp_path, service.port) as gateway,
    ):
        first = charge(gateway, "k1")
        again = charge(gateway, "k1", body=b'{ "amount":1 }')
        assert (first.status, first.body) == (again.status, again.body) == (201, b'{"charged": true}')
        assert (first.header("idempotency-replayed"), again.header("idempotency-replayed")) == (None, "true")
        assert again.header("location") == "/charges/1"
        assert len(begun(tmp_path)) == 1

        assert code(charge(gateway, "k1", body=b'{"amount": 2}')) == "key_reused"
        other = ask(gateway.port, "POST", "/charge", key="k1", headers={"X-Account-Id": "a2"})
        assert other.header("idempotency-replayed") is None
        assert len(begun(tmp_path)) == 2


def test_twenty_callers_at_once_make_one_charge(gateway: Process, folder: Path) -> None:
    """P1, P4, C01: whoever comes while the first is at work is refused with 409, and nothing runs."""
    first: list[Answer] = []
    caller = threading.Thread(target=lambda: first.append(charge(gateway, "crowd", "/slow")))
    caller.start()
    assert until(lambda: "POST /slow" in begun(folder))
    others = [charge(gateway, "crowd", "/slow") for _ in range(19)]
    ask(gateway.port, "GET", "/go")
    caller.join()
    assert first[0].status == 201
    assert {(answer.status, code(answer)) for answer in others} == {(409, "in_progress")}
    assert all(int(answer.header("retry-after") or 0) >= 1 for answer in others)
    assert charge(gateway, "crowd", "/slow").header("idempotency-replayed") == "true"
    assert begun(folder).count("POST /slow") == 1


def test_a_request_without_a_key_or_of_another_method_is_not_guarded(gateway: Process, folder: Path) -> None:
    """T17: two equal requests without a key are two requests."""
    for method, key in (("POST", None), ("PUT", "k"), ("GET", "k")):
        for _ in range(2):
            answer = ask(gateway.port, method, "/echo/unguarded", key=key)
            assert answer.header("idempotency-replayed") is None
        assert begun(folder).count(f"{method} /echo/unguarded") == 2


@pytest.mark.parametrize("headers", [{}, {"X-Account-Id": ""}, {"X-Account-Id": "a, b" * 100}])
def test_a_caller_who_is_not_known_is_refused(gateway: Process, headers: dict[str, str]) -> None:
    """T06: without a usable principal a guarded request is refused, and nothing reaches the service."""
    answer = ask(gateway.port, "POST", "/charge", headers={"Idempotency-Key": "nobody", **headers})
    assert answer.status == 401
    assert code(answer) == "principal_missing"


def test_two_different_principals_in_one_request_are_none(gateway: Process) -> None:
    """A caller can't add a second account to what stands before the gateway has set."""
    raw = Raw(gateway.port)
    raw.say(
        b"POST /charge HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nX-Account-Id: a1\r\nX-Account-Id: a2\r\n"
        b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
    assert raw.rest().startswith(b"HTTP/1.1 401")
    raw.close()


@pytest.fixture
def gone() -> int:
    return processes.free_port()


def test_no_connection_means_nothing_happened(tmp_path: Path, gone: int) -> None:
    """P10: a refused connection is 502 and frees the key: once the service is back, the same key runs."""
    with processes.gateway(tmp_path, gone) as gateway:
        for _ in range(2):
            refused = charge(gateway, "k1")
            assert (refused.status, code(refused)) == (502, "upstream_unreachable")
            assert refused.header("retry-after") == "1"
            assert refused.header("idempotency-outcome") == "not-applied"
        with processes.upstream(tmp_path, port=gone):
            assert charge(gateway, "k1").status == 201
            assert charge(gateway, "k1").header("idempotency-replayed") == "true"
    assert begun(tmp_path) == ["POST /charge"]


def test_a_connection_that_is_not_accepted_in_time_means_the_same(tmp_path: Path) -> None:
    """P10: as long as no byte has left, nothing happened."""
    with processes.deaf() as port, processes.gateway(tmp_path, port, "--upstream-connect-timeout", "0.2s") as gateway:
        answer = charge(gateway, "k1")
    assert (answer.status, code(answer)) == (502, "upstream_unreachable")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_service_that_is_killed_in_mid_charge_leaves_an_unknown_outcome(tmp_path: Path, language: str) -> None:
    """P7, T08: the caller is told so, no repetition charges again, and no 502 is replayed for ever."""
    with (
        processes.upstream(tmp_path, language=language) as service,
        processes.gateway(tmp_path, service.port) as gateway,
    ):
        lost = charge(gateway, "k1", "/die")
        assert (lost.status, code(lost)) == (502, "upstream_lost")
        assert lost.header("idempotency-outcome") == "unknown"
        assert lost.document["safe_new_key"] is False
        assert lost.document["operation"].startswith("idem_")
        with processes.upstream(tmp_path, port=service.port, language=language):
            again = charge(gateway, "k1", "/die")
            assert (again.status, code(again)) == (409, "unresolved")
            assert again.document["operation"] == lost.document["operation"]
    assert begun(tmp_path) == ["POST /die"]


def test_a_rerun_is_sent_again_where_that_is_the_policy(tmp_path: Path) -> None:
    """Under ``--recovery rerun`` the service is asked again; it sees the caller's key and can refuse."""
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--recovery", "rerun") as gateway,
    ):
        assert charge(gateway, "k1", "/die").status == 502
        with processes.upstream(tmp_path, port=service.port):
            assert charge(gateway, "k1", "/die").status == 502
    assert begun(tmp_path) == ["POST /die", "POST /die"]


def test_no_connection_says_nothing_of_an_earlier_attempt(tmp_path: Path) -> None:
    """P10: under ``--recovery rerun`` a request that was lost before is not said to be not applied, only because it
    could not be sent once more.
    """
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--recovery", "rerun") as gateway,
    ):
        assert code(charge(gateway, "k1", "/die")) == "upstream_lost"
        again = charge(gateway, "k1", "/die")
        assert (again.status, code(again), again.header("idempotency-outcome")) == (409, "unresolved", "unknown")
        assert again.header("retry-after") == "1"
        assert "not_freed" in gateway.log.read_text()


def test_a_service_whose_503_proves_that_nothing_happened(tmp_path: Path) -> None:
    """C38: ``--statuses`` says for a service what its answers mean: here each 503 frees its key, and 500 is final."""
    options = ("--statuses", "503=abandoned,500=failed")
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, *options) as gateway:
        for path, runs in (("/status/503", 2), ("/status/500", 1), ("/status/502", 1)):
            assert [charge(gateway, path[-3:], path).status for _ in range(2)] == [int(path[-3:])] * 2
            assert begun(tmp_path).count(f"POST {path}") == runs


@pytest.mark.parametrize("path", ["/close", "/nonsense"])
def test_an_answer_that_is_no_answer_leaves_an_unknown_outcome(gateway: Process, folder: Path, path: str) -> None:
    """C34: nothing, or what is no HTTP, is no answer."""
    lost = charge(gateway, path[1:], path)
    assert (lost.status, code(lost)) == (502, "upstream_lost")
    assert code(charge(gateway, path[1:], path)) == "unresolved"
    assert begun(folder).count(f"POST {path}") == 1


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    """C34: an answer that breaks off breaks off for the caller; the outcome is unknown, nothing is replayed."""
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port) as gateway:
        raw = Raw(gateway.port)
        raw.say(keyed("POST /half", "k1"))
        assert raw.rest().endswith(b"half")
        raw.close()
        assert code(ask(gateway.port, "POST", "/half", key="k1")) == "unresolved"
        assert "ASGI callable" not in gateway.log.read_text()
    assert begun(tmp_path) == ["POST /half"]


def test_a_service_that_is_silent_for_too_long_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    """A time-out after the request has left is 504 and says nothing about the effect."""
    options = ("--upstream-timeout", "0.3s")
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, *options) as gateway:
        late = charge(gateway, "k1", "/silent")
        assert (late.status, code(late)) == (504, "upstream_timeout")
        assert late.header("idempotency-outcome") == "unknown"
        assert code(charge(gateway, "k1", "/silent")) == "unresolved"
    assert begun(tmp_path) == ["POST /silent"]


def test_an_unguarded_request_is_told_the_same(tmp_path: Path) -> None:
    """Without a key the answers are the same; there is only nobody to hold a repetition back."""
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port) as gateway:
        assert code(ask(gateway.port, "POST", "/close")) == "upstream_lost"
        service.kill()
        assert code(ask(gateway.port, "GET", "/echo")) == "upstream_unreachable"


def test_a_stream_that_breaks_in_the_middle_breaks_for_the_caller_too(tmp_path: Path) -> None:
    """An unguarded answer that was cut short never looks whole."""
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port) as gateway:
        raw = Raw(gateway.port)
        raw.say(b"GET /half HTTP/1.1\r\nHost: h\r\n\r\n")
        heard = raw.rest()
        raw.close()
        assert b"content-length: 1000" in heard
        assert heard.endswith(b"half")
        assert ask(gateway.port, "GET", "/-/notwice/health/live").status == 200


@pytest.mark.parametrize(
    ("path", "repeated"),
    [
        ("/status/200", "replayed"), ("/status/204", "replayed"), ("/status/303", "replayed"),
        ("/status/400", "replayed"), ("/status/409", "replayed"),
        ("/status/500", "replayed"), ("/status/503", "replayed"), ("/status/429", "runs"),
        ("/status/401", "runs"), ("/status/503?not-applied", "runs"), ("/status/429?final", "replayed"),
        ("/status/200?unknown", "replayed"),
    ],
)  # fmt: skip
def test_what_a_status_means_and_what_a_service_says_of_it(
    gateway: Process, folder: Path, path: str, repeated: str
) -> None:
    """C38, C39: the table of outcomes holds for a service that knows nothing; one that knows can overrule it."""
    first, again = (charge(gateway, "".join(filter(str.isalnum, path)), path) for _ in range(2))
    status = int(path[8:11])
    assert first.status == again.status == status
    held = repeated == "replayed" and (status >= 500 or path.endswith("unknown"))
    assert first.header("idempotency-outcome") is None
    assert again.header("idempotency-outcome") == ("unknown" if held else None)
    assert begun(folder).count(f"POST {path}") == (1 if repeated == "replayed" else 2)


def test_the_gateway_is_killed_in_mid_charge(tmp_path: Path) -> None:
    """P7, C07: what a killed gateway was at work on is held when its lease is over; no repetition goes on."""
    with processes.upstream(tmp_path) as service:
        with processes.gateway(tmp_path, service.port, "--lease", "1s") as gateway:
            raw = Raw(gateway.port)
            raw.say(keyed("POST /slow", "k1"))
            assert until(lambda: "POST /slow" in begun(tmp_path))
            gateway.kill()
            raw.close()
        with processes.gateway(tmp_path, service.port, "--lease", "1s") as gateway:
            early = ask(gateway.port, "POST", "/slow", key="k1")
            assert early.status == 409
            assert until(lambda: code(ask(gateway.port, "POST", "/slow", key="k1")) == "unresolved")
    assert begun(tmp_path) == ["POST /slow"]


def test_a_caller_who_hangs_up_finds_the_answer_when_he_comes_back(gateway: Process, folder: Path) -> None:
    """P13, T07: the service works on to its end, and its answer is there for the repetition."""
    raw = Raw(gateway.port)
    raw.say(keyed("POST /charge?hang", "hang"))
    raw.reset()

    def repeated() -> bool:
        return ask(gateway.port, "POST", "/charge?hang", key="hang").header("idempotency-replayed") == "true"

    assert until(repeated)
    assert begun(folder).count("POST /charge?hang") == 1


def test_a_duplicate_may_wait_for_the_answer(tmp_path: Path) -> None:
    """P4, C03: with ``--wait`` a duplicate gets the first answer as soon as it is there."""
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, "--wait", "20s") as gateway:
        found: list[Answer] = []
        callers = [threading.Thread(target=lambda: found.append(charge(gateway, "k1", "/slow"))) for _ in range(2)]
        for caller in callers:
            caller.start()
        assert until(lambda: "POST /slow" in begun(tmp_path))
        ask(gateway.port, "GET", "/go")
        for caller in callers:
            caller.join()
    assert [(answer.status, answer.body) for answer in found] == [(201, b"slow")] * 2
    assert {answer.header("idempotency-replayed") for answer in found} == {None, "true"}
    assert begun(tmp_path).count("POST /slow") == 1


def test_the_state_of_a_key_can_be_asked_for(gateway: Process) -> None:
    """P12: its owner can look a key up, and one that is not there is said to be absent."""
    charge(gateway, "look")
    found = ask(gateway.port, "GET", "/status?idempotency_key=look", headers={"X-Account-Id": "a1"})
    assert found.document["state"] == "completed"
    other = ask(gateway.port, "GET", "/status?idempotency_key=look", headers={"X-Account-Id": "a2"})
    assert other.document["state"] == "not_found"


def test_a_body_over_the_limit_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """T05: what is too large to be guarded does not go unguarded."""
    options = ("--request-bytes-max", "1KB", "--required")
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port, *options) as gateway:
        assert code(charge(gateway, "k1", body=b"x" * 1001)) == "request_too_large"
        assert code(ask(gateway.port, "POST", "/charge", headers={"X-Account-Id": "a1"})) == "key_missing"
        assert begun(tmp_path) == []


def test_a_replay_is_not_dated_back(gateway: Process) -> None:
    """C31: the first answer's Date is not replayed; each answer has its own."""
    first, again = charge(gateway, "dated"), charge(gateway, "dated")
    assert [name.lower() for name, _ in again.headers].count("date") == 1
    assert json.loads(first.body) == json.loads(again.body)
