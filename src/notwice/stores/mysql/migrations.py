"""The tables of a MySQL or MariaDB store, as numbered steps.

A step that was released is never changed; a new one follows.

``name`` is a digest of namespace and id, of one size whatever they are; ``etag`` is the fence, ``record`` the whole of
it as `notwice.codec` has it. The other columns repeat what look-ups and purges ask for: ``open_ms`` is ``created_ms``
while the operation is open. All text is kept as bytes: no collation ever takes two names for one.

Definitions commit by themselves here, so each statement can be run again after a step was cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from notwice.stores.migrations import Migration


class Names(NamedTuple):
    """How the tables are called."""

    table: str

    @property
    def records(self) -> str:
        """The table of records, as SQL names it."""
        return f"`{self.table}`"

    @property
    def versions(self) -> str:
        """The table of versions, as SQL names it."""
        return f"`{self.table}_schema`"


_CREATE: Final = (
    """
    CREATE TABLE IF NOT EXISTS {versions} (
        number INTEGER NOT NULL PRIMARY KEY,
        reader_min INTEGER NOT NULL
    ) ENGINE = InnoDB
    """,
    """
    CREATE TABLE IF NOT EXISTS {records} (
        name BINARY(16) NOT NULL PRIMARY KEY,
        namespace VARBINARY(1020) NOT NULL,
        id VARBINARY(255) NOT NULL,
        etag VARBINARY(64) NOT NULL,
        scope VARBINARY(4096) NOT NULL,
        state VARBINARY(16) NOT NULL,
        released VARBINARY(16) NOT NULL,
        lease_ms BIGINT NOT NULL,
        created_ms BIGINT NOT NULL,
        open_ms BIGINT,
        written_ms BIGINT NOT NULL,
        expires_ms BIGINT,
        record LONGBLOB NOT NULL,
        KEY notwice_order (created_ms, namespace, id),
        KEY notwice_open (open_ms, namespace, id),
        KEY notwice_expiry (expires_ms),
        KEY notwice_id (id)
    ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    """,
)

_STEPS: Final = (Migration(1, "the records", reader_min=1, statements=_CREATE),)


def steps_of(names: Names) -> Sequence[Migration]:
    """The steps for tables of these names. Each notes itself in the table of versions."""

    def named(statement: str) -> str:
        return statement.format(versions=names.versions, records=names.records)

    noted = "INSERT IGNORE INTO {{versions}} (number, reader_min) VALUES ({0.number}, {0.reader_min})"
    return [step._replace(statements=tuple(map(named, (*step.statements, noted.format(step))))) for step in _STEPS]
