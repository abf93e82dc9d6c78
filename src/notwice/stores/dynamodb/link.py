"""Requests to the service: bounded, each sent once, by a client that each process makes for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import botocore.session  # pyright: ignore[reportMissingTypeStubs]  # it ships none
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]  # it ships none
from botocore.loaders import create_loader  # pyright: ignore[reportMissingTypeStubs]  # it ships none

from notwice.stores.dynamodb.place import Ask, Place, all_busy, translated
from notwice.stores.forks import stand_still_at_forks
from notwice.stores.shared import closed


@cache
def _models() -> Any:  # noqa: ANN401 - an object of the driver's
    """The service's models, which take a tenth of a second to read, for all clients of a process."""
    return create_loader()


class Link:
    """The way to one table. Threads share it, and it may be made before a fork.

    The driver's own retries are off: one that repeats a write whose answer was lost finds its own record, and would
    report a refusal for what was done.

    Arguments:
        place: the table.
        check: looks at the table before the first request; what it raises, that request raises.
    """

    def __init__(self, place: Place, check: Callable[[Ask], None] | None = None) -> None:
        self.place = place
        self._check = check
        self._closed = False
        self._stranded: list[object] = []
        self._start_anew()
        stand_still_at_forks(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self.place.pool)
        self._client: Any = None

    def call(self, method: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401 - the service's own types
        """Send one request about the table. Raises `ConditionFailed`, `StoreUnavailable` or `RecordTooLarge`."""
        with self._turn():
            return self._ask(method, **request)

    def get_all(self, keys: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The items under up to a hundred keys, as they are now; those that the service puts off are left out."""
        wanted = {self.place.table: {"Keys": keys, "ConsistentRead": True}}
        with self._turn():
            found = self._sent("batch_get_item", {"RequestItems": wanted})
        return found["Responses"].get(self.place.table, [])  # type: ignore[no-any-return]  # a list, says the service

    def wait_for(self, waiter: str) -> None:
        """After a call: wait, for minutes at most, until the table is as the driver's waiter of that name has it."""
        try:
            self._client.get_waiter(waiter).wait(TableName=self.place.table, WaiterConfig={"Delay": 1})
        except Exception as error:
            raise translated(error, self.place) from error

    def close(self) -> None:
        """Close the connections. Using it afterwards raises."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def before_fork(self) -> None:
        """Let nobody make a client while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Begin anew. The parent's client is kept, never to be used."""
        self._stranded.append(self._client)
        self._start_anew()

    def _ask(self, method: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401 - as of `call`
        return self._sent(method, {"TableName": self.place.table, **request})

    def _sent(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        client = self._client
        if self._closed or client is None:
            raise closed()
        try:
            return getattr(client, method)(**request)  # type: ignore[no-any-return]  # a dictionary, says the service
        except Exception as error:
            raise translated(error, self.place) from error

    @contextmanager
    def _turn(self) -> Generator[None]:
        if self._client is None or self._check is not None:
            self._open()
        free = self._free
        if not free.acquire(timeout=self.place.timeout):
            raise all_busy(self.place)
        try:
            yield
        finally:
            free.release()

    def _open(self) -> None:
        """Make the client, and have the table looked at the first time."""
        if not self._lock.acquire(timeout=self.place.timeout):
            raise all_busy(self.place)
        try:
            if self._closed:
                raise closed()
            if self._client is None:
                self._client = self._made()
            if self._check is not None:
                self._check(self._ask)
                self._check = None
        finally:
            self._lock.release()

    def _made(self) -> Any:  # noqa: ANN401 - a client whose class is made at run time
        place = self.place
        settings = Config(
            connect_timeout=place.timeout,
            read_timeout=place.timeout,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=place.pool,
            tcp_keepalive=True,
            parameter_validation=False,
        )
        try:
            session = botocore.session.Session()
            session.register_component("data_loader", _models())
            return session.create_client(
                "dynamodb", region_name=place.region, endpoint_url=place.endpoint, config=settings
            )
        except Exception as error:
            raise translated(error, place) from error
