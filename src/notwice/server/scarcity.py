"""What the event loop complains of when no more connections can be accepted, said once a minute.

It tries as often as its queue is long, each second, and would write as many tracebacks: the disk would be full next.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from typing import Any, Final

SAID_EVERY_SECONDS: Final = 60.0
SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger("notwice.server")


class Scarcity:
    """An exception handler of an event loop. All other complaints go where they went."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take one complaint."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in SCARCE and "accept" in context.get("message", "")):
            loop.default_exception_handler(context)
        elif self._now() - self._said >= SAID_EVERY_SECONDS:
            self._said = self._now()
            logger.error(
                "No more connections can be accepted: %s. Those that wait are taken up as others end. "
                "Let the process have more open files (ulimit -n, or LimitNOFILE= of systemd).",
                error.strerror,
            )
