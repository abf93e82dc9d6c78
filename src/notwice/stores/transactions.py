"""What a caller hands over as its transaction: a driver's connection, or an object of SQLAlchemy or Django around one.

Nothing optional is imported: an object is known by the package that its class, or a class that it inherits from, is of.
What both have in common is that they begin a transaction late: with the first statement that goes through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from notwice.model import Op, Record, Reply, Swap
from notwice.stores.port import Fate

_FIRST_STATEMENT: Final = "SELECT 1"


def driver_connection(transaction: object) -> Any:  # noqa: ANN401 - a connection of any driver, or no connection at all
    """The driver's connection behind `transaction`, which has been begun there.

    What is not known is given back as it is: the engine says whether it can use it. Raises `ValueError` for a
    connection of Django outside ``atomic``, `TypeError` for what is of SQLAlchemy and no connection or session.
    """
    packages = _packages_of(transaction)
    if "sqlalchemy.ext.asyncio" in packages:
        raise TypeError("this is a connection or session for event loops, and this store uses one that blocks")
    if "django" in packages:
        return _of_django(transaction)
    if "sqlalchemy" in packages:
        return _of_sqlalchemy(transaction)
    return transaction


async def async_driver_connection(transaction: object) -> Any:  # noqa: ANN401 - as driver_connection
    """The same for an event loop, where SQLAlchemy's objects may be of its asyncio extension."""
    if "sqlalchemy.ext.asyncio" not in _packages_of(transaction):
        return driver_connection(transaction)
    connection: Any = transaction
    if not hasattr(connection, "exec_driver_sql"):
        connection = await _connection_of(connection)
    await connection.exec_driver_sql(_FIRST_STATEMENT)
    return (await connection.get_raw_connection()).driver_connection


class Handed(NamedTuple):
    """What the object that was handed over knows of its transaction, where the driver's connection knows nothing.

    ``goes_on`` tells later whether it may still be open: a pool gives the connection to others, who must not be
    disturbed. ``nested`` is whether it knows of a savepoint that could be gone back to.
    """

    goes_on: Callable[[], bool]
    nested: bool

    def fate_once_over(self) -> Fate:
        """What became of a write that is not committed, once the transaction is over."""
        return Fate.NESTED if self.nested else Fate.UNDONE


def handed_over(transaction: object) -> Handed:
    """What `transaction` knows of the transaction that is open there now."""
    given: Any = transaction
    packages = _packages_of(given)
    if "django" in packages:
        return Handed(_surely, nested=any(given.savepoint_ids))
    if "sqlalchemy" not in packages:
        return Handed(_surely, nested=False)
    if hasattr(given, "driver_connection"):
        connection = given.driver_connection
        return Handed(lambda: given.driver_connection is connection, nested=False)
    if not hasattr(given, "exec_driver_sql"):
        given = _session_connection(given)
    begun = given.get_transaction()
    return Handed(
        lambda: begun is not None and given.get_transaction() is begun, nested=bool(given.in_nested_transaction())
    )


def _surely() -> bool:
    """There is no pool, and what the connection says goes."""
    return True


def is_explained(op: Op, seen: Reply) -> bool:
    """Whether what was committed says why `op` was refused: another's record, or another etag than the expected."""
    if isinstance(op, Swap):
        return not (isinstance(seen.record, Record) and seen.record.etag == op.expected_etag)
    return seen.record is not None


def not_open(what: str) -> ValueError:
    """The error for a connection on which nothing would be committed together."""
    return ValueError(
        f"no transaction is open on this connection: {what}. The guard wrote nothing; what you wrote there may be "
        "committed already"
    )


def transaction_over() -> ValueError:
    """The error for an operation that goes on after the transaction on which it was begun."""
    return ValueError(
        "the transaction on which this was begun is over; if it was committed, the operation is unresolved"
    )


def another_place(what: str) -> ValueError:
    """The error for a connection whose commit would not be the store's."""
    return ValueError(f"this connection is {what}: its rows and the store's records would not be committed together")


def no_connection(given: object, wanted: str) -> TypeError:
    """The error for what is no connection of an engine."""
    kind = type(given)
    return TypeError(
        f"transaction= takes {wanted}, or a connection or session of SQLAlchemy or Django on it, not a "
        f"{kind.__module__}.{kind.__qualname__}"
    )


def _packages_of(transaction: object) -> set[str]:
    """The package, and every package within it, of each class that `transaction` is an instance of."""
    names: set[str] = set()
    for kind in type(transaction).__mro__:
        parts = kind.__module__.split(".")
        names |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return names


def _of_django(connection: Any) -> object:  # noqa: ANN401 - Django ships no annotations
    if not getattr(connection, "in_atomic_block", False):
        raise not_open("call this within transaction.atomic(), and pass its connection: connections[alias]")
    connection.ensure_connection()
    return connection.connection


def _of_sqlalchemy(given: Any) -> object:  # noqa: ANN401 - known by what it has
    if hasattr(given, "driver_connection"):
        return given.driver_connection
    if not hasattr(given, "exec_driver_sql"):
        given = _session_connection(given)
    given.exec_driver_sql(_FIRST_STATEMENT).close()
    return given.connection.driver_connection


def _session_connection(given: Any) -> Any:  # noqa: ANN401 - known by what it has
    if not hasattr(given, "get_bind") or not callable(getattr(given, "connection", None)):
        raise no_connection(given, "an open connection")
    return given.connection()


async def _connection_of(session: Any) -> Any:  # noqa: ANN401 - known by what it has
    if not callable(getattr(session, "connection", None)):
        raise no_connection(session, "an open connection")
    return await session.connection()
