"""Deterministic simulation: real guards in simulated processes, over virtual time, and whatever can break breaks.

``run(seed)`` runs the built-in scenario once, and `explore` many times: clients, programs, a provider and an operator,
under crashes, lost and late messages, pauses, outages and clock steps, all of it drawn from the seed. A scenario of
your own is a function of a `World`. What fails is made simpler by `shrink`, and drawn by `text_of` and `svg_of`.

It needs the extra ``simulate``.
"""

from notwice.testing.simulate.choices import Choices, Table
from notwice.testing.simulate.link import Road
from notwice.testing.simulate.process import Process
from notwice.testing.simulate.program import Program
from notwice.testing.simulate.recorder import Recorder
from notwice.testing.simulate.run import Mode, Run, explore, run
from notwice.testing.simulate.server import KeptStore
from notwice.testing.simulate.shrink import shrink
from notwice.testing.simulate.timeline import svg_of, text_of
from notwice.testing.simulate.weather import Fate, Weather
from notwice.testing.simulate.world import World

__all__ = [
    "Choices",
    "Fate",
    "KeptStore",
    "Mode",
    "Process",
    "Program",
    "Recorder",
    "Road",
    "Run",
    "Table",
    "Weather",
    "World",
    "explore",
    "run",
    "shrink",
    "svg_of",
    "text_of",
]
