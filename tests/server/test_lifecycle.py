"""Starting, stopping, health and logs of the gateway."""

import contextlib
import fcntl
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from notwice.server import app
from notwice.server.kinds import Address
from tests.server import processes
from tests.server.processes import Answer, Process, Raw, ask, begun, keyed, until

LIVE, READY = "/-/notwice/health/live", "/-/notwice/health/ready"


def start(*options: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a gateway that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "notwice", "serve", *options],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_stop_finishes_what_runs(tmp_path: Path) -> None:
    """SIGTERM in mid-charge: nothing new is accepted, the charge is answered and stored, and the status is 0."""
    with processes.upstream(tmp_path) as service:
        with processes.gateway(tmp_path, service.port) as gateway:
            found: list[Answer] = []
            caller = threading.Thread(target=lambda: found.append(ask(gateway.port, "POST", "/slow", key="k1")))
            caller.start()
            assert until(lambda: "POST /slow" in begun(tmp_path))
            gateway.terminate()
            assert until(lambda: refuses(gateway.port))
            assert not found
            ask(service.port, "GET", "/go")
            caller.join()
            assert (found[0].status, found[0].body) == (201, b"slow")
            assert gateway.wait() == 0
        with processes.gateway(tmp_path, service.port) as gateway:
            assert ask(gateway.port, "POST", "/slow", key="k1").header("idempotency-replayed") == "true"


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return True
    return False


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    """What still runs after the grace is given up; its outcome is unknown, and stored as that."""
    with processes.upstream(tmp_path) as service:
        with processes.gateway(tmp_path, service.port, "--shutdown-grace", "1s") as gateway:
            raw = Raw(gateway.port)
            raw.say(keyed("POST /slow", "k1"))
            assert until(lambda: "POST /slow" in begun(tmp_path))
            gateway.terminate()
            assert gateway.wait() == 0
            raw.close()
        with processes.gateway(tmp_path, service.port) as gateway:
            assert ask(gateway.port, "POST", "/slow", key="k1").document["code"] == "unresolved"


@pytest.mark.parametrize("key", ["k1", None], ids=["guarded", "open"])
@pytest.mark.parametrize("signals", [1, 2])
def test_whoever_a_stop_gives_up_is_told_that_nobody_knows(tmp_path: Path, signals: int, key: str | None) -> None:
    """The caller of what a second signal, or the end of the grace, breaks off hears that it may have taken effect."""
    grace = "1s" if signals == 1 else "1m"
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--shutdown-grace", grace) as gateway,
    ):
        found: list[Answer] = []
        caller = threading.Thread(target=lambda: found.append(ask(gateway.port, "POST", "/slow", key=key)))
        caller.start()
        assert until(lambda: "POST /slow" in begun(tmp_path))
        gateway.terminate()
        assert until(lambda: refuses(gateway.port))
        if signals > 1:
            gateway.terminate()
        caller.join()
        assert gateway.wait() == 0
    assert (found[0].status, found[0].document["code"]) == (503, "gateway_stopped")
    assert found[0].header("idempotency-outcome") == "unknown"
    assert found[0].document["safe_new_key"] is False
    assert "Traceback" not in gateway.log.read_text()


def test_an_idle_connection_does_not_hold_a_stop_up(gateway: Process) -> None:
    """A caller who keeps a connection open for later has no claim on the gateway."""
    raw = Raw(gateway.port)
    raw.say(f"GET {LIVE} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    raw.hear(b"live")
    gateway.terminate()
    assert gateway.wait() == 0
    raw.close()


def test_health_tells_of_the_store_and_of_the_upstream_apart(tmp_path: Path) -> None:
    """An upstream that is away is told of, but the gateway stays ready: it answers duplicates without it."""
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port) as gateway:
        ready = ask(gateway.port, "GET", READY)
        assert (ready.status, ready.document) == (200, {"status": "ready", "store": "ok", "upstream": "reachable"})
        service.kill()
        ready = ask(gateway.port, "GET", READY)
        assert (ready.status, ready.document) == (200, {"status": "ready", "store": "ok", "upstream": "unreachable"})
        assert ask(gateway.port, "GET", LIVE).status == 200
        assert ask(gateway.port, "GET", "/-/notwice/health").status == 404
        assert ask(gateway.port, "POST", READY).status == 405
        assert not [line for line in begun(tmp_path) if "health" in line]


@contextlib.contextmanager
def locked_out(folder: Path) -> Iterator[None]:
    """Hold all locks of the store's file, so that nobody else can read or write it."""
    with (folder / "notwice.db-shm").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 8, 120)
        yield


def test_a_gateway_whose_store_does_not_answer_refuses_and_says_so(tmp_path: Path) -> None:
    """P8, C12: it is live but not ready; guarded requests are refused, others go through; then it heals."""
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--store-timeout", "300ms") as gateway,
    ):
        assert ask(gateway.port, "POST", "/charge", key="k0").status == 201
        with locked_out(tmp_path):
            assert ask(gateway.port, "GET", LIVE).status == 200
            ready = ask(gateway.port, "GET", READY)
            assert (ready.status, ready.document["store"]) == (503, "unavailable")
            refused = ask(gateway.port, "POST", "/charge", key="k1")
            assert (refused.status, refused.document["code"]) == (503, "store_unavailable")
            assert refused.header("retry-after")
            assert ask(gateway.port, "GET", "/echo").status == 200
            assert begun(tmp_path).count("POST /charge") == 1
        assert until(lambda: ask(gateway.port, "GET", READY).status == 200)
        assert until(lambda: ask(gateway.port, "POST", "/charge", key="k1").status == 201)
    assert begun(tmp_path).count("POST /charge") == 2


def test_the_paths_of_health_can_be_moved(tmp_path: Path) -> None:
    """A service may use our path itself; then health is asked for elsewhere."""
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--health-path", "/healthz/") as gateway,
    ):
        assert ask(gateway.port, "GET", "/healthz/live").status == 200
        assert ask(gateway.port, "GET", "/healthzz").document["line"].startswith("GET /healthzz")
        assert ask(gateway.port, "GET", LIVE).document["line"].startswith(f"GET {LIVE}")


def test_no_key_body_or_credential_gets_into_a_log(tmp_path: Path) -> None:
    """P15: at the most talkative level the log has neither keys nor bodies, queries, tokens or cookies."""
    secrets = ["secret-key", "secret-body", "secret-query", "secret-token", "secret-cookie", "secret-account"]
    headers = {"Authorization": "Bearer secret-token", "Cookie": "c=secret-cookie", "X-Account-Id": "secret-account"}
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--log-level", "debug", "--status-path", "/status") as gateway,
    ):
        for path in ("/charge?q=secret-query", "/close", "/charge?q=secret-query"):
            ask(gateway.port, "POST", path, b"secret-body", key="secret-key", headers=headers)
        ask(gateway.port, "GET", "/status?idempotency_key=secret-key", headers=headers)
        service.kill()
        ask(gateway.port, "POST", "/gone", b"secret-body", key="secret-key-2", headers=headers)
        log = gateway.log
    text = log.read_text()
    assert '"POST /charge" 201' in text
    assert [secret for secret in secrets if secret in text] == []


def test_a_path_can_not_forge_a_line_of_the_log(gateway_again: Process) -> None:
    """What a caller sends can't start a line of its own."""
    raw = Raw(gateway_again.port)
    raw.say(b"GET /echo/%0AINFO%20forged HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    raw.rest()
    raw.close()
    assert until(lambda: "/echo/%0AINFO%20forged" in gateway_again.log.read_text())


@pytest.fixture
def gateway_again(tmp_path: Path, service: Process) -> object:
    with processes.gateway(tmp_path, service.port) as process:
        yield process


def test_the_log_can_be_quiet(tmp_path: Path, service: Process) -> None:
    """Without the access log a good request leaves no line."""
    with processes.gateway(tmp_path, service.port, "--no-access-log") as gateway:
        ask(gateway.port, "GET", "/echo")
        assert gateway.log.read_text() == ""


def test_what_is_wrong_at_the_start_is_said_at_once(tmp_path: Path) -> None:
    """Wrong options end the start with status 2 and a sentence each; a store that is not there with 3."""
    wrong = start("--upstream", "nonsense", "--recovery", "redo", NOTWICE_LEASE="soon")
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 4
    assert "Traceback" not in wrong.stderr

    unknown = start("--upstrem", "http://127.0.0.1:1")
    assert (unknown.returncode, "did you mean --upstream?" in unknown.stderr) == (2, True)

    usual = ("--upstream", "http://127.0.0.1:1", "--principal", "shared", "--listen", "127.0.0.1:0")
    scheme = start(*usual, "--store", "sqlight:///x.db", folder=tmp_path)
    assert (scheme.returncode, "sqlite" in scheme.stderr) == (2, True)
    strange = start(*usual, "--store", "nonsense://x", folder=tmp_path)
    assert (strange.returncode, ".." in strange.stderr, strange.stderr.endswith(".\n")) == (2, False, True)
    nowhere = start(*usual, "--store", "sqlite:///no/such/folder/x.db", folder=tmp_path)
    assert nowhere.returncode == 3
    assert "Traceback" not in nowhere.stderr


def test_a_gateway_does_not_stand_before_itself(tmp_path: Path) -> None:
    """An upstream that is the gateway's own address ends the start with status 2: it would ask itself for ever."""
    port = processes.free_port()
    usual = ("--principal", "shared", "--store", "memory://", "--listen", f"127.0.0.1:{port}")
    for name in ("127.0.0.1", "localhost"):
        own = start(*usual, "--upstream", f"http://{name}:{port}")
        assert (own.returncode, f"{name}:{port} is the gateway itself." in own.stderr) == (2, True)


def test_a_taken_port_is_said_at_once(gateway_again: Process) -> None:
    """Where another process listens, the start ends with status 3."""
    usual = ("--upstream", "http://127.0.0.1:1", "--principal", "shared", "--store", "memory://")
    taken = start(*usual, "--listen", f"127.0.0.1:{gateway_again.port}")
    assert (taken.returncode, "in use" in taken.stderr) == (3, True)


def test_small_answers_are_not_held_back() -> None:
    """Without its protocol named, a listener's connections wait for acknowledgements: 40 ms for each small answer."""
    with app._listener(Address("127.0.0.1", 0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_all_options_may_come_from_a_file(tmp_path: Path, service: Process) -> None:
    """A gateway runs from ``--config`` alone."""
    file = tmp_path / "notwice.toml"
    file.write_text(
        f'upstream = "http://127.0.0.1:{service.port}"\nprincipal = "shared"\nlisten = "[::1]:0"\n'
        f'store = "{processes.store_url(tmp_path)}"\nrequired = true\n'
    )
    command = [sys.executable, "-m", "notwice", "serve", "--config", str(file)]
    process = Process(command, {}, tmp_path / "log")
    connection = http.client.HTTPConnection("::1", process.port, timeout=20)
    connection.request("POST", "/charge", headers={"Idempotency-Key": "k1"})
    assert connection.getresponse().status == 201
    connection.close()
    process.close()
