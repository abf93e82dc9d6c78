"""Client processes that are killed and stopped while they work on one store, and a judge of what they saw.

`torture` is for any engine that several processes can open: name its URL, or a function that opens it. Faults of the
engine itself (a server that is killed, a connection that is cut) come from an `Injector`.
"""

from notwice.testing.torture.plan import Injector, Plan
from notwice.testing.torture.run import torture
from notwice.testing.torture.verdict import Report

__all__ = ["Injector", "Plan", "Report", "torture"]
