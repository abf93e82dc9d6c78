"""What all guards over one store in one process share, and the two small drivers of `flows`."""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Final, TypeVar, cast

from notwice.backlog import Backlog
from notwice.definitions import Scopes
from notwice.errors import StoreUnavailable
from notwice.flows import NewEtag, Ownership
from notwice.heart import NOT_KNOWN, Heart, Unanswered, unavailable
from notwice.limits import Limits
from notwice.model import ACCEPTED, Op, Record, Reply
from notwice.observe import Event, Observer, check_observer, tell
from notwice.privacy import NOTHING_HIDDEN, Privacy
from notwice.recovery import Handlers
from notwice.stores.port import (
    AsyncJoined,
    AsyncStore,
    Joined,
    Store,
)
from notwice.waiting import Clock, SystemClock, Waiters

ETAG_BYTES: Final = 16

_R = TypeVar("_R")


new_etag: Final[NewEtag] = partial(os.getrandom if sys.platform == "linux" else os.urandom, ETAG_BYTES)
"""128 bits from the system's random source. They are asked for each time: copies of a process or of a machine, made
with bytes in store, would all use the same.

On Linux by `os.getrandom`, which keeps the interpreter's lock for the half microsecond that it takes; `os.urandom`
gives it to another thread, and gets it back only after that one's turn.
"""


class Runtime:
    """The store, the clock, the heart, the list of unanswered writes and the waiters of one guard and its children.

    Nothing is started before it is needed, and a forked child starts anew.
    """

    def __init__(
        self,
        store: Store,
        *,
        observer: Observer | None,
        clock: Clock | None,
        asynchronous: AsyncStore | None,
        privacy: Privacy | None = None,
    ) -> None:
        if observer is not None:
            check_observer(observer)
        if privacy is not None and not isinstance(cast("object", privacy), Privacy):
            raise TypeError(f"privacy must be a Privacy, such as Privacy(hash_keys=True), not {type(privacy).__name__}")
        self.store = store
        self.privacy = NOTHING_HIDDEN if privacy is None else privacy
        self.asynchronous = asynchronous
        self.observer = observer
        self.clock: Clock = SystemClock() if clock is None else clock
        self.be_ready: Callable[[], None] = self.clock.be_ready if isinstance(self.clock, SystemClock) else _nothing
        """See to it that what is claimed next can be renewed. Raises `StoreUnavailable` if it could not be."""
        self.new_etag: NewEtag = new_etag
        """Where all etags come from. A simulation draws them from its seed."""
        self.heart = Heart(store, self.clock, observer=observer, new_etag=self._draw_etag)
        self.unanswered = Unanswered(store, self.clock, new_etag=self._draw_etag)
        self.waiters = Waiters()
        self.backlog = Backlog()
        self.limits = Limits()
        self.scopes = Scopes()
        self.handlers = Handlers()
        self.process = object()
        """Stands for this process: another one in a forked child."""
        _RUNTIMES.add(self)

    def _draw_etag(self) -> bytes:
        return self.new_etag()

    def forget(self) -> None:
        """Start anew in a forked child: operations, waiters and unanswered writes are the parent's."""
        if isinstance(self.clock, SystemClock):
            self.clock.forget()
        self.process = object()
        self.heart.forget()
        self.unanswered.forget()
        self.waiters = Waiters()
        self.backlog = Backlog()
        self.limits = Limits()

    def on_lost(self, own: Ownership) -> None:
        """Another owner has the operation; the next move raises."""
        self.tell("ownership_lost", own.record)
        self.on_end(own)

    def on_end(self, own: Ownership) -> None:
        """The last move was confirmed, or refused: whoever waits may look again."""
        if own.record.state is ACCEPTED and not own.record.released:
            self.backlog.add(own.record.namespace)
        if self.waiters.waiting:
            self.waiters.notify((own.record.namespace, own.record.id))

    def tell(self, name: str, record: Record, *, detail: str = "", value: object = None) -> None:
        """Tell the observer, if there is one."""
        if self.observer is not None:
            shown = value if value is None else self.privacy.shown(value)
            tell(self.observer, Event(name, record.id, record.namespace, record.attempt, detail, shown))


def _nothing() -> None:
    """A clock that is not the system's has nothing to start."""


_RUNTIMES: weakref.WeakSet[Runtime] = weakref.WeakSet()


def _forget_all() -> None:
    for runtime in _RUNTIMES:
        runtime.forget()


os.register_at_fork(after_in_child=_forget_all)


def _too_late(timeout: float) -> StoreUnavailable:
    return StoreUnavailable(f"the store took longer than store_timeout ({timeout:g} s); {NOT_KNOWN}")


def drive(flow: Generator[Op, Reply, _R], runtime: Runtime, timeout: float) -> _R:
    """Carry out `flow` in this thread, within `timeout` seconds as far as the store can be bounded.

    A reply that comes later counts as none: what was to run after it does not run.
    """
    monotonic, apply = runtime.clock.monotonic, runtime.store.apply
    deadline = monotonic() + timeout
    try:
        op = next(flow)
        while True:
            try:
                (reply,) = apply((op,))
            except Exception as error:  # noqa: BLE001 - whatever a store raises, its answer is missing
                failure = unavailable(error)
                if monotonic() > deadline:  # a store that gave up by itself has said why
                    _give_up(flow, failure)
                op = flow.throw(failure)
                continue
            if monotonic() > deadline:
                _give_up(flow, _too_late(timeout))
            op = flow.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic


async def drive_async(flow: Generator[Op, Reply, _R], runtime: Runtime, timeout: float) -> _R:  # noqa: ASYNC109 - measured by the guard's clock, too
    """Carry out `flow` in this task, within `timeout` seconds.

    A reply that comes later counts as none: what was to run after it does not run.
    """
    assert runtime.asynchronous is not None  # only an AsyncGuard gets here
    monotonic, apply = runtime.clock.monotonic, runtime.asynchronous.apply
    deadline = monotonic() + timeout
    try:
        op = next(flow)
        while True:
            answer: Reply | StoreUnavailable
            limit = runtime.limits.begin(deadline - monotonic())
            over = False
            try:
                try:
                    (answer,) = await apply((op,))
                finally:
                    over = limit.end()
            except asyncio.CancelledError:
                if not over:
                    raise
                answer = _too_late(timeout)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, its answer is missing
                answer = unavailable(error)
            if limit.expired or monotonic() > deadline:  # a store that gave up by itself has said why
                _give_up(flow, answer if isinstance(answer, StoreUnavailable) else _too_late(timeout))
            op = flow.throw(answer) if isinstance(answer, StoreUnavailable) else flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic


def drive_within(flow: Generator[Op, Reply, _R], store: Joined) -> _R:
    """Carry out `flow` on the caller's transaction: nothing is repeated, and what the database raises is raised."""
    try:
        op = next(flow)
        while True:
            (reply,) = store.apply((op,))
            op = flow.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic


async def drive_within_async(flow: Generator[Op, Reply, _R], store: AsyncJoined) -> _R:
    """Carry out `flow` on the caller's transaction: nothing is repeated, and what the database raises is raised."""
    try:
        op = next(flow)
        while True:
            (reply,) = await store.apply((op,))
            op = flow.send(reply)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic


def _give_up(flow: Generator[Op, Reply, object], failure: StoreUnavailable) -> None:
    """Tell `flow` of a time-out until it gives up, too."""
    while True:
        flow.throw(failure)
