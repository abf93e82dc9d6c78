"""What the clients of a storm saw, written down by many threads at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import NamedTuple

from notwice.demo.orders import Order

CREATED = 201
CONFLICT = 409
UNPROCESSABLE = 422
SERVER_ERROR = 500


class Answer(NamedTuple):
    """What came back for one request. A status of 0: nothing did, and ``silence`` says how that looked."""

    status: int
    body: bytes = b""
    code: str = ""
    replayed: bool = False
    retry_after_s: int = 1
    silence: str = ""

    @property
    def final(self) -> bool:
        """Whether the client may stop asking: all but silence, trouble of the server, and "not yet"."""
        return 0 < self.status < SERVER_ERROR and self.status != CONFLICT

    @property
    def seen_as(self) -> str:
        """The word under which the answer is counted."""
        return self.silence or self.code or str(self.status)


class Journal:
    """Counts and receipts. ``seen`` counts all answers, ``receipts`` keeps the different success bodies by order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seen: Counter[str] = Counter()
        self.kills = 0
        self.killed_processes: Counter[str] = Counter()
        self.receipts: dict[tuple[str, str], set[bytes]] = {}
        self.replays = 0
        self.in_flight = 0
        self.hit_by_kills = 0
        self.finished = 0
        self.over = False

    @contextmanager
    def request(self) -> Generator[None]:
        """Around each request that is on its way."""
        with self.changed:
            self.in_flight += 1
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.in_flight -= 1

    def answered(self, answer: Answer) -> None:
        """One request came back, or did not."""
        with self.changed:
            self.seen[answer.seen_as] += 1
            self.replays += answer.replayed

    def told(self, order: Order, answer: Answer) -> None:
        """The client of an order has its final answer."""
        if answer.status == CREATED:
            with self.changed:
                self.receipts.setdefault(order.name, set()).add(answer.body)

    def finish(self) -> None:
        """One more order has no client any more."""
        with self.changed:
            self.finished += 1
            self.changed.notify_all()

    def killed(self, names: Iterable[str]) -> None:
        """These processes were killed at one moment, while that many requests were on their way."""
        with self.changed:
            self.kills += 1
            self.killed_processes.update(names)
            self.hit_by_kills += self.in_flight

    def close(self) -> None:
        """The storm is over: nobody needs to wait for it any more."""
        with self.changed:
            self.over = True
            self.changed.notify_all()
