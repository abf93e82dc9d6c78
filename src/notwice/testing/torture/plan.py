"""What a run of torture is to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from notwice.stores import open_store
from notwice.stores.port import Store


class Injector(Protocol):
    """Whoever breaks more than processes: the store's server, its network, its disk."""

    def inject(self, chance: random.Random) -> str:
        """Break something, mend it again before it returns or soon after, and say what it was."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is done to which store.

    store: a URL, or ``module:function``, a function that is given the run's folder and opens the store. Each client
        process opens it for itself, and so does each that takes the place of a killed one.
    work: ``records`` (insert, swap and get, judged for linearizability) or ``payments`` (guarded operations under
        each policy, with an effect each, judged by `notwice.testing.auditor`).
    operations: how many store operations, or guarded calls, are made in all.
    faults: how many SIGKILL and SIGSTOP, and faults of the injector, are spread among them.
    clients: how many processes are at work at once.
    injector: ``module:function``, a function that is given the folder and makes an `Injector`; empty: none.
    seed: of all choices but those that the scheduling of processes makes.
    seconds_max: after which a run that makes no headway is given up with an error.
    """

    store: str
    work: Literal["records", "payments"] = "records"
    operations: int = 10_000
    faults: int = 100
    clients: int = 8
    injector: str = ""
    seed: int = 0
    seconds_max: float = 600

    def to_json(self) -> str:
        """The plan as text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan."""
        return cls(**json.loads(text))

    def open_store(self, folder: Path) -> Store:
        """Open the store, in this process."""
        return cast("Store", named(self.store)(folder)) if is_function(self.store) else open_store(self.store)

    def make_injector(self, folder: Path) -> Injector | None:
        """Make whoever breaks more than processes."""
        return cast("Injector", named(self.injector)(folder)) if self.injector else None


def is_function(text: str) -> bool:
    """Whether a store is named by the function that opens it."""
    return "://" not in text


def named(text: str) -> Callable[[Path], Any]:
    """The function that ``module:function`` names."""
    module, _, function = text.partition(":")
    found: Callable[[Path], Any] = getattr(import_module(module), function)
    return found
