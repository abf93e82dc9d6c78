"""The work of a client on bare records: batches of inserts, swaps and gets that all clients aim at the same few."""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from notwice.errors import NotwiceError
from notwice.model import Get, Insert, Op, Record, RecoveryKind, Reply, State, Swap, Terms
from notwice.stores.port import Store
from notwice.testing.linearizable import Name, Seen, seen

NAMESPACE: Final = "torture"
WINDOW_NS: Final = 20_000_000
RECORDS_PER_WINDOW: Final = 6
"""Records are aimed at for a twentieth of a second, so that clients meet on them and their histories stay short."""

BATCHES: Final = (1, 1, 1, 2, 3)
PURGES: Final = 0.02  # of all batches are followed by one, which must find nothing to drop
OPEN: Final = Terms(300_000, 0, RecoveryKind.HOLD, None, None, 0, deduplicated=False)
FINISHED: Final = OPEN._replace(retention_ms=None)
SIZES: Final = (0, 50, 3_000)  # of bodies, in bytes
DAMAGED: Final = b"damaged"
"""What stands for the etag of a record that is not as it was written: no order of operations explains it."""

KINDS: Final = ("get", "insert", "swap", "swap", "swap", "stale")


def work(store: Store, log: int, *, chance: random.Random, count: Callable[[int], None]) -> None:
    """Go on until killed. `log` is a descriptor opened to append, `count` is told how many operations were made."""
    etags: dict[str, list[bytes]] = {}
    while True:
        window = time.monotonic_ns() // WINDOW_NS
        keys = chance.sample(range(RECORDS_PER_WINDOW), chance.choice(BATCHES))
        ops = [_op(f"{window}-{key}", etags, chance) for key in keys]
        _call(store, ops, log, etags=etags)
        if chance.random() < PURGES:
            _purge(store, log)
        if len(etags) > 10 * RECORDS_PER_WINDOW:
            etags.clear()
        count(len(ops))


def look(store: Store, names: Iterable[Name], log: int) -> None:
    """Get each record once, for the end of the history."""
    waiting = list(names)
    while waiting:
        batch, waiting = waiting[:100], waiting[100:]
        _call(store, [Get(*name) for name in batch], log, etags={})


def _op(key: str, etags: dict[str, list[bytes]], chance: random.Random) -> Op:
    known = etags.get(key, [])
    kind = chance.choice(KINDS) if known else chance.choice(("get", "insert", "insert"))
    if kind == "get":
        return Get(NAMESPACE, key)
    record = _record(key, chance)
    if kind == "insert":
        return Insert(record)
    return Swap(record, known[-1] if kind == "swap" else chance.choice(known))


def _record(key: str, chance: random.Random) -> Record:
    """An open record that would expire at once if it were finished, or a finished one that is kept for ever."""
    etag, size = secrets.token_bytes(16), chance.choice(SIZES)
    state, terms = chance.choice(((State.IN_PROGRESS, OPEN), (State.COMPLETED, FINISHED)))
    progress = (("body", _body(etag, size)),)
    return Record(NAMESPACE, key, "torture", key, state, etag, None, terms, attempt=size + 1, progress=progress)


def _body(etag: bytes, size: int) -> bytes:
    return (etag * (size // len(etag) + 1))[:size]


def _found(reply: Reply) -> bytes:
    """The etag of what was found, if it is whole; empty for nothing."""
    match reply.record:
        case None:
            return b""
        case Record(etag=etag, attempt=attempt, progress=(("body", body),)) if body == _body(etag, attempt - 1):
            return etag
        case _:
            return DAMAGED


def _call(store: Store, ops: Sequence[Op], log: int, *, etags: dict[str, list[bytes]]) -> None:
    called_ns = time.monotonic_ns()
    _say(log, ["call", called_ns, [_plain(op) for op in ops]])
    try:
        replies = store.apply(ops)
    except NotwiceError as error:
        _say(log, ["error", called_ns, f"{type(error).__name__}: {error}"])
        return
    replied_ns = time.monotonic_ns()
    _say(log, ["reply", called_ns, replied_ns, [[reply.won, _found(reply).hex()] for reply in replies]])
    for op, reply in zip(ops, replies, strict=True):
        if isinstance(reply.record, Record):
            key = op.id if isinstance(op, Get) else op.record.id
            etags.setdefault(key, []).append(reply.record.etag)


def _purge(store: Store, log: int) -> None:
    try:
        store.purge(10)
    except NotwiceError as error:
        _say(log, ["error", 0, f"{type(error).__name__}: {error}"])


def _plain(op: Op) -> list[str | None]:
    if isinstance(op, Get):
        return ["get", op.namespace, op.id]
    expected = op.expected_etag.hex() if isinstance(op, Swap) else None
    return ["write", op.record.namespace, op.record.id, op.record.etag.hex(), expected]


def _say(log: int, words: list[Any]) -> None:
    os.write(log, f"{json.dumps(words, separators=(',', ':'))}\n".encode())


def heard(lines: Iterable[str]) -> Iterator[tuple[Name, Seen]]:
    """What one client saw, from its log. A call without a reply has an unknown outcome."""
    calls: dict[int, list[list[Any]]] = {}
    for words in _whole(lines):
        match words:
            case ["call", called_ns, ops]:
                calls[called_ns] = ops
            case ["reply", called_ns, replied_ns, replies]:
                for op, (won, found) in zip(calls.pop(called_ns), replies, strict=True):
                    name, each = _seen(op, called_ns)
                    etag = bytes.fromhex(found) or None
                    yield name, each._replace(replied_ns=replied_ns, won=won, found=etag)
            case _:
                pass
    for called_ns, ops in calls.items():
        yield from (_seen(op, called_ns) for op in ops)


def errors(lines: Iterable[str]) -> Iterator[str]:
    """The errors that a client was given."""
    yield from (words[2] for words in _whole(lines) if words[0] == "error")


def _whole(lines: Iterable[str]) -> Iterator[list[Any]]:
    yield from (json.loads(line) for line in lines if line.endswith("]\n"))


def _seen(op: list[Any], called_ns: int) -> tuple[Name, Seen]:
    if op[0] == "get":
        return seen(Get(op[1], op[2]), None, called_ns=called_ns)
    _, namespace, identifier, writes, expects = op
    expected = None if expects is None else bytes.fromhex(expects)
    return (namespace, identifier), Seen(called_ns, -1, bytes.fromhex(writes), expected)
