"""Which function uses which scope: two functions on one would be given each other's answers.

A name alone does not tell functions apart. Two lambdas have one, and so have two functions of which the second takes
the first one's name while a router keeps both. Nor does the place of a definition, for a definition may run again: in
a loop, in a factory, or after an edit that has moved it, when its module is loaded anew. So there are three questions:

1. Are module and qualified name equal? If not, they are two functions.
2. Is the code equal? Then one definition has run twice. What else may differ (a closure, the object that a method is
   bound to) is no part of code: it has to be a part of the scope.
3. Were both compiled at once, as parts of one module? Then they stand side by side, and are two functions. If they
   were not, the later one is the earlier one after an edit. A lambda must stand in the same file for that, since no
   name says that one is meant to replace the other.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple


class Definition(NamedTuple):
    """A function that uses a scope. ``unit`` is the code that it was compiled with, as far as that was running."""

    name: str
    code: CodeType | None
    unit: CodeType | None

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.name} in line {self.code.co_firstlineno} of {self.code.co_filename}" if self.code else self.name

    def is_again(self, other: Definition) -> bool:
        """Whether this one is `other`, defined once more."""
        if self.name != other.name or self.code is None or other.code is None:
            return self.name == other.name
        if self.code == other.code:
            return True
        if _holds(self.unit, other.code) or _holds(other.unit, self.code):
            return False
        file = self.code.co_filename
        return self.code.co_name != "<lambda>" or (file == other.code.co_filename and not file.startswith("<"))


class Scopes:
    """The scope templates of a guard and its children, and who uses each."""

    __slots__ = ("_users",)

    def __init__(self) -> None:
        self._users: dict[str, Definition] = {}

    def note(self, scope: str, function: Callable[..., Any], *, shared: bool) -> None:
        """Note that `function` uses `scope`. Raises `ValueError` if another one does, unless that is `shared`."""
        this = _definition_of(function)
        other = self._users.setdefault(scope, this)
        if this.is_again(other):
            self._users[scope] = this
        elif not shared:
            one, another = (this.name, other.name) if this.name != other.name else (this.place, other.place)
            message = (
                f"the scope {scope!r} is used by {another} already: two functions with one scope would be given "
                f"each other's answers. Give {one} a scope of its own, or say shared_scope=True"
            )
            raise ValueError(message)


def _definition_of(function: Callable[..., Any]) -> Definition:
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Definition(name, code, _unit_of(code)) if isinstance(code, CodeType) else Definition(name, None, None)


def _unit_of(code: CodeType) -> CodeType | None:
    """The outermost code that is running now and that `code` is a part of: mostly its module's."""
    found, frame = None, _caller()
    while frame is not None:
        if _holds(frame.f_code, code):
            found = frame.f_code
        frame = frame.f_back
    return found


def _caller() -> FrameType | None:
    return sys._getframe().f_back


def _holds(outer: CodeType | None, code: CodeType) -> bool:
    """Whether `code` itself, and none that is equal to it, is a part of `outer`."""
    if outer is None or outer.co_filename != code.co_filename:
        return False
    parts = [part for part in outer.co_consts if isinstance(part, CodeType)]
    return any(part is code or _holds(part, code) for part in parts)
