"""The storm: clients that time out, repeat, send the same key twice at once and reuse keys for other amounts.

Each client goes on with the same key until it is told a final answer, as a client of money should.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from http.client import HTTPConnection, HTTPException

from notwice.demo.journal import CONFLICT, Answer, Journal
from notwice.demo.orders import PATIENCE_MS, Order
from notwice.demo.processes import HOST

CLIENTS_MAX = 48  # orders that are being worked on at once, most of them waiting
REQUESTS_MAX = 10  # requests on their way at once
RETRY_AFTER_SCALE = 0.25  # the storm is shorter than life, and so are its pauses
UNRESOLVED_PAUSE_S = 0.4
TROUBLE_PAUSE_S = 0.15
STORM_S_MAX = 120


def send(order: Order, port: int, *, amount: int, patience_ms: int) -> Answer:
    """One request over one connection. Whatever goes wrong, the answer is that there is none."""
    connection = HTTPConnection(HOST, port, timeout=patience_ms / 1000)
    headers = {"Content-Type": "application/json", "X-Account-Id": order.account, "Idempotency-Key": order.key}
    try:
        connection.request("POST", "/charges", json.dumps({"amount": amount}), headers)
        response = connection.getresponse()
        body = response.read()
    except TimeoutError:
        return Answer(0, silence="timed_out")
    except ConnectionRefusedError:
        return Answer(0, silence="nobody_there")
    except (OSError, HTTPException):
        return Answer(0, silence="cut")
    finally:
        connection.close()
    return Answer(
        response.status,
        body,
        code=_code(response.getheader("Content-Type", ""), body),
        replayed=response.getheader("Idempotency-Replayed") is not None,
        retry_after_s=int(response.getheader("Retry-After", "1")),
    )


def _code(media_type: str, body: bytes) -> str:
    return str(json.loads(body)["code"]) if media_type.startswith("application/problem+json") else ""


def pause_s(answer: Answer) -> float:
    """How long a client waits before it repeats after an answer that was not final."""
    if answer.status != CONFLICT:
        return TROUBLE_PAUSE_S
    return UNRESOLVED_PAUSE_S if answer.code == "unresolved" else answer.retry_after_s * RETRY_AFTER_SCALE


class Storm:
    """The clients of one side."""

    def __init__(self, orders: Sequence[Order], port: int, journal: Journal) -> None:
        self._orders = orders
        self._port = port
        self._journal = journal
        self._slots = threading.BoundedSemaphore(REQUESTS_MAX)
        self._over = threading.Event()

    def run(self, tick: Callable[[], None]) -> None:
        """Send all orders and return when each client has its final answer or the time is over.

        `tick` is called a few times a second.
        """
        deadline = time.monotonic() + STORM_S_MAX
        with ThreadPoolExecutor(CLIENTS_MAX) as pool:
            try:
                pending = {pool.submit(self._carry_out, order) for order in self._orders}
                while pending and time.monotonic() < deadline:
                    done, pending = wait(pending, timeout=0.2)
                    for future in done:
                        future.result()
                    tick()
            finally:
                self._over.set()
                pool.shutdown(cancel_futures=True)

    def _carry_out(self, order: Order) -> None:
        self._at_once(order, 2 if order.twins else 1)
        for _ in range(order.repeats):
            self._insist(order, amount=order.amount, patience_ms=PATIENCE_MS)
        if order.other_amount is not None and not self._over.is_set():
            self._insist(order, amount=order.other_amount, patience_ms=PATIENCE_MS)
        self._journal.finish()

    def _at_once(self, order: Order, clients: int) -> None:
        insist = {"amount": order.amount, "patience_ms": order.patience_ms}
        others = [threading.Thread(target=self._insist, args=(order,), kwargs=insist) for _ in range(clients - 1)]
        for other in others:
            other.start()
        self._insist(order, amount=order.amount, patience_ms=order.patience_ms)
        for other in others:
            other.join()

    def _insist(self, order: Order, *, amount: int, patience_ms: int) -> None:
        while not self._over.is_set():
            answer = self._send(order, amount=amount, patience_ms=patience_ms)
            if answer.final:
                if amount == order.amount:
                    self._journal.told(order, answer)
                return
            patience_ms = PATIENCE_MS
            self._over.wait(pause_s(answer))

    def _send(self, order: Order, *, amount: int, patience_ms: int) -> Answer:
        with self._slots, self._journal.request():
            answer = send(order, self._port, amount=amount, patience_ms=patience_ms)
        self._journal.answered(answer)
        return answer
