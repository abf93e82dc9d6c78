"""A PostgreSQL store on the caller's transactions in an event loop: asyncpg's, psycopg's, SQLAlchemy's over both."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine

from notwice import AsyncGuard, InProgress, Mismatch, Policy, Replay, Unresolved
from notwice.errors import NotCompleted, OperationEnded, OwnershipLost
from notwice.model import State
from notwice.operation import AsyncOperation
from notwice.stores import open_async_store
from notwice.testing import VirtualClock
from tests.engines.postgres import PostgresServer
from tests.stores.children import in_child
from tests.stores.transactions.ledgers import LEVELS, Ledger, address_of, psycopg_ledger
from tests.stores.transactions.moves import ATOMIC, BRIEF, Crash, RolledBack

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class AsyncLedger:
    """Where the caller's rows are; see `Ledger`."""

    base: Ledger
    transaction: Callable[[], AbstractAsyncContextManager[Any]]
    execute: Callable[[Any, str], Awaitable[Rows]]
    nested: Callable[[Any], AbstractAsyncContextManager[Any]]

    async def insert(self, transaction: Any, name: str) -> None:
        await self.execute(transaction, f"INSERT INTO business (name) VALUES ('{name}')")

    def count(self, name: str) -> int:
        return self.base.count(name)


def asyncpg_ledger(server: PostgresServer, level: str, *, pooled: bool) -> AsyncLedger:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        isolation = level.lower().replace(" ", "_")
        if pooled:
            async with (
                asyncpg.create_pool(address_of(server), min_size=1, max_size=1) as pool,
                pool.acquire() as connection,
                connection.transaction(isolation=isolation),
            ):
                yield connection
            return
        connection = await asyncpg.connect(address_of(server))
        try:
            async with connection.transaction(isolation=isolation):
                yield connection
        finally:
            await connection.close()

    async def execute(connection: Any, text: str) -> Rows:
        return [tuple(row) for row in await connection.fetch(text)]

    return AsyncLedger(psycopg_ledger(server, level), transaction, execute, lambda connection: connection.transaction())


def psycopg_async_ledger(server: PostgresServer, level: str) -> AsyncLedger:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(address_of(server)) as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel[level.replace(" ", "_")])
            yield connection

    async def execute(connection: Any, text: str) -> Rows:
        cursor = await connection.execute(text)
        return await cursor.fetchall() if cursor.description else []

    return AsyncLedger(psycopg_ledger(server, level), transaction, execute, psycopg.AsyncConnection.transaction)


def sqlalchemy_ledger(server: PostgresServer, level: str, *, driver: str, kind: str) -> AsyncLedger:
    engine = create_async_engine(address_of(server, f"+{driver}"), isolation_level=level, poolclass=sqlalchemy.NullPool)

    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        if kind == "connection":
            async with engine.begin() as connection:
                yield connection
            return
        async with AsyncSession(engine) as session, session.begin():
            scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: session)
            scoped.registry.set(session)
            yield session if kind == "session" else scoped

    async def execute(given: Any, text: str) -> Rows:
        result = await given.execute(sqlalchemy.text(text))
        return [tuple(row) for row in result] if result.returns_rows else []

    return AsyncLedger(psycopg_ledger(server, level), transaction, execute, lambda given: given.begin_nested())


KINDS: dict[str, Callable[[PostgresServer], AsyncLedger]] = {
    **{f"asyncpg, {level}": partial(asyncpg_ledger, level=level, pooled=False) for level in LEVELS},
    "asyncpg, of a pool": partial(asyncpg_ledger, level=LEVELS[0], pooled=True),
    "psycopg": partial(psycopg_async_ledger, level=LEVELS[1]),
    "session on asyncpg": partial(sqlalchemy_ledger, level=LEVELS[1], driver="asyncpg", kind="session"),
    "scoped session": partial(sqlalchemy_ledger, level=LEVELS[0], driver="asyncpg", kind="scoped"),
    "connection on psycopg": partial(sqlalchemy_ledger, level=LEVELS[2], driver="psycopg", kind="connection"),
}


@pytest.fixture(params=KINDS)
def ledger(request: pytest.FixtureRequest, postgres: PostgresServer) -> AsyncLedger:
    return KINDS[request.param](postgres)


@pytest.fixture
async def guard(ledger: AsyncLedger) -> AsyncIterator[AsyncGuard]:
    async with AsyncGuard(open_async_store(ledger.base.url), clock=VirtualClock()) as guard:
        yield guard


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return f"async {name}".replace("'", "")[-90:]


async def begun(guard: AsyncGuard, key: str, **options: Any) -> AsyncOperation:
    outcome = await guard.begin("s", key, **options)
    assert isinstance(outcome, AsyncOperation), outcome
    return outcome


async def pay(ledger: AsyncLedger, operation: AsyncOperation) -> None:
    async with ledger.transaction() as transaction:
        await ledger.insert(transaction, operation.key)
        await operation.complete("done", transaction=transaction)


async def until_lapsed(guard: AsyncGuard, key: str) -> None:
    for _ in range(2_000):
        view = await guard.lookup("s", key)
        assert view is not None
        if view.unresolved:
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not lapse")


async def test_result_and_rows_are_committed_together(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """C09: before the commit duplicates see a running operation, after it its result; rolled back, neither is there."""
    async with await begun(guard, key, policy=ATOMIC) as operation:
        with suppress(RolledBack):
            async with ledger.transaction() as transaction:
                await operation.complete("lost", transaction=transaction)
                raise RolledBack
        async with ledger.transaction() as transaction:
            await operation.checkpoint("one", transaction=transaction)
            await operation.complete("done", transaction=transaction)
            await operation.complete("done", transaction=transaction)
            await ledger.insert(transaction, key)
            assert isinstance(await guard.begin("s", key, policy=ATOMIC), InProgress)
        with pytest.raises(OperationEnded, match="was committed"):
            await pay(ledger, operation)
    outcome = await guard.begin("s", key)
    assert isinstance(outcome, Replay)
    assert outcome.result == "done"
    assert ledger.count(key) == 1


async def test_who_has_lost_it_rolls_back(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """P5: a lapsed atomic operation is taken over without asking; the late owner's complete raises."""
    late = await begun(guard, key, policy=BRIEF)
    await until_lapsed(guard, key)
    async with await begun(guard, key, policy=ATOMIC) as taker:
        with pytest.raises(OwnershipLost):
            await pay(ledger, late)
        await pay(ledger, taker)
    assert ledger.count(key) == 1


async def test_after_a_rollback_the_next_one_runs_it_at_once(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """What left its handler by an exception after complete was called, and was rolled back, may run again."""
    with suppress(Crash):
        async with await begun(guard, key, policy=ATOMIC) as operation, ledger.transaction() as transaction:
            await operation.complete("done", transaction=transaction)
            raise Crash
    again = await begun(guard, key, policy=ATOMIC)
    assert again.attempt == 2


async def test_how_its_transaction_ended_is_known_on_leaving(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """C09: committed, the operation is over; rolled back without an exception, it is told and visible at once."""

    async def work(operation: AsyncOperation, *, fails: bool) -> None:
        with suppress(Crash):
            async with ledger.transaction() as transaction:
                await operation.complete("done", transaction=transaction)
                if fails:
                    raise Crash

    async with await begun(guard, key, policy=ATOMIC) as committed:
        await work(committed, fails=False)
    assert committed.view.state is State.COMPLETED
    with pytest.raises(NotCompleted, match="not committed"):
        async with await begun(guard, f"{key}2", policy=ATOMIC) as operation:
            await work(operation, fails=True)
    view = await guard.lookup("s", f"{key}2")
    assert view is not None
    assert view.state is State.ACCEPTED


async def completed_and_undone(ledger: AsyncLedger, operation: AsyncOperation, transaction: Any) -> None:
    """Complete it in a nested block that is then rolled back."""
    with suppress(RolledBack):
        async with ledger.nested(transaction):
            await operation.complete("undone", transaction=transaction)
            raise RolledBack


@pytest.mark.parametrize("told", [NotCompleted, Crash])
async def test_a_savepoint_that_is_gone_back_to(
    ledger: AsyncLedger, guard: AsyncGuard, key: str, told: type[Exception]
) -> None:
    """C09, P7, P10: rows were committed without the completion: told on leaving, and never written again.

    Whether it is left before or after the commit, by an exception or not.
    """

    async def work(operation: AsyncOperation) -> None:
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, key)
            await completed_and_undone(ledger, operation, transaction)
        if told is Crash:
            raise Crash

    with pytest.raises(told):
        async with await begun(guard, key, policy=ATOMIC) as after:
            await work(after)
    assert isinstance(await guard.begin("s", key, policy=ATOMIC), Unresolved)
    before = await begun(guard, f"{key}2", policy=ATOMIC)
    async with ledger.transaction() as transaction:
        await ledger.insert(transaction, key)
        with pytest.raises(NotCompleted, match="went back to a savepoint"):
            async with before:
                await completed_and_undone(ledger, before, transaction)
    assert isinstance(await guard.begin("s", f"{key}2", policy=ATOMIC), Unresolved)


async def test_a_savepoint_that_is_kept(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """C09: completed in a nested block that ends well it is completed, also where another one before was undone."""
    operation = await begun(guard, key, policy=ATOMIC)
    async with ledger.transaction() as transaction, operation:
        await ledger.insert(transaction, key)
        await completed_and_undone(ledger, operation, transaction)
        async with ledger.nested(transaction):
            await operation.complete("done", transaction=transaction)
    assert isinstance(await guard.begin("s", key), Replay)


async def test_begun_after_a_savepoint(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """C09: of what was begun in a nested block that is undone nothing is there; its owner is told, and begins anew."""
    async with ledger.transaction() as transaction:
        await ledger.insert(transaction, key)
        with suppress(RolledBack):
            async with ledger.nested(transaction):
                operation = await begun(guard, key, transaction=transaction)
                await operation.complete("undone")
                raise RolledBack
        with pytest.raises(NotCompleted, match="begin the operation again"):
            async with operation:
                pass
        async with await begun(guard, key, transaction=transaction) as again:
            await again.complete("done")
    outcome = await guard.begin("s", key)
    assert isinstance(outcome, Replay)
    assert outcome.result == "done"


async def test_a_connection_that_was_cut_off(postgres: PostgresServer) -> None:
    """C09, P7: asyncpg cuts it off when a rollback is cancelled. The handler's own exception is what is raised.

    It is known, too, that nothing was committed, and that what was begun on it is over.
    """
    ledger = asyncpg_ledger(postgres, LEVELS[0], pooled=False)
    async with AsyncGuard.open(ledger.base.url) as guard:
        with suppress(asyncpg.InterfaceError):  # there is nothing left to be rolled back
            async with ledger.transaction() as connection:
                inner = await begun(guard, "cut off, begun there", transaction=connection)
                operation = await begun(guard, "cut off", policy=ATOMIC)
                with suppress(Crash):
                    async with operation:
                        await operation.complete("done", transaction=connection)
                        connection.terminate()
                        raise Crash
                with pytest.raises(ValueError, match="is over"):
                    await inner.complete("done")
        await until_lapsed(guard, "cut off")  # the server may not have heard yet
        assert (await begun(guard, "cut off", policy=ATOMIC)).attempt == 2


async def test_claim_result_and_rows_are_committed_together(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """Begun on a transaction, nobody sees the operation before the commit; rolled back, it never was."""
    with suppress(Crash):
        async with ledger.transaction() as transaction, await begun(guard, key, transaction=transaction) as operation:
            await operation.complete("lost")
            raise Crash
    with pytest.raises(NotCompleted):
        async with ledger.transaction() as transaction, await begun(guard, key, transaction=transaction):
            pass
    assert await guard.lookup("s", key) is None
    async with ledger.transaction() as transaction, await begun(guard, key, transaction=transaction) as operation:
        await ledger.insert(transaction, key)
        assert not isinstance(await guard.begin("s", key, transaction=transaction), AsyncOperation)
        await operation.complete("done")
    assert isinstance(await guard.begin("s", key), Replay)
    assert ledger.count(key) == 1


async def test_keys_that_are_there_already(ledger: AsyncLedger, guard: AsyncGuard, key: str) -> None:
    """C14: whether they came before the transaction or after, and an uncommitted one: all goes on."""
    await (await begun(guard, f"{key}1", request=1)).complete("done")
    await (await begun(guard, f"{key}2")).suspend("not known")
    async with ledger.transaction() as transaction:
        await ledger.insert(transaction, key)
        await begun(guard, f"{key}3")
        async with ledger.transaction() as rival:
            claim = await begun(guard, f"{key}4", transaction=rival)
            outcomes = [
                await guard.begin("s", f"{key}{number}", request=request, transaction=transaction)
                for number, request in ((1, 1), (1, 2), (2, None), (3, None), (4, None))
            ]
            await claim.complete("done")
        assert list(map(type, outcomes)) == [Replay, Mismatch, Unresolved, InProgress, InProgress]
        assert await ledger.execute(transaction, "SELECT 1") == [(1,)]
    assert ledger.count(key) == 1


async def test_a_transaction_is_open(postgres: PostgresServer) -> None:
    """Connections without a transaction, and what is no connection of a driver for loops, are refused by a sentence."""
    bare = await asyncpg.connect(address_of(postgres))
    engine = create_async_engine(address_of(postgres, "+asyncpg"), isolation_level="AUTOCOMMIT")
    async with AsyncGuard.open(postgres.url()) as guard, engine.connect() as committing:
        operation = await begun(guard, "open", policy=ATOMIC)
        for given in (bare, committing):
            with pytest.raises(ValueError, match="no transaction is open"):
                await operation.complete("done", transaction=given)
            with pytest.raises(ValueError, match="no transaction is open"):
                await guard.begin("s", "new", transaction=given)
        with psycopg.connect(address_of(postgres)) as blocking, pytest.raises(TypeError, match="for event loops"):
            await operation.complete("done", transaction=blocking)
        with pytest.raises(TypeError, match="an open connection"):
            await operation.complete("done", transaction=engine)
        async with bare.transaction():
            over = await begun(guard, "over", transaction=bare)
        with pytest.raises(ValueError, match="is over"):
            await over.complete("done")
        await operation.suspend()
    await bare.close()
    await engine.dispose()


@pytest.mark.parametrize("committed", [False, True])
async def test_killed(postgres: PostgresServer, committed: bool) -> None:
    """C09 (a), (b): killed before the commit, the next one runs it after the lease; after it, it is replayed."""
    ledger, key = asyncpg_ledger(postgres, LEVELS[0], pooled=False), f"async killed {committed}"

    async def pay_and_die() -> None:
        guard = AsyncGuard.open(ledger.base.url)
        operation = await begun(guard, key, policy=Policy(atomic=True, lease=0.3))
        async with ledger.transaction() as transaction:
            await ledger.insert(transaction, key)
            await operation.complete("done", transaction=transaction)
            if not committed:
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def in_a_loop_of_its_own() -> None:
        asyncio.events._set_running_loop(None)
        asyncio.run(pay_and_die())

    assert in_child(in_a_loop_of_its_own) == -signal.SIGKILL
    assert ledger.count(key) == committed
    async with AsyncGuard.open(ledger.base.url) as guard:
        if not committed:
            await until_lapsed(guard, key)
            async with await begun(guard, key, policy=ATOMIC) as again:
                await pay(ledger, again)
        assert isinstance(await guard.begin("s", key), Replay)
    assert ledger.count(key) == 1
