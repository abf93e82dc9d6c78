"""A gateway that has no file descriptors left."""

import asyncio
import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest

from notwice.server.scarcity import SAID_EVERY_SECONDS, Scarcity
from tests.server.processes import Process, Raw, ask, gateway, until, upstream

OUT_OF = "socket.accept() out of system resource"
SAID = "No more connections can be accepted"


def descriptors(process: Process) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_a_gateway_without_descriptors_says_so_in_one_line_and_goes_on(tmp_path: Path) -> None:
    """What can't be accepted waits, and is served once others have ended; meanwhile the log does not fill the disk."""
    with upstream(tmp_path) as service, gateway(tmp_path, service.port) as process:
        assert ask(process.port, "POST", "/charge", key="before").status == 201
        spare = descriptors(process) + 10
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (spare, spare))
        with contextlib.ExitStack() as callers:
            for _ in range(40):
                callers.enter_context(Raw(process.port))
            assert until(lambda: SAID in process.log.read_text())
        assert until(lambda: descriptors(process) < spare - 5)
        assert ask(process.port, "GET", "/echo").status == 200
        log = process.log.read_text()
    assert log.count(SAID) == 1
    assert "ulimit -n" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_it_is_said_again_once_a_minute(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """A lack that lasts stays visible, and a thousand complaints a second are one line a minute."""
    time = 0.0
    scarcity = Scarcity(now=lambda: time)
    for _ in range(1000):
        scarcity(asyncio.get_running_loop(), {"message": OUT_OF, "exception": OSError(number, os.strerror(number))})
    time += SAID_EVERY_SECONDS
    scarcity(asyncio.get_running_loop(), {"message": OUT_OF, "exception": OSError(number, os.strerror(number))})
    assert [record.name for record in caplog.records] == ["notwice.server"] * 2
    assert os.strerror(number) in caplog.text


@pytest.mark.parametrize(
    "context",
    [
        {"message": "Task exception was never retrieved", "exception": OSError(errno.EMFILE, "x")},
        {"message": OUT_OF, "exception": OSError(errno.EPERM, "x")},
        {"message": "Something else"},
    ],
)
async def test_nothing_else_is_kept_back(context: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    """Every other complaint of the event loop is logged each time, as without it."""
    scarcity = Scarcity(now=lambda: 0.0)
    for _ in range(2):
        scarcity(asyncio.get_running_loop(), context)
    assert [record.name for record in caplog.records] == ["asyncio"] * 2
