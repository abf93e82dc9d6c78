"""The demo: a payments service, a storm of clients, kills in mid-charge, and an account of what became of the money."""

from notwice.demo.command import main

__all__ = ["main"]
