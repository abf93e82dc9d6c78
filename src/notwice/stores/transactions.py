"""What a caller hands over as its transaction: a driver's connection, or an object of SQLAlchemy or Django around one.

Nothing optional is imported: an object is known by the package that its class, or a class that it inherits from, is of.
What both have in common is that they begin a transaction late: with the first statement that goes through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from notwice.model import Op, Record, Reply, Swap

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


def going_on(transaction: object) -> Callable[[], bool]:
    """Tells later whether the transaction that is open now still is, as far as the object that was handed over knows.

    Who has only the driver's connection may find another transaction on it, or somebody else's: a pool's. Of the
    driver's connection itself that can't be known, and it is always said to be so.
    """
    packages = _packages_of(transaction)
    given: Any = transaction
    if "django" in packages:
        connection = given.connection
        return lambda: given.in_atomic_block and given.connection is connection
    if "sqlalchemy" not in packages:
        return lambda: True
    if hasattr(given, "driver_connection"):
        connection = given.driver_connection
        return lambda: given.driver_connection is connection
    if not hasattr(given, "exec_driver_sql"):
        given = _session_connection(given)
    begun = given.get_transaction()
    return lambda: begun is not None and given.get_transaction() is begun


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
