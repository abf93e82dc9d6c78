"""Writers of which the n-th system call of a kind fails or kills, for every n: one program under strace for all.

strace counts calls for each process by itself and injects its fault at the same number in each. So the program forks a
child for every n, and a child makes calls of that kind on a file that means nothing first, until only n are left.

As a program: ``python -m tests.stores.nth_call FOLDER NAME CALL MOST ...`` makes the children 1 to MOST, in which
``FOLDER/n/NAME`` is the store, ``FOLDER/n/said`` what its writer said and ``FOLDER/n/ended`` how it ended; the rest are
the writer's own arguments.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.sources import ROOT
from tests.stores import writer
from tests.stores.children import exit_code, start_child

IN_VAIN = "in-vain"


def _place_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


BURN: dict[str, Callable[[int], object]] = {
    "fdatasync": os.fdatasync,
    "fsync": os.fsync,
    "pwrite64": lambda descriptor: os.pwrite(descriptor, b"", 0),
    "write": lambda descriptor: os.write(descriptor, b""),
    "pread64": lambda descriptor: os.pread(descriptor, 0, 0),
    "ftruncate": lambda descriptor: os.ftruncate(descriptor, 0),
    "fcntl": lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_GETFD),
    "openat": lambda descriptor: os.close(os.open(_place_of(descriptor), os.O_RDONLY)),
    "rename": lambda descriptor: _place_of(descriptor).rename(_place_of(descriptor)),
}


class Fault(NamedTuple):
    """What befalls which system calls. `most` is more than any writer makes of them."""

    calls: str
    how: str
    most: int


class Run(NamedTuple):
    """One writer: its number, where its store is, what it said, and whether it was hit."""

    number: int
    path: Path
    lines: list[str]
    hit: bool


def at_every_call(
    folder: Path, name: str, fault: Fault, *, traced: Callable[[Path], list[Path]], options: Sequence[str]
) -> Iterator[Run]:
    """Writers of which the first, the second … call fails, as far as they make so many.

    `traced` gives the files of a store whose calls count, `options` are the writers' arguments.
    """
    stores = {number: folder / str(number) / name for number in range(1, fault.most + 1)}
    for path in stores.values():
        path.parent.mkdir()
    log, in_vain = folder / "strace", folder / IN_VAIN
    in_vain.touch()
    faster = [] if fault.how.startswith("signal") else ["--seccomp-bpf"]  # where it is on, no signal is delivered
    places = [in_vain, *(place for path in stores.values() for place in traced(path))]
    command = [
        *("strace", "--follow-forks", *faster, f"--output={log}", *(f"--trace-path={place}" for place in places)),
        *(f"--trace={fault.calls}", f"--inject={fault.calls}:{fault.how}:when={fault.most}"),
        *(sys.executable, "-m", "tests.stores.nth_call", str(folder), name),
        *(fault.calls.partition(",")[0], str(fault.most), *options),
    ]
    subprocess.run(command, check=True, timeout=240, cwd=ROOT)
    hit = set(_hit(log.read_text().splitlines()))
    for number, path in stores.items():
        pid, code = map(int, (path.parent / "ended").read_text().split())
        assert code in {0, -9}, f"run {number} ended with {code}"
        yield Run(number, path, (path.parent / "said").read_text().splitlines(keepends=True), pid in hit)


def whoever_was_hit(runs: Iterable[Run], check: Callable[[Run], int]) -> tuple[int, int]:
    """Check each run: how many were hit, and what all checks come to. Each call was one's turn, up to the last."""
    counts = [(run.hit, check(run)) for run in runs]
    hits = [hit for hit, _ in counts]
    assert hits[0], "nothing was hit"
    assert hits == sorted(hits, reverse=True), "the first calls are hit, and none after the last"
    assert not hits[-1], "a writer makes more calls than were tried"
    return sum(hits), sum(count for _, count in counts)


def _hit(lines: list[str]) -> Iterator[int]:
    for line in lines:
        pid, _, what = line.partition(" ")
        if "(INJECTED)" in what or "+++ killed" in what:
            yield int(pid)


def _child(path: Path, in_vain: int, burn: Callable[[int], object], *, count: int, options: Sequence[str]) -> None:
    os.dup2(os.open(path.parent / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    for _ in range(count):
        burn(in_vain)
    writer.main([str(path), *options])


def main() -> None:
    folder, (name, call, most, *options) = Path(sys.argv[1]), sys.argv[2:]
    in_vain = os.open(folder / IN_VAIN, os.O_RDWR)
    for number in range(1, int(most) + 1):
        path = folder / str(number) / name
        child = partial(_child, path, in_vain, BURN[call], count=int(most) - number, options=options)
        pid = start_child(child)
        (path.parent / "ended").write_text(f"{pid} {exit_code(pid)}")


if __name__ == "__main__":
    main()
