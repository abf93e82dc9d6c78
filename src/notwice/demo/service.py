"""A payments service that knows nothing of the guard: it charges whatever it is asked to, once for each request.

It runs as a process of its own, from this file alone: ``python service.py --port N --ledger FILE --seed N``. A charge
takes 50 to 150 ms, and its row is committed somewhere in the middle, so that a kill falls before or after it.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

CHARGE_MS = (50, 150)

CREATE = """
CREATE TABLE IF NOT EXISTS charges (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    account TEXT NOT NULL,
    reference TEXT NOT NULL,
    amount INTEGER NOT NULL
)
"""
APPEND = "INSERT INTO charges (account, reference, amount) VALUES (?, ?, ?)"
READ = "SELECT number, account, reference, amount FROM charges ORDER BY number"
FIND = "SELECT number, account, reference, amount FROM charges WHERE account = ? AND reference = ? ORDER BY number"


class Charge(NamedTuple):
    """One row of the ledger: money that moved. ``reference`` is what the caller called the request."""

    number: int
    account: str
    reference: str
    amount: int

    def receipt(self) -> bytes:
        """The body that the service answers a charge with: always the same for the same row."""
        document = {"id": f"ch_{self.number:06}", "amount": self.amount, "reference": self.reference}
        return json.dumps(document).encode()


class Ledger:
    """The rows that no kill undoes: each one is synced to the disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = FULL")
        self._rows.execute(CREATE)

    def append(self, account: str, reference: str, amount: int) -> Charge:
        """Move the money."""
        with self._lock:
            number = self._rows.execute(APPEND, (account, reference, amount)).lastrowid
        assert number is not None
        return Charge(number, account, reference, amount)

    def find(self, account: str, reference: str) -> list[Charge]:
        """All that was charged under one reference of one account."""
        with self._lock:
            return [Charge(*row) for row in self._rows.execute(FIND, (account, reference))]

    def read(self) -> list[Charge]:
        """All that was ever charged."""
        with self._lock:
            return [Charge(*row) for row in self._rows.execute(READ)]

    def close(self) -> None:
        """Give the file back."""
        self._rows.close()


class Payments(ThreadingHTTPServer):
    """The server: a thread for each caller. It finishes a charge whether or not the caller still listens."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, ledger: Ledger, *, seed: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.at_work: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._random = random.Random(seed)  # noqa: S311 - a delay is drawn, not a secret

    def charge(self, account: str, reference: str, amount: int) -> Charge:
        """Charge an account; the row is committed at a drawn moment of the whole time this takes."""
        with self._lock:
            self.at_work[account, reference] += 1
            seconds = self._random.uniform(*CHARGE_MS) / 1000
            before = seconds * self._random.uniform(0.2, 0.8)
        try:
            time.sleep(before)
            charge = self.ledger.append(account, reference, amount)
            time.sleep(seconds - before)
        finally:
            with self._lock:
                self.at_work[account, reference] -= 1
        return charge

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that hung up is no news here."""


class Handler(BaseHTTPRequestHandler):
    """``POST /charges`` charges; ``GET /charges?account=…&reference=…`` looks into the ledger."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm: ClassVar[bool] = True

    @property
    def _payments(self) -> Payments:
        return cast("Payments", self.server)

    def do_POST(self) -> None:
        """Charge what the body says."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        account = self.headers.get("X-Account-Id", "")
        amount = _amount(body)
        if self.path != "/charges" or not account or amount is None:
            self._answer(400, b'{"error": "POST /charges with X-Account-Id and {\\"amount\\": 1200}"}')
            return
        charge = self._payments.charge(account, self.headers.get("Idempotency-Key", ""), amount)
        self._answer(201, charge.receipt())

    def do_GET(self) -> None:
        """Say what the ledger holds, and how many charges under that reference are being worked on."""
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        account, reference = asked.get("account", [""])[0], asked.get("reference", [""])[0]
        # In this order: a charge that ends in between is counted once or twice, never left out.
        at_work = self._payments.at_work[account, reference]
        charges = self._payments.ledger.find(account, reference)
        document = {"charges": [charge._asdict() for charge in charges], "at_work": at_work}
        self._answer(200, json.dumps(document).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Keep the terminal for the demo."""


def _amount(body: bytes) -> int | None:
    try:
        amount = json.loads(body)["amount"]
    except (ValueError, KeyError, TypeError):
        return None
    return amount if isinstance(amount, int) and amount > 0 else None


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    Payments(options.port, Ledger(options.ledger), seed=options.seed).serve_forever()


if __name__ == "__main__":
    main()
