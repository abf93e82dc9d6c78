"""What was acknowledged is there after the power was cut while it was being written.

What counts is what had been heard before the cut: a file system that is being shut down may report a sync as done that
was under way at that moment and is lost. A plain program that appends and syncs sees that, too; a real power cut ends
the program before it could tell anybody.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from notwice.stores.sqlite import SqliteStore
from tests.engines import disks
from tests.engines.disks import CONTROL_CUTS_MAX, DISK_BYTES, XFS_BYTES, Disk, disk_in
from tests.stores import writer
from tests.stores.children import exit_code, start_child

CUTS = 5 * disks.CUTS  # in all, of both file systems and both ways to write
LINES = (5, 50, 300, 1_500)  # of a writer until its power is cut; the last is enough for a checkpoint or two
KINDS = {"ext4": DISK_BYTES, "xfs": XFS_BYTES}
WRITERS = {"one writer": (), "shared commits of eight threads": ("--batching", "--threads", "8")}
IN_MEMORY = Path("/dev/shm")


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, folder: Path) -> Iterator[Disk]:
    """A disk that lies in memory, where there is room: what has reached it counts as written all the same."""
    with disk_in(folder, KINDS[request.param], request.param) as disk:
        yield disk


def heard_until(pipe: int, count: int, cut_power: Callable[[], None]) -> list[str]:
    """Cut the power once so many lines were heard; gives all that was heard before the cut."""
    heard = b""
    while heard.count(b"\n") < count and (more := os.read(pipe, 65_536)):
        heard += more
    cut_power()
    while os.read(pipe, 65_536):
        pass
    return heard.decode().splitlines(keepends=True)


def write_and_cut(disk: Disk, path: Path, count: int, *options: str) -> list[str]:
    """What a writer was heard to say before its power was cut in the middle of its work."""
    pipe, end = os.pipe()

    def write() -> None:
        os.dup2(end, 1)
        os.close(end)
        os.close(pipe)
        writer.main([str(path), "--until-refused", *options])

    child = start_child(write)
    os.close(end)
    try:
        return heard_until(pipe, count, disk.cut_power)
    finally:
        os.close(pipe)
        assert exit_code(child) == 0, "a store whose disk is gone refuses; it does not crash"


def cut_once(disk: Disk, chance: random.Random, *options: str) -> tuple[int, list[str]]:
    """Cut the power of a writer; how many writes were acknowledged, and which of those are lost."""
    name = f"records-{chance.getrandbits(32)}.db"
    with disk.mounted() as folder:
        lines = write_and_cut(disk, folder / name, chance.randrange(1, chance.choice(LINES)), *options)
    acks = writer.acknowledged(lines)
    with disk.mounted() as folder:
        try:
            with closing(SqliteStore(folder / name)) as store:
                gone = writer.lost(store, acks)
        except Exception as error:  # noqa: BLE001 - in the control run the file may be beyond reading
            gone = [f"everything: {error}"]
        for left in folder.glob("records-*"):
            left.unlink()
    return sum(acks.values()), gone


@pytest.mark.slow
@pytest.mark.parametrize("options", WRITERS.values(), ids=WRITERS)
def test_a_power_cut_loses_nothing_that_was_acknowledged(disk: Disk, options: tuple[str, ...]) -> None:
    """P7, P16: writes that were reported are there after the power was cut; bound 3/n for n acknowledged writes."""
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    total = 0
    for _ in range(CUTS // (len(KINDS) * len(WRITERS))):
        acknowledged, gone = cut_once(disk, chance, *options)
        assert gone == []
        total += acknowledged
    print(disk.kind, total, "acknowledged writes, none lost")
    assert total > CUTS // 2


@pytest.mark.slow
def test_a_power_cut_is_noticed_where_commits_are_not_synced(disk: Disk) -> None:
    """The control: with commits that are not synced, the same test loses acknowledged writes."""
    chance = random.Random(1)
    losses = (cut_once(disk, chance, "--unsafe")[1] for _ in range(CONTROL_CUTS_MAX))
    assert any(losses)
