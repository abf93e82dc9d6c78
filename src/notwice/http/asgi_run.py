"""One run of an ASGI handler: its request goes in, its answer comes out, and its operation ends by it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, Final

from notwice.errors import NotAwaited, NotwiceError, OwnershipLost, StepsChanged
from notwice.http.exchange import Answer, Ending, Exchange, Headers, RequestView, offered
from notwice.http.spool import MEMORY_BYTES_MAX, Spool
from notwice.operation import AsyncOperation

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Guards = frozenset[tuple[str, str]]

_LOG: Final = logging.getLogger("notwice")
_RUNNING: Final[set[asyncio.Task[None]]] = set()  # a task that nobody holds may be collected


class Run:
    """One run of the handler: gives it the request, takes its answer, ends the operation, sends the answer on.

    ``_whole`` is set once the app may be told of a hang-up: its answer is whole, or may be cut short.
    """

    def __init__(
        self, exchange: Exchange, operation: AsyncOperation, *, body: Spool, request: RequestView, guards: Guards
    ) -> None:
        self._exchange = exchange
        self._operation = operation
        self._request = request
        self._body = body
        self._guards = guards
        self._capture = exchange.capture(request)
        self._incoming = _incoming(body)
        self._whole = asyncio.Event()
        self._start: Message = {}
        self._headers: Headers = ()
        self._opened = False  # the start went out
        self._settled = False  # the answer was whole, and the operation was ended by it
        self._raised = False  # the app raised
        self._gone = False  # the app was told that its client is gone, which is no word of its own
        self._kept_back = False  # the answer says that nothing happened, and the key could not be freed by it
        self._detached = False  # nobody is left to send to
        self._cut_short = False  # the app knows it: what it ends now was not ended by itself
        self._held: list[bytes] = []
        self._left_out: tuple[str, ...] = ()  # headers that the request had when it was first sent
        self._unseen: asyncio.Event | None = None  # set once the answer that goes to nobody is whole

    async def serve(self, app: App, receive: Receive, send: Send) -> None:
        """Run the app in a task of its own; whoever cancels this one leaves it running."""
        self._server_receive, self._server_send = receive, send
        task = asyncio.create_task(self._run(app))
        _RUNNING.add(task)
        task.add_done_callback(_RUNNING.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._detached = True
            task.add_done_callback(_log_failure)
            raise

    async def unseen(self, app: App, left_out: tuple[str, ...]) -> None:
        """Run the app in this task, with nobody to send to: its answer ends the operation, and goes nowhere else."""
        self._unseen, self._left_out = asyncio.Event(), left_out
        self._server_receive, self._server_send = self._until_it_is_whole, _drop
        await self._run(app)

    async def _until_it_is_whole(self) -> Message:
        """What a server says to an app that goes on listening after its answer."""
        assert self._unseen is not None  # `unseen` has made it
        await self._unseen.wait()
        return {"type": "http.disconnect"}

    async def _run(self, app: App) -> None:
        try:
            with self._body:
                async with self._operation:
                    await self._handle(app)
        except Exception as error:
            answer = self._excuse(error)
            if answer is not None:
                await give(answer, self._emit)
            elif self._raised:
                raise

    async def _handle(self, app: App) -> None:
        try:
            await app(self._scope(), self.receive, self.send)
        except BaseException as error:
            self._raised = True
            await self._break_off(error)
            raise
        finally:
            self._whole.set()
            if self._unseen is not None:
                self._unseen.set()
        await self._break_off(None)
        if self._capture.started and not self._opened:
            await self._open()

    def _excuse(self, error: Exception) -> Answer | None:
        """The answer in place of one that an exception prevented; ``None`` if it is the server's to tell."""
        if self._opened or self._settled or not self._raised:
            return None
        return self._exchange.excuse(error, self._operation, self._request)

    def _scope(self) -> Scope:
        """The scope that the app sees: with its operation, without what would bypass the capture."""
        scope = dict(self._request.scope)
        scope["notwice.operation"] = self._operation
        scope["notwice.guards"] = self._guards
        if scope.get("extensions"):
            scope["extensions"] = {
                name: value for name, value in scope["extensions"].items() if not name.startswith("http.response.")
            }
        codings = offered(self._request.headers.lines("accept-encoding"))
        if codings is not None:
            rest = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
            scope["headers"] = [*rest, (b"accept-encoding", codings.encode("latin-1"))]
        return scope

    async def receive(self) -> Message:
        """Give the app its request, and after it nothing before the answer is whole."""
        for message in self._incoming:
            return message
        await self._whole.wait()
        message = {"type": "http.disconnect"} if self._detached else await self._server_receive()
        if message["type"] == "http.disconnect" and not self._settled and not self._capture.whole:
            self._cut_short = True
        return message

    async def send(self, message: Message) -> None:
        """Take the app's answer."""
        match message["type"]:
            case "http.response.start" if not self._opened:
                await self._take_start(message)
            case "http.response.body" if self._capture.started and not self._settled:
                await self._take_body(bytes(message.get("body", b"")), more=message.get("more_body", False))
            case _:
                await self._emit(message)

    async def _take_start(self, message: Message) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        self._headers = self._capture.start(message["status"], headers)
        self._start = {name: value for name, value in message.items() if name != "trailers"}
        if self._capture.breakable:
            self._whole.set()
            await self._open()

    async def _take_body(self, chunk: bytes, *, more: bool) -> None:
        capture = self._capture
        capture.add(chunk)
        if capture.breakable:
            self._whole.set()
        self._held.append(chunk)
        if not more:
            await self._finish()
        elif not self._waits:
            await self._flush(more=True)

    @property
    def _waits(self) -> bool:
        """Whether what is held may not go out yet: the last bytes, and all of an answer that may be replaced."""
        replaceable = self._operation.ended and not self._opened and not self._capture.breakable
        return self._capture.whole or replaceable

    async def _finish(self) -> None:
        """The answer is whole: end the operation by it, then send the rest."""
        instead = await self._settle()
        self._whole.set()
        if self._unseen is not None:
            self._unseen.set()
        if instead is not None and not self._opened:
            await give(instead, self._emit)
            self._opened = True
        else:
            await self._flush(more=False)

    async def _settle(self) -> Answer | None:
        """End the operation by the whole answer. Gives what is to go out in its place, if anything."""
        self._settled = True
        if self._operation.ended and not self._operation.lost:
            return await self._ended_before()
        whole = self._capture.sound and not self._cut_short
        proves = self._capture.proves_without(self._left_out)
        lost = await self._end(self._capture.ending if whole and proves else None)
        return None if lost is None else self._exchange.error(lost, self._request)

    async def _ended_before(self) -> Answer | None:
        """The answer that the handler has finished the operation with, if the whole one is another."""
        with contextlib.suppress(NotwiceError):
            await self._operation._look_for_end()
        finished, answer = self._operation._finished, self._capture.result
        instead = None if finished is None else self._exchange.instead(finished, answer, self._request)
        if instead is not None:
            self._operation._tell_replaced(answer)
        return instead

    async def _break_off(self, error: BaseException | None) -> None:
        """The app ended. If its answer is not whole, end the operation, unless the exception says how."""
        if self._settled or self._operation.ended:
            return
        ending = self._capture.break_off()
        if ending is not None or error is None or self._gone:
            await self._end(ending)

    async def _end(self, ending: Ending | None) -> OwnershipLost | StepsChanged | NotAwaited | None:
        """Make the operation's last move. What the store could not confirm is repeated by the guard, not here."""
        operation = self._operation
        result = self._capture.result
        try:
            match ending:
                case Ending.COMPLETED:
                    await operation.complete(result)
                case Ending.FAILED:
                    await operation.fail(result)
                case Ending.ABANDONED:
                    await operation.abandon()
                case Ending.UNKNOWN:
                    await operation.suspend(f"the handler answered with status {result.status}", answer=result)
                case None:
                    await operation.suspend(self._why_open())
        except OwnershipLost as error:
            return None if ending is Ending.ABANDONED else error
        except (StepsChanged, NotAwaited) as error:  # the answer speaks of what did not happen
            with contextlib.suppress(NotwiceError):
                await operation.suspend(error)
            return error
        except NotwiceError:
            pass
        finally:
            self._kept_back = ending is Ending.ABANDONED and not operation.freed
        return None

    def _why_open(self) -> str:
        if not self._capture.started or self._capture.proves_without(self._left_out):
            return "the handler ended without a whole answer"
        left_out = ", ".join(self._left_out)
        return f"sent again without {left_out}, the answer was {self._capture.status}: it may be about these headers"

    async def _flush(self, *, more: bool) -> None:
        await self._open()
        body = b"".join(self._held)
        self._held.clear()
        await self._emit({"type": "http.response.body", "body": body, "more_body": more})

    async def _open(self) -> None:
        if not self._opened:
            self._opened = True
            ending, kept_back = self._capture.ending, self._kept_back
            headers = self._exchange.opened(self._headers, self._operation, ending, kept_back=kept_back)
            await self._emit({**self._start, "headers": _encoded(headers)})

    async def _emit(self, message: Message) -> None:
        """Send to the client. One that is gone stops only an answer that may be cut short."""
        may_break = self._capture.breakable and not self._settled
        if self._detached:
            if may_break:
                self._gone = True
                raise ConnectionResetError("the client is gone")
            return
        try:
            await self._server_send(message)
        except OSError:
            if may_break:
                self._gone = True
                raise
            self._detached = True


async def _drop(_message: Message) -> None:
    """Send to nobody."""


async def give(answer: Answer, send: Send) -> None:
    """Send an answer of the guard's own."""
    await send({"type": "http.response.start", "status": answer.status, "headers": _encoded(answer.headers)})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def _incoming(body: Spool) -> Iterator[Message]:
    if body.size <= MEMORY_BYTES_MAX:
        yield {"type": "http.request", "body": body.read(), "more_body": False}
        return
    given = 0
    for chunk in body:
        given += len(chunk)
        yield {"type": "http.request", "body": chunk, "more_body": given < body.size}


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _log_failure(task: asyncio.Task[None]) -> None:
    """Nobody waits for this run any more; what it raised would be lost."""
    if not task.cancelled() and task.exception() is not None:
        _LOG.error("a guarded handler failed after its request was given up", exc_info=task.exception())
