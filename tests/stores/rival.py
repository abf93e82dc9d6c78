"""A process that claims and completes operations of its own, and others that all its rivals want, and tells of it.

Each line on standard output is one acknowledged fact: ``done <key>``, ``won <key>``, ``took <key>`` or, for an error,
``error <text>``.
"""

import argparse
import os
import traceback

from notwice.model import Insert, Record, RecoveryKind, State, Swap, Terms
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore

TERMS = Terms(300_000, None, RecoveryKind.HOLD, None, None, 0, deduplicated=False)
FIRST_ETAG = b"the same for all"


def record_of(key: str, state: State = State.IN_PROGRESS, etag: bytes | None = None) -> Record:
    return Record("", key, "s", key, state, os.urandom(16) if etag is None else etag, None, TERMS)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def finish(store: Store, key: str) -> None:
    """An operation of this process alone."""
    claim = record_of(key)
    (claimed,) = store.apply([Insert(claim)])
    assert claimed.won
    (completed,) = store.apply([Swap(record_of(key, State.COMPLETED), claim.etag)])
    assert completed.won
    say("done", key)


def compete(store: Store, key: str) -> None:
    """An operation that all rivals claim at once, and then take over at once."""
    (claimed,) = store.apply([Insert(record_of(key, etag=FIRST_ETAG))])
    if claimed.won:
        say("won", key)
    (taken,) = store.apply([Swap(record_of(key), FIRST_ETAG)])
    if taken.won:
        say("took", key)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("name")
    parser.add_argument("--keys", type=int, default=20)
    arguments = parser.parse_args()
    try:
        store = SqliteStore(arguments.path)
        for number in range(arguments.keys):
            finish(store, f"{arguments.name}-{number}")
            compete(store, f"shared-{number}")
        store.close()
    except Exception:  # noqa: BLE001 - told, and the test fails by it
        say("error", traceback.format_exc().replace("\n", " | "))


if __name__ == "__main__":
    main()
