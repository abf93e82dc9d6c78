"""What the decorator guards: which functions it takes, and how a call names its operation."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType
from typing import Any, Final, NamedTuple, TypeVar, cast, get_type_hints

from notwice.codec import check_encodable
from notwice.definitions import Scopes
from notwice.identity import fill_key, fill_scope, template_fields

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

_RECEIVERS = ("self", "cls")
_STILL_TO_RUN: Final = (GeneratorType, CoroutineType, AsyncGeneratorType)
_ITERATORS: Final[frozenset[type]] = frozenset(
    each
    for each in (map, filter, zip, enumerate, *vars(itertools).values())
    if isinstance(each, type) and issubclass(each, Iterator)
)
"""Iterators that compute nothing before they are asked for it: a mapped function has not been called once."""

_LAZY: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Named(NamedTuple):
    """What one call is, for the guard."""

    scope: Any
    key: Any
    request: object


class Target:
    """A function that is to be guarded. Raises `TypeError` for what can't be, with a sentence."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        scope: str | Callable[..., Any],
        key: str | Callable[..., Any],
        request: Callable[..., object] | None,
        asynchronous: bool,
    ) -> None:
        self._wrap: type | None = type(function) if isinstance(function, staticmethod | classmethod) else None
        self.function = cast("Callable[..., Any]", cast("Any", function).__func__ if self._wrap else function)
        _check_kind(self.function, asynchronous=asynchronous)
        self._scope = scope
        self._key = key
        self._request = request
        self._signature = inspect.signature(self.function)
        check_encodable(returned(self.function))
        for template in (scope, key):
            if isinstance(template, str):
                _check_fields(template, self._signature)

    def register(self, scopes: Scopes, *, shared: bool) -> None:
        """Note who uses this scope template. Raises `ValueError` if another function does, unless both share it."""
        if isinstance(self._scope, str):
            scopes.note(self._scope, self.function, shared=shared)

    def name(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> Named:
        """Name the operation of one call. Raises `TypeError` as the call would, `InvalidKey` or `EncodingError`."""
        bound = self._signature.bind(*args, **options)
        bound.apply_defaults()
        values = dict(bound.arguments)
        request = (
            {name: value for name, value in values.items() if name not in _RECEIVERS}
            if self._request is None
            else self._request(*args, **options)
        )
        return Named(
            fill_scope(self._scope, values) if isinstance(self._scope, str) else self._scope(*args, **options),
            fill_key(self._key, values) if isinstance(self._key, str) else self._key(*args, **options),
            request,
        )

    def dress(self, guarded: _F) -> _F:
        """Make `guarded` look like the function that it guards."""
        functools.update_wrapper(guarded, self.function)
        return guarded if self._wrap is None else self._wrap(guarded)


def refuse_lazy(function: Callable[..., Any], *, asynchronous: bool) -> None:
    """Raise `TypeError` for a function whose call does not run it: its effect would come after its operation's end.

    So, too, for what is no function: an operation that was begun for it would stay open, though nothing could run.
    """
    if type(function) is FunctionType and not function.__code__.co_flags & _LAZY and not function.__dict__:
        return  # a plain function, which nothing marks as another kind; the longer look takes microseconds
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner):
        message = (
            f"an object of the type {type(inner).__name__} can't be run: pass the function itself, and not what a call "
            "of it gave, for that call was not guarded"
        )
        raise TypeError(message)
    called = getattr(type(inner), "__call__", None)  # noqa: B004 - of an object that is called like a function
    kinds = (inner, called)
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in kinds):
        message = "a generator can't be guarded, for its effect has no end to record: guard a function that consumes it"
        raise TypeError(message)
    if any(map(inspect.iscoroutinefunction, kinds)) and not asynchronous:
        name = getattr(inner, "__qualname__", type(inner).__qualname__)
        message = f"{name} is a coroutine function, which a plain guard can't run: use AsyncGuard"
        raise TypeError(message)


def isawaitable(value: object) -> bool:
    """Whether `value` is to be awaited, by its type alone: what a value says of itself may be anything."""
    return hasattr(type(value), "__await__")


def computed(value: _T) -> _T:
    """Give what a handler returned. Raises `TypeError` if that is still to run: the operation is then suspended."""
    kind = type(value)
    if issubclass(kind, _STILL_TO_RUN) or kind in _ITERATORS or isawaitable(value):
        if issubclass(kind, CoroutineType):
            cast("Coroutine[Any, Any, Any]", value).close()
        message = f"the handler returned a {kind.__name__} that has not run; return its result instead"
        message += ", as a list of it" if kind in _ITERATORS else ""
        raise TypeError(message)
    return value


def _check_kind(function: Callable[..., Any], *, asynchronous: bool) -> None:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if inspect.isclass(inner) or not callable(inner):
        message = "only functions and methods can be guarded: decorate the method that has the effect"
        raise TypeError(message)
    call = inner if inspect.isroutine(inner) else type(inner).__call__
    refuse_lazy(call, asynchronous=True)
    if inspect.iscoroutinefunction(call) != asynchronous:
        kind, guard = ("plain function", "Guard") if asynchronous else ("coroutine function", "AsyncGuard")
        message = f"this is a {kind}: decorate it with a guard of the class {guard}"
        raise TypeError(message)


def _check_fields(template: str, signature: inspect.Signature) -> None:
    for name in template_fields(template):
        if name not in signature.parameters:
            message = (
                f"the template {template!r} asks for {name!r}, which is not among {', '.join(signature.parameters)}"
            )
            raise TypeError(message)


def returned(function: Callable[..., Any]) -> object:
    """What `function` is annotated to return; anything, where that is not said or not known yet."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    try:
        hints = get_type_hints(inner if inspect.isroutine(inner) else type(inner).__call__)
    except (NameError, AttributeError, TypeError):
        return Any
    return hints.get("return", Any)
