"""A proxy between a store and its server: it counts round trips and spoils answers.

It runs in threads of its own on a free loopback port. What it does to the next answers can be changed at any time.
"""

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Self

Swallows = Callable[[], bool]
BLOCK = 65_536
TIMEOUT_S = 30


class Proxy:
    """A port that leads to the server on another one.

    ``trips`` counts how often a client, having heard or not yet said anything, sent something and then heard something
    back. ``cut(after)`` ends each connection after so many bytes of an answer were passed on; ``black_hole`` swallows
    what either side says, ``cut_off`` what is said by and to some addresses; ``hold`` keeps answers back until it is
    cleared.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._go_on = threading.Event()
        self._go_on.set()
        self._left: int | None = None
        self.black_hole = False
        self.cut_off: Collection[str] = ()
        self.trips = 0
        self.connections = 0
        self.bytes_heard = 0
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self._go_on.set()
        self.reset()

    def reset(self) -> None:
        """End all connections at once, without a word."""
        with self._lock:
            ended = list(self._sockets)
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self, after: int | None) -> None:
        """End the connection once so many more bytes of answers have been passed on; ``None``: never."""
        with self._lock:
            self._left = after

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all answers back meanwhile."""
        self._go_on.clear()
        try:
            yield
        finally:
            self._go_on.set()

    def counted(self, act: Callable[[], object]) -> int:
        """How many round trips `act` makes."""
        before = self.trips
        act()
        return self.trips - before

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, (address, _) = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client, address), daemon=True).start()

    def _swallows(self, address: str) -> bool:
        return self.black_hole or address in self.cut_off

    def _serve(self, client: socket.socket, address: str) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        pair = (client, server)
        with self._lock:
            self._sockets.update(pair)
        for each in pair:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said, swallows = threading.Event(), partial(self._swallows, address)
        back = threading.Thread(target=self._answer, args=(server, client, said, swallows), daemon=True)
        back.start()
        self._ask(client, server, said, swallows)
        back.join(TIMEOUT_S)
        with self._lock:
            self._sockets.difference_update(pair)
        for each in pair:
            each.close()

    def _ask(self, client: socket.socket, server: socket.socket, said: threading.Event, swallows: Swallows) -> None:
        with suppress(OSError):
            while data := client.recv(BLOCK):
                if swallows():
                    continue
                said.set()
                server.sendall(data)
        _end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, said: threading.Event, swallows: Swallows) -> None:
        with suppress(OSError):
            while data := server.recv(BLOCK):
                self._go_on.wait(TIMEOUT_S)
                if swallows():
                    continue
                if said.is_set():
                    said.clear()
                    self.trips += 1
                passed, ends = self._allowed(data)
                self.bytes_heard += len(passed)
                client.sendall(passed)
                if ends:
                    break
        _end(client, server)

    def _allowed(self, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            if self._left is None or len(data) <= self._left:
                self._left = None if self._left is None else self._left - len(data)
                return data, False
            passed, self._left = data[: self._left], None
            self.cuts += 1
            return passed, True


def _end(*pair: socket.socket) -> None:
    for each in pair:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
