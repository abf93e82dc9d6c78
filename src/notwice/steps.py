"""The steps of an operation: what each is called, which are done, and when a new one may run.

A step runs once, its result is kept in the record, and a recovered operation is given that result in its place. For
this each call of a step must find its own result again, whatever the order in which branches come to it:

**Names.** The n-th call of a name that returned is its occurrence n: ``pay``, ``pay#2``, ``pay#3``. A call that raised
leaves no result, so the next call of that name is the same step once more, with the same downstream key. Within a step,
names stand below it, ``trip/hotel``, and are counted anew by each call of it: where ``trip`` raised after its hotel,
its next call is given that hotel, as a recovered one is. Two unfinished steps of one name would be told apart by
nothing but chance: the second is refused, and parallel branches give their steps names of their own.

**Order.** A step is kept before its call returns, so whatever it was called after is kept as well, or still runs around
it. Hence a handler that is as it was asks for every kept step without the help of a new one: *no new step runs while a
kept one has not been asked for again*. A new step waits for that, since a branch beside it may be about to ask; where
nobody can be, and when a whole lease has gone, the steps have changed since the earlier attempt, and it is refused.
Nobody can be where both the new step and a kept one are called by the task or thread that runs the handler.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Final, Protocol, cast
from uuid import UUID

from notwice.codec import encode_step, is_step_at_home
from notwice.errors import StepRunning, StepsChanged

NAME_CHARACTERS_MAX: Final = 255
NAMES_TOLD: Final = 3

_RESERVED: Final = re.compile(r"[\\/#]")
_CURRENT: Final[contextvars.ContextVar[Step]] = contextvars.ContextVar("notwice_step")

Progress = tuple[tuple[str, bytes], ...]


class Derives(Protocol):
    """The operation that a step belongs to."""

    @property
    def operation(self) -> str:
        """Its id."""
        ...

    def downstream_key(self, name: str = "") -> str:
        """A key for the next system."""
        ...

    def downstream_uuid(self, name: str = "") -> UUID:
        """The same as a UUID."""
        ...


def current_step() -> Step:
    """The step whose function runs. Raises `LookupError` outside of one."""
    try:
        return _CURRENT.get()
    except LookupError:
        message = "no step is running here: call this from a function that was given to `step`"
        raise LookupError(message) from None


class Step:
    """One call of a step. `current_step` gives it to the function that runs.

    ``label`` is its name among all steps of the operation: ``pay``, ``pay#2``, ``trip/hotel``; a slash, a number sign
    or a backslash that is part of a name has a backslash before it.
    """

    __slots__ = ("_around", "_counts", "_data", "_owner", "_path", "_siblings", "_token", "_value", "label")

    def __init__(self, owner: Derives, path: str, label: str, *, around: Step | None) -> None:
        self._owner = owner
        self._path = path
        self.label = label
        self._around = around
        """The step whose function calls it, be it another operation's."""
        self._siblings: dict[str, int] = {}
        """How many calls of each name have returned within the call around this one, by path."""
        self._counts: dict[str, int] = {}
        """The same within this call."""
        self._data: bytes | None = None
        """Its result as it is kept; ``None``: it has none yet."""
        self._value: object = None

    def downstream_key(self) -> str:
        """A key for the next system, the same for every attempt: that of ``operation.downstream_key(label)``."""
        return self._owner.downstream_key(self.label)

    def downstream_uuid(self) -> UUID:
        """The same as `downstream_key`, for systems that take a UUID."""
        return self._owner.downstream_uuid(self.label)

    def __enter__(self) -> None:
        self._token = _CURRENT.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CURRENT.reset(self._token)


class Steps:
    """What one attempt knows of its operation's steps. Threads and tasks may share it.

    `home` is the task or thread that runs the handler.
    """

    def __init__(self, owner: Derives, progress: Progress, *, home: object) -> None:
        self._owner = owner
        self._home = home
        self._kept = dict(progress)
        self._unasked = {
            label: at_home
            for label, data in progress
            if (at_home := is_step_at_home(data)) is not None and not self._is_below_a_kept_one(label)
        }
        self._counts: dict[str, int] = {}
        self._running: set[str] = set()
        self._unwritten: dict[str, Step] = {}
        self._wakes: list[Callable[[], None]] = []
        self._changed = False
        self._lock = threading.Lock()

    def open(self, name: str) -> Step:
        """Begin the call of a step. Raises `StepRunning` while one of its name runs, and `ValueError` for no name."""
        if not isinstance(cast("object", name), str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            message = f"a step is named by a text of 1 to {NAME_CHARACTERS_MAX} characters, not by {name!r}"
            raise ValueError(message)
        around = caller = _CURRENT.get(None)
        while around is not None and around._owner is not self._owner:
            around = around._around
        path = _RESERVED.sub(r"\\\g<0>", name)
        path, counts = (path, self._counts) if around is None else (f"{around.label}/{path}", around._counts)
        with self._lock:
            if path in self._running:
                raise StepRunning(path, operation=self._owner.operation)
            self._running.add(path)
            count = counts.get(path, 0) + 1
            label = path if count == 1 else f"{path}#{count}"
            self._unasked.pop(label, None)
            step = self._unwritten.get(label) or Step(self._owner, path, label, around=caller)
            step._siblings = counts  # one that was not written may be of an earlier call around it
            step._data = step._data if step._data is not None else self._kept.get(label)
        self._wake()
        return step

    def _is_below_a_kept_one(self, label: str) -> bool:
        """Whether a step ran within one that is done, and ended after it: nothing will ask for it again."""
        return any(label[:place] in self._kept for place, character in enumerate(label) if character == "/")

    def is_kept(self, step: Step) -> bool:
        """Whether it is done: by an earlier attempt, or by an earlier call of the step around it."""
        return step.label in self._kept

    def ran(self, step: Step, value: object, *, lane: object) -> None:
        """Keep what a step's function gave, for this attempt to write. Raises `EncodingError` if it can't be kept."""
        step._data = encode_step(value, at_home=lane == self._home)
        step._value = value
        with self._lock:
            self._unwritten[step.label] = step

    def returned(self, step: Step) -> None:
        """The step has given its result: the next call of its name is another one."""
        with self._lock:
            step._siblings[step._path] = step._siblings.get(step._path, 0) + 1
            self._unwritten.pop(step.label, None)
            self._kept[step.label] = step._data or b""
            if step._counts:  # what ran within it is part of it now
                for label in [label for label in self._kept if label.startswith(f"{step.label}/")]:
                    del self._kept[label]

    def checkpointed(self, point: str, data: bytes) -> None:
        """A checkpoint says that the step of its name is done, in this attempt as in the next."""
        with self._lock:
            self._kept[point] = data

    def close(self, step: Step) -> None:
        """End the call of a step, whatever came of it."""
        with self._lock:
            self._running.discard(step._path)

    # -- what has changed

    def must_wait(self, step: Step, *, lane: object) -> bool:
        """Whether a new step may not run yet. Raises `StepsChanged` if it never may."""
        with self._lock:
            if self._changed:
                raise self._refusal(step.label)
            below = f"{step.label}/"
            if not self._unasked or any(label.startswith(below) for label in self._kept):
                return False
            if lane == self._home and any(self._unasked.values()):
                raise self._refusal(step.label)
            return True

    def refuse(self, step: Step) -> StepsChanged:
        """Give up waiting: no new step may run in this attempt."""
        with self._lock:
            refusal = self._refusal(step.label)
        self._wake()
        return refusal

    def check_all_asked(self) -> None:
        """Raise `StepsChanged` if the handler ends without having asked for every step that is kept."""
        with self._lock:
            if self._changed or self._unasked:
                raise self._refusal("")

    def _refusal(self, label: str) -> StepsChanged:
        self._changed = True
        return StepsChanged(label, list(self._unasked)[:NAMES_TOLD], operation=self._owner.operation)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Generator[None]:
        """Have `wake` called each time a step was asked for."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def _wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()
