"""What a gateway does beside its requests, and what it lets its store keep."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from notwice import AsyncOperation, new_key
from notwice.recovery import Round
from notwice.server import options
from notwice.server.app import _resend, compose
from notwice.server.settings import Settings
from notwice.server.upstream import Upstream
from tests.server import processes
from tests.server.processes import ask, begun, until


def records(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "notwice.db")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM notwice_record").fetchone()
        return int(count)


def test_expired_answers_leave_by_schedule(tmp_path: Path) -> None:
    """C42: with --purge-every, what has expired leaves a quiet store; what is unresolved stays."""
    options = ("--retention", "200ms", "--purge-every", "100ms", "--retention-header", "Idempotency-Retention")
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, *options) as gateway,
    ):
        first = ask(gateway.port, "POST", "/charge", key="k1")
        assert (first.status, first.header("idempotency-retention")) == (201, "0")
        assert ask(gateway.port, "POST", "/status/500", key="k2").status == 500
        assert until(lambda: records(tmp_path) == 1)
        assert ask(gateway.port, "POST", "/charge", key="k1").header("idempotency-replayed") is None
        gateway.terminate()
        assert gateway.wait() == 0


def test_a_gateway_seals_and_hashes(tmp_path: Path) -> None:
    """P15: with keys that seal and hashed keys the store's files hold neither answers nor keys; replays are as ever."""
    keys = tmp_path / "keys"
    keys.write_text(new_key("2027-01"))
    options = ("--seal-keys-file", str(keys), "--hash-keys", "--compress-above", "1KiB", "--status-path", "/status")
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, *options) as gateway,
    ):
        first = ask(gateway.port, "POST", "/charge", key="secret-key-1")
        again = ask(gateway.port, "POST", "/charge", key="secret-key-1")
        assert (first.status, again.header("idempotency-replayed")) == (201, "true")
        assert first.body == again.body
        found = ask(gateway.port, "GET", "/status?idempotency_key=secret-key-1", headers={"X-Account-Id": "a1"})
        assert found.document["idempotency_key"] == "secret-key-1"
        assert found.document["state"] == "completed"
        stored = b"".join(path.read_bytes() for path in tmp_path.glob("notwice.db*"))
        assert b"idem_" in stored
        assert not [text for text in (b"charged", b"secret-key-1") if text in stored]
    with processes.upstream(tmp_path) as service, processes.gateway(tmp_path, service.port) as gateway:
        refused = ask(gateway.port, "POST", "/charge", key="secret-key-1")
        assert (refused.status, refused.document["code"]) == (503, "unsupported_record")
        assert len([line for line in begun(tmp_path) if line.startswith("POST /charge")]) == 1


def test_a_caller_with_too_many_unresolved_requests(tmp_path: Path) -> None:
    """With --unresolved-max one caller is told 429, and another one is served."""
    with (
        processes.upstream(tmp_path) as service,
        processes.gateway(tmp_path, service.port, "--unresolved-max", "2") as gateway,
    ):
        for key in ("k1", "k2"):
            assert ask(gateway.port, "POST", "/status/500", key=key).status == 500
        refused = ask(gateway.port, "POST", "/charge", key="k3")
        assert (refused.status, refused.document["code"]) == (429, "unresolved_full")
        assert refused.header("retry-after") == "30"
        other = {"Idempotency-Key": "k3", "X-Account-Id": "a2"}
        assert ask(gateway.port, "POST", "/charge", headers=other).status == 201


def test_keys_that_can_not_be_used(tmp_path: Path) -> None:
    """P15: the gateway does not start with keys that it can't use, or that are not there; it does not print them."""
    (tmp_path / "blank").write_text("\n")
    command = [sys.executable, "-m", "notwice", "serve", "--upstream", "http://127.0.0.1:9", "--principal", "shared"]
    for environment, sentence in (
        ({"NOTWICE_SEAL_KEYS": "2027-01:c2VjcmV0"}, "must be 32 bytes in base64"),
        ({"NOTWICE_SEAL_KEYS": "x", "NOTWICE_SEAL_KEYS_FILE": "y"}, "not by both"),
        ({"NOTWICE_SEAL_KEYS_FILE": str(tmp_path / "absent")}, "absent"),
        ({"NOTWICE_SEAL_KEYS_FILE": str(tmp_path / "blank")}, "blank holds no key that seals"),
    ):
        options = ["--store", f"sqlite:///{tmp_path / 'n.db'}", "--listen", "127.0.0.1:0"]
        ran = subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode in (2, 3)
        assert sentence in ran.stderr
        assert "c2VjcmV0" not in ran.stderr
        assert "Traceback" not in ran.stderr


def test_secrets_are_no_part_of_what_is_shown() -> None:
    """P15: settings that are printed hold no key."""
    assert "c2VjcmV0" not in repr(Settings(seal_keys="k:c2VjcmV0"))
    assert json.dumps(str(Settings().seal_keys)) == '""'


async def test_an_upstream_is_left_alone_while_nothing_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --store-requests the gateway tries a connection before it sends anything again, and only then."""
    given = {"upstream": "http://127.0.0.1:9", "principal": "shared", "store": "memory://", "recovery": "rerun"}
    settings = options.read(Settings, {**given, "store_requests": "true"}, {})
    gateway, tried = compose(settings), []

    async def reachable(_upstream: Upstream, timeout: float) -> bool:  # noqa: ASYNC109 - as Upstream has it
        tried.append(timeout)
        return False

    monkeypatch.setattr(Upstream, "reachable", reachable)
    assert (await _resend(gateway, settings, asyncio.Event()), tried) == (Round(), [])
    operation = await gateway.guard.begin("http", "k1", request={})
    assert isinstance(operation, AsyncOperation)
    await operation.suspend("the upstream was lost")
    assert (await _resend(gateway, settings, asyncio.Event()), tried) == (Round(), [5.0])
    await gateway.guard.close()
