"""Whether the upstream is the gateway itself: it would send every request to itself, over and over."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

from notwice.server.kinds import Target

Place = tuple[Any, ...]  # what a socket says of an address: host and port, and more for IPv6


def is_own(upstream: Target, listening: Place) -> bool:
    """Say whether what `upstream` names is what listens at `listening`. A name that has no address yet is not."""
    host, port = listening[:2]
    if upstream.port != port:
        return False
    try:
        found = socket.getaddrinfo(upstream.host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    here = ipaddress.ip_address(host)
    return any(_is_here(family, place) if here.is_unspecified else place[0] == host for family, _, _, _, place in found)


def _is_here(family: int, place: Place) -> bool:
    """Say whether an address is one of this machine: what is sent there comes from there. Nothing is sent."""
    if ipaddress.ip_address(place[0]).is_loopback:
        return True
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)
        except OSError:
            return False
        return bool(probe.getsockname()[0] == place[0])
