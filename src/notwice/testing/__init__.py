"""What a test of guarded code, or of a store, needs: shipped to users."""

from notwice.testing.clock import VirtualClock
from notwice.testing.faulty import AsyncFaultyStore, Fault, FaultPlan, FaultyStore, Pause, Slow, Trouble

__all__ = [
    "AsyncFaultyStore",
    "Fault",
    "FaultPlan",
    "FaultyStore",
    "Pause",
    "Slow",
    "Trouble",
    "VirtualClock",
]
