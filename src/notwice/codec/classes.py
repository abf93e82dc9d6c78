"""Objects of classes with fields, as their class's name and their fields, and back without calling the class.

A class is known by ``module:qualified name``. It is only ever looked up among the modules that are imported already,
step by step in their own dictionaries, and must be of the kind that is asked for. So a name that was tampered with
leads to nothing that runs: not to an import, not to a module's ``__getattr__``, not to an initialiser.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from types import ModuleType
from typing import Any, cast

from notwice.canonical import is_model
from notwice.errors import EncodingError


def name_of(cls: type) -> str:
    """Give the name under which `class_named` finds a class. Raises `EncodingError` if it would not."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _found(name) is not cls:
        raise EncodingError(
            f"the class {name} can't be found again by its name; define it at the top level of a module"
        )
    return name


def class_named(name: str, kind: Callable[[type], bool]) -> type[Any]:
    """Give the class of a name. Raises `EncodingError` if it is not there, or not of that kind."""
    found = _found(name)
    if found is None or not kind(found):
        module = name.partition(":")[0]
        raise EncodingError(
            f"the stored value is of the class {name}, which is not there; import {module} before reading it"
        )
    return found


def refusal_of(cls: type) -> EncodingError:
    """Give the error for a class whose values can't be kept."""
    return EncodingError(
        f"a value of type {cls.__module__}.{cls.__qualname__} can't be stored without loss; return built-in values, "
        "dates, Decimals, UUIDs, Enum members, dataclasses, named tuples or pydantic models made of these"
    )


def _found(name: str) -> type[Any] | None:
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for step in path.split("."):
        if not isinstance(found, (ModuleType, type)):
            return None
        found = vars(found).get(step)
    return found if isinstance(found, type) else None


# --- kinds of classes -----------------------------------------------------------------------------------------------


def is_enum(cls: type) -> bool:
    """Say whether it is an Enum."""
    return issubclass(cls, Enum)


def is_record(cls: type) -> bool:
    """Say whether it is a dataclass whose objects are made of their fields alone."""
    return is_dataclass(cls) and cls.__new__ is object.__new__


def is_named_tuple(cls: type) -> bool:
    """Say whether it is a named tuple that adds no base of its own."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def is_stateful_model(cls: type) -> bool:
    """Say whether it is a pydantic model, of version 1 or 2, that gives and takes its state."""
    return is_model(cls) and hasattr(cls, "__getstate__") and hasattr(cls, "__setstate__")


# --- dataclasses ----------------------------------------------------------------------------------------------------


def record_fields(value: object) -> dict[object, object]:
    """Give a dataclass's fields by name."""
    return {field.name: getattr(value, field.name) for field in fields(cast("Any", value))}


def record_of(cls: type[Any], stored: Mapping[object, object]) -> object:
    """Make a dataclass of its fields. A field that was not stored gets its default."""
    known = {field.name: field for field in fields(cls)}
    if not stored.keys() <= known.keys():
        gone = sorted(map(str, stored.keys() - known.keys()))
        raise EncodingError(
            f"the stored {cls.__qualname__} has the fields {gone}, which the class has lost; give them back"
        )
    value = object.__new__(cls)
    for name, field in known.items():
        object.__setattr__(value, name, stored[name] if name in stored else _default(cls, field))
    return value


def _default(cls: type, field: Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise EncodingError(
        f"the stored {cls.__qualname__} has no {field.name}, which the class asks for; give it a default"
    )


# --- named tuples and models ----------------------------------------------------------------------------------------


def named_tuple_of(cls: type[Any], stored: Mapping[object, object]) -> object:
    """Make a named tuple of its fields. A field that was not stored gets its default."""
    names: tuple[str, ...] = cls._fields
    defaults: Mapping[str, object] = getattr(cls, "_field_defaults", {})
    missing = [name for name in names if name not in stored and name not in defaults]
    if missing or not stored.keys() <= set(names):
        raise EncodingError(f"the stored {cls.__qualname__} has other fields than the class; give new ones a default")
    return tuple.__new__(cls, [stored[name] if name in stored else defaults[name] for name in names])


def model_state(value: Any) -> object:  # noqa: ANN401 - a pydantic model, known by its methods only
    """Give a pydantic model's state; what was cached on it is left out."""
    state = value.__getstate__()
    known = getattr(type(value), "model_fields", None)
    if known is not None and isinstance(state, dict) and isinstance(state.get("__dict__"), dict):
        state = {**state, "__dict__": {name: item for name, item in state["__dict__"].items() if name in known}}
    return state


def model_of(cls: Any, state: object) -> object:  # noqa: ANN401 - a class of models, known by its methods only
    """Make a pydantic model of its state, as copying it would: nothing is validated again."""
    value = cls.__new__(cls)
    value.__setstate__(state)
    return value
