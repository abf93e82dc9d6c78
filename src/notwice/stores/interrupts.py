"""What an interrupt may not do: leave a lock taken, a transaction open, or somebody waiting for one who has gone.

An exception can come out of the blue into any thread: out of a signal handler, or thrown by another thread. Python lets
it in after a call, at the start of a function of its own, and where a loop goes back; nowhere else. So three things
can't be interrupted, and what must not be lost rests on them:

- ``with lock:``, for the lock's own ``__enter__`` and ``__exit__`` are not Python code;
- one call of something that is not Python code, however much it does, as in `take_lock`;
- stores to names and attributes that stand together, such as the first statements of a ``finally``.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def take_lock(lock: Lock, timeout: float, taken: list[bool]) -> bool:
    """Take `lock` if it is free within `timeout` seconds, and note in `taken` whether it was.

    Taking and noting are one step: once the lock is taken, `taken` holds ``True``, even if this call is interrupted. To
    be called within a ``try`` whose ``finally`` begins with ``if True in taken: lock.release()``.
    """
    attempt: Iterable[bool] = map(lock.acquire, (True,), (timeout,))
    taken.extend(attempt)
    return taken[-1]
