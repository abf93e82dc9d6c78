"""Every statement that runs on a PostgreSQL store, and why a claim is safe.

Each statement commits by itself, at READ COMMITTED, on a session that insists on that level. It reads first: ``seen``
is what its snapshot shows, and only where that allows a write does anything get locked or written. So a replay costs an
index look-up: it takes no lock, and leaves no dead row behind.

The snapshot may be old by the time of the write, so the write has its condition in itself. An insert does nothing where
a row is, even one that the snapshot does not show: the unique index waits for the rival's commit. An update whose row
was changed meanwhile looks at the new version, and finds another etag. In both cases neither ``won`` is true nor does
``seen`` explain why: the statement is *raced*, nothing was done for this operation, and asking again shows the rival.
Etags are never used twice, so a row with the expected etag is the row that was expected.

In a batch, rows are locked in the order of (id, namespace), all of them before the first insert, and inserts go in the
same order. Whoever waits for a row holds only rows and keys that come before it, so nobody can wait in a circle.

``sha256(record) = checksum`` keeps a damaged record from being overwritten or dropped; so does its first byte, the
format, one of a newer release.

Times are the server's ``clock_timestamp()``, read once a statement. The order of text is that of its bytes (``"C"``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from notwice.codec import RECORD_FORMAT

NEVER: Final = -1
"""A record's time until it expires, if it never does: with NULL a driver would take the column for one of no type."""

CLOCK: Final = """
    clock AS MATERIALIZED (
        SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms
    )
"""

CLOCK_AT_ONCE: Final = CLOCK.replace("AS now_ms", "AS now_ms, set_config('lock_timeout', '1', true) AS waits")
"""The same for a statement that hardly waits for a lock, whatever its session does. The CTE comes before the write."""

_SEEN_ONE: Final = """
    seen AS MATERIALIZED (
        SELECT created_ms, written_ms, record, {due} AS due FROM {table} WHERE id = $1 AND namespace = $2
    )
"""

# What a statement gives for each operation: whether it wrote; whether the row that it saw is the expected one; the
# server's time; and of the row that it saw when it was made, when it was written, and the record, unless it wrote.

GET: Final = """
WITH {clock}, {seen}
SELECT false, false, now_ms, created_ms, written_ms, record FROM clock LEFT JOIN seen ON true
"""

_INSERT_ONE: Final = """
        INSERT INTO {table} (
            id, namespace, etag, scope, state, released, lease_ms, created_ms, written_ms, expires_ms, checksum, record
        )
        SELECT $1, $2, $3::bytea, $4::text, $5::text, $6::text, $7::bigint, coalesce(nullif($8::bigint, 0), now_ms),
            now_ms, now_ms + nullif($9::bigint, {never}), $10::bytea, $11::bytea
        FROM clock
"""

INSERT: Final = """
WITH {clock}, {seen},
    written AS (
        {insert} WHERE NOT EXISTS (SELECT FROM seen)
        ON CONFLICT (id, namespace) DO NOTHING
        RETURNING true AS won
    )
SELECT coalesce(won, false), false, now_ms, created_ms, written_ms, record
FROM clock LEFT JOIN seen ON true LEFT JOIN written ON true
"""

SWAP: Final = """
WITH {clock}, {seen},
    written AS (
        UPDATE {table} AS found SET
            etag = $3, scope = $4, state = $5, released = $6, lease_ms = $7,
            created_ms = coalesce(nullif($8::bigint, 0), now_ms), written_ms = now_ms,
            expires_ms = now_ms + nullif($9::bigint, {never}),
            checksum = $10, record = $11
        FROM clock
        WHERE id = $1 AND namespace = $2 AND etag = $12 AND sha256(found.record) = found.checksum
            AND (SELECT due FROM seen)
        RETURNING true AS won
    )
SELECT coalesce(won, false), coalesce(due, false), now_ms, created_ms, written_ms,
    CASE WHEN won THEN NULL ELSE seen.record END
FROM clock LEFT JOIN seen ON true LEFT JOIN written ON true
"""

# A get has no record, and neither it nor an insert expects an etag. Rows that were seen are found again by their spot
# in the table; a version of the row that a rival has put elsewhere meanwhile is not the one that was expected.
BATCH: Final = """
WITH {clock},
    wanted AS MATERIALIZED (
        SELECT * FROM unnest(
            $1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bytea[], $11::bytea[], $12::bytea[]
        ) WITH ORDINALITY AS wanted (
            id, namespace, etag, scope, state, released, lease_ms, created_ms,
            expires_after_ms, checksum, record, expected_etag, place
        )
    ),
    seen AS MATERIALIZED (
        SELECT place, found.ctid AS spot, found.created_ms, found.written_ms, found.record,
            found.etag = wanted.expected_etag AND sha256(found.record) = found.checksum AS due
        FROM wanted JOIN {table} AS found USING (id, namespace)
    ),
    locked AS MATERIALIZED (
        SELECT place, spot
        FROM seen JOIN wanted USING (place) JOIN {table} AS found ON found.ctid = seen.spot
        WHERE due AND found.etag = wanted.expected_etag
        ORDER BY wanted.id, wanted.namespace
        FOR UPDATE OF found
    ),
    swapped AS (
        UPDATE {table} AS found SET
            etag = wanted.etag, scope = wanted.scope, state = wanted.state, released = wanted.released,
            lease_ms = wanted.lease_ms, created_ms = coalesce(nullif(wanted.created_ms, 0), now_ms),
            written_ms = now_ms, expires_ms = now_ms + nullif(wanted.expires_after_ms, {never}),
            checksum = wanted.checksum, record = wanted.record
        FROM clock, locked JOIN wanted USING (place)
        WHERE found.ctid = locked.spot
            AND found.etag = wanted.expected_etag AND sha256(found.record) = found.checksum
        RETURNING place, true AS won
    ),
    inserted AS (
        INSERT INTO {table} (
            id, namespace, etag, scope, state, released, lease_ms, created_ms, written_ms, expires_ms, checksum, record
        )
        SELECT id, namespace, etag, scope, state, released, lease_ms, coalesce(nullif(created_ms, 0), now_ms), now_ms,
            now_ms + nullif(expires_after_ms, {never}), checksum, record
        FROM wanted, clock
        WHERE record IS NOT NULL AND expected_etag IS NULL AND place NOT IN (SELECT place FROM seen)
            AND (SELECT count(*) FROM locked) >= 0  -- so that every lock is there before the first insert
        ORDER BY id, namespace
        ON CONFLICT (id, namespace) DO NOTHING
        RETURNING id, namespace, true AS won
    )
SELECT coalesce(swapped.won, inserted.won, false), coalesce(due, false), now_ms, seen.created_ms, seen.written_ms,
    CASE WHEN swapped.won THEN NULL ELSE seen.record END
FROM wanted CROSS JOIN clock
    LEFT JOIN seen USING (place) LEFT JOIN swapped USING (place) LEFT JOIN inserted USING (id, namespace)
ORDER BY place
"""

# On a transaction of the caller's, an insert reads nothing first: at SERIALIZABLE what was read could be what a rival
# writes, and one of them would have to go. What is there is looked up elsewhere.
PUT: Final = """
WITH {clock}
{insert}
ON CONFLICT (id, namespace) DO NOTHING
RETURNING true, false, written_ms, created_ms, written_ms, record
"""

# There, a row is locked before it is replaced. At READ COMMITTED this waits for its newest version; at the levels above
# it fails (40001) if that is not the version which the transaction sees.
LOCK: Final = "SELECT 1 FROM {table} WHERE id = $1 AND namespace = $2 FOR UPDATE"

# And there, whether a record is as it was written.
SHOWN: Final = "SELECT 1 FROM {table} WHERE id = $1::text AND namespace = $2::text AND etag = $3::bytea"

LOAD: Final = """
INSERT INTO {table} (
    id, namespace, etag, scope, state, released, lease_ms, created_ms, written_ms, expires_ms, checksum, record
)
SELECT id, namespace, etag, scope, state, released, lease_ms, created_ms, written_ms,
    written_ms + nullif(expires_after_ms, {never}), checksum, record
FROM unnest(
    $1::text[], $2::text[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[], $9::bigint[],
    $10::bytea[], $11::bytea[], $12::bigint[]
) AS taken (
    id, namespace, etag, scope, state, released, lease_ms, created_ms, expires_after_ms, checksum, record, written_ms
)
ORDER BY id, namespace
ON CONFLICT (id, namespace) DO NOTHING
RETURNING id, namespace
"""

SCAN: Final = """
WITH {clock}
SELECT id, namespace, now_ms, created_ms, written_ms, record
FROM {table}, clock WHERE {{conditions}}
ORDER BY created_ms, namespace, id LIMIT $1
"""

UNRESOLVED: Final = """
    (state IN ('in_progress', 'accepted') AND released = '' AND (state = 'accepted' OR now_ms - written_ms >= lease_ms))
"""

# Rows that somebody is changing are passed over; what is locked here is still expired, for the lock shows the newest
# version and asks the conditions of it again.
PURGE: Final = r"""
WITH {clock},
    expired AS MATERIALIZED (
        SELECT id, namespace FROM {table}
        WHERE expires_ms < (SELECT now_ms FROM clock)
            AND sha256(record) = checksum AND substring(record FROM 1 FOR 1) = '\x{format:02x}'
        ORDER BY expires_ms LIMIT $1
        FOR UPDATE SKIP LOCKED
    ),
    gone AS (
        DELETE FROM {table} AS found USING expired
        WHERE found.id = expired.id AND found.namespace = expired.namespace
            AND found.expires_ms < (SELECT now_ms FROM clock)
        RETURNING 1
    )
SELECT count(*) FROM gone
"""


class Dialect(NamedTuple):
    """The statements for one table."""

    get: str
    insert: str
    insert_at_once: str
    swap: str
    batch: str
    scan: str
    purge: str
    load: str
    put: str
    lock: str
    shown: str


def dialect_of(table: str) -> Dialect:
    """The statements for a table, which is named as SQL names it: quoted, with its schema."""

    def for_table(statement: str, due: str = "false", clock: str = CLOCK) -> str:
        seen = _SEEN_ONE.format(table=table, due=due)
        insert = _INSERT_ONE.format(table=table, never=NEVER)
        return statement.format(clock=clock, seen=seen, insert=insert, table=table, format=RECORD_FORMAT, never=NEVER)

    swap = for_table(SWAP, "etag = $12 AND sha256(record) = checksum")
    inserts = for_table(INSERT), for_table(INSERT, clock=CLOCK_AT_ONCE)
    return Dialect(for_table(GET), *inserts, swap, *map(for_table, (BATCH, SCAN, PURGE, LOAD, PUT, LOCK, SHOWN)))
