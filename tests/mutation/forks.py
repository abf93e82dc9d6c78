"""Runs the tests on every change of a workspace: ``python -m tests.mutation.forks``, in that folder.

mutmut writes the changes. The tests are collected once, and each change is tried in a forked child, with the tests
that came through the changed function: those that noticed other changes of it first, then the quickest. What came of
them is written to ``endings.json``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

KILLED, SURVIVED, UNTESTED, TIMED_OUT = "killed", "survived", "untested", "timed out"
SECONDS_MIN, SLOWER_MAX = 5.0, 10  # a test is given ten times what it takes as a rule, and 5 s more
NOBODY: Final = -1


class Covered(NamedTuple):
    """Which tests come through each function, by their places, and how long each test takes."""

    by_function: dict[str, list[int]]
    seconds: list[float]
    failed: list[str]


class Earlier(NamedTuple):
    """How the changes ended last time, and what the functions were then."""

    endings: dict[str, list[str]]
    hashes: dict[str, str]


class Forks:
    """A plugin of pytest, whose children run the tests."""

    def __init__(self, mutants: Mapping[str, list[str]], endings: dict[str, list[str]]) -> None:
        """`mutants`: the names of the changes by the function that they change; `endings`: what is known of others."""
        self._mutants = mutants
        self.endings = endings
        self.endings_file = Path("endings.json").absolute()

    def pytest_configure(self) -> None:
        """Have properties fail without a search for the smallest input that makes them."""
        from hypothesis import Phase, settings  # noqa: PLC0415 - pytest wants to be there first

        phases = (Phase.explicit, Phase.reuse, Phase.generate)
        settings.register_profile("mutation", deadline=None, derandomize=True, phases=phases)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every change in a child of its own."""
        gc.freeze()  # the children share what is there
        covered = Covered(*json.loads(_in_child(lambda: _coverage(session))[0]))
        if covered.failed:
            pytest.exit(f"without a change there are failures: {covered.failed}", returncode=1)
        told: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        for function, names in self._mutants.items():
            order = sorted(covered.by_function.get(function, ()), key=covered.seconds.__getitem__)
            for name in names:
                self.endings[name] = _tried(session, name, order, covered.seconds)
            self.endings_file.write_text(json.dumps(self.endings))
            told.write_line(f"{function}: {len(names)} changes, {len(order)} tests")
            told.flush()
        return True


def _tried(session: pytest.Session, name: str, order: list[int], seconds: Sequence[float]) -> list[str]:
    """How one change ended, and the test that noticed it, which is moved to the front of the order."""
    if not order:
        return [UNTESTED, ""]
    told, status = _in_child(lambda: str(_first_failure(session, name, order, seconds)))
    if not told:
        timed_out = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        return [TIMED_OUT if timed_out else KILLED, ""]
    if (place := int(told)) == NOBODY:
        return [SURVIVED, ""]
    order.remove(place)
    order.insert(0, place)
    return [KILLED, session.items[place].nodeid]


def _in_child(work: Callable[[], str]) -> tuple[str, int]:
    """What `work` says in a child, empty if the child ended without a word, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    return told.decode(), os.waitpid(child, 0)[1]


def _first_failure(session: pytest.Session, name: str, order: list[int], seconds: Sequence[float]) -> int:
    """The place of the first test that fails under a change; one that does not end ends this process."""
    _turn_on(name)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for place in order:
        signal.setitimer(signal.ITIMER_REAL, SECONDS_MIN + SLOWER_MAX * seconds[place])
        if not _passes(session.items[place]):
            return place
    return NOBODY


def _passes(item: pytest.Item) -> bool:
    """Run one test, with nothing left of it when it is over."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _coverage(session: pytest.Session) -> str:
    """Run all tests without a change, and see what they come through."""
    _turn_on("stats")
    hits: set[str] = import_module("mutmut.state").state()._stats
    found = Covered({}, [], [])
    for place, item in enumerate(session.items):
        hits.clear()
        started = time.monotonic()
        if not _passes(item):
            found.failed.append(item.nodeid)
        found.seconds.append(time.monotonic() - started)
        for function in hits:
            found.by_function.setdefault(function, []).append(place)
    return json.dumps(found)


def _turn_on(name: str) -> None:
    import_module("mutmut.mutation.trampoline").set_mutant_under_test(name)


def _changed() -> dict[str, list[str]]:
    """Let mutmut write the changes; give their names by function."""
    _turn_on("mutant_generation")
    files, main = import_module("mutmut.utils.file_utils"), import_module("mutmut.__main__")
    files.copy_src_dir()
    files.copy_also_copy_files()
    files.setup_source_paths()
    main.create_mutants(1)
    _turn_on("")
    found: dict[str, list[str]] = {}
    for meta in sorted(Path("mutants").rglob("*.meta")):
        for name in json.loads(meta.read_text())["exit_code_by_key"]:
            found.setdefault(name.rpartition("__mutmut_")[0], []).append(name)
    return found


def hashes(folder: Path) -> dict[str, str]:
    """What the functions of a workspace are, each by a digest of its text."""
    found: dict[str, str] = {}
    for meta in (folder / "mutants").rglob("*.meta"):
        told = json.loads(meta.read_text())
        for name in told["exit_code_by_key"]:
            function = name.rpartition("__mutmut_")[0]
            found[function] = told["hash_by_function_name"].get(function.rpartition(".")[2], "")
    return found


def main() -> int:
    """Try all changes of the workspace."""
    Path("mutants").mkdir(exist_ok=True)
    configured = import_module("mutmut.configuration").config()
    held = set(json.loads(Path("held.json").read_text()))
    earlier = Earlier(*json.loads(Path("earlier.json").read_text()))
    changed = _changed()
    same = {function for function, text in hashes(Path()).items() if earlier.hashes.get(function) == text}
    noticed = {
        name: earlier.endings[name]
        for function in changed.keys() & same
        for name in changed[function]
        if earlier.endings.get(name, [SURVIVED])[0] in (KILLED, TIMED_OUT)
    }
    left = {function: [name for name in names if name not in noticed] for function, names in changed.items()}
    forks = Forks({function: names for function, names in left.items() if names and function not in held}, noticed)
    forks.endings_file.write_text(json.dumps(noticed))
    os.chdir("mutants")
    arguments = [*configured.pytest_add_cli_args, *configured.pytest_add_cli_args_test_selection]
    fixed = ["--rootdir=.", "--tb=native", "--basetemp=../temporary"]
    return int(pytest.main([*fixed, *arguments], plugins=[forks]))


if __name__ == "__main__":
    sys.exit(main())
