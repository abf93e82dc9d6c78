"""Ready-made `reconcile` functions that look an effect up over HTTP, at any provider with a REST interface.

Whatever is not a plain answer is "unknown": a time-out, a refused connection, a redirect, a status other than 200, a
body that is compressed, too large or no JSON, a member that is there twice, an effect that is not this operation's, two
where one was expected. Each is raised as
`LookupFailed`, whose reason stands in the record for people; the guard takes any exception for "unknown", and asks
again after its pause. That the provider knows of no effect is unknown, too, unless ``absent=NOT_APPLIED`` says
otherwise: a list that lags and a request that is still on its way look the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import quote, urlsplit

from notwice import identity
from notwice.errors import not_installed
from notwice.model import Record, RecordView
from notwice.policy import NOT_APPLIED, UNKNOWN, Applied, Duration, Verdict, seconds, suggesting

__all__ = ["AsyncRestLookup", "LookupFailed", "RestLookup"]

ANSWER_BYTES_MAX: Final = 2**20
OK: Final = 200
GONE: Final = (404, 410)
OWN: Final = frozenset({"downstream_key", "downstream_uuid", "key", "scope", "operation"})
FIELDS: Final = ("downstream_key", "downstream_uuid", "key", "scope", "namespace", "operation")
"""What a template may name. What a namespace alone names is others', too."""

_SHOWN_CHARACTERS: Final = 40


class LookupFailed(Exception):
    """The provider's answer says nothing certain about the effect. The outcome stays unknown."""


class Asked(NamedTuple):
    """What the provider is asked."""

    method: str
    url: str
    headers: Mapping[str, str]
    document: object | None

    @property
    def secure(self) -> bool:
        """Whether it is asked over TLS, whose certificates take a while to load."""
        return self.url.startswith("https:")


@suggesting
@dataclass(frozen=True, slots=True, kw_only=True)
class RestLookup:
    """Looks an effect up over HTTP, for code that blocks: ``reconcile(RestLookup(url=…, matches=…))``.

    In `url`, and in the texts of `matches` and `body`, ``{downstream_key}``, ``{downstream_uuid}``, ``{key}``,
    ``{scope}``, ``{namespace}`` and ``{operation}`` (the operation id) stand for those of the operation.

    url: where to look: ``https://api.example.com/refunds?reference={downstream_key}``.
    matches: what an effect must hold to be this operation's, by path: ``{"metadata.operation": "{operation}"}``. A
        provider that does not know a filter gives everything; an effect that holds something else is never taken.
    items: the path of the list in the answer, ``"data"`` say, or ``""`` if it is the list; ``None``: it is one effect.
    more: the path of what is true if the list goes on elsewhere: then nothing is taken for absent.
    state: the path of the effect's state; ``None``: an effect that is there has happened.
    applied: the states in which it has happened.
    not_applied: the states in which it has not happened and never will. All other states are unknown.
    absent: what it means that there is no such effect: `UNKNOWN`, or `NOT_APPLIED` where "not found" is proof.
    name: which downstream key: exactly the name that the handler asks for it by, or that of a step. Nothing can check
        it: by a wrong one the lookup finds no effect, and with ``absent=NOT_APPLIED`` the operation runs once more.
    headers: what is sent along, credentials for example, or a function that gives it.
    body: a JSON document to send by POST; ``None``: GET.
    result: makes the operation's result of the effect as it was found; by default that itself.
    timeout: how long the provider may take from the first byte to the last, in seconds or as a timedelta.

    Needs the extra ``lookups``. Raises `ValueError` or `TypeError` with a sentence for settings that can't be used.
    """

    url: str
    matches: Mapping[str, str]
    items: str | None = None
    more: str | None = None
    state: str | None = None
    applied: Collection[str] = ()
    not_applied: Collection[str] = ()
    absent: Verdict = UNKNOWN
    name: str = ""
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] = dataclasses.field(default_factory=dict, repr=False)
    body: object | None = None
    result: Callable[[Any], object] | None = None
    timeout: Duration = 10

    def __post_init__(self) -> None:
        """Validate what would otherwise be noticed only after a crash."""
        if not self.url.startswith(("https://", "http://")):
            raise ValueError(f"url must begin with https:// or http://, not {self.url!r}")
        if not self.matches:
            raise ValueError("matches is empty: say what makes an effect this operation's, such as its reference")
        if self.state is not None and not self.applied:
            raise ValueError("state needs applied=...: the states in which the effect has happened")
        if isinstance(self.applied, str) or isinstance(self.not_applied, str):
            raise TypeError("applied and not_applied are several states: give a list, even of one")
        if self.state is None and (self.applied or self.not_applied):
            raise ValueError("applied and not_applied are states: say by state=... where the effect's state stands")
        if both := set(self.applied).intersection(self.not_applied):
            raise ValueError(f"{', '.join(sorted(both))} can't be both: in applied, and in not_applied")
        if self.absent not in (UNKNOWN, NOT_APPLIED):
            raise ValueError(f"absent must be UNKNOWN or NOT_APPLIED, not {self.absent!r}")
        for text in (self.url, *self.matches.values(), *_texts(self.body)):
            _check_template(text)
        if not any(OWN.intersection(_named(text)) for text in self.matches.values()):
            raise ValueError(
                "matches says nothing of the one operation, so that another's effect would be taken for its own: name "
                f"one of {', '.join(sorted(OWN))} in it"
            )
        seconds("timeout", self.timeout)
        _httpx()

    def __call__(self, operation: _Operation) -> Applied | Verdict:
        """Ask what became of the effect of `operation`. Raises `LookupFailed` where that stays unknown."""
        httpx, asked, limit = _httpx(), _asked(self, operation), seconds("timeout", self.timeout)
        body, extensions = bytearray(), {"trace": (end := _End(limit)).trace}
        try:
            with (
                end,
                httpx.Client(timeout=limit, verify=asked.secure, follow_redirects=False) as client,
                client.stream(
                    asked.method, asked.url, headers=asked.headers, json=asked.document, extensions=extensions
                ) as response,
            ):
                _check_plain(response.headers)
                for chunk in response.iter_raw():
                    _take(body, chunk)
        except httpx.HTTPError as error:
            how = "in time" if end.came else f"({type(error).__name__})"
            raise LookupFailed(f"the provider did not answer {how}") from error
        if end.came:  # what has no length ends where it is broken off
            raise LookupFailed("the provider did not answer in time")
        return judged(self, operation, _Answer(response.status_code, bytes(body)))


class _End:
    """Breaks the connection off once the time is over: the client bounds each wait, and what drips never ends."""

    def __init__(self, limit: float) -> None:
        self.came = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit, self._come)
        self._timer.daemon = True

    def trace(self, event: str, told: Mapping[str, Any]) -> None:
        """Note the connection, which the client tells of: first without, then with TLS."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = told["return_value"].get_extra_info("socket")

    def _come(self) -> None:
        self.came = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()


class AsyncRestLookup(RestLookup):
    """`RestLookup` for event loops: ``reconcile(AsyncRestLookup(url=…, matches=…))`` with an `AsyncGuard`."""

    async def __call__(self, operation: _Operation) -> Applied | Verdict:  # type: ignore[override]  # its face for loops  # pyright: ignore[reportIncompatibleMethodOverride]
        """Ask what became of the effect of `operation`. Raises `LookupFailed` where that stays unknown."""
        httpx, asked, limit = _httpx(), _asked(self, operation), seconds("timeout", self.timeout)
        body = bytearray()
        try:
            async with (
                asyncio.timeout(limit),
                httpx.AsyncClient(timeout=limit, verify=asked.secure, follow_redirects=False) as client,
                client.stream(asked.method, asked.url, headers=asked.headers, json=asked.document) as response,
            ):
                _check_plain(response.headers)
                async for chunk in response.aiter_raw():
                    _take(body, chunk)
        except TimeoutError as error:
            raise LookupFailed("the provider did not answer in time") from error
        except httpx.HTTPError as error:
            raise LookupFailed(f"the provider did not answer ({type(error).__name__})") from error
        return judged(self, operation, _Answer(response.status_code, bytes(body)))


class _Operation(Protocol):
    """What is asked of an operation: its record."""

    @property
    def view(self) -> RecordView:
        """The record as its owner knows it."""
        ...


class _Answer(NamedTuple):
    """What a provider answered."""

    status: int
    body: bytes


def judged(lookup: RestLookup, operation: _Operation, answer: _Answer) -> Applied | Verdict:
    """What an answer says of the effect. Raises `LookupFailed` where that is nothing certain."""
    if answer.status in GONE and lookup.items is None:
        return _absent(lookup)
    if answer.status != OK:
        raise LookupFailed(f"the provider answered with status {answer.status}")
    try:
        document = json.loads(answer.body, object_pairs_hook=_members, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise LookupFailed("the provider's answer is no JSON") from error
    effects = [document] if lookup.items is None else _at(document, lookup.items)
    if not isinstance(effects, list):
        raise LookupFailed(f"the provider's answer has no list at {lookup.items!r}")
    goes_on = lookup.more is not None and bool(_at(document, lookup.more))
    if not effects and not goes_on:
        return _absent(lookup)
    wanted = {path: _filled(text, _facts(lookup, operation)) for path, text in lookup.matches.items()}
    ours = [each for each in effects if all(_text(_at(each, path)) == text for path, text in wanted.items())]
    if not ours:
        raise LookupFailed("the provider gave effects of other operations, and none of this one")
    return _of_states(lookup, ours, goes_on=goes_on)


def _of_states(lookup: RestLookup, ours: list[Any], *, goes_on: bool) -> Applied | Verdict:
    """What the states of this operation's effects say."""
    states = [None if lookup.state is None else _text(_at(each, lookup.state)) for each in ours]
    applied = [
        each for each, state in zip(ours, states, strict=True) if lookup.state is None or state in lookup.applied
    ]
    if len(applied) > 1:
        raise LookupFailed(f"the provider has {len(applied)} effects of this operation")
    if applied:
        return Applied(applied[0] if lookup.result is None else lookup.result(applied[0]))
    if not goes_on and all(state in lookup.not_applied for state in states):
        return NOT_APPLIED
    shown = ", ".join(sorted({repr(state)[:_SHOWN_CHARACTERS] for state in states}))
    raise LookupFailed(f"the effect's state is {shown}, which says nothing certain")


def _absent(lookup: RestLookup) -> Verdict:
    if lookup.absent is UNKNOWN:
        raise LookupFailed("the provider has no such effect, which is no proof that it will not happen")
    return lookup.absent


# -- what is asked ----------------------------------------------------------------------------------------------------


def _asked(lookup: RestLookup, operation: _Operation) -> Asked:
    facts = _facts(lookup, operation)
    headers = lookup.headers() if callable(lookup.headers) else lookup.headers
    url = _filled(lookup.url, {name: quote(text, safe="") for name, text in facts.items()})
    if {".", ".."}.intersection(urlsplit(url).path.split("/")):
        raise LookupFailed("a dot is no name in an address: it would be looked for somewhere else")
    document = None if lookup.body is None else _filled_document(lookup.body, facts)
    headers = {"accept": "application/json", **headers, "accept-encoding": "identity"}
    return Asked("GET" if document is None else "POST", url, headers, document)


def _facts(lookup: RestLookup, operation: _Operation) -> dict[str, str]:
    record: Record = operation.view.record  # its own methods would count as a use of its downstream key
    named = {"namespace": record.namespace, "scope": record.scope, "key": record.key}
    return {
        **named,
        "operation": record.id,
        "downstream_key": identity.downstream_key(**named, generation=record.generation, name=lookup.name),
        "downstream_uuid": str(identity.downstream_uuid(**named, generation=record.generation, name=lookup.name)),
    }


def _filled(template: str, facts: Mapping[str, str]) -> str:
    return template.format_map(facts)


def _filled_document(part: Any, facts: Mapping[str, str]) -> object:  # noqa: ANN401 - any part of a JSON document
    if isinstance(part, str):
        return _filled(part, facts)
    if isinstance(part, Mapping):
        return {name: _filled_document(value, facts) for name, value in part.items()}
    return [_filled_document(value, facts) for value in part] if isinstance(part, list | tuple) else part


def _texts(part: Any) -> Iterator[str]:  # noqa: ANN401 - any part of a JSON document
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping | list | tuple):
        for value in part.values() if isinstance(part, Mapping) else part:
            yield from _texts(value)


def _named(template: str) -> set[str | None]:
    return {field for _, field, _, _ in Formatter().parse(template)}


def _check_template(template: str) -> None:
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"the text {template!r} is malformed ({error}); write a brace that is meant as two") from error
    for _, field, specification, conversion in pieces:
        if field is not None and (field not in FIELDS or specification or conversion):
            raise ValueError(
                f"{{{field}}} in {template!r} names nothing of an operation; there are {', '.join(FIELDS)}"
            )


# -- what was answered ------------------------------------------------------------------------------------------------


def _check_plain(headers: Mapping[str, str]) -> None:
    """Refuse what is compressed: a few bytes could fill the memory, and nobody asked for that."""
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise LookupFailed(
            f"the provider's answer is compressed by {coding[:_SHOWN_CHARACTERS]}, and nobody asked for it"
        )


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of the answer. One that says two things by one name says nothing certain."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise LookupFailed("the provider's answer has an object with two members of one name")
    return found


def _no_number(text: str) -> float:
    raise ValueError(text)  # JSON has no NaN and no infinity


def _take(body: bytearray, chunk: bytes) -> None:
    body += chunk
    if len(body) > ANSWER_BYTES_MAX:
        raise LookupFailed(f"the provider's answer is longer than {ANSWER_BYTES_MAX} bytes")


def _at(document: Any, path: str) -> Any:  # noqa: ANN401 - any part of a JSON document
    """What stands at a dotted path; ``None`` if nothing does."""
    for name in path.split(".") if path else ():
        if isinstance(document, Mapping):
            document = cast("Mapping[str, Any]", document).get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def _text(value: object) -> str | None:
    """A scalar as a template writes it."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _httpx() -> Any:  # noqa: ANN401 - a module
    try:
        import httpx  # noqa: PLC0415 - it needs the extra
    except ModuleNotFoundError as error:
        raise ImportError(not_installed("lookups need httpx", "lookups"), name=error.name) from error
    return httpx
