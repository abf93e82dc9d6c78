"""A guard over the store in memory, next to a dictionary, a lock, JSON and SHA-256."""

from __future__ import annotations

import itertools
import json
import os
import threading
from hashlib import sha256
from typing import Final

from bench.callers import REQUEST, RESULT, SCOPE, pairs, replays
from bench.figures import NONE, Figure, Goal
from bench.measure import Size, computed, paired
from notwice import Guard
from notwice.stores.memory import MemoryStore

PAIR_US_MAX: Final = 25

PAIRS: Final = 2_000  # a round: some 50 ms
REPLAYS: Final = 4_000


class Bare:
    """The least that a guard in memory can be: no lease, no fence, no policy, and nothing to be known afterwards."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: dict[str, tuple[bytes, bytes, bytes | None]] = {}

    def begin(self, scope: str, key: str, request: object) -> str | object:
        """Claim the name, or give the answer that is there."""
        name = sha256(f"{scope}\0{key}".encode()).hexdigest()
        digest = sha256(json.dumps(request, sort_keys=True, separators=(",", ":")).encode()).digest()
        with self.lock:
            found = self.rows.get(name)
            if found is None:
                self.rows[name] = (os.urandom(16), digest, None)
                return name
        if found[1] != digest or found[2] is None:
            raise ValueError(name)
        answer: object = json.loads(found[2])
        return answer

    def complete(self, name: str, result: object) -> None:
        """Keep the answer."""
        body = json.dumps(result, separators=(",", ":")).encode()
        with self.lock:
            self.rows[name] = (os.urandom(16), self.rows[name][1], body)


def pair(size: Size) -> Figure:
    """A begin and a complete of new operations."""

    def ours(operations: int) -> float:
        return computed(pairs(Guard(MemoryStore())))(operations)

    def base(operations: int) -> float:
        bare, numbers = Bare(), itertools.count()

        def work() -> None:
            name = bare.begin(SCOPE, f"key-{next(numbers)}", REQUEST)
            bare.complete(str(name), RESULT)

        return computed(work)(operations)

    measured = paired(ours, base, size, operations=PAIRS)
    return Figure(
        "memory-pair", "begin and complete in memory", "dict, lock, JSON, SHA-256", Goal(us_max=PAIR_US_MAX), measured
    )


def replay(size: Size) -> Figure:
    """A begin of a finished operation, and its answer as a value."""
    bare = Bare()
    bare.complete(str(bare.begin(SCOPE, "key", REQUEST)), RESULT)

    def base() -> object:
        return bare.begin(SCOPE, "key", REQUEST)

    measured = paired(computed(replays(Guard(MemoryStore()))), computed(base), size, operations=REPLAYS)
    return Figure("memory-replay", "replay from memory", "dict, lock, JSON, SHA-256", NONE, measured)
