"""What keeps a store usable on both sides of a fork: it stands still while the process is copied.

A fork copies one thread and all memory. A lock that another thread held would stay locked in the child for ever, and a
half-done change would stay half done. So each `Forkable` is asked to come to rest before a fork, and told afterwards
on which side it is. Objects are held weakly: an unused store can go.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that a fork must not copy in the middle of a change."""

    def before_fork(self) -> None:
        """Come to rest, and stay so until one of the other two is called."""
        ...

    def after_fork_in_parent(self) -> None:
        """Go on."""
        ...

    def after_fork_in_child(self) -> None:
        """Begin anew: this is a process of one thread, and all connections and threads are the parent's."""
        ...


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting: list[Forkable] = []


def stand_still_at_forks(forkable: Forkable) -> None:
    """Have `forkable` told of each fork of this process for as long as it lives."""
    _forkables.add(forkable)


def _before() -> None:
    for forkable in list(_forkables):
        forkable.before_fork()
        _resting.append(forkable)


def _in_parent() -> None:
    while _resting:
        _resting.pop().after_fork_in_parent()


def _in_child() -> None:
    while _resting:
        _resting.pop().after_fork_in_child()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
