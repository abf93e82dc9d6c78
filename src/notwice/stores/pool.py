"""A bounded pool of connections, each lent for one call, for engines that are reached over a network."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from notwice.errors import StoreUnavailable
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.shared import closed


class Session(Protocol):
    """One connection."""

    def within(self, deadline: float) -> None:
        """Have the next statements answered until `deadline` of the monotonic clock."""
        ...

    def is_dead(self) -> bool:
        """Whether the server has ended it meanwhile."""
        ...

    def close(self) -> None:
        """End it, whatever it is doing. Never raises."""
        ...


S = TypeVar("S", bound=Session)


class Pool(Generic[S]):
    """Connections that are opened when they are needed, in each process its own, and never held between calls.

    Arguments:
        connect: opens a connection until a deadline, and makes sure that it can be used.
        is_harmless: whether an error left a connection as good as before; after any other it is closed.
        size: how many connections there are at most.
        timeout: seconds that a call takes at most, the wait for a connection included.
        shown: names the server without a password.
    """

    def __init__(
        self,
        connect: Callable[[float], S],
        *,
        is_harmless: Callable[[BaseException], bool],
        size: int,
        timeout: float,
        shown: str,
    ) -> None:
        self._connect = connect
        self._is_harmless = is_harmless
        self._size = size
        self._timeout = timeout
        self._shown = shown
        self._closed = False
        self._stranded: list[object] = []
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._idle: deque[S] = deque()
        self._free = threading.BoundedSemaphore(self._size)
        self._lock = threading.Lock()

    @contextmanager
    def turn(self) -> Generator[S]:
        """A connection for one call."""
        if self._closed:
            raise closed()
        deadline = time.monotonic() + self._timeout
        free = self._free
        if not free.acquire(timeout=self._timeout):
            raise all_busy(self._shown, self._size, self._timeout)
        try:
            session = self._session(deadline)
            try:
                yield session
            except BaseException as error:
                if self._is_harmless(error):
                    self._give_back(session)
                else:
                    session.close()
                    self._drop_idle()  # what ended one connection may have ended all of them
                raise
            self._give_back(session)
        finally:
            free.release()

    def close(self) -> None:
        """Close the connections; those in use are closed when they come back."""
        with self._lock:
            self._closed = True
        self._drop_idle()

    def before_fork(self) -> None:
        """Let nobody change the pool while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew. The parent's connections are kept, never to be used: closed here, they might end there."""
        self._stranded.append(self._idle)
        self._start_anew()

    def _session(self, deadline: float) -> S:
        with self._lock:
            session = self._idle.pop() if self._idle else None
        if session is not None and session.is_dead():
            session.close()
            self._drop_idle()
            session = None
        if session is None:
            return self._connect(deadline)
        session.within(deadline)
        return session

    def _give_back(self, session: S) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(session)
                return
        session.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, deque()
        for session in idle:
            session.close()


def all_busy(shown: str, size: int, timeout: float) -> StoreUnavailable:
    """The error of a call that got no connection in time."""
    return StoreUnavailable(f"{shown}: all {size} connections were busy for {timeout:g} s; nothing was done")
