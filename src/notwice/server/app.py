"""The composition root of the gateway: from settings to a running server.

::

    uvicorn -> Edge -> Health -> IdempotencyMiddleware -> Proxy -> upstream

One process, one event loop. On SIGTERM or SIGINT it stops accepting, finishes what runs for ``shutdown_grace``, and
then closes guard and store; what still runs after that is cancelled, and its outcome is unknown. A second signal ends
the waiting. The process may be killed at any moment: what was acknowledged is stored, and what was under way is found
as unresolved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from functools import partial

import uvicorn

from notwice import AsyncGuard, Policy, Privacy, hold, rerun
from notwice.http import HttpPolicy
from notwice.http.asgi import IdempotencyMiddleware
from notwice.observe import LogObserver
from notwice.recovery import Round, keep_recovering_async, literally
from notwice.server.edge import Edge
from notwice.server.health import PROBE, Health
from notwice.server.inbound import Inbound
from notwice.server.kinds import Address
from notwice.server.options import SettingsError, sentence
from notwice.server.own import is_own
from notwice.server.principals import principal_of
from notwice.server.proxy import App, Proxy
from notwice.server.scarcity import Scarcity
from notwice.server.settings import Settings
from notwice.server.upstream import Upstream

logger = logging.getLogger("notwice.server")

BACKLOG = 2048
_SAID_ELSEWHERE = "ASGI callable returned without completing response"
SENDERS = 4  # of stored requests at once: a slow upstream holds up no more than these
CANCELLED_SECONDS = 5.0  # how long what was cancelled may take to store that its outcome is unknown


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a gateway consists of."""

    app: App
    proxy: Proxy
    guard: AsyncGuard
    upstream: Upstream


def compose(settings: Settings) -> Gateway:
    """Put a gateway together. Nothing is opened before the first request.

    Raises `SettingsError` where options are not usable.
    """
    try:
        http_policy = http_policy_of(settings)
        guard = AsyncGuard.open(
            settings.store, policy=policy_of(settings), observer=LogObserver(), privacy=privacy_of(settings)
        )
    except (TypeError, ValueError, ImportError) as error:  # a store may need an extra
        raise SettingsError([sentence(str(error))]) from error
    upstream = Upstream(settings)
    proxy = Proxy(settings, upstream)
    guarded = IdempotencyMiddleware(proxy, guard=guard, http_policy=http_policy)
    if settings.store_requests:
        guard.recovers(literally(settings.scope), needs_request=True)(guarded.rerun)
    healthy = Health(guarded, path=settings.health_path, guard=guard, upstream=upstream)
    return Gateway(Edge(healthy, access_log=settings.access_log), proxy, guard, upstream)


def policy_of(settings: Settings) -> Policy:
    """Give the policy of all operations."""
    return Policy(
        recovery=rerun if settings.recovery == "rerun" else hold,
        lease=settings.lease,
        wait=settings.wait,
        retention=settings.retention,
        unresolved_max=settings.unresolved_max,
        store_timeout=settings.store_timeout,
        store_failure=settings.store_failure,
        store_request=settings.store_requests,
        attempts_max=settings.attempts_max,
    )


def privacy_of(settings: Settings) -> Privacy:
    """Give what the store gets to see. Raises `OSError` for a file that can't be read, `ValueError` without a key."""
    return Privacy(
        keys=settings.sealing_keys(),
        compress_above_bytes=settings.compress_above,
        hash_keys=settings.hash_keys,
    )


def http_policy_of(settings: Settings) -> HttpPolicy:
    """Give the policy of the HTTP edge."""
    return HttpPolicy(
        principal=principal_of(settings),
        methods=settings.methods,
        required=settings.required,
        header=settings.header,
        scope=settings.scope,
        statuses=dict(settings.statuses),
        challenge="Bearer" if settings.principal.kind == "jwt" else None,
        request_bytes_max=settings.request_bytes_max,
        response_bytes_max=settings.response_bytes_max,
        status_path=settings.status_path or None,
        stored_headers=settings.stored_headers,
        retention_header=settings.retention_header or None,
    )


def serve(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Run the gateway until it is told to stop. `announce` is given its address once it accepts connections.

    Raises `SettingsError` or `OSError` if it can't start, and `StoreUnavailable` if its store does not answer then. A
    store that goes away later is waited for: guarded requests are refused meanwhile.
    """
    _log_to_stderr(settings.log_level)
    _warn(settings)
    with _listener(settings.listen) as listener:
        if is_own(settings.upstream, listener.getsockname()):
            raise SettingsError([f"--upstream: {settings.upstream.authority} is the gateway itself."])
        asyncio.run(_serve(settings, compose(settings), listener, announce=announce))


async def _serve(
    settings: Settings, gateway: Gateway, listener: socket.socket, *, announce: Callable[[str], None]
) -> None:
    asyncio.get_running_loop().set_exception_handler(Scarcity())
    server = _Server(_uvicorn_config(gateway.app, settings), lambda: announce(_url(listener)))
    try:
        await gateway.guard.lookup(*PROBE)
        async with _purging(gateway.guard, settings.purge_every), _resending(gateway, settings):
            await server.serve(sockets=[listener])
    finally:
        await gateway.proxy.give_up(CANCELLED_SECONDS)
        gateway.upstream.close()
        await gateway.guard.close()


def _purging(guard: AsyncGuard, every_seconds: float) -> contextlib.AbstractAsyncContextManager[object]:
    return guard.purge_every(every_seconds) if every_seconds else contextlib.nullcontext()


@contextlib.asynccontextmanager
async def _resending(gateway: Gateway, settings: Settings) -> AsyncGenerator[None]:
    """Send stored requests again meanwhile, a few at a time; those that are under way at the end are waited for."""
    if not settings.store_requests:
        yield
        return
    stop = asyncio.Event()
    one_round = partial(_resend, gateway, settings, stop)
    every = settings.recover_every
    workers = [asyncio.create_task(keep_recovering_async(one_round, stop=stop, every=every)) for _ in range(SENDERS)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait(workers, timeout=CANCELLED_SECONDS)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


async def _resend(gateway: Gateway, settings: Settings, stop: asyncio.Event) -> Round:
    """One round of that. The upstream is asked for a connection only if there is anything to be sent."""
    async for _ in gateway.guard.operations(unresolved=True, scope_prefix=settings.scope, all_namespaces=True):
        break
    else:
        return Round()
    if not await gateway.upstream.reachable(settings.upstream_connect_timeout):
        return Round()  # an outage uses up nobody's attempts
    return await gateway.guard.recover(all_namespaces=True, stopping=stop.is_set)


def _uvicorn_config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Inbound,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the peer's own address is what is appended for the upstream
        server_header=False,
        date_header=False,  # the upstream's goes through, and `Edge` adds one where it is missing
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace),
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, with signals that end it in an orderly way and with status 0."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def _warn(settings: Settings) -> None:
    """Say of settings that are not safe what they risk."""
    if settings.store.startswith("memory:"):
        logger.warning("The store is memory: all keys are forgotten when this process ends, and retries run again.")
    if settings.store_failure == "proceed":
        logger.warning("While the store is down requests run without a guard, and retries may run again.")


def _listener(address: Address) -> socket.socket:
    """Listen. The protocol is named, since only then asyncio turns off the delay of small writes (Nagle's)."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"{address.host}:{address.port}: {error.strerror}") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    error_log = logging.getLogger("uvicorn.error")
    error_log.setLevel(max(logging.WARNING, error_log.getEffectiveLevel()))
    error_log.addFilter(_about_requests)


def _about_requests(record: logging.LogRecord) -> bool:
    """Leave out what the gateway says itself in a line: that an answer broke off."""
    return not record.getMessage().startswith(_SAID_ELSEWHERE)
