"""Connections to nodes, for threads: opened when needed, kept between calls, dropped after any doubt.

redis-py's connections are used without its clients: those repeat commands by themselves, and a script whose
acknowledgement was lost must not be run again behind the guard's back.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar, cast

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.retry import Retry

from notwice.errors import StoreUnavailable
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.redis.flows import Answers, Exchange, Flow, Lost, Pause
from notwice.stores.redis.routes import Address
from notwice.stores.redis.rows import Command, packed
from notwice.stores.redis.settings import Login
from notwice.stores.shared import closed

T = TypeVar("T")

LINKS_MAX: Final = 16
"""So many calls of one process may be under way at once; more wait for their turn. Shared trips need far fewer."""

LOOKED_AT_AFTER_S: Final = 0.5
"""A connection that was idle for so long is looked at before it is used: servers close idle ones."""


class Link(Protocol):
    """What is used of a connection, with the types that redis-py leaves out."""

    deadline: float
    used_at: float

    def connect(self) -> None: ...  # noqa: D102 - redis-py's
    def disconnect(self) -> None: ...  # noqa: D102 - redis-py's
    def can_read(self) -> bool: ...  # noqa: D102 - redis-py's
    def send_packed_command(self, command: list[bytes], *, check_health: bool) -> None: ...  # noqa: D102 - redis-py's
    def read_response(self) -> Any: ...  # noqa: ANN401, D102 - redis-py's


class _Bounded:
    """A socket none of whose calls ends later than its connection's deadline, however slowly the bytes come."""

    def __init__(self, inner: socket.socket, link: _Deadline) -> None:
        self._inner = inner
        self._link = link

    def recv(self, *arguments: Any) -> bytes:  # noqa: ANN401 - the socket's own
        self._inner.settimeout(self._link.seconds_left())
        return self._inner.recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401 - the socket's own
        self._inner.settimeout(self._link.seconds_left())
        return self._inner.recv_into(*arguments)

    def sendall(self, data: bytes) -> None:
        self._inner.settimeout(self._link.seconds_left())
        self._inner.sendall(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the socket's own
        return getattr(self._inner, name)


class _Deadline:
    """A connection with a deadline."""

    deadline = 0.0
    used_at = 0.0

    def seconds_left(self) -> float:
        """How long a call of the socket may take."""
        return max(self.deadline - time.monotonic(), 0.001)


class _Link(_Deadline, Connection):
    def _connect(self) -> Any:  # noqa: ANN401 - what looks like a socket
        return _Bounded(super()._connect(), self)  # type: ignore[no-untyped-call]  # redis-py leaves it out


class _EncryptedLink(_Deadline, SSLConnection):
    def _connect(self) -> Any:  # noqa: ANN401 - what looks like a socket
        return _Bounded(super()._connect(), self)  # type: ignore[no-untyped-call]  # redis-py leaves it out


class Links:
    """Carries out flows, each within `timeout` seconds, on connections that no call holds afterwards."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._closed = False
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(LINKS_MAX)
        self._idle: dict[Address, list[Link]] = {}

    def run(self, flow: Callable[[], Flow[T]], *, patient: bool = False) -> T:
        """Carry out a flow. Raises `StoreUnavailable` if it takes too long, or the store is closed.

        A `patient` caller has that time for each exchange anew.
        """
        if self._closed:
            raise closed()
        deadline = None if patient else time.monotonic() + self._login.timeout
        if not self._turns.acquire(timeout=self._login.timeout):
            raise StoreUnavailable(f"{LINKS_MAX} calls were under way for {self._login.timeout:g} s; nothing was done")
        try:
            return self._drive(flow(), deadline)
        finally:
            self._turns.release()

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, {}
        for link in (link for links in idle.values() for link in links):
            link.disconnect()

    def before_fork(self) -> None:
        """Let nobody change the list of connections while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: the connections are the parent's. redis-py closes a copy without a word to the server."""
        self._start_anew()

    def _drive(self, flow: Flow[T], deadline: float | None) -> T:
        try:
            request = next(flow)
            while True:
                until = deadline or time.monotonic() + self._login.timeout
                if isinstance(request, Pause):
                    time.sleep(within(until, request.seconds))
                    request = flow.send({})
                else:
                    request = flow.send(self._exchange(request, until))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]  # StopIteration is not generic

    def _exchange(self, request: Exchange, deadline: float) -> Answers:
        """Send to all nodes, then hear all of them."""
        if request.timeout is not None:
            deadline = min(deadline, time.monotonic() + request.timeout)
        links: dict[Address, Link] = {}
        answers: dict[Address, Sequence[Any] | Lost] = {}
        try:
            for address, commands in request.commands.items():
                answers[address] = self._send(address, commands, links, deadline=deadline)
            for address, link in links.items():
                answers[address] = _heard(link, len(request.commands[address]))
            return answers
        finally:
            for address, link in links.items():
                self._give_back(address, link, answers[address])

    def _send(
        self,
        address: Address,
        commands: Sequence[Command],
        links: dict[Address, Link],
        *,
        deadline: float,
    ) -> Lost:
        """Send, and say what is known if nothing is heard."""
        try:
            link = self._taken(address, deadline)
        except (RedisError, OSError) as error:
            return Lost(error, sent=False)
        links[address] = link
        try:
            link.send_packed_command([packed(commands)], check_health=False)
        except (RedisError, OSError) as error:
            return Lost(error, sent=True)
        return Lost(TimeoutError("it was not heard"), sent=True)

    def _taken(self, address: Address, deadline: float) -> Link:
        """A connection that is open, of the idle ones or a new one."""
        within(deadline, 0)
        while link := self._one_idle(address):
            link.deadline = deadline
            if time.monotonic() - link.used_at < LOOKED_AT_AFTER_S or _is_quiet(link):
                return link
            link.disconnect()
        kind = _EncryptedLink if self._login.encrypted else _Link
        host, port = address
        left = deadline - time.monotonic()
        made = kind(
            host=host,
            port=port,
            socket_timeout=left,
            socket_connect_timeout=left,
            retry=Retry(NoBackoff(), 0),
            **self._login.options,
        )
        link = cast("Link", made)
        link.deadline = deadline
        link.connect()
        return link

    def _one_idle(self, address: Address) -> Link | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _give_back(self, address: Address, link: Link, answers: Sequence[Any] | Lost) -> None:
        if is_in_doubt(answers) or self._closed:
            link.disconnect()
            return
        link.used_at = time.monotonic()
        with self._lock:
            self._idle.setdefault(address, []).append(link)


def is_in_doubt(answers: Sequence[Any] | Lost) -> bool:
    """Whether a connection is not to be used again: something may still come, or the node is no longer the one."""
    return isinstance(answers, Lost) or any(isinstance(answer, ReadOnlyError) for answer in answers)


def _heard(link: Link, count: int) -> Sequence[Any] | Lost:
    answers: list[Any] = []
    try:
        while len(answers) < count:
            try:
                answers.append(link.read_response())
            except ResponseError as error:
                answers.append(error)
    except (RedisError, OSError) as error:
        return Lost(error, sent=True)
    return answers


def _is_quiet(link: Link) -> bool:
    """Whether the server has neither closed the connection nor said anything that nobody asked for."""
    with suppress(RedisError, OSError):
        return not link.can_read()
    return False


def within(deadline: float, seconds: float) -> float:
    """The pause, if there is time for it."""
    if time.monotonic() + seconds >= deadline:
        raise StoreUnavailable("there was no time left to ask again; nothing more was done")
    return seconds
