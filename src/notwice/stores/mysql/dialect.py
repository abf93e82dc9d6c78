"""Every statement that runs on a MySQL or MariaDB store, and why a claim is safe.

Sessions are at READ COMMITTED: each statement that only reads sees what was committed when it began, takes no lock and
waits for nobody; a statement that writes looks at the newest version of a row, and locks it. A write has its condition
in itself. An insert first looks, without a lock, whether anything is there; only if not it inserts, and where a rival
was quicker the unique key shows that rival, whose row is set to what it is. An update finds only the expected etag. So
a replay locks nothing and dirties nothing.

Who won is never told by the number of rows, which means one thing or another by the flags of a connection. It is read
back: the row has the writer's etag, or it has another. That is exact, for the reading is part of the writing:
``RETURNING`` gives the row that the insert left, and everything else is one transaction of the writes, the reading and
the commit, in which nobody else can change a row that was written. Etags are never used twice.

Where neither tells, because a rival's commit or a purge came between two statements, the operation is *raced*, nothing
was done for it, and asking again shows the rival.

In a batch, rows are written in the order of their names, the updates before the inserts, so that few wait in a circle;
who does is undone as a whole by the server, and sent again. A record of some size goes by itself.

Each call is one round trip. MariaDB is sent one compound statement, MySQL several in one packet. Values are written as
hexadecimal literals of bytes and as whole numbers, so nothing in them can be taken for SQL.

``CRC32`` of the record, compared with the one that it holds, keeps a damaged record from being overwritten or dropped;
so does its first byte, the format, one of a newer release.

Times are the server's ``UTC_TIMESTAMP``, which no session's time zone changes, read once a statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from notwice.codec import RECORD_FORMAT

NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"

_SOUND: Final = (
    f"LENGTH(record) > 9 AND SUBSTR(record, 1, 1) = X'{RECORD_FORMAT:02X}'"
    " AND LPAD(HEX(CRC32(SUBSTR(record, 6))), 8, '0') = HEX(SUBSTR(record, 2, 4))"
)

_WRITTEN: Final[Mapping[str, str]] = {
    "etag": "{etag}",
    "scope": "{scope}",
    "state": "{state}",
    "released": "{released}",
    "lease_ms": "{lease_ms}",
    "created_ms": f"COALESCE({{created_ms}}, {NOW})",
    "open_ms": f"IF({{is_open}}, COALESCE({{created_ms}}, {NOW}), NULL)",
    "written_ms": f"COALESCE({{written_ms}}, {NOW})",
    "expires_ms": f"COALESCE({{written_ms}}, {NOW}) + {{after_ms}}",
    "record": "{record}",
}
"""What a write sets each column to, with the names of `GIVEN` in the place of values."""

_NAMED: Final[Mapping[str, str]] = {"name": "{name}", "namespace": "{namespace}", "id": "{id}", **_WRITTEN}

GIVEN: Final = (
    *("name", "namespace", "id", "etag", "scope", "state", "released", "lease_ms", "created_ms", "is_open"),
    *("written_ms", "after_ms", "record", "expected_etag"),
)
"""What is given for each write, in this order. ``created_ms`` and ``written_ms`` of NULL are the server's time."""

ROW_BYTES_MAX: Final = 32 * 1024
"""How long the literals of a write may be that is sent as one row of many.

MariaDB cuts longer values: where rows of literals are united, it keeps but the last sixteen bits of a value's length,
in the strictest mode, and without a word. Therefore, too, a row that came so is written only if its record is sound.
"""

_GIVEN_ROWS: Final = {name: f"given.{name}" for name in GIVEN} | {"table": "{table}", "rows": "{rows}"}
_FOUND: Final = f"{NOW}, name, etag, created_ms, written_ms, IF(etag IN (<mine>), NULL, record)"

_PARTS: Final[Mapping[str, str]] = {
    "<found>": _FOUND,
    "<sound>": _SOUND,
    "<sound found>": _SOUND.replace("record", "found.record"),
    "<sound given>": _SOUND.replace("record", "given.record"),
    "<now>": NOW,
    "<rows>": "({rows}) AS given",
    "<columns>": ", ".join(_NAMED),
    "<values>": ", ".join(_NAMED.values()),
    "<set>": ", ".join(f"{column} = {value}" for column, value in _WRITTEN.items()),
    "<set found>": ", ".join(f"found.{column} = {value}" for column, value in _WRITTEN.items()),
}


def _made(text: str, **parts: str) -> str:
    """A statement with its parts put in; what stands in braces is filled for each call."""
    for mark, part in {**_PARTS, **{f"<{name}>": part for name, part in parts.items()}}.items():
        text = text.replace(mark, part)
    return text


# What is found under some names: the server's time, and of each row all that a reply says, but no record where the
# etag is ours. The last row is for the time alone.
LOOK: Final = _made(
    """
    SELECT <found> FROM {table} WHERE name IN ({names})
    UNION ALL SELECT <now>, NULL, NULL, NULL, NULL, NULL
    """,
    mine="{etags}",
)

INSERT: Final = _made(
    """
    INSERT INTO {table} (<columns>)
    SELECT <values> FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {table} AS seen WHERE seen.name = {name})
    ON DUPLICATE KEY UPDATE name = {table}.name
    """
)

INSERT_ALL: Final = _made(
    """
    INSERT INTO {table} (<columns>)
    SELECT <values> FROM <rows>
    WHERE NOT EXISTS (SELECT 1 FROM {table} AS seen WHERE seen.name = given.name) AND <sound given>
    ON DUPLICATE KEY UPDATE name = {table}.name
    """
).format_map(_GIVEN_ROWS)

UPDATE: Final = _made("UPDATE {table} SET <set> WHERE name = {name} AND etag = {expected_etag} AND <sound>")

# The given rows come first, in their order; each is looked up by its name.
UPDATE_ALL: Final = _made(
    """
    UPDATE <rows> STRAIGHT_JOIN {table} AS found ON found.name = given.name
    SET <set found> WHERE found.etag = given.expected_etag AND <sound found> AND <sound given>
    """
).format_map(_GIVEN_ROWS)

# One insert on MariaDB. The reading stands by itself: within the condition it would lock the row.
CLAIM: Final = _made(
    """
    BEGIN NOT ATOMIC
        SELECT <now>, name, etag, created_ms, written_ms, record FROM {table} WHERE name = {name};
        IF FOUND_ROWS() = 0 THEN
            INSERT INTO {table} (<columns>) VALUES (<values>)
            ON DUPLICATE KEY UPDATE name = {table}.name RETURNING <found>;
        END IF;
    END
    """,
    mine="{etag}",
)

# On a transaction of the caller's: an insert that reads nothing first, for at REPEATABLE READ what is read on the way
# would be locked, and the gaps between; and the newest version of a row, which stays locked until the caller's commit.
PUT: Final = _made("INSERT INTO {table} (<columns>) VALUES (<values>)")
LOCK: Final = _made("SELECT <found> FROM {table} WHERE name = {name} FOR UPDATE", mine="NULL")

COMPOUND: Final = """
    BEGIN NOT ATOMIC
        DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
        START TRANSACTION; {statements}; COMMIT;
    END
"""

SEPARATE: Final = "START TRANSACTION; {statements}; COMMIT"

ETAGS: Final = "SELECT name, etag FROM {table} WHERE name IN ({names})"

SCAN: Final = _made(
    """
    SELECT id, namespace, <now>, created_ms, written_ms, record FROM {table} FORCE INDEX ({index})
    WHERE {conditions} ORDER BY {created}, namespace, id LIMIT {limit}
    """
)

UNRESOLVED: Final = _made(
    """
    (state IN ('in_progress', 'accepted') AND released = '' AND (state = 'accepted' OR <now> - written_ms >= lease_ms))
    """
)

EXPIRED: Final = _made(
    """
    SELECT name FROM {table} FORCE INDEX (notwice_expiry)
    WHERE expires_ms < <now> AND <sound> ORDER BY expires_ms LIMIT {limit}
    """
)

PURGE: Final = _made("DELETE FROM {table} WHERE name IN ({names}) AND expires_ms < <now> AND <sound>")


def transaction(statements: Sequence[str], *, compound: bool) -> str:
    """The statements as one transaction in one packet."""
    return (COMPOUND if compound else SEPARATE).format(statements=";".join(statements))


def literal(value: bytes | str | int | None) -> str:
    """A value as SQL that can mean nothing else."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return f"X'{data.hex()}'"


def rows_of(writes: Sequence[Sequence[str]]) -> str:
    """Writes as a table: the first row names the columns."""
    first = "SELECT " + ", ".join(f"{value} AS {name}" for value, name in zip(writes[0], GIVEN, strict=True))
    return " UNION ALL ".join((first, *("SELECT " + ", ".join(write) for write in writes[1:])))
