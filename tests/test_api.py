"""The public API is what `tests/api.txt` says; a change of it is made on purpose.

`python -m tests.test_api --update` writes the file anew.
"""

import difflib
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ForwardRef

import pytest

SNAPSHOT = Path(__file__).parent / "api.txt"
UPDATE = "python -m tests.test_api --update"

# What users import from. All other modules are internal.
PUBLIC = [
    *("", "http", "http.asgi", "http.wsgi", "lookups", "recovery", "stores", "testing", "testing.auditor"),
    *("testing.conformance", "testing.history", "testing.linearizable", "testing.torture"),
]

EMPTY = inspect.Parameter.empty
PLAIN = (str, int, float, bool, tuple, type(None))


class Written:
    """A text that a signature shows as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def as_written(annotation: object) -> object:
    """An annotation as its author wrote it, without the quotes."""
    text = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else annotation
    return Written(text) if isinstance(text, str) else text


def simplified(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose default, unless it is a plain value, is only said to be there."""
    default = (
        parameter.default if parameter.default is EMPTY or isinstance(parameter.default, PLAIN) else Written("...")
    )
    return parameter.replace(annotation=as_written(parameter.annotation), default=default)


def signature(function: object) -> str:
    try:
        found = inspect.signature(function)  # type: ignore[arg-type]  # what has no signature is answered below
    except (TypeError, ValueError):
        return "(...)"
    parameters = [simplified(parameter) for parameter in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=as_written(found.return_annotation)))


def members(cls: type) -> Iterator[tuple[str, object]]:
    """The public members of a class that are defined in this package, its own before its bases'."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("notwice"):
            continue
        for name, value in vars(base).items():
            if not name.startswith(("_", "test_")) and name not in seen:  # the suite's cases are no one's to call
                seen.add(name)
                yield name, value


def described_member(name: str, value: object) -> str:
    match value:
        case property():
            return f"{name}: {signature(value.fget).rpartition(' -> ')[2]}"
        case classmethod() | staticmethod():
            return f"{name}{signature(value.__func__)}"
        case _ if inspect.isroutine(value):
            return f"{'async ' if inspect.iscoroutinefunction(inspect.unwrap(value)) else ''}{name}{signature(value)}"
        case _:
            return name


def described_class(name: str, cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}({bases})"
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
        return
    if not issubclass(cls, BaseException):
        yield f"    __init__{signature(cls)}"
    yield from sorted(f"    {described_member(member, value)}" for member, value in members(cls))


def described(name: str, value: object) -> Iterator[str]:
    if inspect.isclass(value):
        yield from described_class(name, value)
    elif inspect.isroutine(value):
        yield f"{'async ' if inspect.iscoroutinefunction(inspect.unwrap(value)) else ''}{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def imported(short: str) -> ModuleType:
    return importlib.import_module(f"notwice.{short}".rstrip("."))


def api() -> str:
    """The public API as text: for each public module its names, with signatures and members."""
    lines: list[str] = []
    for module in map(imported, PUBLIC):
        lines += ["", f"# {module.__name__}", ""]
        for name in sorted(module.__all__):
            lines += described(name, getattr(module, name))
    return "\n".join(lines).strip() + "\n"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python print annotations differently")
def test_the_public_api_is_the_one_that_was_written_down() -> None:
    """No public name, signature or member appears, changes or goes without a change of the snapshot."""
    kept, now = SNAPSHOT.read_text(encoding="utf-8").splitlines(), api().splitlines()
    difference = "\n".join(difflib.unified_diff(kept, now, "tests/api.txt", "now", lineterm=""))
    assert not difference, f"the public API changed; if that is meant, run: {UPDATE}\n{difference}"


@pytest.mark.parametrize("short", PUBLIC)
def test_each_public_name_exists_and_is_named_once(short: str) -> None:
    """`__all__` of a public module names only what is there, each name once, none of it underscored."""
    module = imported(short)
    names = list(module.__all__)
    assert len(names) == len(set(names))
    assert [
        name for name in names if not hasattr(module, name) or (name.startswith("_") and name != "__version__")
    ] == []


if __name__ == "__main__" and "--update" in sys.argv:
    SNAPSHOT.write_text(api(), encoding="utf-8")
