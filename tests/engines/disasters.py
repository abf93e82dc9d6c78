"""Power cuts and full disks under a server, and servers that are killed again and again: the same for every engine.

An engine's own test is a class with one fixture, `risk`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.engines.disks import Disk, Serve, loses_in_some_power_cut, lost_in_power_cuts, survives_a_full_disk
from tests.engines.outages import run_through_kills


@dataclass(frozen=True)
class Risk:
    """One engine at risk.

    Attributes:
        disk: what its files lie on.
        safe: starts a server on them that loses nothing.
        lazy: starts one that does not sync each write.
        served: starts a server elsewhere.
        named: the option of a URL that says where the records are.
        claims_max: how many claims are made before the power is cut, at most.
        ends_itself: the server ends when its disk is full.
    """

    disk: Disk
    safe: Serve
    lazy: Serve
    served: Callable[[], AbstractContextManager[Any]]
    named: str = "table"
    claims_max: int = 400
    ends_itself: bool = True


class DisasterCases:
    """What was acknowledged is there; with unsafe settings it is not."""

    @pytest.fixture
    def risk(self) -> Risk:
        raise NotImplementedError("give the class a fixture `risk`")

    @pytest.mark.slow
    def test_power_cuts(self, risk: Risk) -> None:
        """P1, P7: no acknowledged claim is lost in a power cut; bound 3/n for n claims."""
        assert lost_in_power_cuts(risk.disk, risk.safe, named=risk.named, claims_max=risk.claims_max) == 0

    @pytest.mark.slow
    def test_power_cuts_of_a_lazy_server(self, risk: Risk) -> None:
        """The control: a server that does not sync each write loses claims in a power cut."""
        assert loses_in_some_power_cut(risk.disk, risk.lazy, named=risk.named, claims=300)

    def test_a_full_disk(self, risk: Risk) -> None:
        """P8: on a full disk begins are refused, and nothing that was acknowledged is lost."""
        with risk.safe() as server:
            restart = server.restart if risk.ends_itself else server.start_if_ended
            survives_a_full_disk(risk.disk, server.url(timeout=5, safe="ignore"), restart)

    @pytest.mark.slow
    def test_callers_go_on_through_kills(self, risk: Risk) -> None:
        """P1, P2, P9, C09: while the server is killed and comes back, each effect happens once and all are answered."""
        with risk.served() as server:
            run_through_kills(server, server.url(safe="ignore", timeout=2))
