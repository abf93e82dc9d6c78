"""What the services share: their guard, their counters, and the gates at which a handler waits for its test.

Everything goes through files in one folder, so that it holds across the processes of a server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from notwice import AsyncGuard, Guard, Policy

FOLDER = Path(os.environ.get("NOTWICE_TEST_FOLDER", "."))
FILE_BYTES = 300_000
LARGE_BYTES = 2 * 1024 * 1024
RESPONSE_BYTES_MAX = 1024 * 1024
PARTS = (b"one,", b"two,", b"three")


def ran(name: str) -> int:
    """Count a run of a handler; gives how many there were, this one included."""
    with (FOLDER / f"{name}.runs").open("ab") as file:
        file.write(b".")
    return runs(name)


def runs(name: str) -> int:
    path = FOLDER / f"{name}.runs"
    return path.stat().st_size if path.exists() else 0


def enter(name: str) -> None:
    """Wait until the test knows that the handler is here."""
    (FOLDER / f"{name}.entered").write_text(str(os.getpid()))


def pass_gate(name: str) -> None:
    """Tell the test that the handler is inside, and wait until the test lets it go."""
    enter(name)
    (FOLDER / f"{name}.go").read_bytes()


def make_gate(name: str, folder: Path) -> None:
    for end in ("entered", "go"):
        os.mkfifo(folder / f"{name}.{end}")


def wait_until_entered(name: str, folder: Path) -> int:
    """Gives the process in which the handler is."""
    return int((folder / f"{name}.entered").read_text())


def let_go(name: str, folder: Path) -> None:
    (folder / f"{name}.go").write_bytes(b"")


def path_of_file(size: int) -> Path:
    path = FOLDER / f"file.{size}"
    if not path.exists():
        path.write_bytes(bytes(range(256)) * (size // 256))
    return path


def policy(request: Any) -> Policy:
    """A wait and a lease as the test asks for them."""
    headers = request.headers
    return Policy(wait=float(headers.get("x-wait", "0")), lease=float(headers.get("x-lease", "300")))


def options() -> dict[str, Any]:
    return {
        "principal": lambda request: request.headers.get("x-account"),
        "policy": policy,
        "status_path": "/status",
        "response_bytes_max": RESPONSE_BYTES_MAX,
    }


def guard() -> Guard:
    return Guard.open(os.environ.get("NOTWICE_TEST_STORE", "memory://"))


def async_guard() -> AsyncGuard:
    return AsyncGuard.open(os.environ.get("NOTWICE_TEST_STORE", "memory://"))


def events(count: int) -> Iterator[bytes]:
    """Events; endless ones are large, so that a client which reads none of them is noticed."""
    number = 0
    while count == 0 or number < count:
        number += 1
        yield b"data: %d%s\n\n" % (number, b"." * (65536 if count == 0 else 0))


def gated_parts(name: str) -> Iterator[bytes]:
    """An answer in parts, with a gate behind the first."""
    yield PARTS[0]
    pass_gate(name)
    yield from PARTS[1:]
