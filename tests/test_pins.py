"""Every package that the project installs has one version, written in `constraints.txt`."""

import re
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.sources import ROOT

PIN = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)==([0-9][A-Za-z0-9.!+]*)")
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_a_pin_is_a_name_and_a_version() -> None:
    """The file holds name==version lines in alphabetical order, each name once, and no address of an index."""
    assert [line for line in LINES if not PIN.fullmatch(line)] == []
    names = [line.partition("==")[0] for line in LINES]
    assert names == sorted(set(names))


def needed(requirement: str) -> set[str]:
    """The names of all packages that a requirement brings in, its own included."""
    found: set[str] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        current = waiting.pop()
        mark = f"{canonicalize_name(current.name)}[{','.join(sorted(current.extras))}]"
        if mark not in found:
            found.add(mark)
            waiting += requirements_of(current)
    return {mark.partition("[")[0] for mark in found}


def requirements_of(package: Requirement) -> list[Requirement]:
    extras = ["", *package.extras]
    asked = [Requirement(line) for line in distribution(package.name).requires or []]
    return [each for each in asked if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras)]


def installed(name: str) -> str | None:
    try:
        return distribution(name).version
    except PackageNotFoundError:
        return None


def test_everything_that_is_installed_is_pinned() -> None:
    """What the extras and the build bring in, transitively, is installed at the version of its pin."""
    pins = dict(line.split("==") for line in LINES)
    names = (needed("notwice[all]") | needed("hatchling")) - {"notwice"}
    assert {name: installed(name) for name in names} == {name: pins.get(name) for name in names}
