"""Threads for requests that are under way at once: those of a batch, and those of event loops.

Requests for single records share nothing: each is a trip of its own, so they go side by side. Threads are started when
they are needed, in each process its own, and none of them keeps the interpreter from ending.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from notwice.errors import StoreUnavailable
from notwice.stores.calls import PENDING_MAX
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.shared import closed, no_thread

T = TypeVar("T")

_Jobs = SimpleQueue[Callable[[], None] | None]


class Threads:
    """Up to `count` threads that carry out jobs, oldest first.

    A job that has waited for longer than `timeout` seconds, or whose caller has gone, is not begun.
    """

    def __init__(self, count: int, timeout: float) -> None:
        self._count = count
        self._timeout = timeout
        self._closed = False
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._jobs: _Jobs = SimpleQueue()
        self._started = 0
        self._unfinished = 0

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have a job carried out. Raises `StoreUnavailable` if too many are waiting, or nobody can carry it out."""
        future: Future[T] = Future()
        since = time.monotonic()
        with self._lock:
            if self._closed:
                raise closed()
            if self._unfinished >= PENDING_MAX:
                raise StoreUnavailable(f"{PENDING_MAX} calls are waiting for the store already; nothing was done")
            if self._started < min(self._count, self._unfinished + 1):
                self._start()
            self._unfinished += 1
        self._jobs.put(lambda: self._carry_out(job, future, since))
        return future

    def close(self) -> None:
        """Let the threads end after the jobs that they have."""
        with self._lock:
            self._closed = True
            started, self._started = self._started, 0
        for _ in range(started):
            self._jobs.put(None)

    def before_fork(self) -> None:
        """Let nobody change anything while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: the threads and their jobs are the parent's."""
        self._start_anew()

    def _start(self) -> None:
        thread = threading.Thread(target=_work, args=(self._jobs,), name="notwice-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            if self._started:
                return  # those that there are carry it out
            raise no_thread(error) from error
        self._started += 1
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def _carry_out(self, job: Callable[[], Any], future: Future[Any], since: float) -> None:
        try:
            if not future.set_running_or_notify_cancel():
                return
            if time.monotonic() - since > self._timeout:
                message = f"the store was busy for {self._timeout:g} s; nothing was done"
                future.set_exception(StoreUnavailable(message))
                return
            _run(job, future)
        finally:
            with self._lock:
                self._unfinished -= 1


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may hold the last reference to the store


def _run(job: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = job()
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
