"""Since when this process has seen which etag: the clock of leases where the server has none.

The service stamps nothing, and what writers stamp is by their own clocks, which may be wrong by minutes. A lease that
was judged by those could be taken from a live owner. But no etag ever comes back, so whoever has seen the same one for
a whole lease, by a clock that nobody sets, knows that its owner was silent for that long. It costs time, never safety:
a process that has just been started sees every record for the first time, and takes over a lease later.

For those who only look, a sighting also guesses how old the record was at first sight: by the wall clocks of writer and
reader, less a minute. That guess lists what is unresolved; no claim is ever decided by it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from notwice.stores.clocks import Moment
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.shared import Name

SIGHTINGS_MAX: Final = 100_000
"""About 30 MB. What was not seen for the longest time is forgotten, and then seen for the first time again."""

SKEW_MS: Final = 60_000
"""So far may the wall clocks of two hosts be apart before a guess is too high."""


class Ages(NamedTuple):
    """How old a record is: at least by what this process saw, and by a guess for those who look."""

    observed_ms: int
    guessed_ms: int


class _Sighting(NamedTuple):
    etag: bytes
    boot_ms: int
    older_ms: int


class Sightings:
    """What a process has seen of one table's open records."""

    def __init__(self, sightings_max: int = SIGHTINGS_MAX) -> None:
        self._sightings_max = sightings_max
        self._seen: OrderedDict[Name, _Sighting] = OrderedDict()
        self._lock = threading.Lock()
        stand_still_at_forks(self)

    def see(self, name: Name, etag: bytes, moment: Moment, *, written_ms: int) -> Ages:
        """Note that `etag` was there at `moment`, and give the ages that follow."""
        return self._note(name, etag, moment, older_ms=max(0, moment.now_ms - written_ms - SKEW_MS))

    def made(self, name: Name, etag: bytes, moment: Moment) -> None:
        """Note a write of this process's own."""
        self._note(name, etag, moment, older_ms=0)

    def before_fork(self) -> None:
        """Let nobody change anything while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Go on with a copy: what the parent has seen was there."""
        self._lock = threading.Lock()

    def _note(self, name: Name, etag: bytes, moment: Moment, *, older_ms: int) -> Ages:
        with self._lock:
            seen = self._seen.get(name)
            if seen is None or seen.etag != etag:
                seen = self._seen[name] = _Sighting(etag, moment.boot_ms, older_ms)
            self._seen.move_to_end(name)
            if len(self._seen) > self._sightings_max:
                self._seen.popitem(last=False)
        observed_ms = max(0, moment.boot_ms - seen.boot_ms)
        return Ages(observed_ms, observed_ms + seen.older_ms)


_of_tables: WeakValueDictionary[object, Sightings] = WeakValueDictionary()
_of_tables_lock = threading.Lock()


def sightings_of(table: object) -> Sightings:
    """What this process has seen of a table: the same for all stores in it."""
    with _of_tables_lock:
        found = _of_tables.get(table)
        if found is None:
            found = _of_tables[table] = Sightings()
        return found
