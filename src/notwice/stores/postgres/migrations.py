"""The tables of a PostgreSQL store, as numbered steps. A step that was released is never changed; a new one follows.

``etag`` is the fence, ``record`` the whole of it as `notwice.codec` has it; the other columns repeat what look-ups and
purges ask for. Text has the collation ``"C"``: equal are equal bytes only. Rows leave room on their page (fillfactor),
so that a heartbeat, which changes no indexed column, writes no index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from notwice.stores.migrations import Migration


class Names(NamedTuple):
    """How the tables are called."""

    schema: str
    table: str

    @property
    def records(self) -> str:
        """The table of records, as SQL names it."""
        return f'"{self.schema}"."{self.table}"'

    @property
    def versions(self) -> str:
        """The table of versions, as SQL names it."""
        return f'"{self.schema}"."{self.version_table}"'

    @property
    def version_table(self) -> str:
        """The table of versions, without its schema."""
        return f"{self.table}_schema"


_CREATE: Final = (
    """
    CREATE TABLE {versions} (
        number integer PRIMARY KEY,
        reader_min integer NOT NULL
    )
    """,
    """
    CREATE TABLE {records} (
        id text COLLATE "C" NOT NULL,
        namespace text COLLATE "C" NOT NULL,
        etag bytea NOT NULL,
        scope text COLLATE "C" NOT NULL,
        state text COLLATE "C" NOT NULL,
        released text COLLATE "C" NOT NULL,
        lease_ms bigint NOT NULL,
        created_ms bigint NOT NULL,
        written_ms bigint NOT NULL,
        expires_ms bigint,
        checksum bytea NOT NULL,
        record bytea NOT NULL,
        PRIMARY KEY (id, namespace)
    ) WITH (fillfactor = 70)
    """,
    'CREATE INDEX "{table}_order" ON {records} (created_ms, namespace, id)',
    """
    CREATE INDEX "{table}_open" ON {records} (created_ms, namespace, id)
    WHERE state IN ('in_progress', 'accepted')
    """,
    'CREATE INDEX "{table}_expiry" ON {records} (expires_ms) WHERE expires_ms IS NOT NULL',
)

_STEPS: Final = (Migration(1, "the records", reader_min=1, statements=_CREATE),)


def steps_of(names: Names) -> Sequence[Migration]:
    """The steps for tables of these names. Each notes itself in the table of versions."""

    def named(statement: str) -> str:
        return statement.format(versions=names.versions, records=names.records, table=names.table)

    noted = "INSERT INTO {{versions}} (number, reader_min) VALUES ({0.number}, {0.reader_min})"
    return [step._replace(statements=tuple(map(named, (*step.statements, noted.format(step))))) for step in _STEPS]
