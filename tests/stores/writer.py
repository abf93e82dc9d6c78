"""A process that writes to a store in a file and tells of every acknowledged write, for tests that stop it.

Each key is written three times: claimed, renewed, completed; the record's attempt counts them. Every acknowledged write
is a line ``ack <key> <attempt>`` on standard output, every refused one ``refused <key> <error>``.
"""

import argparse
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from notwice.errors import StoreUnavailable
from notwice.model import Get, Insert, Op, Record, RecoveryKind, State, Swap, Terms
from notwice.stores.batching import Batching
from notwice.stores.jsonfile import JsonFileStore
from notwice.stores.port import Store
from notwice.stores.sqlite import SqliteStore, connection

WRITES_PER_KEY = 3


def store_at(path: Path, timeout: float = 2.0) -> Store:
    return JsonFileStore(path) if path.suffix == ".json" else SqliteStore(path, timeout=timeout)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def record_of(key: str, attempt: int, body_bytes: int = 0) -> Record:
    terms = Terms(300_000, None, RecoveryKind.HOLD, None, None, 0, deduplicated=False)
    state = State.COMPLETED if attempt == WRITES_PER_KEY else State.IN_PROGRESS
    progress = (("body", bytes(body_bytes)),)
    return Record("", key, "s", key, state, os.urandom(16), None, terms, attempt=attempt, progress=progress)


def writes_of(key: str, body_bytes: int) -> Iterator[Op]:
    first, second, third = (record_of(key, attempt, body_bytes) for attempt in range(1, WRITES_PER_KEY + 1))
    yield Insert(first)
    yield Swap(second, first.etag)
    yield Swap(third, second.etag)


def write(store: Store, key: str, body_bytes: int) -> bool:
    for attempt, op in enumerate(writes_of(key, body_bytes), 1):
        try:
            (reply,) = store.apply([op])
        except StoreUnavailable as error:
            say("refused", key, error)
            return False
        if not reply.won:
            say("lost", key, attempt)
            return False
        say("ack", key, attempt)
    return True


def write_all(store: Store, keys: Iterable[str], *, body_bytes: int, until_refused: bool) -> None:
    for key in keys:
        if not write(store, key, body_bytes) and until_refused:
            return


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--timeout", type=float, default=2.0)
    parser.add_argument("--until-refused", action="store_true")
    parser.add_argument("--batching", action="store_true")
    parser.add_argument("--unsafe", action="store_true")
    parser.add_argument("--journal")
    arguments = parser.parse_args(given)
    if arguments.unsafe:
        connection.SETTINGS["synchronous"] = ("OFF", 0)
    if arguments.journal:
        connection.SETTINGS["journal_mode"] = (arguments.journal, arguments.journal)
    try:
        store = store_at(arguments.path, arguments.timeout)
    except StoreUnavailable as error:
        say("refused", "open", error)
        return
    if arguments.batching:
        store = Batching(store)
    write_all_of = partial(write_all, store, body_bytes=arguments.body_bytes, until_refused=arguments.until_refused)
    keys = [(f"{thread}-{key}" for key in range(arguments.keys)) for thread in range(arguments.threads)]
    threads = [threading.Thread(target=write_all_of, args=(own,)) for own in keys[1:]]
    for thread in threads:
        thread.start()
    write_all_of(keys[0])
    for thread in threads:
        thread.join()
    say("done")
    store.close()


def acknowledged(lines: Iterable[str]) -> dict[str, int]:
    """The last acknowledged attempt of each key. A line that was cut off counts as not said."""
    found: dict[str, int] = {}
    for line in lines:
        words = line.split()
        if len(words) == WRITES_PER_KEY and words[0] == "ack" and line.endswith("\n"):
            found[words[1]] = int(words[2])
    return found


def lost(store: Store, acks: dict[str, int]) -> list[str]:
    """The keys of which an acknowledged write is not there."""
    gone = []
    for key, attempt in acks.items():
        (reply,) = store.apply([Get("", key)])
        kept = isinstance(reply.record, Record) and reply.record.attempt >= attempt
        assert not kept or attempt < WRITES_PER_KEY or reply.record.state is State.COMPLETED  # type: ignore[union-attr]  # kept says that it is a record
        if not kept:
            gone.append(f"{key} {attempt}")
    return gone


if __name__ == "__main__":
    main()
