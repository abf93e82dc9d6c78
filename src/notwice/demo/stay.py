"""After the table: the guarded service stays up, is started again when it is killed, and can be tried by hand."""

from __future__ import annotations

import contextlib
import sys
import time

from notwice.demo.processes import HOST
from notwice.demo.reconcile import Reconciler
from notwice.demo.sides import LEASE_S, Side

ROUND_S = 0.5

INVITATION = """
The gateway and the payments service stay up until Ctrl-C. Try them:

  # a charge, and the same again: one charge, and the first answer once more
  curl -i {gateway}/charges -H 'X-Account-Id: you' -H 'Idempotency-Key: mine-1' --json '{{"amount": 1200}}'

  # the same key for another amount: 422, nothing is charged
  curl -i {gateway}/charges -H 'X-Account-Id: you' -H 'Idempotency-Key: mine-1' --json '{{"amount": 9900}}'

  # the same service without the guard: every call charges
  curl -i {service}/charges -H 'X-Account-Id: you' -H 'Idempotency-Key: mine-2' --json '{{"amount": 1200}}'

  # what the ledger holds, and what the guard keeps
  curl '{service}/charges?account=you&reference=mine-2'
  {notwice} ls --store {store}

  # kill the gateway or the service in the middle of anything: both come back. What that left open is held,
  # and settled by asking the ledger after one lease ({lease} s)
  kill -9 {gateway_pid}
  kill -9 {service_pid}
"""


def stay_up(side: Side, reconciler: Reconciler) -> None:
    """Stay until Ctrl-C. What is killed is started again, and what a kill leaves open is reconciled."""
    print(invitation(side), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(ROUND_S)
            _revive(side)
            reconciler.round()


def _revive(side: Side) -> None:
    for child in side.children():
        if not child.runs():
            child.start()
            print(f"the {child.name} was gone and runs again, now as process {child.pid}", flush=True)


def invitation(side: Side) -> str:
    """What there is to try."""
    return INVITATION.format(
        gateway=f"http://{HOST}:{side.port}",
        service=f"http://{HOST}:{side.service.port}",
        gateway_pid=side.gateway and side.gateway.pid,
        service_pid=side.service.pid,
        notwice=sys.argv[0] if sys.argv[0].endswith("notwice") else f"{sys.executable} -m notwice",
        store=side.store,
        lease=LEASE_S,
    )
