"""Which node owns which slot."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from redis.crc import key_slot
from redis.exceptions import AskError

from notwice.errors import StoreUnavailable

Address = tuple[str, int]
"""Host and port of a node."""

CANDIDATES_MAX: Final = 4
"""So many nodes are asked which of them owns what, one after the other, each for its share of the time-out."""


class Routes(Protocol):
    """What a flow asks about nodes."""

    @property
    def in_doubt(self) -> bool:
        """Whether the nodes must be asked before `owner` can be relied on."""
        ...

    @property
    def may_change(self) -> bool:
        """Whether another node may own a slot by now."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that one node may take to say who owns what."""
        ...

    def owner(self, shard: str) -> Address:
        """The node to ask for the records of a shard."""
        ...

    def owners(self) -> Sequence[Address]:
        """All nodes that own anything."""
        ...

    @property
    def assignment(self) -> object:
        """Who owns what, to be compared with what it was."""
        ...

    def candidates(self) -> Sequence[Address]:
        """The nodes to ask who owns what, in this order."""
        ...

    def learn(self, slots: Iterable[Any], asked: Address) -> bool:
        """Take in what a node says; gives whether that covers every shard."""
        ...

    def moved(self, error: AskError, asked: Address) -> Address:
        """Take in that a slot has another owner; gives its address."""
        ...

    def asked(self, error: AskError, asked: Address) -> Address:
        """The node to ask for this once."""
        ...

    def doubt(self) -> None:
        """A node did not answer, or the cluster is not at rest."""
        ...


class OneServer:
    """One server has everything, and it is where its address says."""

    in_doubt = False
    may_change = False
    timeout = 0.0

    def __init__(self, address: Address) -> None:
        self._address = self.assignment = address

    def owner(self, shard: str) -> Address:  # noqa: ARG002 - it has all shards
        """The server."""
        return self._address

    def owners(self) -> Sequence[Address]:
        """The server."""
        return (self._address,)

    candidates = owners

    def learn(self, slots: Iterable[Any], asked: Address) -> bool:  # noqa: ARG002 - there is nothing to learn
        """Nothing to learn."""
        return True

    def moved(self, error: AskError, asked: Address) -> Address:  # noqa: ARG002 - it is refused
        """Refuse: this is a node of a cluster."""
        raise StoreUnavailable(
            f"{asked[0]}:{asked[1]} is a node of a cluster; open it with redis+cluster:// in place of redis://"
        )

    asked = moved

    def doubt(self) -> None:
        """Nothing to doubt."""


class ClusterRoutes:
    """The owners of all shards of a cluster, as some node said last.

    Threads and tasks share it: what is known is replaced as a whole.
    """

    may_change = True

    def __init__(self, seeds: Sequence[Address], shards: Sequence[str], timeout: float) -> None:
        self._seeds = tuple(seeds)
        self._slots = {shard: key_slot(shard.encode()) for shard in shards}
        self._owners: dict[str, Address] = {}
        self.timeout = timeout / CANDIDATES_MAX
        self.in_doubt = True

    def owner(self, shard: str) -> Address:
        """The node that owned the shard when a node was asked last; any, if none was."""
        return self._owners.get(shard) or self._seeds[0]

    def owners(self) -> Sequence[Address]:
        """All nodes that own a shard."""
        return sorted(set(self._owners.values()))

    @property
    def assignment(self) -> object:
        """The owner of each shard."""
        return self._owners

    def candidates(self) -> Sequence[Address]:
        """Some nodes, in an order of chance: the one that was asked last may be the one that is gone."""
        known = [*{*self._owners.values(), *self._seeds}]
        random.shuffle(known)
        return known[:CANDIDATES_MAX]

    def learn(self, slots: Iterable[Any], asked: Address) -> bool:
        """Take in the answer to CLUSTER SLOTS; gives whether each shard has an owner by it."""
        ranges = [(first, last, _address(owner, asked)) for first, last, owner, *_ in slots]
        owners = {
            shard: address
            for shard, slot in self._slots.items()
            for first, last, address in ranges
            if first <= slot <= last
        }
        if len(owners) < len(self._slots):
            return False
        self._owners, self.in_doubt = owners, False
        return True

    def moved(self, error: AskError, asked: Address) -> Address:
        """Note the new owner of a slot, and that others may have moved, too."""
        address = self.asked(error, asked)
        self._owners = {
            shard: address if self._slots[shard] == error.slot_id else owner for shard, owner in self._owners.items()
        }
        self.in_doubt = True
        return address

    def asked(self, error: AskError, asked: Address) -> Address:
        """The node that an error names; one without a name is the one that was asked."""
        return error.host or asked[0], error.port

    def doubt(self) -> None:
        """Ask again before the next operation."""
        self.in_doubt = True


def _address(owner: Sequence[Any], asked: Address) -> Address:
    host, port = owner[0], owner[1]
    return host.decode() if host else asked[0], port
