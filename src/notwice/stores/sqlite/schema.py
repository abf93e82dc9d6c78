"""The tables of a SQLite store and every statement that runs on them.

Why a claim is safe: SQLite has one lock for writing. A statement that writes takes it before it reads anything, be it
alone or in a transaction that begins with BEGIN IMMEDIATE, and keeps it until its commit, so what it reads is what it
changes. Each statement has its condition in itself: the insert does nothing where a record is, the update finds only
the expected etag. A reader sees only commits, and a commit is on disk (WAL, synchronous=FULL) before it is reported.

A record that can't be decoded is never overwritten or dropped. To see that, two functions of ours run within SQL:
``crc32(record)``, and ``is_readable(namespace, id, record)``, which decodes it.

The record itself is one blob of `notwice.codec`. The other columns repeat what look-ups
and purges ask for, and hold what the store adds: the times of the last write.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
"""Of the tables. A file with a higher one was made by a newer release, and is refused."""

TABLE_OF_VERSION: Final = "notwice_schema"

CREATE: Final = (
    "CREATE TABLE notwice_schema (version INTEGER NOT NULL)",
    """
    CREATE TABLE notwice_record (
        place INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        id TEXT NOT NULL,
        etag BLOB NOT NULL,
        scope TEXT NOT NULL,
        state TEXT NOT NULL,
        released TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        written_ms INTEGER NOT NULL,  -- wall clock: retention
        boot_ms INTEGER NOT NULL,     -- clock since boot: leases
        boot_id TEXT NOT NULL,        -- which boot that was
        expires_ms INTEGER,           -- wall clock; NULL is never
        checksum INTEGER NOT NULL,    -- CRC-32 of the record, so that a swap needs no decoding to know it whole
        record BLOB NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX notwice_record_name ON notwice_record (id, namespace)",
    "CREATE INDEX notwice_record_order ON notwice_record (created_ms, namespace, id)",
    """
    CREATE INDEX notwice_record_open ON notwice_record (created_ms, namespace, id)
    WHERE state IN ('in_progress', 'accepted')
    """,
    "CREATE INDEX notwice_record_expiry ON notwice_record (expires_ms) WHERE expires_ms IS NOT NULL",
)

BEGIN: Final = "BEGIN IMMEDIATE"

LOOK: Final = """
    SELECT etag, created_ms, written_ms, boot_ms, boot_id, checksum, record
    FROM notwice_record WHERE namespace = ? AND id = ?
"""

PRESENT: Final = "SELECT namespace, id FROM notwice_record WHERE id IN (SELECT value FROM json_each(?))"

INSERT: Final = """
    INSERT INTO notwice_record (
        etag, scope, state, released, lease_ms, written_ms, boot_ms, boot_id, expires_ms, checksum, record,
        namespace, id, created_ms
    ) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, nullif(?9, 0), ?10, ?11, ?12, ?13, ?14)
    ON CONFLICT (id, namespace) DO NOTHING
"""

# INSERT's parameters in the same order, and the expected etag. An index whose column is set is written anew even if
# the value stays, so the usual swap leaves created_ms alone, and finds nothing if that changes.
REPLACE: Final = """
    UPDATE notwice_record SET
        etag = ?1, scope = ?2, state = ?3, released = ?4, lease_ms = ?5, written_ms = ?6, boot_ms = ?7, boot_id = ?8,
        expires_ms = nullif(?9, 0), checksum = ?10, record = ?11
    WHERE id = ?13 AND namespace = ?12 AND etag = ?15 AND created_ms = ?14 AND crc32(record) = checksum
"""

# For a row that was looked at before, within the same transaction.
REPLACE_WHOLE: Final = """
    UPDATE notwice_record SET
        etag = ?1, scope = ?2, state = ?3, released = ?4, lease_ms = ?5, written_ms = ?6, boot_ms = ?7, boot_id = ?8,
        expires_ms = nullif(?9, 0), checksum = ?10, record = ?11, created_ms = ?14
    WHERE id = ?13 AND namespace = ?12 AND etag = ?15
"""

REPLACE_ALL: Final = f"{REPLACE_WHOLE} AND crc32(record) = checksum"

EXPIRED: Final = """
    SELECT place, etag, expires_ms FROM notwice_record
    WHERE expires_ms IS NOT NULL AND expires_ms < :now_ms AND (expires_ms, place) > (:after_ms, :after_place)
    ORDER BY expires_ms, place LIMIT :limit
"""

PURGE: Final = """
    DELETE FROM notwice_record
    WHERE place = ? AND etag = ? AND expires_ms < ? AND is_readable(namespace, id, record)
"""

SCAN: Final = """
    SELECT namespace, id, etag, created_ms, written_ms, boot_ms, boot_id, checksum, record
    FROM notwice_record WHERE {conditions}
    ORDER BY created_ms, namespace, id LIMIT :limit
"""

UNRESOLVED: Final = """
    (state IN ('in_progress', 'accepted') AND released = ''
     AND (state = 'accepted' OR boot_id <> :boot_id OR :boot_ms - boot_ms >= lease_ms))
"""
