"""A program of a simulated service: whenever its process dies, another one is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from notwice.testing.simulate.choices import Table
from notwice.testing.simulate.faces import Face
from notwice.testing.simulate.process import Process

if TYPE_CHECKING:
    from notwice.testing.simulate.world import World

_DOWN_S: Final = Table((0.5, 3), (2.0, 2), (12.0, 1))


class Program:
    """Runs as one process at a time, with a guard of its own in each.

    Arguments:
        world: where it runs.
        name: of the program; its processes are called ``name.1``, ``name.2`` and so on.
        face: makes the guard of a process that has just started.
    """

    def __init__(self, world: World, name: str, face: Callable[[Process], Face]) -> None:
        self.world: Final = world
        self.name: Final = name
        self.process: Process | None = None
        self._make_face = face
        self._starts = 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        self.process = process = Process(self.world, f"{self.name}.{self._starts}")
        process.on_death = self._died
        self.face: Face = self._make_face(process)

    def _died(self) -> None:
        self.process = None
        self.world.after(self.world.choices.of(_DOWN_S), None, self._start)
