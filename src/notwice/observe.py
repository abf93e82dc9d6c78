"""One observer protocol: what a guard tells of itself. No event carries a key, a body or a credential."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import NamedTuple, Protocol


class Event(NamedTuple):
    """One thing that happened. `name` is one of `EVENTS`, `operation` an operation id, `detail` a short reason."""

    name: str
    operation: str = ""
    namespace: str = ""
    attempt: int = 0
    detail: str = ""
    value: object = None

    def __repr__(self) -> str:
        """What a log may show of it: not the handler's value."""
        return f"<Event {self.name} operation={self.operation} attempt={self.attempt} detail={self.detail!r}>"


EVENTS: dict[str, tuple[int, str]] = {
    "claimed": (logging.DEBUG, "a begin owns a new operation"),
    "reclaimed": (logging.WARNING, "a begin took an unresolved or released operation over"),
    "replayed": (logging.DEBUG, "a duplicate was given the first answer"),
    "in_progress": (logging.DEBUG, "a duplicate of a running operation was refused"),
    "unresolved": (logging.WARNING, "a duplicate of an unresolved operation was refused"),
    "unresolved_full": (logging.ERROR, "a begin was refused: its namespace has as many unresolved ones as it may"),
    "mismatch": (logging.WARNING, "a key was used for another request, which was refused"),
    "completed": (logging.DEBUG, "an operation was completed"),
    "failed": (logging.DEBUG, "an operation was finished with a definite refusal"),
    "abandoned": (logging.INFO, "an operation was given back: nothing happened"),
    "not_freed": (logging.WARNING, "an operation was given back, but its key is not free: its outcome is unknown"),
    "suspended": (logging.WARNING, "an operation ended without a known outcome"),
    "unanswered": (logging.WARNING, "the store did not confirm a write; it is settled behind the caller"),
    "ownership_lost": (logging.ERROR, "an owner found that another has its operation"),
    "result_lost": (logging.ERROR, "a handler's value could not become the operation's answer"),
    "result_omitted": (logging.ERROR, "an operation was completed without its result, which can't be stored"),
    "heartbeat_failed": (logging.WARNING, "a lease could not be renewed"),
    "heartbeat_stopped": (logging.WARNING, "a handler has run longer than run_max; its lease is no longer renewed"),
    "reconcile_unknown": (logging.WARNING, "the reconcile function could not say what became of the effect"),
    "recovery_failed": (logging.ERROR, "a handler for recovery raised; it is tried again later, or held"),
    "store_unavailable": (logging.ERROR, "the store did not answer; the handler did not run"),
    "unguarded": (logging.ERROR, "an operation ran without a guard, as store_failure='proceed' asks"),
    "purged": (logging.DEBUG, "expired records were dropped"),
    "purge_failed": (logging.WARNING, "expired records could not be dropped; they are tried again the next time"),
    "resolved": (logging.WARNING, "an operator resolved an operation"),
    "released": (logging.WARNING, "an operator released an operation"),
}
"""Every event with the level it is logged at and what it means."""


class Observer(Protocol):
    """Whoever wants to know. It is called in the thread where things happen; what it raises is dropped."""

    def on_event(self, event: Event) -> None:
        """Take note of one event, quickly and without blocking."""
        ...


def check_observer(observer: object) -> None:
    """Raise `TypeError` for what could be told nothing: a function or a class in the place of an observer."""
    if isinstance(observer, type) or not callable(getattr(observer, "on_event", None)):
        shown = f"the class {observer.__name__}" if isinstance(observer, type) else f"this {type(observer).__name__}"
        raise TypeError(f"an observer is an object with a method on_event(event), which {shown} is not")


class LogObserver:
    """Logs each event in one line under the logger ``notwice``, at the level of `EVENTS`; never a handler's value."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("notwice")

    def on_event(self, event: Event) -> None:
        """Log the event."""
        level, meaning = EVENTS[event.name]
        if self._logger.isEnabledFor(level):
            detail = f" ({' '.join(event.detail.split())})" if event.detail else ""
            self._logger.log(level, "%s: %s%s operation=%s", event.name, meaning, detail, event.operation)


class CountingObserver:
    """Counts events by name: ``counts["replayed"]``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def on_event(self, event: Event) -> None:
        """Count the event."""
        with self._lock:
            self.counts[event.name] += 1


class Observers:
    """Tells several observers, each of which may fail alone. Raises `TypeError` for what is none."""

    def __init__(self, *observers: Observer) -> None:
        for observer in observers:
            check_observer(observer)
        self._observers = observers

    def on_event(self, event: Event) -> None:
        """Tell each of them."""
        for observer in self._observers:
            tell(observer, event)


def tell(observer: Observer, event: Event) -> None:
    """Tell `observer`; what it raises is logged and dropped, for telemetry must not decide about money."""
    try:
        observer.on_event(event)
    except Exception:
        logging.getLogger("notwice").exception("an observer failed on %s", event.name)
