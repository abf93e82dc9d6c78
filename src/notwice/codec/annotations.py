"""Whether what a handler says that it returns can be kept: to be asked before it runs for the first time."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from notwice.codec import classes
from notwice.codec.values import BUILT_IN

_CLASSES = (classes.is_enum, classes.is_stateful_model, classes.is_record, classes.is_named_tuple)


def check_encodable(hint: object) -> None:
    """Refuse an annotation that only values which can't be stored would fit.

    `hint` is a class or any other annotation, such as the one of a function's return value. What can't be told from it
    (``Any``, ``object``, protocols, abstract classes, names in quotes) is let pass: `encode_value` decides then.

    Raises `EncodingError`, which names the class, if `encode_value` would refuse every value of the annotation or of
    a part of it.
    """
    _check(hint, frozenset())


def _check(hint: object, seen: frozenset[object]) -> None:
    """Check an annotation and its parts; `seen` are the classes whose fields are being looked at."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return
    if origin is typing.Annotated:
        _check(typing.get_args(hint)[0], seen)
    elif origin is not None:
        _check_class(origin, seen)
        for part in typing.get_args(hint):
            _check(part, seen)
    elif isinstance(hint, type):
        _check_class(hint, seen)


def _check_class(cls: Any, seen: frozenset[object]) -> None:  # noqa: ANN401 - a class, or a special form of typing
    if cls in BUILT_IN or cls in seen or not isinstance(cls, type) or _says_nothing(cls):
        return
    if not typing.is_typeddict(cls):
        if not any(kind(cls) for kind in _CLASSES):
            raise classes.refusal_of(cls)
        classes.name_of(cls)
    for hint in _field_hints(cls):
        _check(hint, seen | {cls})


def _says_nothing(cls: type) -> bool:
    """Say whether values of very different classes fit: then only the value itself can tell."""
    if cls in {object, Any, types.UnionType}:
        return True
    if issubclass(cls, (Iterator, AsyncIterator)):
        return False
    return inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)


def _field_hints(cls: type) -> list[object]:
    """Give the annotations of a class's fields, as far as they can be read."""
    if is_dataclass(cls):
        names = [field.name for field in fields(cls)]
    elif typing.is_typeddict(cls):
        names = list(cls.__annotations__)
    else:
        names = list(getattr(cls, "_fields", ()))
    try:
        hints = typing.get_type_hints(cls) if names else {}
    except Exception:  # noqa: BLE001 - an annotation may name anything, and evaluating it may raise anything
        return []
    return [hints[name] for name in names if name in hints]
