"""Which file system a file is on, for SQLite's locks and syncs can't be relied on across a network."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")

NETWORK: Final = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "ncpfs",
            "afs",
            "9p",
            "ceph",
            "glusterfs",
            "lustre",
            "gpfs",
            "beegfs",
        ),
        *("orangefs", "pvfs2", "gfs2", "ocfs2", "davfs", "virtiofs", "vboxsf", "prl_fs", "vmhgfs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.goofys"),
        *("fuse.davfs", "fuse.davfs2", "fuse.juicefs", "fuse.vmhgfs-fuse", "fuse.mergerfs-nfs", "fuse.smbnetfs"),
        *("fuse.curlftpfs", "fuse.moosefs", "fuse.mfs", "fuse.lizardfs", "fuse.seaweedfs", "fuse.grpcfuse"),
    }
)
"""File systems that several hosts may see at once, by the names that Linux gives them."""


def network_file_system(folder: Path) -> str | None:
    """The name of the network file system that `folder` is on; ``None`` if it is on none, or if nobody can tell.

    Linux tells by its list of mounts; other systems are not asked.
    """
    with suppress(OSError):
        kind = kind_of_mount(folder.resolve(), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
        return kind if kind in NETWORK else None
    return None


def kind_of_mount(folder: Path, mounts: str) -> str | None:
    """The file system's name for the innermost of `mounts`, the text of a mountinfo file, that holds `folder`."""
    found: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split(" ")[4]))
        depth = len(point.parts)
        if folder.is_relative_to(point) and (found is None or depth >= found[0]):  # a later mount covers an earlier one
            found = (depth, after.split(" ")[0])
    return found and found[1]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
