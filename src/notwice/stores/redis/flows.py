"""What is asked of which node, in which order: generators that wait for nothing, for both faces.

A flow yields an `Exchange`, the commands for each node, and is sent what came back from each; or a `Pause`. It asks
again only where a node has surely done nothing: it was never reached, it does not own the slot (MOVED, ASK), the slot
is on its way (TRYAGAIN), the cluster has no owner for it (CLUSTERDOWN), or it has forgotten the script (NOSCRIPT). All
other errors are the caller's, and what was sent without an answer is unknown. An error is that of the operations that
it is about: what others of the batch were answered stands.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ResponseError,
    TryAgainError,
)

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Record, RecordView, Reply
from notwice.stores.redis.routes import Address, Routes
from notwice.stores.redis.rows import Command, Keys, command_of, reply_to, unreadable
from notwice.stores.redis.script import MOVE
from notwice.stores.shared import name_of, replies_or_raise, reply_of

T = TypeVar("T")

TRIES: Final = 8
"""How often a node is asked for one operation: enough for a slot that moves twice and a script that is forgotten."""

PAUSE_S: Final = 0.02

DOUBTS_MAX: Final = 100_000
"""An hour of an outage with thirty new claims a second; the oldest are forgotten."""

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


class Doubts:
    """The etags of writes that this process sent and that too few replicas may have.

    A guard that got no answer asks again, and owns what it finds under its own etag. So what is found under one of
    these is not told before enough replicas have it.
    """

    def __init__(self) -> None:
        self._etags: dict[bytes, None] = {}

    def __contains__(self, etag: bytes) -> bool:
        return etag in self._etags

    def add(self, etag: bytes) -> bool:
        """Note a write that is about to be sent; gives whether it is the first one under this etag."""
        known = etag in self._etags
        self._etags[etag] = None
        while len(self._etags) > DOUBTS_MAX:
            self._etags.pop(next(iter(self._etags)), None)
        return not known

    def discard(self, etag: bytes) -> None:
        """Enough replicas have it, or it was surely never written."""
        self._etags.pop(etag, None)


class Terms(NamedTuple):
    """What a store asks of its servers besides. ``wait_ms`` is how long to wait for so many `replicas`."""

    replicas: int
    wait_ms: int
    doubts: Doubts


class _Move:
    """One operation under way."""

    __slots__ = (
        *("address", "asking", "command", "error", "first", "forgotten", "key"),
        *("op", "open_key", "reply", "shard"),
    )

    def __init__(self, op: Op, keys: Keys, *, written_ms: int = 0) -> None:
        self.op = op
        self.shard, self.key, self.open_key = keys.of(name_of(op))
        self.command = command_of(op, self.key, self.open_key, written_ms=written_ms)
        self.reply: Reply | None = None
        self.error: StoreUnavailable | None = None
        self.address: Address | None = None  # of the node that another one named
        self.asking = False
        self.forgotten = False  # the script, by that node
        self.first = False  # nothing was sent before under its etag

    def commands(self) -> list[Command]:
        """What is sent for it."""
        return [("ASKING",), self.command] if self.asking else [self.command]

    @property
    def outcome(self) -> Reply | StoreUnavailable:
        """What came of it."""
        nobody = f"the cluster named no node that serves this slot in {TRIES} tries; nothing was done"
        return self.error or self.reply or StoreUnavailable(nobody)

    def take(self, answer: object, routes: Routes, address: Address) -> None:
        """Note the answer of a node."""
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
            case ResponseError() if "WRONGTYPE" in str(answer):  # not a string: somebody else put it there
                self.reply = reply_of((False, unreadable(b"", name_of(self.op)), 0, 0, 0))
            case _:
                self.error = refused(answer)


def moves(ops: Sequence[Op], keys: Keys, routes: Routes, *, terms: Terms) -> Flow[list[Reply]]:
    """Carry out a batch."""
    return (yield from _carried_out([_Move(op, keys) for op in ops], routes, terms))


def loads(views: Sequence[RecordView], keys: Keys, routes: Routes, *, terms: Terms) -> Flow[list[bool]]:
    """Take in records of another store."""
    inserts = [_Move(Insert(view.record), keys, written_ms=view.written_ms) for view in views]
    return [reply.won for reply in (yield from _carried_out(inserts, routes, terms))]


def _carried_out(batch: Sequence[_Move], routes: Routes, terms: Terms) -> Flow[list[Reply]]:
    if terms.replicas:
        for move in batch:
            move.first = not isinstance(move.op, Get) and terms.doubts.add(move.op.record.etag)
    waiting = batch
    for attempt in range(TRIES):
        try:
            yield from routes_known(routes)
        except StoreUnavailable as error:
            _refuse(waiting, error)
            break
        groups: dict[Address, list[_Move]] = {}
        for move in waiting:
            groups.setdefault(move.address or routes.owner(move.shard), []).append(move)
        answers = yield Exchange({address: _commands(group, terms) for address, group in groups.items()})
        for address, group in groups.items():
            _take(group, answers[address], routes, address=address)
            if terms.replicas and not isinstance(found := answers[address], Lost):
                _acknowledge(group, found[-1], terms)
        waiting = [move for move in waiting if move.reply is None and move.error is None]
        if not waiting:
            break
        if attempt and not all(move.address for move in waiting):
            yield Pause(PAUSE_S)
    if terms.replicas:
        yield from _confirmed(batch, routes, terms)
    return replies_or_raise([move.outcome for move in batch])


def _refuse(group: Sequence[_Move], error: StoreUnavailable) -> None:
    for move in group:
        move.error = error


def _commands(group: Sequence[_Move], terms: Terms) -> list[Command]:
    commands: list[Command] = [_LOAD] if any(move.forgotten for move in group) else []
    commands += (command for move in group for command in move.commands())
    if terms.replicas and not all(isinstance(move.op, Get) for move in group):
        commands.append(_wait(terms))
    return commands


def _wait(terms: Terms) -> Command:
    return "WAIT", terms.replicas, terms.wait_ms


def _take(group: Sequence[_Move], answers: Sequence[Any] | Lost, routes: Routes, *, address: Address) -> None:
    if isinstance(answers, Lost):
        routes.doubt()
        if answers.sent or not routes.may_change:
            _refuse(group, unanswered(answers, address))
            return
        for move in group:
            move.address, move.asking = None, False
        return
    at = int(any(move.forgotten for move in group))
    for move in group:
        at += len(move.commands())
        move.take(answers[at - 1], routes, address)


def _acknowledge(group: Sequence[_Move], acknowledged: object, terms: Terms) -> None:
    """What was written and too few replicas have is not told as written."""
    for move in group:
        if move.reply is not None and not isinstance(move.op, Get):
            if move.reply.won:
                move.error = _too_few(acknowledged, terms)
            if move.error is None and (move.reply.won or move.first):
                terms.doubts.discard(move.op.record.etag)


def _confirmed(batch: Sequence[_Move], routes: Routes, terms: Terms) -> Flow[None]:
    """What was found under an etag in doubt is written once more, if it is still there, for replicas to acknowledge."""
    groups: dict[Address, list[tuple[_Move, bytes]]] = {}
    for move in batch:
        record = move.reply and move.reply.record
        if move.error is None and isinstance(record, Record) and record.etag in terms.doubts:
            groups.setdefault(routes.owner(move.shard), []).append((move, record.etag))
    if not groups:
        return
    commands: dict[Address, list[Command]] = {
        address: [*(_touch(move, etag) for move, etag in group), _wait(terms)] for address, group in groups.items()
    }
    answers = yield Exchange(commands)
    for address, group in groups.items():
        found = answers[address]
        if isinstance(found, Lost):
            _refuse([move for move, _ in group], unanswered(found, address))
            continue
        for (move, etag), answer in zip(group, found, strict=False):
            if not isinstance(answer, list) or not answer[0]:
                move.error = StoreUnavailable("a record changed while replicas were asked for it; ask again")
            else:
                move.error = _too_few(found[-1], terms)
            if move.error is None:
                terms.doubts.discard(etag)


def _touch(move: _Move, etag: bytes) -> Command:
    return "EVAL", MOVE, 2, move.key, move.open_key, "touch", etag


def _too_few(acknowledged: object, terms: Terms) -> StoreUnavailable | None:
    """The error of a write that too few replicas have."""
    if isinstance(acknowledged, int) and acknowledged >= terms.replicas:
        return None
    return StoreUnavailable(
        f"{acknowledged} replicas have this write, not {terms.replicas}; whether a fail-over loses it is not known"
    )


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
    """The error for a node that gave no answer, or let nobody in."""
    if isinstance(lost.error, AuthenticationError):
        return StoreUnavailable(f"{shown(address)} refuses this user or password ({lost.error}); nothing was done")
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
