"""Threads that claim keys until their store is gone, and the count of what is lost of it."""

import threading
from collections.abc import Sequence
from contextlib import suppress

from notwice import StoreUnavailable
from notwice.model import Get, Insert, Record
from notwice.stores import open_store
from notwice.stores.port import Store
from notwice.testing.conformance.records import new_record

WRITERS = 4
CLAIMS_MIN = 300


class Claims:
    """Threads that claim one key after the other until the store fails; what was acknowledged is kept."""

    def __init__(self, url: str, *, enough: int = CLAIMS_MIN, name: str = "") -> None:
        self.url = url
        self._name = name
        self.acknowledged: list[Record] = []
        self._count = enough
        self.enough = threading.Event()
        self._store = open_store(url)
        self._threads = [threading.Thread(target=self._claim, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()

    def join(self) -> list[Record]:
        for thread in self._threads:
            thread.join(30)
        self._store.close()
        return self.acknowledged

    def wait_for(self, count: int) -> None:
        """Wait until so many claims were acknowledged in all."""
        pause = threading.Event()
        while len(self.acknowledged) < count:
            assert any(thread.is_alive() for thread in self._threads)
            pause.wait(0.005)

    def _claim(self, writer: int) -> None:
        number = 0
        with suppress(StoreUnavailable):
            while True:
                number += 1
                record = new_record(f"{self._name}{writer}-{number}")
                assert self._store.apply([Insert(record)])[0].won
                self.acknowledged.append(record)
                if len(self.acknowledged) >= self._count:
                    self.enough.set()


def missing_in(store: Store, records: Sequence[Record]) -> int:
    """How many of the records are not there as they were acknowledged."""
    replies = store.apply([Get(record.namespace, record.id) for record in records])
    return sum(
        not isinstance(reply.record, Record) or reply.record.etag != record.etag
        for reply, record in zip(replies, records, strict=True)
    )
