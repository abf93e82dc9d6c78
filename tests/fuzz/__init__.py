"""Hostile input: each parser of what others send or store, with an oracle that says more than "it did not crash"."""
