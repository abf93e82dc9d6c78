"""Interrupts at every point where Python lets one in, one point after the other."""

from __future__ import annotations

import ctypes
import dis
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from types import CodeType, FrameType
from typing import Any

STORES = "notwice/stores"

_throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
_POINTS = ("CALL", "RESUME", "JUMP_BACKWARD", "FOR_ITER", "BEFORE_WITH")
_known: dict[CodeType, frozenset[int]] = {}


class Interrupted(BaseException):
    """What a signal handler, or another thread, throws in."""


def throw_into(thread: threading.Thread) -> None:
    """Have `thread` interrupted at the next point that it comes to."""
    _throw(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))


class Interruption:
    """Interrupts a call in this thread once, at the point of the given number in the code that is `within` a folder.

    ``~bomb`` throws without being a call or a function of Python's: so not there, but where Python itself would let an
    interrupt in. Functions whose name, by itself or with its class, is in `spared` are not interrupted.
    """

    def __init__(self, number: int, spared: Collection[str] = (), within: str = STORES) -> None:
        self._left = number
        self._spared = spared
        self._within = within
        arguments = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Interrupted)
        self._bomb: Any = type("Bomb", (), {"__invert__": staticmethod(partial(_throw, *arguments))})()
        self._spent: object = None
        self.where = ""
        self.caught: Interrupted | None = None  # kept, and with it all frames and what they hold

    def run(self, call: Callable[[], Any]) -> None:
        """Make the call. What it raises besides is raised."""
        before = sys.gettrace()
        try:
            sys.settrace(self._enter)
            try:
                call()
            finally:
                sys.settrace(before)
        except Interrupted as error:
            self.caught = error

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if self._within not in code.co_filename or not {code.co_name, code.co_qualname}.isdisjoint(self._spared):
            return None
        frame.f_trace_opcodes = True
        return self._look

    def _look(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "opcode" and frame.f_lasti in _points(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                self._spent = ~self._bomb
        return self._look


def interruptions(spared: Collection[str] = (), within: str = STORES) -> Iterator[Interruption]:
    """One for each point of a call that is made with each of them, until one comes too late."""
    number = 1
    while True:
        interruption = Interruption(number, spared, within)
        yield interruption
        if not interruption.where:
            return
        number += 1


def _points(code: CodeType) -> frozenset[int]:
    if code not in _known:
        _known[code] = frozenset(step.offset for step in dis.get_instructions(code) if step.opname.startswith(_POINTS))
    return _known[code]
