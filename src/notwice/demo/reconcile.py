"""The operator's part: what a kill left open is looked up in the ledger, then resolved or released."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple
from urllib.parse import urlencode

from notwice import Guard
from notwice.demo.audit import Standing
from notwice.demo.journal import CREATED
from notwice.demo.processes import HOST
from notwice.demo.service import Charge
from notwice.errors import NotwiceError
from notwice.model import RecordView, RecoveryKind, Result, ResultKind, State

WHO = "demo"
ASK_S = 5.0


class Found(NamedTuple):
    """What the service says of one reference: its charges, and how many it is working on right now."""

    charges: list[Charge]
    at_work: int


def ask_ledger(port: int, account: str, reference: str) -> Found:
    """Look a reference up at the service. Raises `OSError` or `HTTPException` while the service is down."""
    connection = HTTPConnection(HOST, port, timeout=ASK_S)
    try:
        connection.request("GET", "/charges?" + urlencode({"account": account, "reference": reference}))
        document = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return Found([Charge(**row) for row in document["charges"]], document["at_work"])


class Reconciler:
    """Settles unresolved operations, one round after the other."""

    def __init__(self, guard: Guard, *, ledger_port: int, gateway_started_ms: Callable[[], int]) -> None:
        self._guard = guard
        self._ledger_port = ledger_port
        self._gateway_started_ms = gateway_started_ms
        self.resolved = 0
        self.released = 0

    def round(self) -> None:
        """Ask the ledger about each held operation that nobody is at work on any more."""
        for view in list(self._unresolved()):
            if view.record.terms.recovery is RecoveryKind.HOLD and self._has_no_owner(view):
                self._settle(view)

    def left(self) -> int:
        """How many operations are unresolved."""
        return sum(1 for _ in self._unresolved())

    def standings(self) -> dict[tuple[str, str], Standing]:
        """Where each record stands, by account and key."""
        views = (view for view in self._guard.operations(all_namespaces=True) if isinstance(view, RecordView))
        return {(view.record.namespace, view.record.key): _standing(view) for view in views}

    def _unresolved(self) -> Iterator[RecordView]:
        views = self._guard.operations(unresolved=True, all_namespaces=True)
        return (view for view in views if isinstance(view, RecordView))

    def _has_no_owner(self, view: RecordView) -> bool:
        """A lapsed record may have a slow owner who could still charge after a release, unless its process is dead."""
        return view.state is State.ACCEPTED or view.written_ms < self._gateway_started_ms()

    def _settle(self, view: RecordView) -> None:
        try:
            found = ask_ledger(self._ledger_port, view.record.namespace, view.record.key)
            if found.charges:
                self._resolve(view, found.charges[0])
            elif not found.at_work:
                self._release(view)
        except (OSError, HTTPException, NotwiceError):
            return  # the service is down, or the record has changed meanwhile: the next round looks again

    def _release(self, view: RecordView) -> None:
        self._guard.release(view, who=WHO, why="the ledger has no such charge, and none is being worked on")
        self.released += 1

    def _resolve(self, view: RecordView, charge: Charge) -> None:
        answer = Result(ResultKind.HTTP, charge.receipt(), CREATED, (("content-type", "application/json"),))
        self._guard.resolve(view, result=answer, who=WHO, why=f"the ledger has it as charge {charge.number}")
        self.resolved += 1


def _standing(view: RecordView) -> Standing:
    if view.record.terminal:
        return Standing.FINISHED
    return Standing.PENDING if view.unresolved or view.state is State.IN_PROGRESS else Standing.ABSENT
