"""What is asked of which node, in which order: generators that wait for nothing, for both faces.

A flow yields an `Exchange`, the commands for each node, and is sent what came back from each; or a `Pause`. It asks
again only where a node has surely done nothing: it was never reached, it does not own the slot (MOVED, ASK), the slot
is on its way (TRYAGAIN), the cluster has no owner for it (CLUSTERDOWN), or it has forgotten the script (NOSCRIPT). All
other errors are the caller's, and what was sent without an answer is unknown.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, ResponseError, TryAgainError

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, RecordView, Reply
from notwice.stores.redis.routes import Address, Routes
from notwice.stores.redis.rows import Command, Keys, command_of, reply_to
from notwice.stores.redis.script import MOVE
from notwice.stores.shared import name_of

T = TypeVar("T")

TRIES: Final = 8
"""How often a node is asked for one operation: enough for a slot that moves twice and a script that is forgotten."""

PAUSE_S: Final = 0.02

_LOAD: Final = ("SCRIPT", "LOAD", MOVE)


class Exchange(NamedTuple):
    """Commands for each node, all of which are under way at once. ``timeout`` is shorter than the call's, if given."""

    commands: Mapping[Address, Sequence[Command]]
    timeout: float | None = None


class Pause(NamedTuple):
    """Time that a cluster needs to come to rest."""

    seconds: float


class Lost(NamedTuple):
    """No answers from a node, or not all; ``sent`` if it may have carried out something."""

    error: Exception
    sent: bool


Answers = Mapping[Address, Sequence[Any] | Lost]
"""What came back from each node: for each command its answer, or the error that stands in its place."""

Flow = Generator[Exchange | Pause, Answers, T]


class Terms(NamedTuple):
    """What a store asks of its servers besides. ``wait_ms`` is how long to wait for so many `replicas`."""

    replicas: int
    wait_ms: int


class _Move:
    """One operation under way."""

    __slots__ = ("address", "asking", "command", "forgotten", "op", "reply", "shard")

    def __init__(self, op: Op, keys: Keys, *, written_ms: int = 0) -> None:
        self.op = op
        self.shard, key, open_key = keys.of(name_of(op))
        self.command = command_of(op, key, open_key, written_ms=written_ms)
        self.reply: Reply | None = None
        self.address: Address | None = None  # of the node that another one named
        self.asking = False
        self.forgotten = False  # the script, by that node

    def commands(self) -> list[Command]:
        """What is sent for it."""
        return [("ASKING",), self.command] if self.asking else [self.command]

    def take(self, answer: object, routes: Routes, address: Address) -> None:
        """Note the answer of a node; raises what can't be mended."""
        if isinstance(answer, list):
            self.reply = reply_to(self.op, answer)
            return
        self.address, self.asking, self.forgotten = None, False, False
        match answer:
            case MovedError():
                self.address = routes.moved(answer, address)
            case AskError():
                self.address, self.asking = routes.asked(answer, address), True
            case NoScriptError():
                self.address, self.forgotten = address, True
            case TryAgainError() | ClusterDownError():
                routes.doubt()
            case _:
                raise refused(answer)


def moves(ops: Sequence[Op], keys: Keys, routes: Routes, terms: Terms) -> Flow[list[Reply]]:
    """Carry out a batch."""
    return (yield from _carried_out([_Move(op, keys) for op in ops], routes, terms))


def loads(views: Sequence[RecordView], keys: Keys, routes: Routes, terms: Terms) -> Flow[list[bool]]:
    """Take in records of another store."""
    inserts = [_Move(Insert(view.record), keys, written_ms=view.written_ms) for view in views]
    return [reply.won for reply in (yield from _carried_out(inserts, routes, terms))]


def _carried_out(batch: Sequence[_Move], routes: Routes, terms: Terms) -> Flow[list[Reply]]:
    waiting = batch
    for attempt in range(TRIES):
        yield from routes_known(routes)
        groups: dict[Address, list[_Move]] = {}
        for move in waiting:
            groups.setdefault(move.address or routes.owner(move.shard), []).append(move)
        answers = yield Exchange({address: _commands(group, terms) for address, group in groups.items()})
        for address, group in groups.items():
            _take(group, answers[address], routes, address)
            if isinstance(acknowledged := _acknowledged(group, answers[address], terms), StoreUnavailable):
                raise acknowledged
        waiting = [move for move in waiting if move.reply is None]
        if not waiting:
            break
        if attempt and not all(move.address for move in waiting):
            yield Pause(PAUSE_S)
    return [_reply(move) for move in batch]


def _commands(group: Sequence[_Move], terms: Terms) -> list[Command]:
    commands: list[Command] = [_LOAD] if any(move.forgotten for move in group) else []
    commands += (command for move in group for command in move.commands())
    if terms.replicas and not all(isinstance(move.op, Get) for move in group):
        commands.append(("WAIT", terms.replicas, terms.wait_ms))
    return commands


def _take(group: Sequence[_Move], answers: Sequence[Any] | Lost, routes: Routes, address: Address) -> None:
    if isinstance(answers, Lost):
        routes.doubt()
        if answers.sent or not routes.may_change:
            raise unanswered(answers, address)
        for move in group:
            move.address, move.asking = None, False
        return
    at = int(any(move.forgotten for move in group))
    for move in group:
        at += len(move.commands())
        move.take(answers[at - 1], routes, address)


def _acknowledged(group: Sequence[_Move], answers: Sequence[Any] | Lost, terms: Terms) -> StoreUnavailable | None:
    """What to raise if something was written that too few replicas have."""
    if not terms.replicas or isinstance(answers, Lost) or not any(move.reply and move.reply.won for move in group):
        return None
    if isinstance(answers[-1], int) and answers[-1] >= terms.replicas:
        return None
    return StoreUnavailable(
        f"{answers[-1]} replicas have this write, not {terms.replicas}; whether it outlives a fail-over is not known"
    )


def _reply(move: _Move) -> Reply:
    if move.reply is None:
        raise StoreUnavailable(f"the cluster named no node that serves this slot in {TRIES} tries; nothing was done")
    return move.reply


def routes_known(routes: Routes) -> Flow[None]:
    """Ask the cluster which node owns which slot, if that is not known or in doubt."""
    if not routes.in_doubt:
        return
    failures: list[object] = []
    for address in routes.candidates():
        answers = yield Exchange({address: [("CLUSTER", "SLOTS")]}, routes.timeout)
        found = answers[address]
        if not isinstance(found, Lost) and isinstance(found[0], list) and routes.learn(found[0], address):
            return
        failures.append(found.error if isinstance(found, Lost) else found[0])
    raise StoreUnavailable(f"no node could say which one owns which slot ({failures[-1]}); nothing was done")


def unanswered(lost: Lost, address: Address) -> StoreUnavailable:
    """The error for a node that gave no answer."""
    known = "whether it was carried out is not known" if lost.sent else "nothing was done"
    return StoreUnavailable(f"no answer from {shown(address)} ({lost.error}); {known}")


def refused(answer: object) -> StoreUnavailable:
    """The error for an answer that says why nothing was done."""
    if isinstance(answer, ResponseError):
        return StoreUnavailable(f"the server refused: {type(answer).__name__}: {answer}")
    return StoreUnavailable(f"the server gave an answer that can't be understood: {answer!r:.80}")


def shown(address: Address) -> str:
    """An address for people."""
    host, port = address
    return f"{host}:{port}"
